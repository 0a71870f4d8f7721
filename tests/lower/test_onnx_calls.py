"""Calls of torch as operators of ONNX: in its evaluator, and on the engines that take ONNX, they
give what torch gives, or are refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.extract.kernel import Kernel
from eqsynth.frontend.captured import Captured
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.tensor import Input, Region, Tensor, over, topological
from eqsynth.lower.backends import time_kernels
from eqsynth.lower.engines.engine import Engine, RegionBackend
from eqsynth.lower.engines.table import ENGINES
from eqsynth.lower.engines.through_onnx import call_is_said, model_of
from eqsynth.lower.onnx_operator import array_of, torch_of
from eqsynth.lower.torch_calls import calls_from_data, calls_to_data, plain_calls
from eqsynth.lower.torch_ops import region_function
from eqsynth.testing.differential.onnx_columns import evaluated

Function = Callable[..., Any]


class Called(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


@functools.cache
def _captured(case: str) -> tuple[Captured, Region]:
    """A case's program, and it as a region over the numbers of its arguments."""
    function, args = {**SAID, **REFUSED}[case]
    captured = capture(Called(function).eval(), tuple(args))
    assert captured.opaque, "nothing of it is opaque: the case tests nothing"
    inputs, outputs = captured.program.inputs, captured.program.outputs
    images: dict[Tensor, Tensor] = {x: Input(str(n), x.type) for n, x in enumerate(inputs)}
    for term in topological(outputs):
        if term not in images:
            images[term] = over(term, images)
    return captured, Region(tuple(images[o] for o in outputs), tuple(images[x] for x in inputs))


