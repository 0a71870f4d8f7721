"""A map (bias, residual, activation) over a contraction, in one kernel: results go through the map
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
from eqsynth.lower.schedules import Machine, refusal
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


def test_maps_that_stay_by_themselves() -> None:
    """Over a small or memory-bound reduction, and where the sum has another dtype."""
    for scope in (contraction(4, 8, 8), contraction(300, 2, 400)):
        region = mapped(scope, "bias")
        assert map_kept(region) is None and is_memory_bound(region)
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
