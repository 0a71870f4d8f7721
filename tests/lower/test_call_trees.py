"""Calls in one pass: what they read and give is what the general way reads and gives."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from eqsynth.errors import EqsynthError
from eqsynth.lower.call_trees import Calls
from eqsynth.lower.calling import Fixed, SavedCalling, bound
from eqsynth.lower.holders import Opening, holds


class Layer:
    def __init__(self, seen: int = 3) -> None:
        self.keys, self.seen = torch.arange(4.0), seen


@dataclass
class Cache:
    layers: list[Layer] = field(default_factory=lambda: [Layer(), Layer()])
    kind: type = float


Point = namedtuple("Point", "x y")  # noqa: PYI024
X, Y = torch.ones(2), torch.zeros(3)


def plain(x, y=None, scale=2.0, *rest, flag=True, **more):  # type: ignore[no-untyped-def]
    """Signatures of the cases; what is computed doesn't matter here."""


def cached(x, cache, again=None):  # type: ignore[no-untyped-def]
    """A call that changes its cache."""


def calling_of(function: Any, args: Any, kwargs: Any, result: Any, grown: Any) -> SavedCalling:
    """The convention of a program that was captured with this call."""
    signature, call = inspect.signature(function), Opening()
    tree = bound(signature, *call.opened((args, kwargs)), frozenset(kwargs))
    count = len(call.objects)
    leaves, spec = tree_flatten(tree)
    numbers = iter(range(len(leaves)))
    places = [next(numbers) if isinstance(x, Tensor) else Fixed(x) for x in leaves]
    opened = call.opened(result)
    grown()
    out, out_spec = tree_flatten((opened, call.states(count)) if count else opened)
    outputs = iter(range(len(out)))
    given = [next(outputs) if isinstance(x, Tensor) else Fixed(x) for x in out]
    return SavedCalling(tuple(places), tuple(given), signature, spec, out_spec)


def outcome(calls: Calls, args: Any, kwargs: Any) -> Any:
    """The inputs, the result and the arguments afterwards; or the error."""
    args, kwargs = copy.deepcopy((args, kwargs))
    opens = True
    try:
        values, finish = calls.begin(args, kwargs, opens)
    except EqsynthError as error:
        return str(error)
    outputs = [torch.full((2,), float(n)) for n in range(20)]
    seen = Opening().opened((list(values), finish(outputs), args, kwargs))
    leaves, spec = tree_flatten(seen)
    return spec, [x.tolist() if isinstance(x, Tensor) else x for x in leaves]


def ways(calling: SavedCalling) -> tuple[Calls, Calls]:
    quick, general = Calls(calling), Calls(calling)
    general._read = None
    return quick, general


CACHE = Cache()


def grow() -> None:
    for layer in CACHE.layers:
        layer.seen += 1
        vars(layer)["last"] = torch.ones(1)


# A call that was captured, and others; those under "like" are read in one pass.
CASES: dict[str, tuple[Callable[..., Any], Any, Any, Any, dict[str, list[Any]]]] = {
    "plain": (plain, (X,), {"y": Y}, {"out": X, "more": (Y, 3)}, {
        "like": [
            ((X,), {"y": Y}), ((Y, X), {}), ((), {"x": X, "y": Y}), ((), {"y": Y, "x": X}),
            ((X, Y, 2.0), {}), ((X,), {"y": Y, "flag": True}), ((X, Y), {"scale": 2.0}),
        ],
        "other": [
            ((X,), {}), ((X, None), {}), ((X, Y, 3.0), {}), ((X, Y, 2.0, X), {}), ((X, [Y]), {}),
            ((X, Y), {"flag": False}), ((X, Y), {"z": X}), ((), {}), ((X, Y), {"y": Y}),
            ((X, 1), {}), ((Cache(), Y), {}),
        ],
    }),
    "containers": (plain, ([X, (Y, 1)], {"a": X, "b": Point(X, Y)}), {"flag": "text", "z": X},
                   Point(X, OrderedDict(a=Y)), {
        "like": [(([Y, (X, 1)], {"a": Y, "b": Point(Y, X)}), {"flag": "text", "z": Y})],
        "other": [
            ((([X, (Y, 1)]), {"b": Point(X, Y), "a": X}), {"flag": "text", "z": X}),
            (((X, (Y, 1)), {"a": X, "b": Point(X, Y)}), {"flag": "text", "z": X}),
            (([X, (Y, 1)], {"a": X, "b": (X, Y)}), {"flag": "text", "z": X}),
            (([X, (Y, 2)], {"a": X, "b": Point(X, Y)}), {"flag": "text", "z": X}),
            (([X, (Y, True)], {"a": X, "b": Point(X, Y)}), {"flag": "text", "z": X}),
            (([X, (Y,)], {"a": X, "b": Point(X, Y)}), {"flag": "text", "z": X}),
            (([X, (Y, 1)], {"a": X}), {"flag": "text", "z": X}),
        ],
    }),
    "a cache": (cached, (X, CACHE), {}, (X, CACHE, Layer()), {
        "like": [((Y, Cache()), {}), ((X,), {"cache": Cache(), "again": None})],
        "other": [
            ((X, Cache([Layer(), Layer(4)])), {}), ((X, Cache([Layer()] * 2)), {}),
            ((X, Cache([Layer()])), {}), ((X, Cache(kind=int)), {}), ((X, Layer()), {}),
            ((X, X), {}), ((X, Cache(), X), {}),
        ],
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_pass_does_what_the_general_way_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, args, kwargs, result, calls = CASES[name]
    calling = calling_of(function, args, kwargs, result, grow if holds(args) else lambda: None)
    quick, general = ways(calling)
    for call in (*calls["like"], *calls["other"]):
        assert outcome(quick, *call) == outcome(general, *call), call
    monkeypatch.setattr(SavedCalling, "bind", None)
    for call in calls["like"]:
        assert isinstance(outcome(quick, *call), tuple), call


def test_one_object_twice_is_not_two() -> None:
    args = (X, Cache(), Cache())
    calling = calling_of(cached, args, {}, X, lambda: None)
    shared = Cache()
    for call in (((X, shared, shared), {}), ((X, Cache(), Cache()), {})):
        quick, general = ways(calling)
        assert outcome(quick, *call) == outcome(general, *call)
    layer = Layer()
    calling = calling_of(cached, (X, Cache([layer, layer])), {}, X, lambda: None)
    for layers in ([layer, layer], [layer, Layer()]):
        quick, general = ways(calling)
        call = ((X, Cache(layers)), {})
        assert outcome(quick, *call) == outcome(general, *call)


def test_what_a_program_makes_is_left_opened_where_nobody_opens() -> None:
    """The check compares results as trees, of the original and of the program."""
    calling = calling_of(plain, (X,), {}, Layer(), lambda: None)
    results = [calls.begin((X,), {}, False)[1]([Y]) for calls in ways(calling)]
    assert tree_flatten(results[0])[1] == tree_flatten(results[1])[1]
    made = Calls(calling).begin((X,), {}, True)[1]([Y])
    assert type(made) is Layer and made.keys is Y and made.seen == 3
