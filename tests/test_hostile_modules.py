"""Modules and inputs that nobody expects, each through ``optimize``: the right result or a clear
error, in seconds, and no more memory than the program itself needs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from eqsynth.errors import CaptureError, EqsynthError
from eqsynth.frontend import examples
from eqsynth.lower.program import CompiledProgram
from eqsynth.pipeline import optimize

X = torch.linspace(-1, 1, 3)
Y = torch.linspace(-1, 1, 12).reshape(3, 4)


class Call(nn.Module):
    """``forward`` calls a function of the module."""

    def __init__(self, function: Callable[..., Any], **buffers: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)
        self.eval()

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def quick(module: nn.Module, *inputs: Any, time_limit_s: float = 2) -> CompiledProgram:
    return optimize(module, inputs, objective="flops", time_limit_s=time_limit_s)


def agrees(program: CompiledProgram, module: nn.Module, *inputs: Any) -> None:
    with torch.no_grad():
        got, expected = tree_leaves(program(*inputs)), tree_leaves(module(*inputs))
    assert list(map(type, got)) == list(map(type, expected))
    for y, z in zip(got, expected, strict=True):
        if isinstance(z, torch.Tensor):
            assert (y.device, y.layout, y.dtype) == (z.device, z.layout, z.dtype)
            if z.device.type == "meta":
                assert y.shape == z.shape
            else:
                torch.testing.assert_close(y, z)
        else:
            assert y == z


# ---- what isn't a plain tensor on the CPU --------------------------------------------------------


class Sub(torch.Tensor):
    """A subclass may mean something else by an operator."""


ORIGINALS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]], str]] = {
    "meta input": (
        lambda: Call(lambda self, x: x * 2), lambda: (torch.ones(3, device="meta"),), "CPU",
    ),
    "meta module": (
        lambda: nn.Linear(4, 4, device="meta").eval(),
        lambda: (torch.ones(3, 4, device="meta"),), "CPU",
    ),
    "meta buffer": (
        lambda: Call(lambda self, x: x * 2, w=torch.ones(3, device="meta")), lambda: (X,), "CPU",
    ),
    "subclass": (
        lambda: Call(lambda self, x: x * 2), lambda: (Y.as_subclass(Sub),), "plain tensor",
    ),
    "sparse": (
        lambda: Call(lambda self, x: x.to_dense()), lambda: (Y.to_sparse(),), "dense",
    ),
    "quantized": (
        lambda: Call(lambda self, x: x.dequantize() + 1),
        lambda: (torch.quantize_per_tensor(Y, 0.1, 0, torch.qint8),), "dense",
    ),
    "quantized result": (
        lambda: Call(lambda self, x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)),
        lambda: (Y,), "dense",
    ),
    "module": (
        lambda: Call(lambda self, x, f: f(x) * 2), lambda: (Y, nn.ReLU()), "a module",
    ),
    "huge input": (
        lambda: Call(lambda self, x: x[:2] + 1), lambda: (X.expand(1 << 36, 3),), "too large",
    ),
    "huge buffer": (
        lambda: Call(lambda self, x: self.w[:3] + x, w=torch.zeros(1).expand(1 << 40)),
        lambda: (X,), "too large",
    ),
    "packed sequence": (
        lambda: nn.LSTM(4, 4, batch_first=True).eval(),
        lambda: (nn.utils.rnn.pack_sequence([Y, Y[:2]]),), "torch.export",
    ),
    "scripted": (
        lambda: torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()),
        lambda: (Y,), "torch.export",
    ),
    "traced": (
        lambda: torch.jit.trace(nn.Linear(4, 4).eval(), Y), lambda: (Y,), "torch.export",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # torch warns of half of these
@pytest.mark.parametrize("name", ORIGINALS)
def test_what_no_program_is_made_of_leaves_the_original(name: str) -> None:
    make, arguments, why = ORIGINALS[name]
    module, inputs = make(), arguments()
    program = quick(module, *inputs)
    assert program.original is module and program.report.stop == "capture"
    assert why in str(program.report.reason).partition("\n")[0]
    if name == "quantized result":  # which assert_close doesn't know
        assert torch.equal(program(*inputs).int_repr(), module(*inputs).int_repr())
    else:
        agrees(program, module, *inputs)


@pytest.mark.rotating
def test_a_buffer_that_is_not_dense_is_as_it_was() -> None:
    module = Call(lambda self, x: self.w.to_dense() + x, w=Y.to_sparse())
    agrees(quick(module, Y), module, Y)


# ---- sizes ---------------------------------------------------------------------------


def test_a_result_that_nobody_could_copy() -> None:
    module = Call(lambda self, x: x.expand(1 << 36, 3))
    program = quick(module, X)
    assert program.original is module and "too large" in program.report.reason
    result = program(X)
    assert result.shape == (1 << 36, 3) and torch.equal(result[-1], X)
    assert result.data_ptr() != X.data_ptr()  # the result is the caller's


@pytest.mark.rotating
@pytest.mark.parametrize("rows", [1 << 30, 1 << 36])
def test_a_huge_value_of_which_little_is_read_is_not_computed(rows: int) -> None:
    module = Call(lambda self, x: x.expand(rows, 3)[:2] + 1)
    program = quick(module, X, time_limit_s=60)  # of which it takes a few
    assert program.steps and all(step.kernel.term.type.nbytes < 1 << 20 for step in program.steps)
    agrees(program, module, X)


def test_a_huge_value_without_a_way_round_it_leaves_the_original() -> None:
    module = Call(lambda self, x: x.expand(1 << 35, 3)[:2] + 1)
    program = quick(module, X, time_limit_s=1e-3)  # nothing is searched
    assert program.original is module and "too large" in program.report.reason
    assert f"{12 << 35:,} bytes" in program.report.reason
    agrees(program, module, X)


def test_a_module_that_is_slower_than_the_search_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model of an ONNX file that says that its batch is a million takes half a minute a call."""
    module = nn.Linear(4, 4).eval()
    assert quick(module, Y, time_limit_s=1e-9).report.stop != "capture"
    monkeypatch.setattr(examples, "SLOW_S", 0.0)
    program = quick(module, Y, time_limit_s=1e-9)
    assert program.original is module and program.report.stop == "capture"
    assert "a call of the module takes longer" in program.report.reason
    agrees(program, module, Y)


