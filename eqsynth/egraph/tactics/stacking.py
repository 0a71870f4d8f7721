"""Stacking: products that differ only in where they read a tensor, as one product.

    x[0, k] W[k, j]  and  x[1, k] W[k, j]  ->  parts of  L_{t,j} sum_k x[t, k] W[k, j]

The steps of an unrolled loop are such products: stacked, an RNN reads its weights once for all
steps.
Not here: products of one operand with several weights (``sharing.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise

from eqsynth.ir.index import Index, It
from eqsynth.ir.outline import Places, outline
from eqsynth.ir.scopes import (
    bare,
    reduction_iterators,
    scope_over,
    traversal_iterators,
)
from eqsynth.ir.tensor import Op, Scope, Tensor


def stacked(scope: Scope, peers: Collection[Places]) -> Iterator[Tensor]:
    """``scope`` as a slice of products with one more axis, over which its constant offsets move.

    The slice is equal to ``scope`` whatever the peers are. The peers only say which axes are worth
    adding: each slice of a proposed product is ``scope`` itself or one of its peers.

    Args:
        peers: the offsets of the scopes with the same outline, including ``scope``. An outline is
            a scope without its constant offsets (``ir/outline.py``).
    """
    outlined, own = outline(scope)
    its = traversal_iterators(scope), reduction_iterators(scope)
    for step, before, count in _progressions(own, peers):
        t = It(len(scope.extents), count)
        places = [
            Index(place - before * by) + bare(t) * by for place, by in zip(own, step, strict=True)
        ]
        whole = scope_over([t, *its[0]], its[1], outlined.body(places), scope.reducer)
        part = Op("Slice", (whole,), (0, before, before + 1, 1))
        yield Op("Reshape", (part,), (scope.traversal,))


def _progressions(own: Places, peers: Collection[Places]) -> Iterator[tuple[Places, int, int]]:
    """The arithmetic progressions of peers that contain ``own``: step, number before it, length.

    First the progressions in a single offset, where the other offsets are equal to those of
    ``own``. If there is none, the progression of all offsets at once, such as ``q[h] k[h]`` over
    the heads h.
    """
    varying = [n for n in range(len(own)) if len({peer[n] for peer in peers}) > 1]
    alone = [
        row
        for n in varying
        if (row := _row(own, [p for p in peers if p[:n] + p[n + 1 :] == own[:n] + own[n + 1 :]]))
    ]
    yield from alone
    if not alone:
        row = _row(own, peers)
        if row is not None:
            yield row


def _row(own: Places, peers: Collection[Places]) -> tuple[Places, int, int] | None:
    """The step, the number before ``own`` and the length, if ``peers`` is one progression of at
    least two."""
    found = sorted(set(peers))
    steps = {tuple(b - a for a, b in zip(*pair, strict=True)) for pair in pairwise(found)}
    if len(steps) != 1:
        return None
    return steps.pop(), found.index(own), len(found)
