"""Objects that hold tensors, among the arguments and results of a program."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from eqsynth import running
from eqsynth.errors import EqsynthError
from eqsynth.extract.timing import Timing
from eqsynth.frontend.steady import check_steady
from eqsynth.lower.holders import (
    Held,
    Opened,
    Opening,
    Same,
    holds,
    inside,
    opened_module,
)
from eqsynth.pipeline import optimize
from eqsynth.race import Race


class Layer:
    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.calls = 0

    def update(self, x: Tensor) -> Tensor:
        self.keys = x if self.keys is None else torch.cat([self.keys, x])
        self.calls += 1
        return self.keys


class Cache:
    """As language models have it: its layers grow with each call."""

    def __init__(self, count: int = 2) -> None:
        self.layers = [Layer() for _ in range(count)]
        self.dtype = torch.float32


@dataclass(frozen=True)
class Result:
    y: Tensor
    cache: Cache
    loss: Tensor | None = None


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Result:
        cache = Cache() if cache is None else cache
        for layer in cache.layers:
            x = x + layer.update(self.down(self.up(x))).sum(0)
        return Result(x, cache)


X = torch.linspace(-1, 1, 12).reshape(3, 4)


def doubled(tree: Any) -> Any:
    """Opened, with every tensor doubled, and closed."""
    call = Opening()
    twice = tree_map(lambda x: 2 * x if isinstance(x, Tensor) else x, call.opened(tree))
    return Opening().closed(twice)


def test_an_object_is_a_tree_and_an_object_again() -> None:
    cache = Cache(1)
    cache.layers[0].update(X)
    opened = Opening().opened({"cache": cache, "x": X})
    assert isinstance(opened["cache"], Held) and opened["x"] is X
    leaves, spec = tree_flatten(opened)
    assert len(leaves) == 2 and all(leaf is X for leaf in leaves)
    made = doubled(cache)
    assert type(made) is Cache and made is not cache and made.layers is not cache.layers
    assert torch.equal(made.layers[0].keys, 2 * X) and cache.layers[0].keys is X
    assert made.layers[0].calls == 1 and made.dtype is torch.float32
    # What is no tensor belongs to the structure.
    other = copy.deepcopy(cache)
    assert tree_flatten(Opening().opened({"cache": other, "x": X}))[1] == spec
    other.layers[0].calls = 2
    assert tree_flatten(Opening().opened({"cache": other, "x": X}))[1] != spec


def test_objects_that_are_one_stay_one() -> None:
    cache = Cache(1)
    cache.layers.append(cache.layers[0])
    cache.owner = cache  # type: ignore[attr-defined]
    first, second = Opening().opened((cache, cache.layers[0]))
    assert isinstance(first, Held) and second == Same(1)
    one, layer = doubled((cache, cache.layers[0]))
    assert one.owner is one and one.layers[0] is one.layers[1] is layer


class Locked:
    def __init__(self) -> None:
        self.x, self.lock = X, threading.Lock()


class Slots:
    __slots__ = ("x",)


class Items(dict[str, Tensor]):
    pass


@pytest.mark.parametrize("value", [Locked(), Slots(), Items(x=X), nn.Identity(), threading, len])
def test_what_is_more_than_its_attributes_stays_as_it_is(value: object) -> None:
    tree = Opening().opened([Cache(), value])
    assert isinstance(tree[0], Held) and tree[1] is value
    assert not holds([X, value, 3, None])


def test_an_object_with_something_unknown_is_forgotten_with_all_that_it_holds() -> None:
    locked = Locked()
    locked.cache = Cache()  # type: ignore[attr-defined]
    call = Opening()
    tree = call.opened([locked, Cache(1)])
    assert tree[0] is locked and tree[1].number == 0 and len(call.objects) == 2


def test_an_opened_module_has_the_names_of_the_other_and_calls_its_hooks_once() -> None:
    model = Model().eval()
    seen: list[type] = []
    model.register_forward_pre_hook(lambda _, args: seen.append(type(args[0])))
    opened = opened_module(model)
    assert inside(opened) is model and inside(model) is model and not opened.training
    assert [name for name, _ in opened.named_parameters()] == [
        name for name, _ in model.named_parameters()
    ]
    assert all(p is q for p, q in zip(opened.parameters(), model.parameters(), strict=True))
    result = opened(X)
    assert isinstance(result, Held) and result.kind is Result and seen == [Tensor]
    apart = copy.deepcopy(opened)
    with torch.no_grad():
        inside(apart).up.weight.zero_()  # type: ignore[union-attr, operator]
    assert not apart.up.weight.any() and model.up.weight.any()
    torch.testing.assert_close(apart(X).values[0], inside(apart)(X).y)


def test_a_cache_in_the_arguments_does_not_change_while_a_module_is_looked_at() -> None:
    cache = Cache()
    model = Model().eval()
    with torch.no_grad():
        model(X, cache)
    call = Opening()
    args, kwargs = call.opened(((X,), {"cache": cache}))
    opened = opened_module(model)
    check_steady(opened, args, kwargs)
    assert isinstance(opened, Opened)
    assert cache.layers[0].calls == 1 and cache.layers[0].keys.shape == (3, 4)  # type: ignore[union-attr]


def same(got: Any, expected: Any) -> None:
    left, right = (tree_flatten(Opening().opened(tree)) for tree in (got, expected))
    assert left[1] == right[1]
    for one, other in zip(left[0], right[0], strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
def test_a_program_makes_objects_and_changes_those_that_it_is_given() -> None:
    model = Model().eval().requires_grad_(False)
    first = optimize(model, (X,), objective="flops", time_limit_s=600, engines=())
    assert first.original is None
    assert first.report.flops_after < first.report.flops_before
    begun, expected = first(X + 1), model(X + 1)
    same(begun, expected)
    assert type(begun) is Result and begun.loss is None
    assert begun.cache is not first(X).cache

    cache = begun.cache
    step = optimize(
        model, (X,), example_kwargs={"cache": cache}, objective="flops", time_limit_s=600,
        engines=(),
    )
    assert step.original is None
    same(cache, expected.cache)  # as it was
    layers, layer = cache.layers, cache.layers[0]
    result = step(X, cache=cache)
    assert result.cache is cache and cache.layers is layers and layers[0] is layer
    same(result, model(X, expected.cache))
    with pytest.raises(EqsynthError) as caught:
        step(X, cache=cache)  # which is longer now
    assert caught.value.expected
    same(cache, expected.cache)


@pytest.mark.rotating
def test_a_race_calls_both_as_the_user_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The original without what opens objects, the program with it, each with a cache of its own:
    else opening, which only the program has to do, was counted to the original alone."""
    calls = []

    def raced(original: Any, compiled: Any, **_: object) -> Race:
        calls.extend((original(), original(), compiled()))
        return Race(Timing(2.0, 2.0, 2.0, 9), Timing(1.0, 1.0, 1.0, 9))

    monkeypatch.setattr(running, "race", raced)
    given = Cache(1)
    program = optimize(Model().eval(), (X, given), engines=(), time_limit_s=60.0)
    assert program.original is None
    for result in calls:
        assert type(result) is Result and result.cache.layers[0].calls == 1
        torch.testing.assert_close(result.y, calls[0].y)
    assert len({id(given), *(id(result.cache) for result in calls)}) == 4
    assert given.layers[0].keys is None
