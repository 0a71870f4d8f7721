"""Views, reductions and fused operators as scopes.

A view is ``L_x . t[map(x)]``; ``index_map`` holds the map of each view (Syno Table 1, and Permute,
Pad, Slice). A concatenation is a sum of shifted reads that are zero outside of their tensors. A
fused operator is a map over its product: ``L_x post(product[x] + bias[channel] + residual[x])``.
"""

from __future__ import annotations

import math

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.ir.functions import REDUCERS
from eqsynth.ir.index import Index, row_major
from eqsynth.ir.normal import canonical
from eqsynth.ir.operators import Attr
from eqsynth.ir.scalar import Call, Cast, Num, Read, Scalar, product, total
from eqsynth.ir.tensor import Op, Scope
from eqsynth.ir.types import Shape


def defining_scope(op: Op) -> Scope | None:
    """Return the scope that equals a view, cast, concatenation, reduction or fused operator; None
    for other operators, which are defined by comprehensions (``ir/notation.py``)."""
    at = [Index.iterator(slot, extent) for slot, extent in enumerate(op.shape)]
    match op.name, op.attrs:
        case "Cast", _:
            body: Scalar = Cast(op.dtype, Read(op.args[0], tuple(at)))
        case "Concat", (int() as axis,):
            body = _concat(op, axis, at)
        case "FusedMatmul" | "FusedMatmulAdd", (*attrs, str() as post):
            body = _fused(op, Op("Matmul", op.args[:2], tuple(attrs)), at, -1, post)
        case "FusedConv2d" | "FusedConv2dAdd", (*attrs, str() as post):
            body = _fused(op, Op("Conv2d", op.args[:2], tuple(attrs)), at, 1, post)
        case _, (tuple() as axes, int() as keepdim) if op.row.reducer:
            return _reduction(op, op.row.reducer, axes, bool(keepdim))
        case _ if op.row.kind == "view":
            index, fill = index_map(op.name, op.attrs, at, op.args[0].shape)
            body = Read(op.args[0], tuple(index), fill)
        case _:
            return None
    return canonical(Scope(op.shape, (), body))


def _concat(op: Op, axis: int, at: list[Index]) -> Scalar:
    parts, start = [], 0
    for arg in op.args:
        index = (*at[:axis], at[axis] - start, *at[axis + 1 :])
        parts.append(Read(arg, index))
        start += arg.shape[axis]
    return total(parts)


def _fused(op: Op, inner: Op, at: list[Index], channel: int, post: str) -> Scalar:
    _, _, bias, *residual = op.args
    terms = [Read(inner, tuple(at)), Read(bias, (at[channel],))]
    sums = total([*terms, *(Read(tensor, tuple(at)) for tensor in residual)])
    return sums if post == "none" else Call(post, (sums,))


def _reduction(op: Op, reducer: str, axes: tuple[int, ...], keepdim: bool) -> Scope | None:
    (x,) = op.args
    index: list[Index] = []
    place, rank = 0, len(op.shape)
    for axis, extent in enumerate(x.shape):
        if axis in axes:
            index.append(Index.iterator(rank + axes.index(axis), extent))
            place += keepdim
        else:
            index.append(Index.iterator(place, extent))
            place += 1
    extents = tuple(x.shape[axis] for axis in axes)
    body: Scalar = Read(x, tuple(index))
    if x.dtype != op.dtype and not (x.dtype == "bool" and extents):
        # Integers are summed in int64; a scope that sums bools counts them without a cast.
        body = Cast(op.dtype, body)
    if reducer == "mean":
        if 0 in extents:  # 0 / 0 is no sum over nothing
            return None
        return canonical(Scope(op.shape, extents, product([Num(1 / math.prod(extents)), body])))
    assert reducer in REDUCERS
    return canonical(Scope(op.shape, extents, body, reducer))


def index_map(
    name: str, attrs: tuple[Attr, ...], at: list[Index], source: Shape
) -> tuple[list[Index], float]:
    """Return the index in a view's argument of element ``at`` of its result, and the fill outside
    of the argument: for a slice from 3, ``[i] -> [i + 3]``."""
    match name, attrs:
        case "Permute", (tuple() as order,):
            place = {axis: n for n, axis in enumerate(order)}
            return [at[place[axis]] for axis in range(len(order))], 0.0
        case "Reshape", (tuple() as shape,):
            return reshaped(at, shape, source), 0.0
        case "Expand", (tuple() as shape,):
            own = at[len(shape) - len(source) :]
            return [Index(0) if e == 1 else i for i, e in zip(own, source, strict=True)], 0.0
        case "Slice", (int() as axis, int() as start, int(), int() as step):
            return [*at[:axis], at[axis] * step + start, *at[axis + 1 :]], 0.0
        case "Stride", (int() as axis, int() as step):
            return [*at[:axis], at[axis] * step, *at[axis + 1 :]], 0.0
        case "Pad", (tuple() as before, tuple(), float() | int() as value):
            return [i - b for i, b in zip(at, before, strict=True)], float(value)
        case "Reverse", (tuple() as axes,):
            return [e - 1 - i if a in axes else i
                    for a, (i, e) in enumerate(zip(at, source, strict=True))], 0.0  # fmt: skip
        case "Shift", (int() as axis, int() as amount):
            return [*at[:axis], (at[axis] + amount) % max(source[axis], 1), *at[axis + 1 :]], 0.0
        case "Split", (int() as axis, int() as block):
            return [*at[:axis], at[axis] * block + at[axis + 1], *at[axis + 2 :]], 0.0
        case "Merge", (int() as axis,):
            block = max(source[axis + 1], 1)
            return [*at[:axis], at[axis] // block, at[axis] % block, *at[axis + 1 :]], 0.0
        case "Unfold", (int() as axis, int() as size):
            return [*at[:axis], at[axis] + at[axis + 1] - size // 2, *at[axis + 2 :]], 0.0
    raise UnsupportedOperatorError(
        what=f"{name} is no view",
        got=f"{name}{attrs}",
        expected="an operator of kind view",
        hint="define it by a comprehension in rules/operators.egg",
    )


def reshaped(at: list[Index], shape: Shape, source: Shape) -> list[Index]:
    """Return the index in ``source`` of element ``at`` of its row-major reshape to ``shape``.

    Axes are grouped where the products of their extents agree, so that indices stay small.

    >>> i, j = Index.iterator(0, 6), Index.iterator(1, 4)
    >>> [str(x) for x in reshaped([i, j], (6, 4), (2, 3, 4))]
    ['i0 // 3', 'i0 % 3', 'i1']
    """
    result: list[Index] = []
    left = right = 0
    while right < len(source):
        start_left, start_right = left, right
        extent_left = extent_right = 1
        while True:
            if right < len(source) and (extent_right <= extent_left or left >= len(shape)):
                extent_right *= source[right]
                right += 1
            elif left < len(shape):
                extent_left *= shape[left]
                left += 1
            else:
                break
            if extent_left == extent_right and left > start_left:
                break
        group = shape[start_left:left]
        linear = Index(0)
        for index, stride in zip(at[start_left:left], row_major(group), strict=True):
            linear = linear + index * stride
        inner = source[start_right:right]
        for n, (extent, stride) in enumerate(zip(inner, row_major(inner), strict=True)):
            if extent <= 1:
                result.append(Index(0))
            elif len(group) == len(inner) == 1:
                result.append(at[start_left])
            else:
                part = linear // stride if stride > 1 else linear
                result.append(part if n == 0 or extent_right == extent * stride else part % extent)
    return result
