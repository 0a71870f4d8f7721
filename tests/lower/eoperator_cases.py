"""What the tests of eOperators share: samples, and kernels held against the interpreter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from eqsynth.extract.kernel import Kernel, Runner, strides
from eqsynth.extract.schedule import Rows, Schedule
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Call, Read, Scalar
from eqsynth.ir.tensor import Input, Region, Scope, args_of
from eqsynth.ir.types import TensorType, is_float
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


def check(scope: Scope, *values: torch.Tensor, tolerance: float = 1.0) -> list[Schedule | str]:
    """Every kernel of a scope gives what the interpreter gives; the schedules that were tried."""
    kernels = list(TvmBackend().kernels(scope, (False,) * len(args_of(scope))))
    assert kernels, "the backend takes this scope"
    check_kernels(kernels, *values, tolerance=tolerance)
    return [kernel.schedule for kernel in kernels]


def compile_together(scopes: Iterable[Scope]) -> None:
    """Compiles all kernels of some scopes at once and keeps them, as ``check`` then finds them: a
    compilation each takes longer than what it compiles."""
    backend = TvmBackend()
    kernels = [k for s in scopes for k in backend.kernels(s, (False,) * len(args_of(s)))]
    backend.build([(kernel, {}) for kernel in kernels])


def check_kernels(kernels: Sequence[Kernel], *values: torch.Tensor, tolerance: float = 1.0) -> None:
    """Kernels of one scope give what the interpreter gives. Their constant arguments are bound when
    they are built."""
    scope = kernels[0].term
    assert isinstance(scope, Scope)
    if not values:
        values = tuple(sample(a.shape, a.dtype, k) for k, a in enumerate(args_of(scope)))
    names = [arg.label for arg in args_of(scope)]
    expected = evaluate(scope, {n: array(v) for n, v in zip(names, values, strict=True)})
    bound = [
        (k, {n: v for n, (v, c) in enumerate(zip(values, k.constants, strict=True)) if c})
        for k in kernels
    ]
    for (kernel, packed), run in zip(bound, TvmBackend().build(bound), strict=True):
        assert run is not None, kernel
        given = map(laid_out, values, kernel.inputs)
        got = run(*(value for n, value in enumerate(given) if n not in packed))
        assert got.dtype == getattr(torch, scope.dtype)
        assert tuple(got.shape) == scope.shape
        assert got.stride() == strides(scope.shape, kernel.output)
        assert_close(array(got), expected, scope.dtype, tolerance, kernel)


def check_region(region: Region, constants: Sequence[bool] = ()) -> list[Kernel]:
    """Every kernel of a region against the interpreter.

    Args:
        constants: for each argument, whether it is known when the kernel is built; by default none
            is.
    """
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(a.shape, generator=generator) for a in region.args]
    env = {a.label: v.double().numpy() for a, v in zip(region.args, values, strict=True)}
    expected = evaluate(region.outputs[0], env)
    backend = TvmBackend()
    constants = tuple(constants) or (False,) * len(values)
    kernels = list(backend.fused(region, constants))
    known = {n: value for n, value in enumerate(values) if constants[n]}
    runners = backend.build([(kernel, known) for kernel in kernels])
    for kernel, runner in zip(kernels, runners, strict=True):
        given = [laid_out(v, at) for v, at in zip(values, kernel.inputs, strict=True)]
        assert runner is not None
        result = runner(*(value for n, value in enumerate(given) if n not in known))
        assert result.stride() == strides(result.shape, kernel.output)
        np.testing.assert_allclose(result.double().numpy(), expected, rtol=1e-4, atol=2e-3)
    return kernels


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


def built(scopes: Sequence[Scope]) -> list[Runner]:
    """The plain kernel of each scope over vectors, compiled together."""
    kernels = [
        Kernel(s, (False,) * len(args_of(s)), "tvm", ((0,),) * len(args_of(s)), (0,), Rows())
        for s in scopes
    ]
    runners = TvmBackend().build([(kernel, {}) for kernel in kernels])
    found = [run for run in runners if run is not None]
    assert len(found) == len(scopes)
    return found


def relu_scope(extent: int) -> Scope:
    return pointwise(Call("relu", (Read(tensor(0, (extent,)), (it(0, extent),)),)), extent)


def relu_kernel(extent: int) -> Kernel:
    return Kernel(relu_scope(extent), (False,), "tvm", ((0,),), (0,), Rows())
