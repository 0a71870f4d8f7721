"""Kernels of row chains against the interpreter."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from eoperator_cases import TOLERANCE, array, it, sample, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from lower_cases import check_kernel

from eqsynth.extract.kernel import Kernel
from eqsynth.extract.schedule import Chain, Rows
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, Sum
from eqsynth.ir.tensor import Region, Scope, Tensor
from eqsynth.lower.loop_nest import loop_nest, row_chain
from eqsynth.lower.machine import this_machine
from eqsynth.lower.schedules import ON_STACK_BYTES, refusal
from eqsynth.lower.spaces import space_of
from eqsynth.lower.tvm_backend import TvmBackend
from tests.terms import times
from tests.turns import in_turns

Shape = tuple[int, ...]


def at(shape: Shape) -> tuple[object, ...]:
    return tuple(it(axis, extent) for axis, extent in enumerate(shape))


def reduced(tensor: Tensor, reducer: str, body: Scalar | None = None) -> Scope:
    """A reduction along the last axis, of a tensor or of a body at its iterators."""
    *rows, length = tensor.shape
    read = Read(tensor, at(tensor.shape))
    return Scope(tuple(rows), (length,), read if body is None else body, reducer)


def mapped(shape: Shape, body: Scalar) -> Scope:
    return Scope(shape, (), body)


def of_rows(tensor: Tensor, shape: Shape) -> Read:
    return Read(tensor, at(shape)[: len(tensor.shape)])


def minus(a: Scalar, b: Scalar) -> Scalar:
    return Sum((a, Prod((Num(-1.0), b))))


def softmax(shape: Shape, dtype: str = "float32") -> Region:
    x = tensor(0, shape, dtype)
    here = Read(x, at(shape))
    most = reduced(x, "max")
    powers = mapped(shape, Call("exp", (minus(here, of_rows(most, shape)),)))
    total = reduced(powers, "sum")
    quotient = Call("div", (Read(powers, at(shape)), of_rows(total, shape)))
    return Region((mapped(shape, quotient),), (x,))


def layer_norm(shape: Shape, dtype: str = "float32") -> Region:
    """Of ``x + y``, with a scale for each column."""
    x, y = tensor(0, shape, dtype), tensor(1, shape, dtype)
    scale = tensor(2, shape[-1:], dtype)
    both = mapped(shape, Sum((Read(x, at(shape)), Read(y, at(shape)))))
    part = Num(1 / shape[-1])
    mean = reduced(both, "sum", Prod((part, Read(both, at(shape)))))
    centred = minus(Read(both, at(shape)), of_rows(mean, shape))
    variance = reduced(both, "sum", Prod((part, centred, centred)))
    spread = Call("sqrt", (Sum((of_rows(variance, shape), Num(1e-5))),))
    column = Read(scale, (it(len(shape) - 1, shape[-1]),))
    scaled = Prod((Call("div", (centred, spread)), column))
    return Region((mapped(shape, scaled),), (x, y, scale))


def neighbours(shape: Shape, dtype: str = "float32") -> Region:
    """A result that reads the row's values at other places, outside of the row too."""
    x = tensor(0, shape, dtype)
    *rows, column = at(shape)
    most = reduced(x, "max")
    moved = mapped(shape, minus(Read(x, at(shape)), of_rows(most, shape)))
    after = Read(moved, (*rows, column + 1), 3.0)
    mirrored = Read(moved, (*rows, shape[-1] - 1 - column))
    return Region((mapped(shape, Sum((after, mirrored, of_rows(most, shape)))),), (x,))


def kernels_of(region: Region) -> list[Kernel]:
    found = list(TvmBackend().fused(region, (False,) * len(region.args)))
    assert all(isinstance(kernel.schedule, Chain) for kernel in found)
    return found


SHAPES = ((6, 150), (3, 2, 64), (1, 1, 40), (5, 1, 17), (2, 3, 3, 16), (9, 1), (1, 300))


