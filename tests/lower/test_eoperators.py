"""eOperators against the interpreter: values at the edges, layouts, schedules, threads, export."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from eqsynth.extract.kernel import Kernel, Runner, strides
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Call, Cast, Num, Read, Scalar
from eqsynth.ir.tensor import Input, Scope, args_of
from eqsynth.ir.types import INTEGERS, TensorType, is_float
from eqsynth.lower.tvm_backend import TvmBackend

# Steps of the float a result is rounded to, in units of its largest element.
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 4e-6, "float64": 1e-13}
it = Index.iterator


def tensor(position: int, shape: tuple[int, ...], dtype: str = "float32") -> Input:
    return Input(str(position), TensorType(shape, dtype))


def sample(shape: Sequence[int], dtype: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == "bool":
        return torch.rand(tuple(shape), generator=generator) < 0.5
    if is_float(dtype):
        return (2 * torch.randn(tuple(shape), generator=generator)).to(getattr(torch, dtype))
    low = 0 if dtype == "uint8" else -9
    kind = getattr(torch, dtype)
    return torch.randint(low, 10, tuple(shape), generator=generator).to(kind)


def array(value: torch.Tensor) -> np.ndarray:
    return value.double().numpy() if value.is_floating_point() else value.numpy()


def laid_out(value: torch.Tensor, layout: tuple[int, ...]) -> torch.Tensor:
    dense = torch.empty_strided(value.shape, strides(tuple(value.shape), layout), dtype=value.dtype)
    return dense.copy_(value)


def check(scope: Scope, *values: torch.Tensor, tolerance: float = 1.0) -> list[str]:
    """Every kernel of a scope gives what the interpreter gives; the schedules that were tried."""
    if not values:
        values = tuple(sample(a.shape, a.dtype, k) for k, a in enumerate(args_of(scope)))
    names = [arg.label for arg in args_of(scope)]
    expected = evaluate(scope, {n: array(v) for n, v in zip(names, values, strict=True)})
    kernels = list(TvmBackend().kernels(scope, (False,) * len(names)))
    assert kernels, "the backend takes every memory-bound scope"
    for kernel, run in zip(kernels, TvmBackend().build([(k, {}) for k in kernels]), strict=True):
        assert run is not None, kernel
        got = run(*map(laid_out, values, kernel.inputs))
        assert got.dtype == getattr(torch, scope.dtype)
        assert tuple(got.shape) == scope.shape
        assert got.stride() == strides(scope.shape, kernel.output)
        assert_close(array(got), expected, scope.dtype, tolerance, kernel)
    return [kernel.schedule for kernel in kernels]


def assert_close(
    got: np.ndarray, expected: np.ndarray, dtype: str, tolerance: float, kernel: Kernel
) -> None:
    message = f"{kernel.schedule} {kernel.inputs} -> {kernel.output}"
    if not is_float(dtype):
        np.testing.assert_array_equal(got, expected, err_msg=message)
        return
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected), err_msg=message)
    finite = expected[np.isfinite(expected)]
    bound = TOLERANCE[dtype] * tolerance
    scale = max(1.0, float(np.abs(finite).max(initial=0.0)))
    np.testing.assert_allclose(got, expected, rtol=bound, atol=bound * scale, err_msg=message)


def pointwise(body: Scalar, extent: int) -> Scope:
    return Scope((extent,), (), body)


# ---- scalar code --------------------------------------------------------

SPECIAL = (-0.0, 0.0, 1.0, -1.0, 0.5, -3.7, 88.5, -87.0, 120.0, -120.0, 3e-5, 4.2, 0.62, 0.63)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_function_on_floats(dtype: str) -> None:
    torch_dtype = getattr(torch, dtype)
    x = torch.cat([torch.tensor(SPECIAL), torch.linspace(-9, 9, 91)]).to(torch_dtype)
    y = x.flip(0)
    extent = len(x)
    a, b, c = (Read(tensor(k, (extent,), dtype), (it(0, extent),)) for k in range(3))
    scopes = []
    for name, function in FUNCTIONS.items():
        args = (a, b, c)[: function.arity]
        if name == "where":
            args = (Call("gt", (a, Num(0))), b, c)
        scopes.append(pointwise(Call(name, tuple(args)), extent))
    values = (x, y, x.roll(3))
    for scope, run in zip(scopes, built(scopes), strict=True):
        assert isinstance(scope.body, Call)
        used = [values[int(arg.label)] for arg in args_of(scope)]
        env = {arg.label: array(values[int(arg.label)]) for arg in args_of(scope)}
        expected = evaluate(scope, env)
        with np.errstate(all="ignore"):
            rounded = torch.from_numpy(np.asarray(expected)).to(torch_dtype).double().numpy()
        # What overflows the dtype is infinite there, and judged as that.
        expected = np.where(np.isinf(rounded), rounded, expected) if is_float(scope.dtype) else expected
        got = array(run(*used))
        bound = TOLERANCE.get(scope.dtype, 0.0)
        np.testing.assert_allclose(got, expected, rtol=bound, atol=bound, err_msg=scope.body.fn)


def built(scopes: Sequence[Scope]) -> list[Runner]:
    """The plain kernel of each scope over vectors, compiled together."""
    kernels = [
        Kernel(s, (False,) * len(args_of(s)), "tvm", ((0,),) * len(args_of(s)), (0,), "rows")
        for s in scopes
    ]
    runners = TvmBackend().build([(kernel, {}) for kernel in kernels])
    found = [run for run in runners if run is not None]
    assert len(found) == len(scopes)
    return found


@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_every_function_on_integers(dtype: str) -> None:
    x, y = sample((64,), dtype), sample((64,), dtype, 1)
    a, b = (Read(tensor(k, (64,), dtype), (it(0, 64),)) for k in range(2))
    cases = []
    for name, function in FUNCTIONS.items():
        if dtype == "bool" and name in ("floordiv", "mod", "sign", "pow", "reciprocal", "div"):
            continue  # NumPy has none of them on bools
        args: tuple[Scalar, ...] = (a, b)[: function.arity]
        if name == "pow":
            args = (a, Call("abs", (b,)))
        elif name == "where":
            args = (Call("gt", (a, Num(0))), b, a)
        scope = pointwise(Call(name, args), 64)
        # NumPy takes exp of an int8 in float16; a kernel, as torch, in float32.
        wide = [Cast("float32", arg) for arg in args] if is_float(scope.dtype) else args
        cases.append((scope, pointwise(Call(name, tuple(wide)), 64)))
    for (scope, wide_scope), run in zip(cases, built([s for s, _ in cases]), strict=True):
        assert isinstance(scope.body, Call)
        expected = evaluate(wide_scope, {"0": x.numpy(), "1": y.numpy()})
        got = array(run(*((x, y)[int(arg.label)] for arg in args_of(scope))))
        tolerance = 4e-6 if is_float(scope.dtype) else 0
        np.testing.assert_allclose(
            got, expected, rtol=tolerance, atol=tolerance, err_msg=scope.body.fn
        )
