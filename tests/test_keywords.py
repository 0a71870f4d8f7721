"""Arguments by name: capture, check and calls take them as the module does."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import eqsynth
from eqsynth.errors import EqsynthError
from eqsynth.frontend.captured import Captured
from eqsynth.frontend.examples import any_order, arguments
from eqsynth.frontend.torch_export import capture
from eqsynth.lower import calling
from eqsynth.pipeline import optimize

X, Y, Z = (torch.linspace(-1, 1, 12).reshape(3, 4) * n for n in (1, 2, 3))


def module(function: Callable[..., Any]) -> nn.Module:
    class Wrapped(nn.Module):
        forward = function

    return Wrapped().eval()


def captured(model: nn.Module, *args: Any, **kwargs: Any) -> Captured:
    return capture(model, *arguments(args, kwargs))


@pytest.mark.slow
def test_arguments_by_name_in_any_order_and_with_defaults(tmp_path: Path) -> None:
    def forward(self: Any, x: Tensor, scale: float = 2.0, *, y: Tensor, z: Tensor) -> Tensor:
        return x * scale - y / z

    model = module(forward)
    kwargs = {"z": Z, "y": Y}
    program = optimize(model, (X,), example_kwargs=kwargs, objective="flops", time_limit_s=600)
    assert program.original is None
    expected = model(X + 1, y=Y, z=X + 3)
    saved = tmp_path / "program.eqsynth"
    eqsynth.save(program, saved)
    for called in (program, eqsynth.load(saved)):
        for got in (
            called(X + 1, y=Y, z=X + 3),
            called(z=X + 3, y=Y, x=X + 1),
            called(X + 1, 2.0, z=X + 3, y=Y),
            called(X + 1, scale=2.0, z=X + 3, y=Y),
        ):
            torch.testing.assert_close(got, expected)
        with pytest.raises(EqsynthError):
            called(X, 3.0, y=Y, z=Z)  # the scale is a constant of the program
        with pytest.raises(EqsynthError):
            called(X, y=Y)


def test_a_default_between_is_left_out_or_given() -> None:
    model = module(lambda self, x, scale=2.0, y=None: x * scale if y is None else x * scale - y)
    found = captured(model, X, y=Y)
    for bound in (found.bind(X, y=Y), found.bind(X, 2.0, Y), found.bind(y=Y, x=X, scale=2.0)):
        assert bound[0] is X and bound[1] is Y
    with pytest.raises(EqsynthError):
        found.bind(X)


@pytest.mark.parametrize(
    ("args", "kwargs", "named", "expected"),
    [
        ((X, 2.0, Y), {}, (), ((X,), {"b": Y})),
        ((X,), {"b": Y}, (), ((X,), {"b": Y})),
        ((), {"x": X, "b": Y}, (), ((X,), {"b": Y})),
        ((), {"b": Y, "x": X}, ("x", "b"), ((), {"x": X, "b": Y})),
        ((X, 3.0, Y), {"k": 1}, (), ((X, 3.0, Y), {})),
        ((X, 3.0), {"k": 2, "v": Z}, (), ((X, 3.0), {"k": 2, "v": Z})),
        # True is no 1, and 2 no 2.0.
        ((X, 2), {"k": True}, (), ((X, 2), {"k": True})),
    ],
)
def test_arguments_have_one_way_without_defaults(
    args: Any, kwargs: Any, named: Any, expected: Any
) -> None:
    def forward(x: Any, scale: float = 2.0, b: Any = None, *, k: int = 1, **more: Any) -> None: ...

    found = calling.bound(inspect.signature(forward), args, kwargs, named)
    assert len(found[0]) == len(expected[0]) and list(found[1]) == list(expected[1])
    pairs = zip([*found[0], *found[1].values()], [*expected[0], *expected[1].values()], strict=True)
    assert all(one is other for one, other in pairs)


def test_what_stands_before_nameless_arguments_keeps_its_place() -> None:
    def forward(x: Any, /, a: int = 1, *rest: Any, k: int = 0) -> None: ...

    bound = partial(calling.bound, inspect.signature(forward))
    assert bound((5, 1), {}) == ((5,), {})
    assert bound((5, 1, 7, 8), {"k": 0}, ("a",)) == ((5, 1, 7, 8), {})
    assert bound((5,), {"a": 3}, ("a",)) == ((5,), {"a": 3})


def test_a_decorator_that_fills_in_an_argument_gets_it_once() -> None:
    """As those of transformers do."""

    def filled(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            return function(self, *args, **{"scale": 3.0, **kwargs})

        return wrapper

    @filled
    def forward(self: Any, x: Tensor, y: Tensor | None = None, scale: float | None = None) -> Any:
        return x * scale + y

    found = captured(module(forward), X, y=Y)
    for bound in (found.bind(X, y=Y), found.bind(X, Y), found.bind(y=Y, x=X, scale=None)):
        assert bound[0] is X and bound[1] is Y


@pytest.mark.rotating
def test_dicts_in_any_order_of_keys() -> None:
    model = module(lambda self, d, **more: d["a"] - d["b"][0] * more["u"] / more["v"])
    example = {"a": X, "b": [Y]}
    found = captured(model, example, u=Z, v=Z + 9)
    assert found.convention.any_order
    straight = found.bind(example, u=Z, v=X)
    turned = found.bind({"b": [Y], "a": X}, v=X, u=Z)
    assert all(one is other for one, other in zip(straight, turned, strict=True))
    data = calling.to_data(found.convention)
    loaded = calling.from_data(data, (), 4, 1).bind({"b": [Y], "a": X}, v=X, u=Z)
    assert all(one is other for one, other in zip(straight, loaded, strict=True))
    for wrong in ({"a": X}, {"a": X, "c": [Y]}, {"a": X, "b": [Y], "c": Z}, [X, Y]):
        with pytest.raises(EqsynthError):
            found.bind(wrong, u=Z, v=X)


@pytest.mark.parametrize(
    "function",
    [
        lambda self, d: torch.cat(list(d.values())),
        lambda self, d: d["a"] * 2 + next(iter(d.values())),
        lambda self, d: torch.stack([*d.values()])[1],
        lambda self, d: list(d.items())[-1][1] + 1,
    ],
)
def test_a_module_that_goes_by_the_order_of_keys_takes_one_order(
    function: Callable[..., Any],
) -> None:
    model = module(function)
    found = captured(model, {"a": X, "b": X, "c": X})
    assert not found.convention.any_order
    bound = found.bind({"a": X, "b": Y, "c": Z})
    assert bound[0] is X and bound[1] is Y and bound[2] is Z
    with pytest.raises(EqsynthError) as caught:
        found.bind({"b": Y, "a": X, "c": Z})
    assert caught.value.got and caught.value.expected


def test_the_order_of_integers_that_are_alike_cannot_be_tried() -> None:
    model = module(lambda self, d: torch.stack(list(d.values())))
    ones = torch.ones(3, dtype=torch.int64)
    assert not any_order(model, ({"a": ones, "b": ones.clone()},), {})
    by_name = module(lambda self, d: d["a"] - d["b"])
    assert any_order(by_name, ({"a": ones, "b": ones + 1},), {})
    assert any_order(by_name, (OrderedDict(a=X, b=X),), {})
    assert any_order(model, (X,), {})


def test_a_tree_with_as_many_leaves_as_arguments_is_no_row() -> None:
    model = module(lambda self, pair, rest: pair[0] - pair[1])
    found = captured(model, [X, Y], [])
    bound = found.bind([X, Y], [])
    assert bound[0] is X and bound[1] is Y


@pytest.mark.parametrize("kwargs", [[X], {1: X}, "x"])
def test_example_kwargs_that_are_no_names_are_refused(kwargs: Any) -> None:
    with pytest.raises(EqsynthError) as caught:
        optimize(module(lambda self, x: x), (), example_kwargs=kwargs)
    assert caught.value.got and caught.value.expected


def test_arguments_by_name_that_do_not_fit_are_refused() -> None:
    model = module(lambda self, x, *, y: x + y)
    with pytest.raises(EqsynthError) as caught:
        optimize(model, (X,), example_kwargs={"z": Y})
    assert "z" in caught.value.got
    with pytest.raises(EqsynthError) as caught:
        optimize(model, (X,), example_kwargs={"y": torch.ones(5)})
    assert "y=float32[5]" in caught.value.got
    with pytest.raises(EqsynthError) as caught:
        optimize(eqsynth.input("x", (3,)), example_kwargs={"y": Y})
    assert caught.value.got == "y"


def test_arguments_of_another_structure_are_told_as_a_call() -> None:
    def forward(self: Any, x: Tensor, parts: Any, *, mask: Any = None) -> Tensor:
        return x + parts[0] if mask is None else x + parts["y"] * mask

    one = captured(module(forward), X, {"y": Y}, mask=Z)
    with pytest.raises(EqsynthError) as caught:
        one.bind(X, [Y, (Y,)], mask=Z)
    assert caught.value.got == "(_, [_, (_,)], mask=_)"
    assert caught.value.expected == "(_, {'y': _}, mask=_)"
