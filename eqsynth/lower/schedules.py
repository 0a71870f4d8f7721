"""Which schedule points are worth timing for a loop nest, by what its strides tell.

A point is text: a kind and its sizes. Not here: the loops a point means (``eoperators.py``).
"""

from __future__ import annotations

import math
from typing import Final

from eqsynth.ir.tensor import args_of
from eqsynth.ir.types import ITEMSIZE
from eqsynth.lower.loop_nest import Loop, LoopNest

# Elements of an explicit vector: one AVX-512 register of float32, two or four narrower ones.
LANES: Final = 16
# Bytes that stay in a core's second-level cache.
CACHED: Final = 1 << 20
# Loops over a reduction of at most this many steps are unrolled.
UNROLL: Final = 16


def schedules(nest: LoopNest) -> tuple[str, ...]:
    """The schedule points worth timing for a nest, the safest first.

    ``rows``: outer loops parallel, the innermost left to LLVM. ``flatN``: all loops as one, in
    blocks of N (short inner axes). ``tilePxQ``: P by Q blocks of two loops (transposes).
    ``lanesN``: N results of the inner loop accumulate in registers. ``foldN``: N partial results
    along the innermost reduction.
    """
    if not nest.traversal and not nest.reduction or not nest.work:
        return ("rows",)
    if not nest.reduction:
        inner = nest.traversal[-1]
        found = ["rows"]
        if len(nest.traversal) > 1 and inner.extent < 32:
            found.append("flat16")
        if tile_loop(nest) is not None:
            found += ["tile16x16", "tile8x16"]
        return tuple(found)
    found = []
    if nest.traversal and nest.traversal[-1].extent >= LANES:
        loop = nest.traversal[-1]
        if _contiguous(nest, loop):
            found += ["lanes16", "lanes64"] if loop.extent >= 64 else ["lanes16"]
    loop = nest.reduction[-1]
    if loop.extent >= LANES and _contiguous(nest, loop):
        found += ["fold16", "fold64"] if loop.extent >= 128 else ["fold16"]
    # LLVM vectorizes over results once a short reduction is unrolled, and not over a long one.
    short = math.prod(loop.extent for loop in nest.reduction) <= UNROLL
    return ("rows", *found) if short or not found else tuple(found)


def block(nest: LoopNest, wide: bool) -> str | None:
    """The schedule point of a contraction that is bound by arithmetic; None if it isn't for it.

    ``blockRxN``: R rows of N neighbours accumulate in registers, so that every load is used R or N
    times. What the next block of rows reads again has to stay in a cache, since it isn't packed.

    Args:
        wide: whether there are 32 registers of `LANES` float32, and not 16 of half of them.
    """
    loops = block_loops(nest)
    if loops is None:
        return None
    row, column = loops
    again = 0
    for access in nest.accesses.values():
        if access.stride(row.slot) == 0:
            moving = [lp for lp in (column, *nest.reduction) if access.stride(lp.slot) != 0]
            size = ITEMSIZE[args_of(nest.scope)[access.argument].dtype]
            again += size * math.prod(loop.extent for loop in moving)
    if again > CACHED:
        return None
    heights = (8, 7, 6) if wide else (6, 5, 4)
    height = next((h for h in heights if row.extent % h == 0), min(row.extent, heights[0]))
    widths = (2 * LANES, LANES, LANES // 2) if wide else (LANES, LANES // 2)
    width = next(w for w in widths if column.extent >= w)
    return f"block{height}x{width}"


def _contiguous(nest: LoopNest, loop: Loop) -> bool:
    """Whether neighbouring steps of a loop read neighbouring elements, or the same ones."""
    return all(
        access.stride(loop.slot) in (0, 1) and not access.guarded_by(loop.slot)
        for access in nest.accesses.values()
    )


def tile_loop(nest: LoopNest) -> int | None:
    """The position of a loop along which a read is contiguous while it jumps along the inner."""
    inner = nest.traversal[-1]
    for access in nest.accesses.values():
        if access.stride(inner.slot) in (0, 1):
            continue
        for k, loop in enumerate(nest.traversal[:-1]):
            if access.stride(loop.slot) == 1 and loop.extent >= 4 and inner.extent >= 4:
                return k
    return None


def block_loops(nest: LoopNest) -> tuple[Loop, Loop] | None:
    """The loops of a contraction whose blocks use every load again: rows and neighbours.

    Neighbours are the innermost loop of the result; along the rows one operand moves that doesn't
    along the neighbours, and the other way round. None if a read may leave its tensor.
    """
    if not nest.reduction or len(nest.traversal) < 2:
        return None
    column = nest.traversal[-1]
    if column.extent < LANES // 2 or not _contiguous(nest, column):
        return None
    if any(access.guards for access in nest.accesses.values()):
        return None
    for row in reversed(nest.traversal[:-1]):
        steps = [(a.stride(row.slot), a.stride(column.slot)) for a in nest.accesses.values()]
        if any(down == 0 and along for down, along in steps) and any(
            down and along == 0 for down, along in steps
        ):
            return row, column
    return None
