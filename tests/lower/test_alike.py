"""A call like one that went through runs at once, and no other call does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from programs import convolutions
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from eqsynth.errors import EqsynthError, LoweringError
from eqsynth.lower.alike import UNLIKE, Alike
from eqsynth.lower.calling import Fixed, Given, SavedCalling, signature_of
from eqsynth.lower.program import CompiledProgram

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def program(monkeypatch: pytest.MonkeyPatch, calling: SavedCalling) -> tuple[Any, list[None]]:
    """A program that was called once, and a list that grows when a call of it is looked at."""
    looked: list[None] = []
    look = CompiledProgram._call

    def counted(self: Any, *given: Any) -> Any:
        looked.append(None)
        return look(self, *given)

    monkeypatch.setattr(CompiledProgram, "_call", counted)
    made, _ = convolutions(row=calling)
    made(X)
    looked.clear()
    return made, looked


class Part(Tensor):
    pass


def laid_out_otherwise(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


LIKE: dict[str, Callable[[], Tensor]] = {
    "itself": lambda: X,
    "other values": lambda: X + 1,
    "a part of a tensor": lambda: torch.cat([X[:1], X])[1:],
}
UNLIKE_IT: dict[str, Callable[[], Any]] = {
    "strides": lambda: laid_out_otherwise(X),
    "a negative view": lambda: torch.complex(X, -X).conj().imag,
    "a class": lambda: X.as_subclass(Part),
    "a parameter": lambda: torch.nn.Parameter(X),
    "gradients": lambda: X.clone().requires_grad_(),
    "a shape": lambda: X[:1],
    "a dtype": lambda: X.double(),
    "no tensor": lambda: 3,
    "a device": lambda: X.to("meta"),
}


@pytest.mark.parametrize("kind", [*LIKE, *UNLIKE_IT])
def test_only_calls_like_one_that_went_through_run_at_once(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, looked = program(monkeypatch, SavedCalling((0,), (0,)))
    x = (LIKE | UNLIKE_IT)[kind]()
    with torch.no_grad():
        plain = torch.Tensor.clone(x).as_subclass(Tensor) if isinstance(x, Tensor) else x
        expected = outcome(convolutions(row=SavedCalling((0,), (0,)))[0], plain)
        looked.clear()
        got = outcome(made, x)
    assert got == expected
    assert len(looked) == (kind in UNLIKE_IT)


def outcome(call: Any, x: Any) -> Any:
    try:
        return call(x).tolist()
    except EqsynthError as error:
        return type(error)


MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_of_torch_is_looked_at_once(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, looked = program(monkeypatch, SavedCalling((0,), (0,)))
    expected = made(X)
    with MODES[mode]():
        first, second = made(X), made(X)
        assert torch.is_inference(first) == torch.is_inference(second)
    assert torch.equal(first, expected) and torch.equal(second, expected)
    assert len(looked) == (mode != "no_grad")
    assert torch.is_grad_enabled() and not made(X).requires_grad


def test_gradients_that_are_wanted_are_never_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    made, looked = program(monkeypatch, SavedCalling((0,), (0,)))
    for calls in (1, 2, 3):
        result = made(X.clone().requires_grad_())
        assert result.requires_grad and len(looked) == calls
        with pytest.raises(LoweringError):
            result.sum().backward()


def test_a_hook_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = program(monkeypatch, SavedCalling((0,), (0,)))
    seen: list[Any] = []
    handle = made.register_forward_hook(lambda *given: seen.append(given))
    made(X)
    handle.remove()
    every = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda *given: seen.append(given)
    )
    made(X)
    every.remove()
    made(X)
    assert len(seen) == 2


RESULTS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "the output": ("out", (0,)),
    "a tuple": (("out",), (0,)),
    "with its argument": ({"y": "out", "more": ["in", 2.5]}, (0, Given(0), Fixed(2.5))),
    "beside a constant": ([1, "out"], (Fixed(1), 0)),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_the_result_has_its_structure(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, places = RESULTS[kind]
    _, spec = tree_flatten(((X,), {}))
    parameters = signature_of(torch.nn.ReLU())
    out_spec = None if tree == "out" else tree_flatten(tree)[1]
    calling = SavedCalling((0,), places, parameters, spec, out_spec)
    made, looked = program(monkeypatch, calling)
    result = made(X)
    assert not looked
    expected = convolutions(row=SavedCalling((0,), (0,)))[0](X)
    values = {"out": expected, "in": X}
    wanted = tree_map(lambda leaf: values.get(leaf, leaf), tree)
    flat, own = tree_flatten(result)
    assert own == tree_flatten(wanted)[1]
    for got, value in zip(flat, tree_flatten(wanted)[0], strict=True):
        assert torch.equal(got, value) if isinstance(value, Tensor) else got == value
    assert kind != "with its argument" or result["more"][0] is X


ONE, OTHER = torch.ones(2), torch.zeros(2)


def of_two() -> Alike:
    return Alike(lambda x, y, checked: [x], [(1,), (1,)], None)


def test_a_tensor_that_is_given_twice_is_looked_at() -> None:
    alike = of_two()
    alike.note((ONE, OTHER), {}, (ONE, OTHER))
    assert alike.call((ONE, OTHER), {}) is ONE
    assert alike.call((ONE, ONE), {}) is UNLIKE
    assert alike.call((ONE,), {}) is UNLIKE and alike.call((), {}) is UNLIKE


def test_arguments_by_name_come_in_the_order_of_the_inputs() -> None:
    alike = of_two()
    alike.note((OTHER,), {"x": ONE}, (ONE, OTHER))
    assert alike.call((OTHER,), {"x": ONE}) is ONE
    assert alike.call((OTHER,), {"y": ONE}) is UNLIKE
    assert alike.call((), {"y": OTHER, "x": ONE}) is UNLIKE


@pytest.mark.parametrize("given", [(OTHER, ONE), (ONE, OTHER, 3), (ONE,), (ONE, ONE)])
def test_inputs_that_are_not_the_arguments_are_looked_at(given: tuple[Any, ...]) -> None:
    alike = of_two()
    alike.note(given, {}, (ONE, OTHER))
    assert alike.call(given, {}) is UNLIKE and alike.call((ONE, OTHER), {}) is UNLIKE
