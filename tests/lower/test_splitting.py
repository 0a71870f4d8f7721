"""Grouped convolutions and other scopes with quotients of iterators, in blocks."""

from __future__ import annotations

import pytest
from eoperator_cases import check_kernels, check_region, tensor
from test_padding import blocks_of, nest_of

from eqsynth.extract.kernel import Kernel, channels_last, contiguous
from eqsynth.extract.schedule import Block
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Prod, Read, Sum
from eqsynth.ir.tensor import Region, Scope, args_of
from eqsynth.lower.loop_nest import LoopNest, loop_nest
from eqsynth.lower.schedules import block_loops
from eqsynth.lower.splitting import split, split_in
from tests.terms import it


def grouped(
    groups: int, channels: int, filters: int, size: tuple[int, int], low: int = 1, stride: int = 1
) -> Scope:
    """A 3x3 convolution of two images with so many channels and filters in a group:
    ``L_bfhw sum_crs x[b, f // filters * channels + c, …] * k[f, c, r, s]``."""
    height, width = ((n + 2 * low - 3) // stride + 1 for n in size)
    b, f, h, w = it(0, 2), it(1, groups * filters), it(2, height), it(3, width)
    c, r, s = it(4, channels), it(5, 3), it(6, 3)
    x = tensor(0, (2, groups * channels, *size))
    k = tensor(1, (groups * filters, channels, 3, 3))
    read = Read(x, (b, f // filters * channels + c, h * stride + r - low, w * stride + s - low))
    body = Prod((read, Read(k, (f, c, r, s))))
    return Scope((2, groups * filters, height, width), (channels, 3, 3), body)


GROUPED = {
    "padded": grouped(3, 4, 8, (6, 18)),
    "not padded": grouped(3, 4, 8, (6, 18), low=0),
    "stride 2": grouped(2, 4, 8, (9, 33), stride=2),
    "wide": grouped(2, 8, 24, (4, 9)),
    "one group": grouped(1, 4, 16, (6, 18)),
}


@pytest.mark.rotating
@pytest.mark.parametrize("name", sorted(GROUPED))
def test_grouped_convolutions(name: str) -> None:
    """At all layouts, with the weights in panels and as they lie."""
    check_kernels(blocks_of(GROUPED[name]), tolerance=32)


@pytest.mark.rotating
def test_a_map_over_a_grouped_convolution() -> None:
    """A bias, a residual and an activation, which are read at the filter and not at its parts."""
    scope = grouped(3, 4, 8, (6, 18))
    at = tuple(it(n, extent) for n, extent in enumerate(scope.shape))
    bias, rest = tensor(2, (24,)), tensor(3, scope.shape)
    total = Sum((Read(scope, at), Read(bias, at[1:2]), Read(rest, at)))
    after = Scope(scope.shape, (), Call("relu", (total,)))
    region = Region((after,), (*args_of(scope), bias, rest))
    found = check_region(region, (False, True, True, False))
    blocks = {kernel.output for kernel in found if isinstance(kernel.schedule, Block)}
    assert blocks == {contiguous(4), channels_last(4)}


def test_a_block_has_rows_of_one_group() -> None:
    """Row-major, the rows are the filters of a group; channels last, its columns are."""
    nest = nest_of(GROUPED["not padded"])
    assert block_loops(nest) is None
    assert _extents(nest.for_blocks) == (8, 16)
    # The weights lie as their panels do, with the filters innermost.
    last = loop_nest(nest.scope, [channels_last(4), (1, 2, 3, 0)], channels_last(4))
    assert _extents(last.for_blocks) == (16, 8)
    assert last.for_blocks.for_blocks is last.for_blocks
    assert last.for_blocks.stored == (nest.scope, channels_last(4))


def test_a_reduction_that_is_split() -> None:
    """``a[i, k // 2 * 2] * c[k, j]``, each of the two in panels."""
    i, j, k = it(0, 24), it(1, 32), it(2, 12)
    a, c = tensor(0, (24, 12)), tensor(1, (12, 32))
    scope = Scope((24, 32), (12,), Prod((Read(a, (i, k // 2 * 2)), Read(c, (k, j)))))
    plain = contiguous(2)
    check_kernels([
        Kernel(scope, (packed == 0, packed == 1), "tvm.block", (plain, plain), plain,
               Block(4, 16, packed=packed))
        for packed in (0, 1, -1)
    ])  # fmt: skip


def _extents(nest: LoopNest) -> tuple[int, ...]:
    return tuple(loop.extent for loop in block_loops(nest) or ())


def test_iterators_that_are_split() -> None:
    x = tensor(0, (6, 64))
    i, j, k = it(0, 12), it(1, 5), it(2, 64)
    scope = Scope((12, 5), (64,), Prod((Read(x, (i // 2, k % 16 + j)), Read(x, (i % 2, k)))))
    assert split_in(scope) == ((0, 12), 2)
    once = split(scope, *split_in(scope))  # type: ignore[misc]
    assert once.traversal == (6, 2, 5) and split_in(once) == ((3, 64), 16)
    twice = split(once, *split_in(once))  # type: ignore[misc]
    assert twice.reduction == (4, 16) and split_in(twice) is None
    a, b, j, p, q = (it(n, e) for n, e in enumerate((6, 2, 5, 4, 16)))
    assert twice.body == Prod((Read(x, (a, q + j)), Read(x, (b, p * 16 + q))))
    # Neither a quotient of a sum nor one by a number that leaves a rest.
    i = it(0, 12)
    for index in ((i + 1) // 2, i // 5, i * 2 % 3):
        assert split_in(Scope((12,), (), Read(x, (Index(0), index)))) is None