def _ties(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Integers with many that are equal, and the ends of the dtype's range."""
    torch.manual_seed(0)
    least = 0 if dtype == torch.uint8 else -3
    values = torch.randint(least, 4, shape).to(dtype)
    if not dtype.is_floating_point and dtype != torch.bool:
        info = torch.iinfo(dtype)
        values.flatten()[0], values.flatten()[-1] = info.max, info.min
    return values


def _few(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else _ties(shape, dtype)


F32, F64, I64, I32, I8, U8, BOOL = (
    torch.float32, torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip

SAID: dict[str, tuple[Function, list[torch.Tensor]]] = {}


def _say(name: str, function: Function, *args: torch.Tensor) -> None:
    SAID[name] = function, list(args)


for _dtype in (I64, I32, I8, U8, BOOL):  # of floats it is an operator of eqsynth's own
    _say(f"cumsum {_dtype}", lambda x: x.cumsum(-1), _few((3, 5), _dtype))
_say("cumsum to int32", lambda x: x.cumsum(1, dtype=I32), _few((2, 3, 4), I64))
_say("cumsum of a number", lambda x: x.cumsum(0) + 1, _few((), I64))
_say("cumsum of one", lambda x: x.cumsum(0), _few((1, 3), I64))
for _dtype in (I64, I32, U8):
    for _down in (False, True):
        _say(
            f"sort {_dtype} {_down}",
            lambda x, d=_down: tuple(torch.sort(x, dim=0, descending=d, stable=True)),
            _ties((7, 3), _dtype),
        )
        _say(
            f"topk {_dtype} {_down}",
            lambda x, d=_down: torch.topk(x, 3, -1, d).values,
            _ties((2, 7), _dtype),
        )
_say("argsort", lambda x: x.argsort(dim=-2, stable=True), _ties((2, 6, 3), I64))
for _name in ("and", "or", "xor"):
    _say(
        f"bits {_name}",
        lambda x, y, n=_name: getattr(torch, f"bitwise_{n}")(x, y),
        _ties((3, 4), I64),
        _ties((4,), I64).flip(0),
    )
_say("bits not", lambda x: ~x, _ties((3, 4), I32))
for _dtype in (F32, F64):
    _say(f"fft {_dtype}", lambda x: torch.fft.fftn(x, dim=(1, 2)).real, _few((2, 6, 5), _dtype))
    _say(f"inverse fft {_dtype}", lambda x: torch.fft.ifft(torch.fft.fft(x, dim=-1), dim=-1,
         norm="forward").imag, _few((2, 6, 5), _dtype))  # fmt: skip
_say("orthonormal fft", lambda x: torch.fft.fft2(x, norm="ortho").imag, _few((3, 4, 5), F32))
_say("half of an fft", lambda x: torch.fft.rfftn(x, dim=(2, 1)).real, _few((3, 4, 5), F32))
_say("fft of one axis", lambda x: torch.view_as_real(torch.fft.fft(x, dim=0)), _few((4, 3), F32))

REFUSED: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "sort of floats": (lambda x: torch.sort(x, 0).values, [_few((5,), F32)]),
    "topk of floats": (lambda x: torch.topk(x, 2).indices, [_few((5,), F32)]),
    "irfft": (lambda x: torch.fft.irfft(torch.fft.rfft(x)), [_few((4, 6), F32)]),
    "cumprod": (lambda x: x.cumprod(0), [_few((5,), F32)]),
}  # fmt: skip


def _runners() -> Iterator[tuple[str, Callable[[Region, dict[str, Any]], Function]]]:
    def by_evaluator(region: Region, calls: dict[str, Any]) -> Function:
        run = evaluated(model_of(region, {}, calls))

        def runner(*args: torch.Tensor) -> list[torch.Tensor]:
            given = [array_of(x) for n, x in enumerate(args) if n < len(region.args)]
            kinds = [getattr(torch, o.dtype) for o in region.outputs]
            return [torch_of(r, k) for r, k in zip(run(given), kinds, strict=True)]

        return runner

    yield "evaluator", by_evaluator
    for name in ("onnxruntime", "openvino"):
        if ENGINES[name].version() is not None:
            yield name, _by_engine(ENGINES[name])


def _by_engine(engine: Engine) -> Callable[[Region, dict[str, Any]], Function]:
    def made(region: Region, calls: dict[str, Any]) -> Function:
        if not engine.takes(region, calls):
            pytest.skip(f"{engine.name} leaves it to torch")
        return engine.compiled(region, {}, calls)

    return made


@pytest.mark.rotating
@pytest.mark.parametrize("runtime", [pytest.param(make, id=name) for name, make in _runners()])
@pytest.mark.parametrize("case", SAID)
def test_a_call_is_what_torch_computes(
    case: str, runtime: Callable[[Region, dict[str, Any]], Function]
) -> None:
    _, args = SAID[case]
    captured, region = _captured(case)
    calls = plain_calls(captured.opaque)
    assert all(call_is_said(t, calls) for t in captured.program.terms()), captured.opaque
    wanted = region_function(region, captured.opaque)(*args)
    got = runtime(region, calls)(*(x.contiguous() for x in args))
    got = got if isinstance(got, list) else [got]
    for mine, torchs in zip(got, wanted, strict=True):
        near = _NEAR.get(torchs.dtype, 0.0)
        torch.testing.assert_close(mine, torchs, rtol=near, atol=near)


_NEAR = {torch.float16: 2e-3, F32: 1e-4, F64: 1e-10}


@pytest.mark.rotating
@pytest.mark.parametrize("case", REFUSED)
def test_what_a_runtime_would_compute_otherwise_is_refused(case: str) -> None:
    captured, region = _captured(case)
    calls = plain_calls(captured.opaque)
    assert not all(call_is_said(term, calls) for term in captured.program.terms())
    with pytest.raises(UnsupportedOperatorError):
        model_of(region, {}, calls)


# ---- regions with calls in them --------------------------------------------------------------


class Positions(nn.Module):
    """Positions of tokens that are counted from a padding mask, as in RoBERTa."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(12, 16), nn.Linear(16, 16)

    def forward(self, mask: torch.Tensor) -> torch.Tensor:
        positions = mask.cumsum(1) * mask + 1
        return torch.relu(self.linear(self.table(positions)))


def _region_of(model: nn.Module, *args: torch.Tensor) -> tuple[Captured, Region, dict[int, Any]]:
    """The whole program as a region, and the values of its constants."""
    captured = capture(model.eval(), args)
    leaves = [*captured.program.inputs, *captured.program.weights()]
    images: dict[Tensor, Tensor] = {x: Input(str(n), x.type) for n, x in enumerate(leaves)}
    for term in topological(captured.program.outputs):
        if term not in images:
            images[term] = over(term, images)
    region = Region(
        tuple(images[o] for o in captured.program.outputs), tuple(images[x] for x in leaves)
    )
    count = len(captured.program.inputs)
    constants = {n: captured.weights[x.label] for n, x in enumerate(leaves) if n >= count}
    return captured, region, constants


def _kernel(engine: Engine, captured: Captured, region: Region, constants: Any) -> Kernel:
    known = tuple(n in constants for n in range(len(region.args)))
    (kernel,) = RegionBackend(engine, captured.opaque).kernels(region, known)
    return kernel


@pytest.mark.rotating
@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_takes_a_whole_program_with_a_call_of_torch_in_it(name: str) -> None:
    engine, model = ENGINES[name], Positions()
    if engine.version() is None:
        pytest.skip(f"{name} isn't installed")
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 1]])
    captured, region, constants = _region_of(model, mask)
    kernel = _kernel(engine, captured, region, constants)
    (runner,) = RegionBackend(engine, captured.opaque).build([(kernel, constants)])
    assert runner is not None
    with torch.no_grad():
        for given in (mask, 1 - mask):
            torch.testing.assert_close(runner(given), model(given))
    with pytest.raises(IndexError):
        runner(mask * 9)
    # The measuring worker has no capture: it gets the calls as data.
    told = calls_to_data(plain_calls(captured.opaque))
    ((_, timing),) = time_kernels([kernel], 1, opaque=told)
    assert timing is not None
    ((_, without),) = time_kernels([kernel], 1)
    assert without is None
    assert calls_from_data(told).keys() == captured.opaque.keys()


class Held(nn.Module):
    """A call of torch that has a complex tensor of its own, which its name doesn't tell."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(x * self.turn).relu()


@pytest.mark.parametrize("name", ENGINES)
def test_a_call_with_tensors_of_its_own_is_in_no_region(name: str) -> None:
    """What an engine keeps of a region it finds again by the names of its terms."""
    if ENGINES[name].version() is None:
        pytest.skip(f"{name} isn't installed")
    captured, region, constants = _region_of(Held(), torch.ones(4))
    assert captured.opaque and not plain_calls(captured.opaque)
    known = tuple(n in constants for n in range(len(region.args)))
    assert not list(RegionBackend(ENGINES[name], captured.opaque).kernels(region, known))
