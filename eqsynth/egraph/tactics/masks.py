"""Which positions of masked weights have to be visited (``calculus/restrict.py``).

    the mask shows                        so each row i visits
    |i - j| <= 256, (i - j) % 4 == 0      129 columns of 2,048: j = i - 256 + 4*w
    i // 64 == j // 64                    64 columns: j = i // 64 * 64 + w
    i % 64 == j % 64                      every 64th column: j = i % 64 + 64*w

The law itself, which proves that the other positions add nothing, stands in the calculus.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from eqsynth.calculus.deriving import Steps, derive
from eqsynth.calculus.restrict import (
    LARGEST,
    LOWEST,
    Hide,
    Mask,
    Restrict,
    is_lowest,
    known_where,
    visible,
)
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.errors import LawError
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Read, iterators, reads
from eqsynth.ir.scopes import bare, traversal_iterators
from eqsynth.ir.tensor import Op, Scope

FEWER: Final = 2
"""A sum is restricted if at most one position in ``FEWER`` is left: reading a band costs more than
reading whole rows."""


def masks_of(
    scores: Scope, read: Read, holds: Scope, hidden: float = -math.inf, lowest: bool = False
) -> Iterator[Mask]:
    """The masks that ``read`` can be: one for each value of ``read`` that makes the scores
    ``hidden``, or, if ``lowest``, the lowest number of their dtype.

    None if ``holds``, the scope that ``read`` reads, reads tensors itself or is too large.
    """
    if any(True for _ in reads(holds.body)) or math.prod(holds.extents) > LARGEST:
        return
    least = LOWEST.get(holds.dtype)
    for value in (0.0, 1.0, -math.inf, math.inf, *([least] if lowest and least else [])):
        known = known_where(scores.body, read, value)
        if known == hidden or (lowest and is_lowest(scores, read, value)):
            yield Mask(read, holds, value)


def restricted(
    scope: Scope, weights: Read, softmax: Op | None, axis: int, scores: Scope, mask: Mask
) -> Path | None:
    """The sum over the fewest positions of an axis of the weights; None if more than one in
    ``FEWER`` would be left."""
    place = traversal_iterators(scores)[axis]
    its = sorted(iterators(mask.read), key=lambda it: it.slot)
    if place not in its or not mask.read.in_range():
        return None
    grid, shown = visible(mask, its)
    shown = np.broadcast_to(shown, [it.extent for it in its])
    most = shown.sum(its.index(place)).max()
    if not 0 < most * FEWER <= place.extent:
        return None
    at = [np.broadcast_to(values, shown.shape)[shown] for values in grid]
    found: list[tuple[int, int, Index]] = []
    for base in _bases(its, place):
        from_base = at[its.index(place)] - base.evaluate(
            {it.slot: values for it, values in zip(its, at, strict=True)}
        )
        first, last = int(from_base.min()), int(from_base.max())
        step = int(np.gcd.reduce(from_base - first)) or 1
        found.append(((last - first) // step + 1, step, base + first))
    count, step, start = min(found, key=lambda way: way[0])
    if count * FEWER > place.extent:
        return None
    return path(scope, Restrict(weights, softmax, axis, scores, mask, start, step, count))


def causal(softmax: Op, scores: Scope, mask: Mask) -> Steps | None:
    """The step to a softmax of ``where(j <= i, t, -inf)``, the one condition by which rules know
    attention to what came before; None if the mask shows something else."""
    row, key = (Op("Iota", (), (scores.shape[-2:], axis, "int64")) for axis in (0, 1))
    step = Hide(scores, mask, Op("GreaterEqual", (row, key)))
    try:
        derive(softmax, (step,))
    except LawError:
        return None
    return (step,)


def _bases(its: list[It], place: It) -> Iterator[Index]:
    """The starts from which positions may be counted: 0, another iterator, its block's start, or
    its place in the block; or the place in proportion.

    For a row ``i``: ``0``, ``i``, and ``i // b * b`` and ``i % b`` for each ``b`` that divides its
    extent; ``4 * i`` if there are 4 positions for each row, and ``i // 4`` if 4 rows for each.
    """
    yield Index(0)
    for it in its:
        if it != place:
            yield bare(it)
            if place.extent > it.extent and place.extent % it.extent == 0:
                yield bare(it) * (place.extent // it.extent)
            if it.extent > place.extent and it.extent % place.extent == 0:
                yield bare(it) // (it.extent // place.extent)
            for block in range(2, it.extent // FEWER + 1):
                if it.extent % block == 0:
                    yield bare(it) // block * block
                    yield bare(it) % block
