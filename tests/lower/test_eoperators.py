"""eOperators against the interpreter: reads, reducers, layouts and schedules."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from eoperator_cases import (
    check,
    check_kernels,
    compile_together,
    it,
    pointwise,
    relu_scope,
    sample,
    tensor,
)
from tvm import tirx

from eqsynth.extract.kernel import Kernel, channels_last
from eqsynth.extract.schedule import Block, Fold, Lanes, Rows, Schedule, Tile
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value
from eqsynth.ir.tensor import Input, Scope, args_of
from eqsynth.ir.types import is_float
from eqsynth.lower.emitter import Emitter
from eqsynth.lower.eoperators import prim_func
from eqsynth.lower.loop_nest import loop_nest
from eqsynth.lower.machine import Machine
from eqsynth.lower.schedules import block, schedules
from eqsynth.lower.tvm_backend import TvmBackend

WIDE, NARROW = Machine(32, 64, 1 << 20), Machine(16, 32, 1 << 20)
MACHINES = (WIDE, NARROW)


def shifts(height: int, width: int, features: int, fill: float = 0.0) -> Read:
    """EinNet's OffsetReduce before its sum: nine shifted planes."""
    source = tensor(0, (height, width, 3, 3, features))
    h, w, f, r, s = (it(k, e) for k, e in enumerate((height, width, features, 3, 3)))
    return Read(source, (h + r - 1, w + s - 1, r, s, f), fill)


@pytest.mark.rotating
@pytest.mark.parametrize("features", [1, 3, 16, 40, 70])
def test_offset_reduce(features: int) -> None:
    tried = check(Scope((6, 7, features), (3, 3), shifts(6, 7, features)))
    assert (Lanes(16) in tried) == (features >= 16)


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", ["float32", "uint8", "bfloat16", "float64", "int32", "bool"])
def test_reducers_along_and_across_memory(dtype: str) -> None:
    rows, columns = 5, 150
    x = tensor(0, (rows, columns), dtype)
    scopes = {
        reducer: (
            Scope((rows,), (columns,), Read(x, (it(0, rows), it(1, columns))), reducer),
            Scope((columns,), (rows,), Read(x, (it(1, rows), it(0, columns))), reducer),
            Scope((), (rows, columns), Read(x, (it(0, rows), it(1, columns))), reducer),
        )
        for reducer in ("sum", "prod", "max", "min")
    }
    compile_together(scope for of_one in scopes.values() for scope in of_one)
    for reducer, (along, across, everything) in scopes.items():
        values = sample((rows, columns), dtype)
        if reducer == "prod" and is_float(dtype):
            values = (1 + values / 50).to(values.dtype)
        assert check(along, values, tolerance=8) == [Fold(16), Fold(64)], reducer
        assert check(across, values, tolerance=8) == [Rows(), Lanes(16), Lanes(64)], reducer
        assert check(everything, values, tolerance=32) == [Fold(16), Fold(64)], reducer


@pytest.mark.parametrize("reducer", ["max", "min"])
def test_reducers_keep_nan(reducer: str) -> None:
    x = tensor(0, (4, 64))
    values = sample((4, 64), "float32")
    values[0, 0] = values[1, 63] = values[2, 17] = torch.nan
    scope = Scope((4,), (64,), Read(x, (it(0, 4), it(1, 64))), reducer)
    check(scope, values)
    check(Scope((64,), (4,), Read(x, (it(1, 4), it(0, 64))), reducer), values)


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8"])
def test_padded_max_pool_of_negative_numbers(dtype: str) -> None:
    n, c, height, width = 2, 16, 7, 9
    x = tensor(0, (n, c, height, width), dtype)
    values = sample(x.shape, dtype)
    values = values if dtype == "uint8" else -values.abs() - 1
    h, w, r, s = it(2, 4), it(3, 5), it(4, 3), it(5, 3)
    body = Read(x, (it(0, n), it(1, c), 2 * h + r - 1, 2 * w + s - 1), -np.inf)
    check(Scope((n, c, 4, 5), (3, 3), body, "max"), values)


