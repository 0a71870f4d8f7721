"""Scopes made of parts: over other iterators, with another body, in canonical form.

Iterators are named by the slots of the scope around; here they are split into kept ones (they
become the inner traversal, in canonical order) and reduced ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import canonical, canonical_order
from eqsynth.ir.scalar import Read, Scalar, iterators, substitute
from eqsynth.ir.tensor import Scope, Tensor


def bare(it: It) -> Index:
    """The iterator as an index."""
    return Index.iterator(it.slot, it.extent)


def renumber(scalar: Scalar, place: Mapping[int, int]) -> Scalar:
    """The body with iterators moved to other slots."""
    return substitute(scalar, lambda it: Index.iterator(place[it.slot], it.extent))


def scope_over(
    kept: Sequence[It], reduced: Iterable[It], body: Scalar, reducer: str = "sum"
) -> Scope:
    """``L kept . reducer reduced . body``, canonical; the traversal in the order given."""
    inner = tuple(reduced)
    place = {it.slot: slot for slot, it in enumerate((*kept, *inner))}
    extents = tuple(it.extent for it in kept), tuple(it.extent for it in inner)
    return canonical(Scope(*extents, renumber(body, place), reducer))


def closed(
    body: Scalar, outside: set[It], reducer: str = "sum", reduced: Sequence[It] | None = None
) -> Read:
    """A read of the scope that computes ``body``, reducing every iterator not in ``outside``.

    Where ``reduced`` is given it says what is reduced, whether or not the body uses it. The inner
    scope's traversal is the iterators of the body that are in ``outside``, in canonical order, so
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
    """The scope with another body, canonical; by default over the iterators still in use, and those
    that were idle before (canonical forms keep one where a factor would change the dtype), and
    reduced as before.
    """
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
    """``tensor[i, j, …]`` at the iterators themselves."""
    return Read(tensor, tuple(bare(it) for it in traversal))