# ---- structure -----------------------------------------------------------------------


def nested() -> Any:
    value: Any = Y
    for _ in range(3000):
        value = [value]
    return value


def cyclic() -> Any:
    value: list[Any] = [Y]
    value.append(value)
    return value


@pytest.mark.parametrize("make", [nested, cyclic])
def test_arguments_without_an_end_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(EqsynthError) as caught:
        quick(Call(lambda self, x: Y), make())
    assert caught.value.got and caught.value.expected


def test_a_parameter_that_has_no_values_yet_is_named() -> None:
    with pytest.raises(CaptureError) as caught:
        quick(nn.Sequential(nn.LazyLinear(5), nn.ReLU()).eval(), Y)
    assert caught.value.where == "0.weight" and caught.value.got == "UninitializedParameter"


def test_not_a_number_is_a_constant_like_others() -> None:
    module = Call(lambda self, x, y: x * 2 if y != y else x)
    program = quick(module, Y, float("nan"))
    agrees(program, module, Y, float("nan"))
    with pytest.raises(EqsynthError):
        program(Y, 1.0)


def test_an_operator_that_fails_while_it_is_traced_says_nothing() -> None:
    """The error does; torch's logger would print half a screen."""

    def tried(self: Any, x: torch.Tensor) -> Any:
        try:
            return torch.var_mean(x.byte())
        except RuntimeError:  # of integers there is none
            return x * 2

    class Kept(logging.Handler):
        said: ClassVar[list[logging.LogRecord]] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.said.append(record)

    module, logger, kept = Call(tried), logging.getLogger("torch._subclasses.fake_tensor"), Kept()
    logger.addHandler(kept)
    try:
        agrees(quick(module, Y), module, Y)
    finally:
        logger.removeHandler(kept)
    assert not kept.said


def test_a_transform_that_torch_does_not_end_is_ended() -> None:
    """Torch fails between begin and end of the ``jvp`` that it has exported; left open, the
    transform takes the memory of all later tensors of the process."""
    module = Call(lambda self, x: torch.func.jvp(lambda y: y @ self.w, (x,), (x,)), w=Y.T @ Y)
    program = quick(module, Y)
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0
    assert not torch.is_inference_mode_enabled()
    assert torch.ones(2).numpy().sum() == 2
    agrees(program, module, Y)