@pytest.mark.rotating
def test_numbers_as_fills_and_negative_indices() -> None:
    x = tensor(0, (5,), "float32")
    i = it(0, 16)
    for index in (i - 5, 4 - i, (i - 9) // 2, (i - 7) % 5, (3 - i) // 4 + (2 * i - 9) % 3):
        for fill in (0.0, -2.5, np.inf, np.nan):
            check(Scope((16,), (), Read(x, (index,), fill)))


@pytest.mark.rotating
@pytest.mark.parametrize("fill", [0.0, -2.5, np.nan])
def test_a_guard_around_rows_hides_what_is_beside(fill: float) -> None:
    """Where a row is read outside of its tensor, the kernel loads the nearest row and drops it."""
    rows, columns = 9, 40
    x = tensor(0, (rows, columns))
    values = sample((rows, columns), "float32")
    values[0], values[-1] = torch.nan, torch.inf
    i, j = it(0, rows + 4), it(1, columns)
    near, far = Read(x, (i - 1, j), fill), Read(x, (2 * i - 9, j), fill)
    for body in (near, far, Sum((near, far)), Call("max", (near, far))):
        check(Scope((rows + 4, columns), (), body), values)
    window = Read(x, (i + it(2, 3) - 3, j), fill)
    check(Scope((rows + 4, columns), (3,), window, "max"), values)
    # A reduction that isn't written out, and one of columns, whose guard moves with it.
    long = Read(x, (it(1, rows) - 1, it(2, columns)), fill)
    check(Scope((4, rows), (columns,), long), values)
    check(Scope((4, rows), (columns + 2,), Read(x, (it(1, rows), it(2, columns + 2) - 1), fill)),
          values)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int64", "uint8", "bool"])
def test_a_guard_around_rows_of_any_dtype(dtype: str) -> None:
    i, j = it(0, 13), it(1, 40)
    read = Read(tensor(0, (9, 40), dtype), (i - 2, j), 1.0)
    assert check(Scope((13, 40), (), read)) == [Rows()]


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("dtype", "sides"),
    itertools.product(
        ("float32", "bfloat16", "bool", "float64", "float16", "int8"),
        ((16, 32), (40, 56), (17, 35)),
    ),
)
def test_tiles_are_transposed_in_registers(dtype: str, sides: tuple[int, int]) -> None:
    """Whole tiles; the rest is computed point by point."""
    m, n = sides
    x, y = tensor(0, (3, m, n), dtype), tensor(1, (3, n, m), dtype)
    i, j, k = it(0, 3), it(1, n), it(2, m)
    read, beside = Read(x, (i, k, j)), Read(y, (i, j, k))
    bodies: list[Scalar] = [read]
    if dtype != "bool":
        # Beside a read that isn't transposed, and one whose guard is decided around the tile.
        bodies += [Sum((read, beside)), Sum((read, Read(x, (i + 1, k, j), 2.0)))]
    for body in bodies:
        scope = Scope((3, n, m), (), body)
        assert any(isinstance(schedule, Tile) for schedule in check(scope))
    nest = loop_nest(Scope((3, n, m), (), read), [(0, 1, 2)], (0, 1, 2))
    tile = next(schedule for schedule in schedules(nest) if isinstance(schedule, Tile))
    assert "Shuffle" in str(prim_func(nest, tile, "k"))


def test_what_is_loaded_and_dropped_lies_in_the_tensor() -> None:
    """Elsewhere there may be no memory. LLVM may leave out a load that is dropped, so that a kernel
    with a wrong address can be right by luck; therefore the addresses are looked at."""
    rows, columns = 4, 3
    i, j = it(0, 12), it(1, columns)
    read = Read(tensor(0, (rows, columns)), (2 * i - 9, j))
    emitter = Emitter(loop_nest(Scope((12, columns), (), read), [(0, 1)], (0, 1)), Rows(), "k")
    emitter.innermost = 1
    for row in range(12):
        for column in range(columns):
            at = {0: tirx.const(row, "int32"), 1: tirx.const(column, "int32")}
            chosen = emitter.load(read, at)
            assert isinstance(chosen, tirx.Select)
            (address,) = chosen.true_value.indices
            nearest = min(max(2 * row - 9, 0), rows - 1)
            assert int(address) == nearest * columns + column


