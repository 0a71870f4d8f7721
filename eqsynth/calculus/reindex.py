"""Reindexing: a scope is a view of one over other iterators, by any map that gives it back.

    L_x R_{y,z} f(p(x, y), z)  =  L_x R_y {L_u R_z f(u, z)}[p(x, y)]

Whatever the map is (a change of variables, quotient and remainder, another order, a smaller box
around which all is zero): inlined again, the new scope has to be the one that was given. What it
computes at places that are never read doesn't matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from eqsynth.calculus import checking
from eqsynth.calculus.inline import Inline, inline
from eqsynth.calculus.scopes import reduction_iterators, renumber, same_scope, traversal_iterators
from eqsynth.ir.index import Index, It
from eqsynth.ir.indices import least_form
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Scope

_require = partial(checking.require, law="reindex")


@dataclass(frozen=True)
class Reindex:
    """A scope over other iterators, and where it is read.

    Attributes:
        outer: iterators of the reduction that are reduced outside of it.
        fill: what is read outside of it.
    """

    inner: Scope
    at: tuple[Index, ...]
    outer: tuple[It, ...] = ()
    fill: float = 0.0


def reindex(scope: Scope, given: Reindex) -> Scope:
    """``L_x R_{y,z} f(p(x, y), z) = L_x R_y {L_u R_z f(u, z)}[p(x, y)]``.

    Raises:
        LawError: ``iterators``: it isn't read at iterators of the scope; ``inverse``: inlined, it
            isn't the scope; what ``inline`` says if it can't be inlined.
    """
    inner, outer = given.inner, given.outer
    own = set(traversal_iterators(scope)).union(outer)
    fits = len(set(outer)) == len(outer) and set(outer) <= set(reduction_iterators(scope))
    fits = fits and len(given.at) == len(inner.traversal)
    _require(fits and all(it in own for index in given.at for it in index.iterators()),
             condition="iterators", what="the new scope isn't read at the iterators")  # fmt: skip
    width = len(scope.traversal)
    place = {slot: slot for slot in range(width)}
    place |= {it.slot: width + n for n, it in enumerate(outer)}
    read = Read(inner, given.at, given.fill)
    moved = renumber(read, place)
    assert isinstance(moved, Read)
    reduced = tuple(it.extent for it in outer)
    view = Scope(scope.traversal, reduced, moved, scope.reducer)
    back = inline(view, Inline(moved, inner))
    _require(back.type == scope.type and least_form(back) == least_form(scope), condition="inverse",
             what="the new scope, inlined, is another one")  # fmt: skip
    return same_scope(scope, read, outer)
