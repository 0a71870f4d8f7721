"""eOperators against the interpreter: values at the edges, layouts, schedules, threads, export."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from eqsynth.errors import LoweringError
from eqsynth.extract.kernel import Kernel, Runner, channels_last, strides
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value
from eqsynth.ir.tensor import Input, Scope, args_of
from eqsynth.ir.types import DTYPES, INTEGERS, TensorType, is_float
from eqsynth.lower.eoperators import prim_func
from eqsynth.lower.loop_nest import loop_nest
from eqsynth.lower.schedules import schedules
from eqsynth.lower.tvm_backend import TvmBackend, export_library, is_memory_bound, runner
from eqsynth.lower.tvm_runtime import load_library

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
        expected = (
            np.where(np.isinf(rounded), rounded, expected) if is_float(scope.dtype) else expected
        )
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


def test_exp_from_zero_to_infinity() -> None:
    x = torch.cat([torch.linspace(-110, 95, 4001), torch.tensor([88.72, 88.73, 1e4, -1e4])])
    x = torch.cat([x, torch.tensor([torch.inf, -torch.inf, torch.nan])])
    (run,) = built(
        [pointwise(Call("exp", (Read(tensor(0, tuple(x.shape)), (it(0, len(x)),)),)), len(x))]
    )
    got, expected = run(x).double(), x.double().exp()
    largest, smallest = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny
    assert got[-1].isnan() and got[expected > largest].isinf().all()
    normal = (expected < largest) & (expected > smallest)
    torch.testing.assert_close(got[normal], expected[normal], rtol=5e-7, atol=0)
    assert ((got - expected).abs()[expected <= smallest] < 2e-44).all()


# ---- scopes -------------------------------------------------------------


def shifts(height: int, width: int, features: int, fill: float = 0.0) -> Read:
    """EinNet's OffsetReduce before its sum: nine shifted planes."""
    source = tensor(0, (height, width, 3, 3, features))
    h, w, f, r, s = (it(k, e) for k, e in enumerate((height, width, features, 3, 3)))
    return Read(source, (h + r - 1, w + s - 1, r, s, f), fill)


@pytest.mark.parametrize("features", [1, 3, 16, 40, 70])
def test_offset_reduce(features: int) -> None:
    tried = check(Scope((6, 7, features), (3, 3), shifts(6, 7, features)))
    assert ("lanes16" in tried) == (features >= 16)


@pytest.mark.parametrize("reducer", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "uint8", "bool"])
def test_reducers_along_and_across_memory(reducer: str, dtype: str) -> None:
    rows, columns = 5, 150
    x = tensor(0, (rows, columns), dtype)
    values = sample((rows, columns), dtype)
    if reducer == "prod" and is_float(dtype):
        values = (1 + values / 50).to(values.dtype)
    along = Scope((rows,), (columns,), Read(x, (it(0, rows), it(1, columns))), reducer)
    across = Scope((columns,), (rows,), Read(x, (it(1, rows), it(0, columns))), reducer)
    everything = Scope((), (rows, columns), Read(x, (it(0, rows), it(1, columns))), reducer)
    assert check(along, values, tolerance=8) == ["fold16", "fold64"]
    assert check(across, values, tolerance=8) == ["rows", "lanes16", "lanes64"]
    assert check(everything, values, tolerance=32) == ["fold16", "fold64"]


@pytest.mark.parametrize("reducer", ["max", "min"])
def test_reducers_keep_nan(reducer: str) -> None:
    x = tensor(0, (4, 64))
    values = sample((4, 64), "float32")
    values[0, 0] = values[1, 63] = values[2, 17] = torch.nan
    scope = Scope((4,), (64,), Read(x, (it(0, 4), it(1, 64))), reducer)
    check(scope, values)
    check(Scope((64,), (4,), Read(x, (it(1, 4), it(0, 64))), reducer), values)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8"])
def test_padded_max_pool_of_negative_numbers(dtype: str) -> None:
    n, c, height, width = 2, 16, 7, 9
    x = tensor(0, (n, c, height, width), dtype)
    values = sample(x.shape, dtype)
    values = values if dtype == "uint8" else -values.abs() - 1
    h, w, r, s = it(2, 4), it(3, 5), it(4, 3), it(5, 3)
    body = Read(x, (it(0, n), it(1, c), 2 * h + r - 1, 2 * w + s - 1), -np.inf)
    check(Scope((n, c, 4, 5), (3, 3), body, "max"), values)


