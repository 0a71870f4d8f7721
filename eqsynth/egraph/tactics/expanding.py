"""Arguments of the law of expanded forms (``eqsynth/expansion``).

For each e-class that is met when a scope is written out, this module chooses the member (a map) to
write out in its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eqsynth.calculus import conditions
from eqsynth.egraph.tactics.algebra import maps_of, reaches
from eqsynth.egraph.tactics.requests import number_of, underived
from eqsynth.egraph.view import View
from eqsynth.expansion.expanded import Expand, computed_in
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import reads, tree_size
from eqsynth.ir.tensor import ClassRef, Input, Scope, Tensor, Weight


def expand(view: View, row: Sequence[Any]) -> Iterable[Expand]:
    return _expanded(view, row)


def expand_cancels(view: View, row: Sequence[Any]) -> Iterable[Expand]:
    return _expanded(view, row, cancels=True)


def expand_points(view: View, row: Sequence[Any]) -> Iterable[Expand]:
    return _expanded(view, row, points=True)


def _expanded(
    view: View, row: Sequence[Any], cancels: bool = False, points: bool = False
) -> Iterable[Expand]:
    """The expanded form of a scope, with each e-class that is met replaced by a map."""
    chosen: dict[Tensor, Tensor] = {}
    scope = underived(view, row)
    dtype = computed_in(scope)

    def map_of(tensor: Tensor) -> Scope | float | None:
        assert isinstance(tensor, ClassRef)
        if (value := number_of(view, tensor)) is not None and tensor.dtype == dtype:
            return value
        found = _map_of(view, tensor, chosen)
        if found is not None:
            chosen[tensor] = found
        return found

    return [Expand(map_of, cancels, points)]


def _map_of(view: View, ref: ClassRef, members: Mapping[Tensor, Tensor]) -> Scope | None:
    """The map by which an e-class is expanded: one that computes, or else a view.

    The choice never leads in a circle. Of two e-classes that are views of each other, only one is
    expanded into the other, and a map that reaches ``ref`` by way of the members chosen already is
    left out.
    """
    if any(isinstance(member, Input | Weight) for member in view.members(ref)):
        return None
    maps = [scope for scope in maps_of(view, ref) if canonical(scope) == scope]
    found = [
        scope
        for scope in maps
        if not (conditions.is_view(scope) and _comes_back(view, ref, scope))
        and not reaches(scope, ref, members)
    ]
    return min(found, key=_rank, default=None)


def _rank(scope: Scope) -> tuple[object, ...]:
    """Maps that compute come before views, small bodies before large ones. Of two that are alike,
    the one that reads fewer elements is made of smaller parts: a concatenation of four identities
    is read as two pairs, not as a pair between two identities."""
    elements = sum(math.prod(read.tensor.shape) for read in reads(scope.body))
    return conditions.is_view(scope), tree_size(scope.body), elements, scope.digest


def _comes_back(view: View, ref: ClassRef, moved: Scope) -> bool:
    """Whether the e-class that the view ``moved`` reads is itself a view of ``ref``, and follows
    ``ref`` in the order of digests."""
    (read,) = reads(moved.body)
    assert isinstance(read.tensor, ClassRef)
    if any(isinstance(member, Input | Weight) for member in view.members(read.tensor)):
        return False
    back = any(
        conditions.is_view(scope) and [r.tensor for r in reads(scope.body)] == [ref]
        for scope in view.scopes(read.tensor)
    )
    return back and read.tensor.digest > ref.digest
