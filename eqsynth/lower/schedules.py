"""Which schedule points are worth timing for a loop nest, by what its strides tell.

A point is text: a kind and its sizes. Not here: the loops a point means (``eoperators.py``).
"""

from __future__ import annotations

import math
from typing import Final

from eqsynth.lower.loop_nest import Loop, LoopNest

# Elements of an explicit vector: one AVX-512 register of float32, two or four narrower ones.
LANES: Final = 16
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