def test_a_single_number_is_no_row() -> None:
    """The sum of all elements of a map, a result without axes."""
    x = tensor(0, (4, 6))
    squares = mapped((4, 6), Prod((Read(x, at((4, 6))),) * 2))
    total = Scope((), (4, 6), Read(squares, at((4, 6))))
    root = Scope((), (), Call("sqrt", (Read(total, ()),)))
    region = Region((root,), (x,))
    assert row_chain(region) is None
    assert not list(TvmBackend().fused(region, (False,)))


@pytest.mark.rotating
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("chain", [softmax, layer_norm, neighbours], ids=lambda c: c.__name__)
def test_chains(chain: object, shape: Shape) -> None:
    region = chain(shape)  # type: ignore[operator]
    (kernel,) = kernels_of(region)
    values = [sample(arg.shape, arg.dtype, n) for n, arg in enumerate(region.args)]
    check_kernel(TvmBackend(), kernel, values)


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("chain", [softmax, layer_norm, neighbours], ids=lambda c: c.__name__)
def test_dtypes(chain: object, dtype: str) -> None:
    region = chain((4, 100), dtype)  # type: ignore[operator]
    (kernel,) = kernels_of(region)
    values = [sample(arg.shape, dtype, n) for n, arg in enumerate(region.args)]
    check_kernel(TvmBackend(), kernel, values)


def test_constants_are_bound() -> None:
    """The scale of a LayerNorm is a weight, which the kernel holds."""
    region = layer_norm((6, 100))
    (kernel,) = TvmBackend().fused(region, (False, False, True))
    assert kernel.constants == (False, False, True)
    values = [sample(arg.shape, arg.dtype, n) for n, arg in enumerate(region.args)]
    check_kernel(TvmBackend(), kernel, values)


def test_integers_and_booleans() -> None:
    """A row of booleans is held as bytes."""
    shape = (5, 70)
    x = tensor(0, shape, "int32")
    most = reduced(x, "max")
    is_most = mapped(shape, Call("ge", (Read(x, at(shape)), of_rows(most, shape))))
    assert is_most.dtype == "bool"
    chosen = mapped(shape, Call("where", (Read(is_most, at(shape)), Read(x, at(shape)), Num(0.0))))
    region = Region((chosen,), (x,))
    (kernel,) = kernels_of(region)
    values = sample(shape, "int32")
    (runner,) = TvmBackend().build([(kernel, {})])
    assert runner is not None
    expected = torch.where(values == values.amax(1, keepdim=True), values, 0)
    assert torch.equal(runner(values), expected)


def test_special_values() -> None:
    """NaN and infinities stay in their rows."""
    region = softmax((5, 48))
    (kernel,) = kernels_of(region)
    x = sample((5, 48), "float32")
    x[1, 7], x[2, 3], x[3] = math.nan, math.inf, -math.inf
    (runner,) = TvmBackend().build([(kernel, {})])
    assert runner is not None
    torch.testing.assert_close(runner(x), torch.softmax(x, 1), equal_nan=True)


def test_every_point_of_the_space_is_right() -> None:
    region = layer_norm((300, 130))
    (kernel,) = kernels_of(region)
    nest = loop_nest(region, kernel.inputs, kernel.output)
    space = space_of(nest, this_machine())
    points = [space.made(point) for point in space.points()]
    schedules = [point for point in points if isinstance(point, Chain)]
    assert kernel.schedule in schedules and len({s.width for s in schedules}) > 2
    assert len({s.tasks for s in schedules}) > 2
    values = [sample(arg.shape, arg.dtype, n) for n, arg in enumerate(region.args)]
    for schedule in schedules[::5]:
        own = Kernel(region, kernel.constants, kernel.implementation, kernel.inputs,
                     kernel.output, schedule)  # fmt: skip
        check_kernel(TvmBackend(), own, values)


