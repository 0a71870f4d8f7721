"""Picks by data: when rows of a tensor are taken before the tensor is computed, or after.

    gather({L_{b,s} f(b, s)}, {L_{b,n} ids[b]}, 1)   ->   L_{b,n} f(b, ids[b])
    L_{i,j} sum_k t[ids[i], k] w[k, j]               ->   L_{i,j} {t @ w}[ids[i], j]

Not here: the steps of these answers (``selection.py``), the law itself (``calculus/select.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from eqsynth.calculus import conditions
from eqsynth.calculus.define import Define
from eqsynth.egraph.tactics import merging, selection
from eqsynth.egraph.tactics.algebra import maps_of
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.egraph.tactics.requests import Later, is_diagonal, products_of, settled, some
from eqsynth.egraph.view import View
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import Read, factors_of, reads, tree_size
from eqsynth.ir.tensor import ClassRef, Op, Scope, Tensor, topological


def gather_rows(view: View, row: Sequence[Any]) -> Iterable[Path]:
    e, table, ids = row
    if view.eclass(e) in view.instantiated:
        return []
    return _picks(view, Op("Embedding", (table, ids)), [ids])


def gather_along(view: View, row: Sequence[Any]) -> Iterable[Path]:
    e, table, ids, axis = row
    if view.eclass(e) in view.instantiated:
        return []
    shown = [inner for inner in maps_of(view, ids) if merging.is_broadcast(inner)]
    # The view of the smallest tensor: of L_{i,j} ids[i], and not of itself.
    shown.sort(key=lambda inner: next(reads(inner.body)).tensor.type.size)
    found = _picks(view, Op("Gather", (table, ids), (axis,)), [*shown, ids][:1])
    return [answer for answer in found if _picks_less(answer.scope, table)]


def _picks_less(scope: Scope, table: Tensor) -> bool:
    """Whether each tensor that a scope picks has no more elements than what it is picked from, or
    than the table that the scope picks from. Of relative positions, ``gather(q @ k.T, -1, at[i,
    j])``, a row of k for each i and j would be more than all products."""
    picks = (t for t in topological([r.tensor for r in reads(scope.body)])
             if isinstance(t, Op) and t.name in ("Embedding", "Gather"))  # fmt: skip
    return all(t.type.size <= max(t.args[0].type.size, table.type.size) for t in picks)


def _picks(view: View, picked: Op, places: Sequence[Tensor]) -> list[Path]:
    """The scopes of a pick from a computed table, by each scope that computes the table."""
    table, found = picked.args[0], list[Path]()
    assert isinstance(table, ClassRef)
    computed = [
        inner
        for inner in view.scopes(table)
        if not conditions.is_product(inner)
        and canonical(inner) == inner
        and all(read.tensor != table for read in reads(inner.body))
    ]
    # The smallest of the others will do: what is picked has the other forms by itself.
    smallest = sorted(computed, key=lambda inner: tree_size(inner.body))[:1]
    for at in places:
        for inner in (*products_of(view, table), *smallest):
            found += some(path(picked, Define(Op(picked.name, (inner, at), picked.attrs))))
    if not found:
        raise Later
    return found


def rows_by_place(view: View, row: Sequence[Any]) -> Iterable[Path]:
    e, table, ids = row
    if view.eclass(e) in view.instantiated:
        return []
    for inner in maps_of(view, ids):
        by_place = Op("Embedding", (table, inner))
        read = path(Op("Embedding", (table, ids)), Define(by_place))
        if read is not None:
            return [read]
    raise Later


def ungather_rows(view: View, row: Sequence[Any]) -> Iterable[Path]:
    # Also of derived scopes: of ``cat(rows, x) @ w`` the part with the rows is one.
    if (scope := settled(view, row)) is None:
        raise Later
    for read in factors_of(scope.body):
        if isinstance(read, Read) and isinstance(read.tensor, ClassRef):
            for op in view.operators(read.tensor):
                if op.name == "Embedding" and read.tensor not in op.args:
                    looked_up = selection.ungather_rows(
                        scope, read, op, partial(is_diagonal, view)
                    )
                    if looked_up is not None:
                        return [looked_up]
    raise Later