def test_index_as_number() -> None:
    i, j = it(0, 3), it(1, 20)
    scope = Scope((3, 20), (), Value((i - j) // 3 * 5 + (j - 7) % 4))
    check(scope)
    mask = Call("where", (Call("le", (Value(j), Value(i))), Num(1.5), Num(-np.inf)))
    check(Scope((3, 20), (), Cast("float32", mask)))


def test_sixteen_bit_floats_accumulate_in_float32() -> None:
    for dtype in ("float16", "bfloat16"):
        x = tensor(0, (2, 4096), dtype)
        ones = torch.ones(2, 4096, dtype=getattr(torch, dtype))
        check(Scope((2,), (4096,), Read(x, (it(0, 2), it(1, 4096)))), ones)


@pytest.mark.rotating
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

    def points(scope: Scope) -> tuple[Schedule, ...]:
        rank = len(scope.traversal)
        return schedules(loop_nest(scope, [(0, 1)], tuple(range(rank))))

    assert points(Scope((64,), (32,), Read(x, (r, i)))) == (Lanes(16), Lanes(64))
    assert points(Scope((64,), (32,), Read(x, (r, 2 * i)))) == (Rows(),)  # strided
    assert points(Scope((64,), (32,), Read(x, (r, i - 1)))) == (Rows(),)  # guarded
    assert points(Scope((64,), (32,), Read(x, (r, i // 2)))) == (Rows(),)  # no stride at all
    assert points(Scope((30,), (32,), Read(x, (it(0, 30), r)))) == (Fold(16),)
    assert points(Scope((30,), (32,), Read(x, (it(0, 30), 3 * r)))) == (Rows(),)
    flip = Read(x, (it(1, 40), it(0, 300)))
    # 40 is five times 8 and no multiple of 16.
    assert points(Scope((300, 40), (), flip)) == (Rows(), Tile(16, 8), Tile(8, 8))


def product(
    m: int, n: int, k: int, batch: int = 0, dtype: str = "float32", turned: str = ""
) -> Scope:
    """A matrix product, perhaps one of a batch, with operands (``a``, ``b``) turned or not."""
    kinds = [("a", (m, k), (0, 2)), ("b", (k, n), (2, 1))]
    first = int(batch > 0)
    extents = (*[batch] * first, m, n, k)
    reads = []
    for position, (name, shape, axes) in enumerate(kinds):
        order = (1, 0) if name in turned else (0, 1)
        whole = (*[batch] * first, *(shape[axis] for axis in order))
        index = [it(0, batch)] * first
        index += [it(first + axes[axis], extents[first + axes[axis]]) for axis in order]
        reads.append(Read(tensor(position, whole, dtype), tuple(index)))
    return Scope(extents[:-1], extents[-1:], Prod(tuple(reads)))


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("m", "n", "k"),
    # Whole blocks; seven and six rows; one row more; a vector more; vectors that overlap; fewer
    # rows than a block; half a vector, with and without overlap.
    [
        (16, 64, 80), (21, 32, 130), (12, 48, 130), (17, 32, 130),
        (16, 80, 70), (9, 50, 150), (5, 100, 140), (64, 8, 150), (40, 13, 140),
    ],  # fmt: skip
)
def test_contractions_in_blocks(m: int, n: int, k: int) -> None:
    for turned in ("", "a"):
        scope = product(m, n, k, turned=turned)
        assert any(isinstance(point, Block) for point in check(scope, tolerance=4))
        plain = (0, 1)
        points = {block(loop_nest(scope, [plain] * 2, plain), wide) for wide in MACHINES}
        kernels = [
            Kernel(scope, (False, False), "tvm.block", (plain, plain), plain, point)
            for point in points
            if point is not None
        ]
        assert None not in points
        check_kernels(kernels, tolerance=4)


@pytest.mark.rotating
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
def test_batches_of_contractions_in_blocks(dtype: str, turned: str) -> None:
    check(product(19, 40, 30, 3, dtype, turned), tolerance=4)


@pytest.mark.rotating
@pytest.mark.parametrize("reducer", ["sum", "prod", "max", "min"])
def test_other_contractions_in_blocks(reducer: str) -> None:
    """A function of two operands, and an iterator as a number; in parallel."""
    h, c, f, k = it(0, 6), it(1, 9), it(2, 40), it(3, 20)
    x, y = tensor(0, (6, 9, 20)), tensor(1, (20, 40))
    near = Sum((Read(x, (h, c, k)), Prod((Num(-1.0), Read(y, (k, f))))))
    body = Prod((Call("abs", (near,)), Sum((Num(1.0), Prod((Num(1e-3), Value(f)))))))
    scale = 1 / 2 if reducer == "prod" else 1.0
    tried = check(Scope((6, 9, 40), (20,), Prod((Num(scale), body)), reducer), tolerance=16)
    assert all(isinstance(point, Block) for point in tried)


def test_what_blocks_are_for() -> None:
    def point(scope: Scope, *inputs: tuple[int, ...], output: tuple[int, ...]) -> Block | None:
        return block(loop_nest(scope, inputs, output), WIDE)

    plain = (0, 1)
    scope = product(64, 64, 64)
    assert point(scope, plain, plain, output=plain) == Block(8, 32)
    assert block(loop_nest(scope, [plain] * 2, plain), NARROW) == Block(6, 16)
    assert point(product(64, 24, 64), plain, plain, output=plain) == Block(8, 16)
    assert point(product(64, 8, 64), plain, plain, output=plain) == Block(8, 8)
    # Neighbours of a turned operand don't lie side by side, unless it is laid out so.
    turned = product(64, 64, 64, turned="b")
    assert point(turned, plain, plain, output=plain) is None
    assert point(turned, plain, (1, 0), output=plain) == Block(8, 32)
    # Fewer neighbours than half a vector has, nothing that rows share, and more than a cache holds.
    assert point(product(64, 7, 64), plain, plain, output=plain) is None
    x = tensor(0, (64, 64, 64))
    alone = Scope((64, 64), (64,), Read(x, (it(0, 64), it(2, 64), it(1, 64))))
    assert point(alone, (0, 1, 2), output=plain) is None
    assert point(product(64, 1024, 1024), plain, plain, output=plain) is None
    # A batch reads one matrix at a time.
    many = product(64, 256, 512, batch=9)
    assert point(many, *[(0, 1, 2)] * 2, output=(0, 1, 2)) == Block(8, 32)
    i, j, k = it(0, 64), it(1, 64), it(2, 64)
    a, b = tensor(0, (64, 64)), tensor(1, (64, 64))
    shifted = Scope((64, 64), (64,), Prod((Read(a, (i + k - 8, k)), Read(b, (k, j)))))
    assert point(shifted, plain, plain, output=plain) == Block(8, 32)
    apart = Scope((64, 64), (64,), Prod((Read(a, (i * 5 - 1, k)), Read(b, (k, j)))))
    assert point(apart, plain, plain, output=plain) is None


def test_layouts() -> None:
    shape = (2, 5, 4, 3)
    n, c, h, w = (it(k, e) for k, e in enumerate(shape))
    x, bias = tensor(0, shape), tensor(1, (5,))
    scope = Scope(shape, (), Call("relu", (Sum((Read(x, (n, c, h, w)), Read(bias, (c,)))),)))
    kernels = list(TvmBackend().kernels(scope, (False, True)))
    assert {k.output for k in kernels} == {(0, 1, 2, 3), channels_last(4)}
    check(scope)
    # Each mix of layouts is a kernel of its own: this one converts.
    mixed = Kernel(scope, (False, False), "tvm", (channels_last(4), (0,)), (0, 1, 2, 3), Rows())
    (run,) = TvmBackend().build([(mixed, {})])
    value, b = sample(shape, "float32"), sample((5,), "float32", 1)
    got = run(value.to(memory_format=torch.channels_last), b) if run else None
    assert got is not None and got.is_contiguous()
    torch.testing.assert_close(got, torch.relu(value + b.view(5, 1, 1)))


@pytest.mark.rotating
def test_results_in_the_order_of_what_is_read() -> None:
    """Nothing is transposed then; a copy in that order would be the operand itself."""
    x, y = tensor(0, (5, 1, 40, 3)), tensor(1, (5, 40))
    i, j, k = it(0, 40), it(1, 3), it(3, 5)
    read = Read(x, (k, it(2, 1), i, j))
    scope = Scope((40, 3, 1, 5), (), Sum((read, Read(y, (k, i)))))
    order = (3, 0, 1, 2)

    def outputs(scope: Scope) -> set[tuple[int, ...]]:
        constants = (False,) * len(args_of(scope))
        return {k.output for k in TvmBackend().kernels(scope, constants)}

    assert outputs(scope) == {(0, 1, 2, 3), order, channels_last(4)}
    check(scope)
    assert order not in outputs(Scope((40, 3, 1, 5), (), read))
    # Of y alone an axis would be missing, and the order of the others says nothing.
    alone = Scope((40, 3, 1, 5), (), Call("relu", (Read(y, (k, i)),)))
    assert outputs(alone) == {(0, 1, 2, 3), channels_last(4)}
    maxima = Scope((40, 5), (3,), Read(x, (it(1, 5), it(3, 1), i, it(2, 3))), "max")
    assert outputs(maxima) == {(0, 1), (1, 0)}
    check(maxima)


@pytest.mark.rotating
@pytest.mark.parametrize("shape", [(2, 33, 5, 7), (1, 16, 17, 32)])
def test_permutes(shape: tuple[int, ...]) -> None:
    scopes = {}
    for axes in ((0, 2, 1, 3), (0, 2, 3, 1), (3, 2, 1, 0), (0, 1, 3, 2)):
        result = tuple(shape[axis] for axis in axes)
        index = tuple(it(axes.index(axis), shape[axis]) for axis in range(4))
        scopes[axes] = Scope(result, (), Read(tensor(0, shape), index))
    compile_together(scopes.values())
    for axes, scope in scopes.items():
        tiled = any(isinstance(schedule, Tile) for schedule in check(scope))
        assert tiled or axes == (0, 2, 1, 3)


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


def test_a_product_with_a_reciprocal_is_a_quotient() -> None:
    """1 / 1e-39 is infinite in float32, and 2e-39 / 1e-39 is 2."""
    x, s = tensor(0, (3, 4)), tensor(1, (3,))
    i, j = it(0, 3), it(1, 4)
    body = Prod((Num(0.5), Read(x, (i, j)), Call("reciprocal", (Read(s, (i,)),))))
    tiny = torch.full((3,), 1e-39)
    check(Scope((3, 4), (), body), torch.rand(3, 4) * 1e-38 + 1e-38, tiny)


@pytest.mark.rotating
def test_large_enough_to_run_in_parallel() -> None:
    x = tensor(0, (70, 33, 64))
    i, j, k = it(0, 70), it(1, 33), it(2, 64)
    check(Scope((70, 33, 64), (), Call("silu", (Read(x, (i, j + 1, k)),))))
    check(Scope((70, 33), (64,), Read(x, (i, j, k))), tolerance=4)
    check(Scope((64, 33), (70,), Read(x, (it(2, 70), it(1, 33), it(0, 64)))), tolerance=4)
    check(Scope((64, 70, 33), (), Read(x, (it(1, 70), it(2, 33), it(0, 64)))))
    check(Scope((70, 33, 3), (), Read(x, (i, j, 3 * it(2, 3) - 2))))


def test_a_digit_beside_the_remainder_of_another() -> None:
    """TVM's FlattenBuffer made (i + 1) % 48 // 8 of i // 8 % 6 beside (i % 8 + 1) % 2."""
    j, h, k = it(1, 6), it(2, 8), it(4, 16)
    read = Read(tensor(0, (16, 6, 2)), (k, j, (h + 1) % 2))
    check(Scope((2, 6, 8, 16), (16,), read), tolerance=16)


def test_only_large_kernels_are_parallel() -> None:
    for extent, parallel in ((64, False), (1 << 20, True)):
        nest = loop_nest(relu_scope(extent), [(0,)], (0,))
        assert ("T.parallel" in prim_func(nest, Rows(), "k").script()) == parallel


def test_shared_subexpressions_are_computed_once() -> None:
    x: Scalar = Read(tensor(0, (8,)), (it(0, 8),))
    for _ in range(7):  # 3^7 operations if it were a tree
        x = Call("tanh", (Sum((x, Prod((Num(0.5), x, x)))),))
    check(pointwise(x, 8), sample((8,), "float32") / 9)


@pytest.mark.parametrize("reduced", [(), (40,)])
def test_equal_products_cancel_in_an_exponent(reduced: tuple[int, ...]) -> None:
    """exp(c*x - c*m) with x = m is 1, as with products that are rounded: a product that is fused
    with the difference leaves the rounding of the other, 32 where the products are 1e9."""
    a, b = tensor(0, (8, 40)), tensor(1, (8, 40))
    place, c = (it(0, 8), it(1, 40)), Num(0.176777)
    powers = Sum((Prod((c, Read(a, place))), Prod((Num(-0.176777), Read(b, place)))))
    scope = Scope((8, 40) if not reduced else (8,), reduced, Call("exp", (powers,)))
    x = torch.full((8, 40), 3.2e9) + 1e5 * sample((8, 40), "float32")
    kernels = list(TvmBackend().kernels(scope, (False, False)))
    for kernel, runner in zip(kernels, TvmBackend().build([(k, {}) for k in kernels]), strict=True):
        assert runner is not None
        result = runner(x, x.clone())
        assert torch.equal(result, torch.full(scope.shape, 40.0 if reduced else 1.0)), kernel


def results(scopes: Sequence[Scope], *values: torch.Tensor) -> list[torch.Tensor]:
    """What each kernel of each scope gives. Inputs are named by their place in ``values``."""
    backend = TvmBackend()
    kernels = [k for s in scopes for k in backend.kernels(s, (False,) * len(args_of(s)))]
    made = list[torch.Tensor]()
    for kernel, run in zip(kernels, backend.build([(k, {}) for k in kernels]), strict=True):
        args = [arg for arg in args_of(kernel.term) if isinstance(arg, Input)]
        assert run is not None
        made.append(run(*(values[int(arg.label)] for arg in args)))
    assert made
    return made


def scaled(read: Read, divide: bool) -> Scalar:
    return Call("div", (read, Num(11.3))) if divide else Prod((Num(1 / 11.3), read))


def exponentials(*terms: Scalar) -> list[Scope]:
    """exp(a + b + ..) with the terms in all orders."""
    orders = itertools.permutations(terms)
    return [Scope((8, 40), (), Call("exp", (Sum(order),))) for order in orders]


SCORES = torch.full((8, 40), 1e10) + 1e4 * sample((8, 40), "float32")  # one rounding is 1024


@pytest.mark.parametrize("divide", [True, False])
def test_a_softmax_is_1_at_the_largest_score_in_any_order(divide: bool) -> None:
    """exp(x/11.3 + b - m) with m = max(k) x/11.3 + b."""
    i, k = it(0, 8), it(1, 40)
    score = scaled(Read(tensor(0, (8, 40)), (i, k)), divide)
    b, m = Read(tensor(1, (40,)), (k,)), Prod((Num(-1.0), Read(tensor(2, (8,)), (i,))))
    bias = 20 * sample((40,), "float32")
    largest = Scope((8,), (40,), Sum((score, b)), "max")
    first, *others = results([largest], SCORES, bias)
    assert all(torch.equal(first, other) for other in others)
    for made in results(exponentials(score, b, m), SCORES, bias, first):
        assert torch.equal(made.amax(1), torch.ones(8))


def test_a_quotient_is_a_product_beside_a_product_with_the_inverse() -> None:
    """exp(x/11.3 - 0.0885*m) with m = max(k) x, also where a mask leaves scores out."""
    i, k = it(0, 8), it(1, 40)
    quotient = scaled(Read(tensor(0, (8, 40)), (i, k)), True)
    seen = Call("where", (Read(tensor(2, (40,), "bool"), (k,)), quotient, Num(-np.inf)))
    m = Prod((Num(-1 / 11.3), Read(tensor(1, (8,)), (i,))))
    every = torch.ones(40, dtype=torch.bool)
    for score in (quotient, seen):
        for made in results(exponentials(score, m), SCORES, SCORES.amax(1), every):
            assert torch.equal(made.amax(1), torch.ones(8))


def test_a_quotient_whose_floor_is_taken_stays_a_quotient() -> None:
    """41 times the float 1/41 is less than 1."""
    i, k = it(0, 8), it(1, 40)
    ones = Call("floor", (Call("div", (Read(tensor(0, (8, 40)), (i, k)), Num(41.0))),))
    other = Prod((Num(1 / 41), Read(tensor(1, (8,)), (i,))))
    x, zeros = torch.full((8, 40), 41.0), torch.zeros(8)
    for made in results(exponentials(ones, other), x, zeros):
        assert torch.allclose(made, torch.tensor(np.e).float())
    largest = Scope((8,), (40,), Call("div", (Read(tensor(0, (8, 40)), (i, k)), Num(41.0))), "max")
    for made in results([largest], x):
        assert torch.equal(made, torch.ones(8))
