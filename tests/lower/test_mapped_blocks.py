"""A map (bias, residual, activation) over a reduction, in one kernel: results go through the map
while they are in registers."""

from __future__ import annotations

import pytest
from eoperator_cases import check_region

from eqsynth.extract.schedule import Block
from eqsynth.ir import tensor as terms
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, Sum
from eqsynth.ir.tensor import Input, Region, Scope, args_of
from eqsynth.ir.types import TensorType
from eqsynth.lower.loop_nest import is_memory_bound, loop_nest, map_kept
from eqsynth.lower.machine import Machine
from eqsynth.lower.schedules import refusal
from eqsynth.lower.spaces import space_of
from eqsynth.lower.tvm_backend import TvmBackend
from eqsynth.tuning.space import Refused
from tests.lower.test_padding import CONVOLUTIONS, convolution
from tests.lower.test_panels import contraction
from tests.terms import it


def mapped(scope: Scope, kind: str) -> Region:
    """A region of a contraction and a map over it."""
    own = tuple(terms_at(scope))
    result: Scalar = Read(scope, own)
    bias = Input("bias", TensorType((scope.shape[1],), scope.dtype))
    other = Input("other", scope.type)
    if "bias" in kind:
        result = Sum((result, Read(bias, (own[1],))))
    if "shifted" in kind:
        result = Sum((result, Read(other, (*own[:-1], own[-1] - 1), 3.0)))
    if "residual" in kind:
        result = Sum((result, Read(other, own)))
    if "prelu" in kind:
        slope = Input("slope", TensorType((scope.shape[1],), scope.dtype))
        low = Prod((result, Read(slope, (own[1],))))
        result = Call("where", (Call("gt", (result, Num(0.0))), result, low))
    if "sigmoid" in kind:
        result = Call("sigmoid", (result,))
    after = Scope(scope.shape, (), result)
    given = dict.fromkeys((*args_of(scope), *args_of(after)))
    inputs: dict[terms.Tensor, Input] = {
        arg: Input(str(n), arg.type) for n, arg in enumerate(a for a in given if a != scope)
    }
    placed: dict[terms.Tensor, terms.Tensor] = {**inputs, scope: terms.over(scope, inputs)}
    return Region((terms.over(after, placed),), tuple(inputs.values()))


def terms_at(scope: Scope) -> list[Index]:
    return [it(axis, extent) for axis, extent in enumerate(scope.shape)]


@pytest.mark.rotating
@pytest.mark.parametrize("kind", ["bias", "residual", "bias prelu", "bias shifted", "sigmoid"])
@pytest.mark.parametrize("name", ["3x3", "stride 2", "far", "1x5", "pointwise"])
def test_a_map_over_a_convolution(name: str, kind: str) -> None:
    """With weights as they lie, and in panels."""
    region = mapped(CONVOLUTIONS[name], kind)
    for weights in (False, True):
        constants = tuple(n == 1 and weights for n in range(len(region.args)))
        kernels = check_region(region, constants)
        assert kernels and {k.implementation for k in kernels} == {"tvm.block"}
        packed = {k.schedule.packed for k in kernels if isinstance(k.schedule, Block)}
        assert packed == ({1} if weights else {-1})


@pytest.mark.rotating
@pytest.mark.parametrize("size", [(16, 64, 80), (21, 37, 130), (7, 40, 213)], ids=str)
def test_a_map_over_a_product(size: tuple[int, int, int]) -> None:
    for kind in ("bias", "bias residual prelu"):
        assert check_region(mapped(contraction(*size), kind))


def row_by_matrix(columns: int, steps: int, across: bool) -> Scope:
    """A product of a row by a matrix, whose reduction runs along the matrix's rows or across."""
    j, k = it(1, columns), it(2, steps)
    row = Input("0", TensorType((1, steps), "float32"))
    shape, at = ((steps, columns), (k, j)) if across else ((columns, steps), (j, k))
    matrix = Input("1", TensorType(shape, "float32"))
    return Scope((1, columns), (steps,), Prod((Read(row, (Index(0), k)), Read(matrix, at))))


