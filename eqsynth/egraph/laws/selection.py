"""Products in which something is selected: constants, rows by data.

    {sum_k f(r, k)}[ids[i]]     = sum_k {f}[ids[i], k]         rows are gathered before or after
"""

from __future__ import annotations

import math
from collections.abc import Callable

from eqsynth.calculus.conditions import is_product
from eqsynth.calculus.scopes import (
    bare,
    reduction_iterators,
    same_scope,
    scope_over,
    traversal_iterators,
)
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import (
    Num,
    Read,
    Scalar,
    Value,
    factors_of,
    iterators,
    leaves,
    product,
    rewrite_leaves,
    substitute,
    tensors,
)
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.ir.types import is_float


def read_constants(scope: Scope, constant: Callable[[Tensor], float | None]) -> Scope | None:
    """The scope with reads of constant tensors, always in range, as the number that they give.

    ``constant`` says which number all elements of a tensor are.
    """
    if not is_float(scope.dtype):
        return None

    numbers = {tensor: constant(tensor) for tensor in tensors(scope.body)}
    if all(number is None for number in numbers.values()) and canonical(scope) == scope:
        return None

    def leaf(part: Scalar) -> Scalar:
        if isinstance(part, Read) and part.in_range() and part.tensor.dtype == scope.dtype:
            value = numbers[part.tensor]
            return part if value is None else Num(value)
        return part

    body = rewrite_leaves(scope.body, leaf)
    if body == scope.body:
        return None
    result = same_scope(scope, body, reduction_iterators(scope))
    return result if result.type == scope.type else None


def gather_rows(e: Op, inner: Scope) -> Scope | None:
    """``{L_r reduce_k f(r, k)}[ids[i]] = L_i reduce_k {f}[ids[i], k]``, for an embedding of it.

    ``e`` is ``Embedding(t, ids)`` and ``inner`` equals t. Every read that uses the row must have it
    bare along one axis that is as long as t: then ids outside of t stay outside.
    """
    ids = e.args[1]
    width, rank = len(ids.shape), len(e.shape)
    row = It(0, inner.traversal[0])
    if row.extent == 1 or row not in iterators(inner.body):
        return None
    own = [It(slot, extent) for slot, extent in enumerate(ids.shape)]
    place = {1 + n: width + n for n in range(len(inner.traversal) - 1)}
    place |= {len(inner.traversal) + j: rank + j for j in range(len(inner.reduction))}
    using = {leaf for leaf in leaves(inner.body) if row in iterators(leaf)}
    if not all(isinstance(leaf, Read) and _row_axis(leaf, row) is not None for leaf in using):
        return None

    def image(it: It) -> Index:
        return Index.iterator(place[it.slot], it.extent)

    def gathered(leaf: Scalar) -> Scalar:
        axis = _row_axis(leaf, row) if isinstance(leaf, Read) and leaf in using else None
        if axis is None or not isinstance(leaf, Read):
            return substitute(leaf, image)
        table: Tensor = leaf.tensor
        if axis:
            order = (axis, *(n for n in range(len(leaf.index)) if n != axis))
            table = Op("Permute", (table,), (order,))
        rest = [i.substitute(image) for n, i in enumerate(leaf.index) if n != axis]
        return Read(_rows(table, ids), (*map(bare, own), *rest), leaf.fill)

    kept = [It(slot, extent) for slot, extent in enumerate(e.shape)]
    reduced = [It(rank + j, extent) for j, extent in enumerate(inner.reduction)]
    result = scope_over(kept, reduced, rewrite_leaves(inner.body, gathered), inner.reducer)
    return result if result.type == e.type else None


def rows_by_place(e: Op, ids: Scope) -> Scope | None:
    """``embedding(t, {L_i m(i)}) = L_{i,k} t[m(i), k]``, each m(i) a row of t.

    ``ids`` equals the second argument of ``e``. Outside of its table an embedding has no rows, and
    a read gives its fill: so all places have to be in range.
    """
    table = e.args[0]
    if ids.reduction or not isinstance(ids.body, Value):
        return None
    width = len(ids.traversal)
    rest = [It(width + n, extent) for n, extent in enumerate(table.shape[1:])]
    read = Read(table, (ids.body.index, *map(bare, rest)))
    if not read.in_range():
        return None
    kept = [It(slot, extent) for slot, extent in enumerate(ids.traversal)]
    result = scope_over([*kept, *rest], [], read)
    return result if result.type == e.type else None


def _rows(table: Tensor, ids: Tensor) -> Tensor:
    """``table[ids[i], k]`` for a table of any rank; an embedding has a table of two axes."""
    row, *rest = table.shape
    if len(rest) == 1:
        return Op("Embedding", (table, ids))
    flat = Op("Reshape", (table,), ((row, math.prod(rest)),))
    return Op("Reshape", (Op("Embedding", (flat, ids)),), ((*ids.shape, *rest),))


def _row_axis(factor: Read, row: It) -> int | None:
    """The only axis that is indexed by the row, if that is as long as the row's range."""
    axes = [n for n, index in enumerate(factor.index) if row in index.iterators()]
    if len(axes) != 1 or factor.index[axes[0]].bare() != row:
        return None
    return axes[0] if factor.tensor.shape[axes[0]] == row.extent else None


def ungather_rows(scope: Scope, read: Read, gathered: Op) -> Scope | None:
    """``L_{i,j} sum_k t[ids[i], k] f(k, j) = L_{i,j} {L_{v,j} sum_k t[v, k] f(k, j)}[ids[i], j]``.

    Where table and f are constant the product of the two is a table that is computed once.
    ``read``, a factor, equals ``gathered``, which is ``Embedding(t, ids)``.
    """
    table, ids = gathered.args
    factors = list(factors_of(scope.body))
    if not is_product(scope) or read not in factors or not scope.reduction or not read.in_range():
        return None
    factors.remove(read)
    width = len(ids.shape)
    rows = [index.bare() for index in read.index[:width]]
    traversal = traversal_iterators(scope)
    chosen = {it for it in rows if it is not None}
    if None in rows or len(chosen) != width or not chosen <= set(traversal):
        return None
    if tuple(it.extent for it in rows if it) != ids.shape:
        return None
    others = [*factors, Read(table, (Index(0), *read.index[width:]))]
    if any(chosen & iterators(f) for f in others):
        return None
    if not all(isinstance(f, Num) or (isinstance(f, Read) and f.tensor.constant) for f in others):
        return None
    rest = [it for it in traversal if it not in chosen]
    value = It(len(scope.extents), table.shape[0])
    body = product([*factors, Read(table, (bare(value), *read.index[width:]))])
    product_table = scope_over([value, *rest], reduction_iterators(scope), body)
    looked_up = _rows(product_table, ids)
    at = (*(bare(it) for it in rows if it), *map(bare, rest))
    result = same_scope(scope, Read(looked_up, at), [])
    return result if result.type == scope.type else None