def test_numbers_as_fills_and_negative_indices() -> None:
    x = tensor(0, (5,), "float32")
    i = it(0, 16)
    for index in (i - 5, 4 - i, (i - 9) // 2, (i - 7) % 5, (3 - i) // 4 + (2 * i - 9) % 3):
        for fill in (0.0, -2.5, np.inf, np.nan):
            check(Scope((16,), (), Read(x, (index,), fill)))


def test_index_as_number() -> None:
    i, j = it(0, 3), it(1, 20)
    scope = Scope((3, 20), (), Value((i - j) // 3 * 5 + (j - 7) % 4))
    check(scope)
    mask = Call("where", (Call("le", (Value(j), Value(i))), Num(1.5), Num(-np.inf)))
    check(Scope((3, 20), (), Cast("float32", mask)))


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_casts(source: str, target: str) -> None:
    values = sample((40,), source)
    if target == "uint8" and source != "uint8":
        values = values.abs() if source != "bool" else values
    check(pointwise(Cast(target, Read(tensor(0, (40,), source), (it(0, 40),))), 40), values)


def test_bfloat16_rounds_to_even_and_keeps_nan() -> None:
    bits = torch.tensor([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800001, 0x7FFFFFFF, 0x7F7FFFFF])
    values = bits.to(torch.int32).view(torch.float32)
    scope = pointwise(Cast("bfloat16", Read(tensor(0, (6,)), (it(0, 6),))), 6)
    (run,) = built([scope])
    got, expected = run(values), values.to(torch.bfloat16)
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.nan_to_num(7), expected.nan_to_num(7))


def test_integer_division_never_traps() -> None:
    lowest = torch.iinfo(torch.int32).min
    x = torch.tensor([7, -7, 0, lowest, lowest, 5], dtype=torch.int32)
    y = torch.tensor([0, 0, 0, -1, 3, -1], dtype=torch.int32)
    a, b = (Read(tensor(k, (6,), "int32"), (it(0, 6),)) for k in range(2))
    quotient, rest = built([pointwise(Call(fn, (a, b)), 6) for fn in ("floordiv", "mod")])
    assert quotient(x, y).tolist() == [0, 0, 0, lowest, lowest // 3, -5]
    assert rest(x, y).tolist() == [0, 0, 0, 0, lowest % 3, 0]


def test_integers_with_numbers() -> None:
    x = Read(tensor(0, (40,), "uint8"), (it(0, 40),))
    check(pointwise(Call("lt", (x, Num(-1))), 40))
    check(pointwise(Call("gt", (x, Num(300))), 40))
    check(pointwise(Sum((x, Prod((Num(3), x)), Num(-4))), 40))
    check(pointwise(Sum((x, Num(0.5))), 40))
    flag = Read(tensor(0, (40,), "bool"), (it(0, 40),))
    check(pointwise(Sum((flag, Call("not", (flag,)))), 40))
    check(pointwise(Prod((flag, Num(2))), 40))
    check(pointwise(Sum((flag, Num(-1))), 40))


def test_sixteen_bit_floats_accumulate_in_float32() -> None:
    for dtype in ("float16", "bfloat16"):
        x = tensor(0, (2, 4096), dtype)
        ones = torch.ones(2, 4096, dtype=getattr(torch, dtype))
        check(Scope((2,), (4096,), Read(x, (it(0, 2), it(1, 4096)))), ones)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (1, 5)])
def test_extents_of_nothing_and_of_one(shape: tuple[int, int]) -> None:
    x = tensor(0, shape)
    i, j = (it(k, e) for k, e in enumerate(shape))
    check(Scope(shape, (), Call("exp", (Read(x, (i, j)),))))
    check(Scope(shape[:1], shape[1:], Read(x, (i, j))))
    check(Scope(shape[:1], shape[1:], Read(x, (i, j)), "max"))
    check(Scope((), shape, Read(x, (i, j)), "prod"))
    # A tensor without elements is its fill wherever it is read.
    check(Scope((4,), (), Sum((Read(x, (it(0, 4) + 7, it(0, 4))), Num(2)))))


def test_scalar_tensor() -> None:
    x = Read(tensor(0, ()), ())
    check(Scope((), (), Call("exp", (x,))))
    check(Scope((3, 4), (), Sum((x, Value(it(1, 4))))))


def test_schedules_fit_the_strides() -> None:
    x = tensor(0, (40, 300))
    i, r = it(0, 64), it(1, 32)

    def points(scope: Scope) -> tuple[str, ...]:
        rank = len(scope.traversal)
        return schedules(loop_nest(scope, [(0, 1)], tuple(range(rank))))

    assert points(Scope((64,), (32,), Read(x, (r, i)))) == ("lanes16", "lanes64")
    assert points(Scope((64,), (32,), Read(x, (r, 2 * i)))) == ("rows",)  # strided
    assert points(Scope((64,), (32,), Read(x, (r, i - 1)))) == ("rows",)  # guarded
    assert points(Scope((64,), (32,), Read(x, (r, i // 2)))) == ("rows",)  # no stride at all
    assert points(Scope((30,), (32,), Read(x, (it(0, 30), r)))) == ("fold16",)
    assert points(Scope((30,), (32,), Read(x, (it(0, 30), 3 * r)))) == ("rows",)
    flip = Read(x, (it(1, 40), it(0, 300)))
    assert points(Scope((300, 40), (), flip)) == ("rows", "tile16x16", "tile8x16")


def test_layouts() -> None:
    shape = (2, 5, 4, 3)
    n, c, h, w = (it(k, e) for k, e in enumerate(shape))
    x, bias = tensor(0, shape), tensor(1, (5,))
    scope = Scope(shape, (), Call("relu", (Sum((Read(x, (n, c, h, w)), Read(bias, (c,)))),)))
    kernels = list(TvmBackend().kernels(scope, (False, True)))
    assert {k.output for k in kernels} == {(0, 1, 2, 3), channels_last(4)}
    check(scope)
    # Each mix of layouts is a kernel of its own: this one converts.
    mixed = Kernel(scope, (False, False), "tvm", (channels_last(4), (0,)), (0, 1, 2, 3), "rows")
    (run,) = TvmBackend().build([(mixed, {})])
    value, b = sample(shape, "float32"), sample((5,), "float32", 1)
    got = run(value.to(memory_format=torch.channels_last), b) if run else None
    assert got is not None and got.is_contiguous()
    torch.testing.assert_close(got, torch.relu(value + b.view(5, 1, 1)))


@pytest.mark.parametrize("axes", [(0, 2, 1, 3), (0, 2, 3, 1), (3, 2, 1, 0), (0, 1, 3, 2)])
@pytest.mark.parametrize("shape", [(2, 33, 5, 7), (1, 16, 17, 32)])
def test_permutes(axes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    result = tuple(shape[axis] for axis in axes)
    index = tuple(it(axes.index(axis), shape[axis]) for axis in range(4))
    tried = check(Scope(result, (), Read(tensor(0, shape), index)))
    assert "tile16x16" in tried or axes == (0, 2, 1, 3)


def test_reshape_is_one_loop() -> None:
    x = tensor(0, (6, 8))
    i, j = it(0, 12), it(1, 4)
    flat = 4 * i + j
    scope = Scope((12, 4), (), Read(x, (flat // 8, flat % 8)))
    nest = loop_nest(scope, [(0, 1)], (0, 1))
    assert [loop.extent for loop in nest.traversal] == [48]
    check(scope)
    # Alike, but no reshape: the quotient and the rest don't make up the whole in memory.
    check(Scope((12, 4), (), Read(tensor(0, (8, 6)), (flat % 8, flat // 8))))
    check(Scope((12, 4), (), Read(tensor(0, (6, 9)), (flat // 8, flat % 8))))


def test_elementwise_axes_are_one_loop_and_guards_keep_theirs() -> None:
    x = tensor(0, (3, 4, 5))
    i, j, k = it(0, 3), it(1, 4), it(2, 5)
    plain = loop_nest(Scope((3, 4, 5), (), Read(x, (i, j, k))), [(0, 1, 2)], (0, 1, 2))
    assert [loop.extent for loop in plain.traversal] == [60]
    padded = loop_nest(Scope((3, 4, 5), (), Read(x, (i, j - 1, k))), [(0, 1, 2)], (0, 1, 2))
    assert [loop.extent for loop in padded.traversal] == [3, 4, 5]


def test_large_enough_to_run_in_parallel() -> None:
    x = tensor(0, (70, 33, 64))
    i, j, k = it(0, 70), it(1, 33), it(2, 64)
    check(Scope((70, 33, 64), (), Call("silu", (Read(x, (i, j + 1, k)),))))
    check(Scope((70, 33), (64,), Read(x, (i, j, k))), tolerance=4)
    check(Scope((64, 33), (70,), Read(x, (it(2, 70), it(1, 33), it(0, 64)))), tolerance=4)
    check(Scope((64, 70, 33), (), Read(x, (it(1, 70), it(2, 33), it(0, 64)))))
    check(Scope((70, 33, 3), (), Read(x, (i, j, 3 * it(2, 3) - 2))))


def test_only_large_kernels_are_parallel() -> None:
    for extent, parallel in ((64, False), (1 << 20, True)):
        nest = loop_nest(relu_scope(extent), [(0,)], (0,))
        assert ("T.parallel" in prim_func(nest, "rows", "k").script()) == parallel


def test_shared_subexpressions_are_computed_once() -> None:
    x: Scalar = Read(tensor(0, (8,)), (it(0, 8),))
    for _ in range(7):  # 3^7 operations if it were a tree
        x = Call("tanh", (Sum((x, Prod((Num(0.5), x, x)))),))
    check(pointwise(x, 8), sample((8,), "float32") / 9)


def test_arguments_that_are_constant_are_bound() -> None:
    x, w, y = (tensor(k, (4,)) for k in range(3))
    i = it(0, 4)
    scope = Scope((4,), (), Sum((Read(x, (i,)), Prod((Read(w, (i,)), Read(y, (i,)))))))
    order = args_of(scope)
    values = dict(zip(order, (sample((4,), "float32", k) for k in range(3)), strict=True))
    kernel = Kernel(scope, (False, True, False), "tvm", ((0,),) * 3, (0,), "rows")
    weight = values[order[1]].repeat_interleave(2)[::2]  # strided: it is packed
    (run,) = TvmBackend().build([(kernel, {1: weight})])
    assert run is not None
    a, _, c = (values[arg] for arg in order)
    expected = evaluate_torch(scope, values)
    torch.testing.assert_close(run(a, c), expected)
    weight.zero_()
    torch.testing.assert_close(run(a, c), expected)


def evaluate_torch(scope: Scope, values: dict[Input, torch.Tensor]) -> torch.Tensor:
    env = {arg.label: value.numpy() for arg, value in values.items()}
    return torch.from_numpy(evaluate(scope, env)).float()


def row_of_one() -> Read:
    return Read(tensor(0, (1, 4)), (it(0, 1), it(1, 4)))


def test_arguments_are_checked() -> None:
    scope = Scope((3, 4), (), Read(tensor(0, (3, 4)), (it(0, 3), it(1, 4))))
    kernel = Kernel(scope, (False,), "tvm", ((0, 1),), (0, 1), "rows")
    (run,) = TvmBackend().build([(kernel, {})])
    assert run is not None
    run(torch.zeros(3, 4))
    wrong = (torch.zeros(4, 3), torch.zeros(4, 3).T, torch.zeros(3, 4).double())
    for value in wrong:
        with pytest.raises((ValueError, TypeError)):
            run(value)
    (one,) = TvmBackend().build([(replace(kernel, term=Scope((1, 4), (), row_of_one())), {})])
    assert one is not None
    # Where an axis has one element, its stride means nothing.
    assert one(torch.arange(4.0).as_strided((1, 4), (99, 1))).tolist() == [[0, 1, 2, 3]]
    # Memory that no allocator aligned is taken as it is.
    odd = torch.arange(13.0)[1:].view(3, 4)
    assert torch.equal(run(odd), odd)


def test_only_memory_bound_scopes_are_taken() -> None:
    a, b = tensor(0, (64, 64)), tensor(1, (64, 64))
    i, j, k = it(0, 64), it(1, 64), it(2, 64)
    matmul = Scope((64, 64), (64,), Prod((Read(a, (i, k)), Read(b, (k, j)))))
    assert not is_memory_bound(matmul)
    assert not list(TvmBackend().kernels(matmul, (False, False)))
    assert is_memory_bound(Scope((64,), (64,), Read(a, (it(0, 64), it(1, 64)))))
    row = Scope(
        (64,), (64,), Prod((Read(a, (it(0, 64), it(1, 64))), Read(b, (it(0, 64), it(1, 64)))))
    )
    assert is_memory_bound(row)
    assert not list(TvmBackend().kernels(tensor(0, (3,)), ()))


def test_a_kernel_that_does_not_compile_leaves_the_others() -> None:
    scope = pointwise(Read(tensor(0, (8,)), (it(0, 8),)), 8)
    good = Kernel(scope, (False,), "tvm", ((0,),), (0,), "rows")
    bad = replace(good, schedule="spiral16")
    with pytest.warns(RuntimeWarning, match="left out"):
        runners = TvmBackend().build([(good, {}), (bad, {}), (good, {})])
    assert runners[1] is None
    value = sample((8,), "float32")
    for run in (runners[0], runners[2]):
        assert run is not None and torch.equal(run(value), value)
    with pytest.raises(LoweringError) as error:
        prim_func(loop_nest(scope, [(0,)], (0,)), "spiral16", "k")
    assert error.value.got == "spiral16"


# ---- threads and libraries ----------------------------------------------

LOADED = """
import sys, pathlib, torch
from eqsynth.lower.tvm_runtime import load_library
data = pathlib.Path(sys.argv[1]).read_bytes()
function = load_library(data)[sys.argv[2]]
x, out = torch.arange(40000.0) - 7, torch.empty(40000)
function(x, out)
assert torch.equal(out, x.relu())
print([name for name in sys.modules if name.split(".")[0] == "tvm"])
"""


def relu_scope(extent: int) -> Scope:
    return pointwise(Call("relu", (Read(tensor(0, (extent,)), (it(0, extent),)),)), extent)


def relu_kernel(extent: int) -> Kernel:
    return Kernel(relu_scope(extent), (False,), "tvm", ((0,),), (0,), "rows")


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": root, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_exported_library_runs_here_and_without_the_compiler(tmp_path: Path) -> None:
    kernels = [relu_kernel(40000), relu_kernel(3)]
    data, names = export_library(kernels)
    module = load_library(data)
    value = sample((3,), "float32")
    run = runner(kernels[1], module[names[kernels[1]]], {})
    assert torch.equal(run(value), value.relu())
    path = tmp_path / "kernels.so"
    path.write_bytes(data)
    done = python(LOADED, str(path), names[kernels[0]])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_without_a_c_compiler_tvm_has_its_own_threads(tmp_path: Path) -> None:
    data, names = export_library([relu_kernel(40000)])
    path = tmp_path / "kernels.so"
    path.write_bytes(data)
    (name,) = names.values()
    empty = {"PATH": str(tmp_path), "CC": "", "EQSYNTH_CACHE": str(tmp_path)}
    done = python(LOADED, str(path), name, **empty)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning: TVM kernels run on TVM's own threads") == 1


def test_a_library_that_is_none_is_refused() -> None:
    with pytest.raises(LoweringError) as error:
        load_library(b"no library")
    assert error.value.hint


def test_kernels_run_on_the_threads_of_torch() -> None:
    code = """
import os, torch
from tests.lower.test_eoperators import relu_kernel
from eqsynth.lower.tvm_backend import TvmBackend
torch.set_num_threads(2)
(run,) = TvmBackend().build([(relu_kernel(1 << 20), {})])
x = torch.randn(1 << 20)
torch.relu(x)
before = len(os.listdir("/proc/self/task"))
run(x)
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0"


def test_many_threads_may_call_one_kernel() -> None:
    (run,) = TvmBackend().build([(relu_kernel(40000), {})])
    assert run is not None
    values = [sample((40000,), "float32", seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for value, got in zip(values * 5, pool.map(run, values * 5), strict=True):
            assert torch.equal(got, value.relu())