def taps(reducer: str) -> Scope:
    """Four neighbours of each element of an image, some of them outside of it."""
    image = Input("0", TensorType((5, 9, 11), "float32"))
    c, y, x, k, m = it(0, 5), it(1, 9), it(2, 11), it(3, 2), it(4, 2)
    read = Read(image, (c, y + k, x + m), 0.0 if reducer == "sum" else float("-inf"))
    return Scope((5, 9, 11), (2, 2), read, reducer)


def one_term() -> Scope:
    matrix = Input("0", TensorType((32, 48), "float32"))
    i, j = it(0, 48), it(1, 32)
    return Scope((48, 32), (1,), Read(matrix, (j, i)))


MEMORY_BOUND: dict[str, tuple[Scope, set[str]]] = {
    "small": (contraction(4, 8, 8), {"rows"}),
    "few columns": (contraction(300, 2, 400), {"rows"}),
    "along rows": (row_by_matrix(70, 150, across=False), {"fold64"}),
    "across rows": (row_by_matrix(150, 70, across=True), {"lanes64"}),
    "taps": (taps("sum"), {"rows"}),
    "maxima": (taps("max"), {"rows"}),
    # The map goes over the sum of nothing, and over a sum of one term, whose matrix lies across.
    "nothing": (contraction(8, 24, 0), {"rows"}),
    "one term": (one_term(), {"rows"}),
}


@pytest.mark.parametrize("kind", ["bias", "bias residual prelu", "sigmoid"])
@pytest.mark.parametrize("name", MEMORY_BOUND)
def test_a_map_over_a_reduction_that_memory_bounds(name: str, kind: str) -> None:
    scope, expected = MEMORY_BOUND[name]
    region = mapped(scope, kind)
    assert map_kept(region) is not None and is_memory_bound(region)
    kernels = check_region(region)
    assert {kernel.implementation for kernel in kernels} == {"tvm.mapped"}
    assert expected & {str(kernel.schedule) for kernel in kernels}


def test_maps_that_stay_by_themselves() -> None:
    """Where the sum has another dtype."""
    large = mapped(contraction(16, 64, 80), "bias")
    assert map_kept(large) is not None and not is_memory_bound(large)
    i, j, k = terms_at(Scope((16, 64, 80), (), Num(0.0)))
    a, c = (Input(str(n), TensorType(s, "float16")) for n, s in enumerate(((16, 80), (80, 64))))
    half = Scope((16, 64), (80,), Prod((Read(a, (i, k)), Read(c, (k, j)))))
    assert map_kept(mapped(half, "bias")) is None  # added up in float32


def test_loops_are_merged_if_the_map_allows_it() -> None:
    """Seven rows of seven are blocks of 4 and 3 rows; 49 rows are hardly cut."""
    last, region = (0, 2, 3, 1), mapped(convolution(32, 32, (7, 7), (1, 1)), "bias residual")
    layouts = (last, (1, 2, 3, 0), (0,), last)
    assert [loop.extent for loop in loop_nest(region, layouts, last).traversal] == [98, 32]
    shifted = mapped(convolution(32, 32, (7, 7), (1, 1)), "shifted")
    extents = [loop.extent for loop in loop_nest(shifted, (*layouts[:2], last), last).traversal]
    assert extents == [14, 7, 32]


def test_the_space_of_a_mapped_block() -> None:
    region = mapped(CONVOLUTIONS["3x3"], "bias prelu")
    kernels = [*TvmBackend().fused(region, (False, True, False, False))]
    nest = loop_nest(region, kernels[0].inputs, kernels[0].output)
    space = space_of(nest, Machine(16, 32, 1 << 18), False, (False, True, False, False))
    (start,) = space.starts
    near = [space.made(point) for point in space.neighbours(start)]
    made = [schedule for schedule in near if not isinstance(schedule, Refused)]
    assert made and all(isinstance(schedule, Block) for schedule in made)
    assert all(refusal(nest, schedule) is None for schedule in made)
