"""Split the iterators whose quotients a scope reads at, so that its reads become linear.

    L_fhw sum_crs x[f // 4 * 8 + c, h + r, w + s] * k[f, c, r, s]          f = 4*g + j
      ->  L_gjhw sum_crs x[8*g + c, h + r, w + s] * k[4*g + j, c, r, s]

This is a grouped convolution with 4 filters a group: an address with ``f // 4`` has no step along
``f``, and so no block of results; along ``g`` and ``j`` it has. Memory stays as it is. Not here:
the nest of a split scope (``LoopNest.for_blocks``).
"""

from __future__ import annotations

from eqsynth.extract.kernel import Layout
from eqsynth.ir.index import Index, It
from eqsynth.ir.indices import moduli, substituted
from eqsynth.ir.scalar import indices_of
from eqsynth.ir.tensor import Scope


def split_in(scope: Scope) -> tuple[It, int] | None:
    """The first iterator that is divided by a divisor of its extent, as ``f // 4`` or ``f % 4``
    with 32 steps of f, and this divisor; None if there is none."""
    for index in indices_of(scope.body):
        for quotient in moduli(index):
            it = quotient.value.bare()
            if it is not None and it.extent % quotient.divisor == 0:
                return it, quotient.divisor
    return None


def split(scope: Scope, it: It, divisor: int) -> Scope:
    """The scope with ``divisor * outer + inner`` in place of an iterator. The two new iterators
    stand where it stood, so the result is the same in memory."""
    parts = (it.extent // divisor, divisor)
    rank, extents = len(scope.traversal), scope.extents
    new = (*extents[: it.slot], *parts, *extents[it.slot + 1 :])
    outer, inner = (Index.iterator(it.slot + k, part) for k, part in enumerate(parts))
    image = {It(s, e): Index.iterator(s + 1, e) for s, e in enumerate(extents) if s > it.slot}
    body = substituted(scope.body, {**image, it: outer * divisor + inner})
    rank += it.slot < rank
    return Scope(new[:rank], new[rank:], body, scope.reducer)


def split_layout(layout: Layout, axis: int) -> Layout:
    """The layout of a tensor of which an axis became two.

    >>> split_layout((0, 2, 1), 1)
    (0, 3, 1, 2)
    """
    found: list[int] = []
    for own in layout:
        found += (own, own + 1) if own == axis else (own + (own > axis),)
    return tuple(found)
