"""Builders of scopes in canonical form: from iterators and a body, or from a scope and a new body.

A new scope's iterators are given by their slots in the scope around it: ``kept`` ones become the
new traversal, ``reduced`` ones the new reduction; the builders renumber them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import canonical, canonical_order
from eqsynth.ir.scalar import Read, Scalar, iterators, substitute
from eqsynth.ir.tensor import Scope, Tensor


def bare(it: It) -> Index:
    """Return the index that is this iterator alone."""
    return Index.iterator(it.slot, it.extent)


def renumber(scalar: Scalar, place: Mapping[int, int]) -> Scalar:
    """Return the body with its iterators moved to other slots."""
    return substitute(scalar, lambda it: Index.iterator(place[it.slot], it.extent))


def scope_over(
    kept: Sequence[It], reduced: Iterable[It], body: Scalar, reducer: str = "sum"
) -> Scope:
    """Return ``L kept . reducer reduced . body``, canonical; the traversal keeps its order."""
    inner = tuple(reduced)
    place = {it.slot: slot for slot, it in enumerate((*kept, *inner))}
    extents = tuple(it.extent for it in kept), tuple(it.extent for it in inner)
    return canonical(Scope(*extents, renumber(body, place), reducer))


def closed(
    body: Scalar, outside: set[It], reducer: str = "sum", reduced: Sequence[It] | None = None
) -> Read:
    """Return a read of the scope that computes ``body``, reducing each iterator not in ``outside``.

    ``reduced``, if given, lists the reduced iterators instead, used in the body or not. The scope's
    traversal is the iterators of the body that are in ``outside``, in canonical order, so that
    equal parts of different programs become equal terms.
    """
    used = iterators(body)
    if reduced is None:
        reduced = sorted(used - outside, key=lambda it: it.slot)
    kept = canonical_order(body, sorted(used & outside, key=lambda it: it.slot), list(reduced))
    return Read(scope_over(kept, reduced, body, reducer), tuple(bare(it) for it in kept))


def same_scope(
    scope: Scope,
    body: Scalar,
    reduced: Iterable[It] | None = None,
    reducer: str | None = None,
) -> Scope:
    """Return the scope with another body, canonical, and by default with the same reducer.

    By default it reduces the reduction iterators that the new body uses or the old body doesn't
    (a canonical form keeps an unused iterator if its extent as a factor would change the dtype)."""
    width = len(scope.traversal)
    kept = [It(slot, extent) for slot, extent in enumerate(scope.traversal)]
    if reduced is None:
        idle = set(reduction_iterators(scope)) - iterators(scope.body)
        used = idle | {it for it in iterators(body) if it.slot >= width}
        reduced = sorted(used, key=lambda it: it.slot)
    return scope_over(kept, reduced, body, reducer or scope.reducer)


def reduction_iterators(scope: Scope) -> list[It]:
    width = len(scope.traversal)
    return [It(width + j, extent) for j, extent in enumerate(scope.reduction)]


def traversal_iterators(scope: Scope) -> list[It]:
    return [It(slot, extent) for slot, extent in enumerate(scope.traversal)]


def read_all(tensor: Tensor, traversal: Sequence[It]) -> Read:
    """Return ``tensor[i, j, …]``, the read at the iterators themselves."""
    return Read(tensor, tuple(bare(it) for it in traversal))