def test_what_is_no_chain() -> None:
    """Scopes without common rows, rows that the stack doesn't hold, and other schedules."""
    x = tensor(0, (8, 32))
    across = Scope((32,), (8,), Read(x, (it(1, 8), it(0, 32))))
    body = Sum((Read(x, at((8, 32))), Read(across, (it(1, 32),))))
    region = Region((mapped((8, 32), body),), (x,))
    assert row_chain(region) is None and not kernels_of(region)
    y = tensor(0, (4, 4, 32))
    i, j, k = at(y.shape)
    most = reduced(y, "max")
    moved = mapped(y.shape, minus(Read(y, (i, j, k)), Read(most, (i, j))))
    both = Sum((Read(moved, (i, j, k)), Read(most, (j, i))))
    assert row_chain(Region((mapped(y.shape, both),), (y,))) is None, "its rows and others"
    assert row_chain(Region((reduced(x, "sum"),), (x,))) is None, "one scope"
    assert not kernels_of(softmax((2, ON_STACK_BYTES // 4 + 1)))
    assert kernels_of(softmax((2, 1000)))
    region = softmax((8, 32))
    nest = loop_nest(region, ((0, 1),), (0, 1))
    assert refusal(nest, Rows()) is not None and refusal(nest, Chain(24)) is not None
    alone = reduced(x, "sum")
    assert refusal(loop_nest(alone, ((0, 1),), (0,)), Chain(16)) is not None


REDUCERS = ("sum", "max", "min")


@st.composite
def chains(draw: st.DrawFn) -> Region:
    """A random chain: reductions and maps over rows, each of which may read everything before, and
    each with its axes in an order of its own."""
    rows = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=2)))
    shape = (*rows, draw(st.integers(1, 70)))
    inputs = (tensor(0, shape), tensor(1, rows), tensor(2, shape[-1:]))
    # What is known, with the axes of ``shape`` that its axes are.
    known: list[tuple[Tensor, Shape]] = [(inputs[0], tuple(range(len(shape))))]

    def value(order: Shape, spot: int) -> Scalar:
        """A read, in a scope whose axes are these of ``shape``, at the row's place in slot
        ``spot``."""
        others = [(inputs[1], tuple(range(len(rows)))), (inputs[2], (len(rows),))]
        source, axes = draw(st.sampled_from([*known, *others]))
        shift = draw(st.integers(-2, 2)) if source not in inputs[1:] else 0
        index = tuple(
            it(order.index(a), shape[a]) if a < len(rows) else it(spot, shape[a]) + shift
            for a in axes
        )
        return Read(source, index, draw(st.sampled_from([0.0, 2.0])))

    def body(order: Shape, spot: int) -> Scalar:
        found = value(order, spot)
        for _ in range(draw(st.integers(0, 2))):
            other = value(order, spot)
            found = draw(st.sampled_from([
                Sum((found, other)), Call("max", (found, other)),
                Call("tanh", (minus(found, other),)), Prod((Num(0.5), found, other)),
            ]))  # fmt: skip
        return found

    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            order = tuple(draw(st.permutations(range(len(rows)))))
            extents = tuple(shape[a] for a in order)
            reducer = draw(st.sampled_from(REDUCERS))
            scope = Scope(extents, shape[-1:], body(order, len(rows)), reducer)
        else:
            order = tuple(draw(st.permutations(range(len(shape)))))
            extents = tuple(shape[a] for a in order)
            scope = Scope(extents, (), body(order, order.index(len(rows))))
        known.append((scope, order))
    reads = (Read(t, tuple(it(a, shape[a]) for a in axes)) for t, axes in known)
    return Region((mapped(shape, Sum(tuple(reads))),), inputs)


@in_turns
@settings(max_examples=times(0.2))
@given(chains())
def test_random_chains(region: Region) -> None:
    """Each turn draws and compiles other chains."""
    chain = row_chain(region)
    assert chain is not None
    (kernel,) = kernels_of(region)
    values = [sample(arg.shape, arg.dtype, n) for n, arg in enumerate(region.args)]
    (runner,) = TvmBackend().build([(kernel, {})])
    assert runner is not None
    expected = evaluate(region.outputs[0], {str(n): array(v) for n, v in enumerate(values)})
    bound = 100 * TOLERANCE["float32"] * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(array(runner(*values)), expected, rtol=1e-3, atol=bound)
