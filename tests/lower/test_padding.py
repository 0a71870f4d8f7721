"""Contractions that read beyond their arguments, from copies with the fill around them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from eoperator_cases import check_kernels, tensor

from eqsynth.extract.kernel import Kernel, channels_last, contiguous
from eqsynth.extract.schedule import Block, Rows
from eqsynth.ir.scalar import Prod, Read
from eqsynth.ir.tensor import Scope
from eqsynth.lower.loop_nest import LoopNest, loop_nest, scratch_bytes
from eqsynth.lower.machine import Machine
from eqsynth.lower.padding import MOST, pad_of
from eqsynth.lower.schedules import block, block_loops
from eqsynth.lower.tvm_backend import TvmBackend
from tests.terms import it


def convolution(
    channels: int, features: int, size: tuple[int, int], window: tuple[int, int],
    low: tuple[int, int] = (0, 0), high: tuple[int, int] = (0, 0), stride: int = 1,
    dilation: int = 1, fill: float = 0.0, dtype: str = "float32",
) -> Scope:  # fmt: skip
    """``L_bfhw sum_crs x[b, c, h*stride + r*dilation - low, …] * k[f, c, r, s]`` of two images."""
    extents = [
        (n + a + z - dilation * (k - 1) - 1) // stride + 1
        for n, a, z, k in zip(size, low, high, window, strict=True)
    ]
    b, f, h, w = (it(k, e) for k, e in enumerate((2, features, *extents)))
    c, r, s = it(4, channels), it(5, window[0]), it(6, window[1])
    x = tensor(0, (2, channels, *size), dtype)
    k = tensor(1, (features, channels, *window), dtype)
    rows, columns = (
        at * stride + tap * dilation - a for at, tap, a in ((h, r, low[0]), (w, s, low[1]))
    )
    body = Prod((Read(x, (b, c, rows, columns), fill), Read(k, (f, c, r, s))))
    return Scope((2, features, *extents), (channels, *window), body)


CONVOLUTIONS = {
    "3x3": convolution(4, 12, (9, 21), (3, 3), (1, 1), (1, 1)),
    "stride 2": convolution(3, 16, (17, 15), (7, 7), (3, 3), (3, 3), stride=2),
    "dilation 2": convolution(5, 9, (11, 12), (3, 3), (2, 2), (2, 2), dilation=2),
    # Only along the rows of the image, so the other axis has no fill, and loops are merged.
    "1x5": convolution(16, 16, (8, 24), (1, 5), (0, 2), (0, 2)),
    "5x1": convolution(16, 16, (8, 24), (5, 1), (2, 0), (2, 0)),
    # Whole rows and whole windows outside; another fill than 0; only at the end.
    "far": convolution(4, 16, (5, 18), (3, 3), (4, 3), (4, 5)),
    "fill": convolution(4, 16, (6, 18), (3, 3), (1, 1), (1, 1), fill=1.5),
    "end": convolution(4, 16, (6, 18), (3, 3), (0, 0), (2, 1)),
    **{
        dtype: convolution(4, 16, (6, 18), (3, 3), (1, 1), (1, 1), fill=2.0, dtype=dtype)
        for dtype in ("float64", "float16", "bfloat16", "int32", "int8")
    },
    # Rows and columns of the image are one loop.
    "pointwise": convolution(32, 32, (6, 18), (1, 1)),
    "pointwise, cropped": convolution(32, 32, (6, 18), (1, 1), (-1, -2), (1, 0)),
}


@pytest.mark.rotating
@pytest.mark.parametrize("name", sorted(CONVOLUTIONS))
def test_padded_convolutions(name: str) -> None:
    """At all layouts, with the weights in panels and as they lie."""
    check_kernels(blocks_of(CONVOLUTIONS[name]), tolerance=32)


def blocks_of(scope: Scope) -> list[Kernel]:
    kernels: list[Kernel] = []
    for constants in ((False, True), (False, False)):
        kernels += TvmBackend().kernels(scope, constants)
    found = [kernel for kernel in kernels if isinstance(kernel.schedule, Block)]
    assert found
    return found


def test_images_are_read_in_both_layouts() -> None:
    found = [kernel for scope in CONVOLUTIONS.values() for kernel in blocks_of(scope)]
    layouts = contiguous(4), channels_last(4)
    ways = {(k.inputs[0], k.output, k.schedule.packed) for k in found}  # type: ignore[union-attr]
    # Neighbours of a row lie side by side only if channels don't lie between them.
    apart = set(product(layouts[1:], layouts[:1], (1, -1)))
    assert ways == set(product(layouts, layouts, (1, -1))) - apart


def nest_of(scope: Scope) -> LoopNest:
    return loop_nest(scope, [contiguous(4)] * 2, contiguous(4))


def test_a_block_reads_a_padded_copy() -> None:
    nest = nest_of(CONVOLUTIONS["3x3"])
    assert block_loops(nest) is None and block_loops(nest.for_blocks) is not None
    (pad,) = nest.for_blocks.pads
    assert (pad.lows, pad.extents) == ((0, 0, -1, -1), (2, 4, 11, 23))
    assert not any(access.guards for access in nest.for_blocks.accesses.values())
    inside = nest_of(convolution(4, 12, (9, 21), (3, 3)))
    assert inside.for_blocks is inside  # nothing is read outside
    assert nest.for_blocks.for_blocks is nest.for_blocks


def test_the_copy_is_counted_as_memory() -> None:
    kernel = next(k for k in blocks_of(CONVOLUTIONS["3x3"]) if k.inputs[0] == contiguous(4))
    assert scratch_bytes(kernel) == 4 * 2 * 4 * 11 * 23
    assert scratch_bytes(replace(kernel, schedule=Rows())) == 0


def test_what_is_not_copied() -> None:
    i = it(0, 10)
    x = tensor(0, (10,))
    assert pad_of(Read(x, (i - 1,)), 0, (0,)) is not None
    assert pad_of(Read(x, (i % 3 - 1,)), 0, (0,)) is None  # not linear
    assert pad_of(Read(x, (i * MOST - 1,)), 0, (0,)) is not None
    assert pad_of(Read(x, (i * (MOST + 1) - 1,)), 0, (0,)) is None  # much larger


def test_an_image_may_come_from_the_last_cache() -> None:
    """Blocks of 16 features read 16 numbers of the weights for 6 of the image."""
    scope = convolution(64, 64, (28, 28), (3, 3), (1, 1), (1, 1))
    last = (0, 2, 3, 1)
    nest = loop_nest(scope, [last, (1, 2, 3, 0)], last)

    def blocks(cached: int, shared: int) -> Block | None:
        return block(nest, Machine(16, 32, cached, shared), (False, True))

    panel = 4 * 16 * 64 * 9
    image = 4 * 2 * 64 * 30 * 30
    around = blocks(panel, panel + image)
    assert around is not None and around.packed == 1 and around.order[0] == 3  # panels outside
    assert blocks(panel, panel + image // 2) is None
    near = blocks(1 << 30, 0)
    assert near is not None and near.packed == 1


def test_heights_leave_few_steps_for_the_rest() -> None:
    def height(rows: int) -> int:
        found = block(nest_of(_rows(rows)), Machine(16, 32, 1 << 30))
        assert found is not None
        return found.rows

    # 28 is 4 blocks of 6 and one of 4; 14 is 5 + 5 + 4; 7 is 4 + 3.
    assert {n: height(n) for n in (64, 28, 14, 7, 5)} == {64: 6, 28: 6, 14: 5, 7: 4, 5: 5}


def _rows(rows: int) -> Scope:
    """A convolution whose blocks have so many rows to cut: its features."""
    return convolution(4, rows, (9, 32), (3, 3), (1, 1), (1, 1))
