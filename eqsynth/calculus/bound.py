"""Bounds: a scope is computed on a smaller box, if it is known what it is outside.

    L_X R_Y f  =  L_X {L_X' R_Y' f}[x - lo]        f = 0 on (X, Y) without (X', Y')

In a product one factor that is zero is enough. Of another reduction its identity is what changes
nothing (-inf of a maximum), where a read stands alone. Reductions are narrowed in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from eqsynth.calculus import checking
from eqsynth.calculus.conditions import neutral_outside, support
from eqsynth.calculus.scopes import (
    bare,
    reduction_iterators,
    same_scope,
    scope_over,
    traversal_iterators,
)
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import canonical_order
from eqsynth.ir.scalar import Read, substitute
from eqsynth.ir.tensor import Scope

_require = partial(checking.require, law="bound")


@dataclass(frozen=True)
class Bound:
    """The box: ``(iterator, low, high)`` for each iterator that is narrowed to [low, high)."""

    box: tuple[tuple[It, int, int], ...]


def bound(scope: Scope, given: Bound) -> Scope:
    """``L_X R_Y f = L_X {L_X' R_Y' f}[x - lo]``, what changes nothing read outside.

    Raises:
        LawError: ``iterators``: they aren't the scope's, each once, or the box isn't in it;
            ``neutral``: nothing is known of what the scope is outside; ``support``: it is more than
            that somewhere outside of the box.
    """
    narrow = {it: (low, high) for it, low, high in given.box}
    traversal, reduced = traversal_iterators(scope), reduction_iterators(scope)
    fits = len(narrow) == len(given.box) and narrow.keys() <= {*traversal, *reduced}
    _require(fits and all(0 <= low < high <= it.extent for it, (low, high) in narrow.items()),
             condition="iterators", what="no box of the scope's iterators")  # fmt: skip
    outside = neutral_outside(scope)
    _require(outside is not None, condition="neutral", what="it may be anything outside of a box")
    assert outside is not None
    for it, (low, high) in narrow.items():
        first, end = support(scope.body, it, outside)
        # An empty support is of no box: all is neutral.
        _require(low <= first and end <= high or first >= end, condition="support",
                 what="it is more than nothing outside of the box")  # fmt: skip

    def image(it: It) -> Index:
        low, high = narrow.get(it, (0, it.extent))
        return Index.iterator(it.slot, high - low) + low

    def resized(it: It) -> It:
        low, high = narrow.get(it, (0, it.extent))
        return It(it.slot, high - low)

    body = substitute(scope.body, image)
    kept, summed = ([resized(it) for it in its] for its in (traversal, reduced))
    if kept == traversal:
        result = same_scope(scope, body, summed)
    else:
        order = canonical_order(body, kept, summed)
        inner = scope_over(order, summed, body, scope.reducer)
        at = tuple(
            bare(traversal[it.slot]) - narrow.get(traversal[it.slot], (0, 0))[0] for it in order
        )
        result = same_scope(scope, Read(inner, at, outside), [])
    _require(result.type == scope.type, condition="neutral", what="the result is of another type")
    return result
