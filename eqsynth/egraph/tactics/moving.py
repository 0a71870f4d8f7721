"""Scopes rewritten over other iterators, on a smaller box, or by way of a part of what they read.

Each function returns a step ``Same`` with the rewritten scope. Whether that scope is equal to the
original is decided by the law of the step (``calculus/same.py``), not here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from eqsynth.calculus.same import Same
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import canonical_order
from eqsynth.ir.scalar import Num, Read, Scalar, rewrite_leaves, substitute, terms_of, total
from eqsynth.ir.scopes import (
    bare,
    closed,
    reduction_iterators,
    same_scope,
    scope_over,
    traversal_iterators,
)
from eqsynth.ir.tensor import Scope


def reindexed(
    scope: Scope, inner: Scope, at: Sequence[Index], outer: Iterable[It] = (), fill: float = 0.0
) -> Same:
    """``L_x R_{y,z} f(p(x, y), z)  =  L_x R_y {L_u R_z f(u, z)}[p(x, y)]``.

    Args:
        inner: the scope ``{L_u R_z f(u, z)}``.
        at: the index ``p(x, y)`` at which ``inner`` is read.
        outer: the iterators ``y``, which stay reduced outside of ``inner``.
    """
    return Same(same_scope(scope, Read(inner, tuple(at), fill), outer))


def read_by(scope: Scope, read: Read, by: Read) -> Same:
    """``L_x f(t[m(x)])  =  L_x f({L_u t[l(u)]}[n(x)])``: each ``read`` replaced by ``by``."""
    body = rewrite_leaves(scope.body, lambda leaf: by if leaf == read else leaf)
    return Same(same_scope(scope, body, reduction_iterators(scope)))


def termwise(scope: Scope) -> Same:
    """``L_x sum_y (f + g)  =  L_x {L_x sum_y f}[x] + {L_x sum_y g}[x]``; a number ``f``
    becomes ``f`` times the number of places ``y``."""
    traversal, reduced = set(traversal_iterators(scope)), reduction_iterators(scope)
    count = math.prod(scope.reduction)
    parts: list[Scalar] = []
    for term in terms_of(scope.body):
        number = isinstance(term, Num) and Num(term.value * count)
        parts.append(number or closed(term, traversal, "sum", reduced))
    return Same(same_scope(scope, total(parts), []))


def bounded(scope: Scope, box: Mapping[It, tuple[int, int]], outside: float) -> Same:
    """``L_X R_Y f  =  L_X {L_X' R_Y' f}[x - lo]``; if only ``Y`` is narrowed, ``L_X R_Y' f``.

    Args:
        box: the range [low, high) of each narrowed iterator.
        outside: the value of the elements outside of the box.
    """

    def span(it: It) -> tuple[int, int]:
        return box.get(it, (0, it.extent))

    def resized(it: It) -> It:
        return It(it.slot, span(it)[1] - span(it)[0])

    body = substitute(scope.body, lambda it: bare(resized(it)) + span(it)[0])
    traversal = traversal_iterators(scope)
    kept, summed = ([resized(it) for it in its] for its in (traversal, reduction_iterators(scope)))
    if kept == traversal:
        return Same(same_scope(scope, body, summed))
    order = canonical_order(body, kept, summed)
    inner = scope_over(order, summed, body, scope.reducer)
    at = (bare(traversal[it.slot]) - span(traversal[it.slot])[0] for it in order)
    return reindexed(scope, inner, tuple(at), (), outside)
