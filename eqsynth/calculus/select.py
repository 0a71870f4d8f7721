"""Selecting: rows of a tensor, picked by data or by position, and elements of a constant tensor.

    embedding({L_{r,j} R_k f(r, j, k)}, ids)  =  L_{i,j} R_k f(ids[i], j, k)     ``embedded``
    gather({L_{i,r,j} R_k f}, {L ids[i]}, 1)  =  L_{i,r,j} R_k f(i, ids[i], j, k)
    embedding(t, {L_i m(i)})                  =  L_{i,j} t[m(i), j]              ``embedded``
    L_x R_y f(t[p])                           =  L_x R_y f(c)                    ``number``, t all c

``f(ids[i], …)`` reads ``embedding(a, ids)`` where f reads ``a[r, …]``, and a gather where f reads
``a[i, r, …]``. An id outside of the table is an error on both sides. The other direction of these
three is ``match``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from eqsynth.calculus import checking
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import (
    Num,
    Read,
    Scalar,
    Value,
    children,
    dtype_of,
    iterators,
    leaves,
    mixed_reads,
    rebuild,
    rewrite_leaves,
    substitute,
)
from eqsynth.ir.scopes import bare, reduction_iterators, same_scope, scope_over
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.ir.types import FLOATS, Shape, is_float

_require = partial(checking.require, law="select")


@dataclass(frozen=True)
class Numbers:
    """Tensors of which all elements are one number, and the number (a hypothesis)."""

    numbers: tuple[tuple[Tensor, float], ...]


def rows(table: Tensor, ids: Tensor, axis: int = 0) -> Tensor:
    """Return ``table[ids[i], k]`` for a table of any rank, reshaped to an embedding's two axes. The
    ids pick along the axis, which comes first in the result."""
    before, row, after = table.shape[:axis], table.shape[axis], table.shape[axis + 1 :]
    rest = (*before, *after)
    if math.prod(before) != 1:
        others = (n for n in range(len(table.shape)) if n != axis)
        table = Op("Permute", (table,), ((axis, *others),))
    if len(rest) == 1 and table.shape == (row, *rest):
        return Op("Embedding", (table, ids))
    flat = Op("Reshape", (table,), ((row, math.prod(rest)),))
    return Op("Reshape", (Op("Embedding", (flat, ids)),), ((*ids.shape, *rest),))


def embedded(op: Op) -> Scope | None:
    """Return the scope that equals an embedding by places that are an index, or a pick from a
    computed table: an embedding, or a gather whose places are a view of all ids. None for others.

    ``embedding(t, {L_i m(i)}) = L_{i,j} t[m(i), j]``;
    ``embedding({L_{r,j} R_k f(r, j, k)}, ids) = L_{i,j} R_k f(ids[i], j, k)``;
    ``gather({L_{i,r,j} R_k f(i, r, j, k)}, {L_{i,n,j} ids[i, n]}, 1)
    = L_{i,n,j} R_k f(i, ids[i, n], j, k)``.

    Raises:
        LawError: ``range``: a place isn't in the table, where an embedding has no rows and a read
            gives its fill; ``rows``: a read of the table uses the row not as the index of one axis
            as long as the table, or none uses the row.
    """
    table, ids = op.args
    if op.name == "Gather":
        shown = _places(ids)
        if not isinstance(table, Scope) or shown is None:
            return None
        own, (axis,) = (*op.shape, *table.reduction), op.attrs
        assert isinstance(axis, int)
        return _picked(table, axis, shown, op.shape,
                       lambda it: Index.iterator(it.slot, own[it.slot]))  # fmt: skip
    width = len(ids.shape)
    its = [It(n, extent) for n, extent in enumerate((*ids.shape, *table.shape[1:]))]
    if isinstance(ids, Scope) and not ids.reduction and isinstance(ids.body, Value):
        read = Read(table, (ids.body.index, *map(bare, its[width:])))
        _require(read.in_range(), condition="range", what="a place may be outside of the table")
        return scope_over(its, [], read)
    if not isinstance(table, Scope):
        return None
    places = Read(ids, tuple(map(bare, its[:width])))
    return _picked(table, 0, places, (*ids.shape, *table.traversal[1:]),
                   lambda it: Index.iterator(it.slot + width - 1, it.extent))  # fmt: skip


def _places(ids: Tensor) -> Read | None:
    """Return what a view of a whole tensor reads, ``ids[i, n]`` of ``L_{i,n,j} ids[i, n]``, where
    each index is an iterator of its own, or 0; None for other scopes. A tensor that is no scope is
    read at its own iterators."""
    if not isinstance(ids, Scope):
        return Read(ids, tuple(Index.iterator(n, extent) for n, extent in enumerate(ids.shape)))
    if ids.reduction or not isinstance(ids.body, Read) or not ids.body.in_range():
        return None
    own = [index.bare() for index in ids.body.index if index != Index(0)]
    size = math.prod(it.extent for it in own if it is not None)
    whole = None not in own and len({*own}) == len(own) and size == ids.body.tensor.type.size
    return ids.body if whole else None


def number(scope: Scope, given: Numbers) -> Scope:
    """``L_x R_y f(t[p]) = L_x R_y f(c)``, if all elements of t are c, and p is always in range or
    the read's fill is c too: the read is c at every p, an element inside of t and the fill outside.
    Of any t, if p is always outside of t and c is the read's fill.

    A float becomes a number if all operands around it have its dtype. Otherwise an operand becomes
    a number if the other operands beside it have its dtype (numbers have none, and at least one of
    the others isn't a number) and the dtype holds the number exactly: ``i % t[] -> i % 2``,
    ``i + t[] -> i + 2``.

    Raises:
        LawError: ``reads``: the body has no such read that may become a number; ``dtype``: the
            result is of another dtype.
    """
    numbers, mixed = dict(given.numbers), mixed_reads(scope.body, scope.dtype)

    def of(part: Scalar) -> Num | None:
        if not isinstance(part, Read) or not (part.is_outside() or part.tensor in numbers):
            return None
        value = part.fill if part.is_outside() else numbers[part.tensor]
        return Num(value) if part.in_range() or part.fill == value else None

    def leaf(part: Scalar) -> Scalar:
        return (is_float(scope.dtype) and part not in mixed and of(part)) or part

    def beside(part: Scalar) -> Scalar:
        args = children(part)
        dtypes = [dtype_of(arg) for arg in args]
        for n, arg in enumerate(args):
            value, others = of(arg), {*dtypes[:n], *dtypes[n + 1 :]} - {None}
            if value and others == {dtypes[n]} and _has(dtypes[n], value.value):
                return rebuild(part, [*args[:n], value, *args[n + 1 :]])
        return part

    body = rewrite_leaves(scope.body, leaf, beside)
    _require(body != scope.body, condition="reads", what="no such tensor is read in range")
    result = same_scope(scope, body, reduction_iterators(scope))
    _require(result.type == scope.type, condition="dtype", what="the result is of another type")
    return result


def _has(dtype: str | None, value: float) -> bool:
    """Whether the dtype holds this number exactly; bool holds none, as a number isn't a bool."""
    if not value.is_integer():
        return math.isinf(value) and dtype in FLOATS
    return dtype in _WHOLE and _WHOLE[dtype][0] <= value <= _WHOLE[dtype][1]


_WHOLE: Final = {
    "uint8": (0, 2**8 - 1), "int8": (-(2**7), 2**7 - 1), "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1), "int64": (-(2**53), 2**53), "float16": (-(2**11), 2**11),
    "bfloat16": (-(2**8), 2**8), "float32": (-(2**24), 2**24), "float64": (-(2**53), 2**53),
}  # fmt: skip
"""dtype -> the range of integers that both the dtype and a Python float hold exactly."""


def _picked(
    table: Scope, axis: int, places: Read, shape: Shape, image: Callable[[It], Index]
) -> Scope:
    """Return ``L_x R_k f(x, k)`` for a table ``L_z R_k f(z, k)``, with what ``places`` reads in the
    place of the table's axis, and ``image`` of the other iterators in theirs."""
    row = It(axis, table.traversal[axis])
    using = {leaf for leaf in leaves(table.body) if row in iterators(leaf)}
    axes = {leaf: _row_axis(leaf, row) for leaf in using}
    _require(bool(using) and None not in axes.values(), condition="rows",
             what="the row isn't read along an axis of its own")  # fmt: skip

    def at_ids(leaf: Scalar) -> Scalar:
        along = axes.get(leaf)
        if along is None or not isinstance(leaf, Read):  # a leaf with an axis is a read
            return substitute(leaf, image)
        rest = [index.substitute(image) for n, index in enumerate(leaf.index) if n != along]
        beside = {it for index in rest for it in index.iterators()}
        if beside & iterators(places):
            return _gathered(leaf, along, places, rest)
        return Read(rows(leaf.tensor, places.tensor, along), (*places.index, *rest), leaf.fill)

    its = [It(n, extent) for n, extent in enumerate((*shape, *table.reduction))]
    kept = len(shape)
    return scope_over(its[:kept], its[kept:], rewrite_leaves(table.body, at_ids), table.reducer)


def _gathered(leaf: Read, along: int, places: Read, rest: Sequence[Index]) -> Read:
    """Return ``gather(a, {L_{i,j} ids[i]}, 1)[i, j]`` for a leaf ``a[i, r]`` and places ``ids[i]``:
    each iterator of the places indexes an axis of the leaf by itself, or one is left for the axis
    of the row."""
    index, shape = [*rest], list(leaf.tensor.shape)
    index.insert(along, Index(0))
    bare_ = {n: it for n in range(len(shape)) if n != along and (it := index[n].bare()) is not None}
    axes = {it: n for n, it in bare_.items() if it.extent == shape[n]}
    left = [it for it in iterators(places) if it not in axes]
    _require(len(left) < 2, condition="rows", what="ids of several axes for each row")
    shape[along] = left[0].extent if left else 1
    if left:
        axes[left[0]], index[along] = along, bare(left[0])
    ids = substitute(places, lambda it: Index.iterator(axes[it], it.extent))
    own = Scope(tuple(shape), (), ids)
    return Read(Op("Gather", (leaf.tensor, own), (along,)), tuple(index), leaf.fill)


def _row_axis(leaf: Scalar, row: It) -> int | None:
    """Return the only axis that the row indexes, if by itself and as long as the table; or None."""
    if not isinstance(leaf, Read):
        return None
    axes = [n for n, index in enumerate(leaf.index) if row in index.iterators()]
    if len(axes) != 1 or leaf.index[axes[0]].bare() != row:
        return None
    return axes[0] if leaf.tensor.shape[axes[0]] == row.extent else None
