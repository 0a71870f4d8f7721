"""Operators that write into a part of a tensor, under torch's names; they return the whole tensor.

torch makes them of assignments when it captures a module:

    z[:, 2:5] = y      ->  z = slice_scatter(z, y, 1, 2, 5)
    z[:, 0] = y        ->  z = select_scatter(z, y, 1, 0)
    z[mask] = 0        ->  z = masked_write(z, {0: mask}, 0)

A write is a concatenation of what stays and what is written, or a choice by places. So rules for
these two hold for it: a matrix product with ``z`` computes nothing for a part that is zero.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from eqsynth.errors import ShapeError, UnsupportedOperatorError
from eqsynth.frontend.expr import Expr, cast
from eqsynth.frontend.ops import pointwise, views
from eqsynth.frontend.ops.creation import iota
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import Shape


def slice_scatter(
    input: Expr,
    src: Expr,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Expr:
    """``input`` with ``input[start:end:step]`` on one axis replaced by ``src``.

        [a, b, c, d, e], [x, y], start 1, step 2   ->   [a, x, c, y, e]

    Raises:
        ShapeError: the step isn't positive, or ``src`` hasn't the shape of the slice.
    """
    axis = views.axis_of(dim, input.ndim)
    extent = input.shape[axis]
    part = views.slice(input, axis, start, end, step)
    _check_shape("slice_scatter", src, part.shape)
    count = part.shape[axis]
    if not count:
        return input
    src = cast(src, input.dtype)
    first = builtins.slice(start, end, step).indices(extent)[0]
    if step == 1:
        before, after = first, first + count
        pieces = [src]
    else:
        # Groups of `step` elements, each with one that is written, in the same place of each group.
        before, place = first - first % step, first % step
        whole = min(count, (extent - before) // step)
        after = before + whole * step
        groups = views.unflatten(views.slice(input, axis, before, after), axis, (whole, step))
        group = [
            views.slice(groups, axis + 1, 0, place),
            views.unsqueeze(views.slice(src, axis, 0, whole), axis + 1),
            views.slice(groups, axis + 1, place + 1, step),
        ]
        pieces = [views.flatten(_joined(group, axis + 1), axis, axis + 1)]
        if whole < count:  # the last group ends with the axis
            last = after + place
            pieces += [views.slice(input, axis, after, last), views.slice(src, axis, whole)]
            after = last + 1
    ends = views.slice(input, axis, 0, before), views.slice(input, axis, after)
    return _joined([ends[0], *pieces, ends[1]], axis)


def select_scatter(input: Expr, src: Expr, dim: int, index: int) -> Expr:
    """``input`` with one element of an axis replaced by ``src``, which lacks the axis."""
    axis = views.axis_of(dim, input.ndim)
    at = index + input.shape[axis] if index < 0 else index
    _check_shape("select_scatter", src, (*input.shape[:axis], *input.shape[axis + 1 :]))
    views.narrow(input, axis, at, 1)  # raises an error if there is no such element
    return slice_scatter(input, views.unsqueeze(src, axis), axis, at, at + 1)


def diagonal_scatter(
    input: Expr, src: Expr, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Expr:
    """``input`` with the diagonal of two axes replaced by ``src``, of which it is the last axis."""
    a, b = views.axes_in_order((dim1, dim2), input.ndim)
    _check_shape("diagonal_scatter", src, views.diagonal(input, offset, a, b).shape)
    rest = [axis for axis in range(input.ndim) if axis not in (a, b)]
    at = [Index.iterator(axis, input.shape[axis]) for axis in (*rest, a)]
    at[-1] = at[-1] - max(-offset, 0)
    read = Scope(input.shape, (), Read(cast(src, input.dtype).tensor, tuple(at)))
    shape = tuple(n if axis in (a, b) else 1 for axis, n in enumerate(input.shape))
    distance = pointwise.sub(iota(shape, b), iota(shape, a))
    written: Expr = pointwise.where(
        pointwise.eq(distance, offset), Expr(read, src.values), input
    )
    return written


def masked_write(
    input: Expr, mask: Expr, axis: int, values: Expr, accumulate: bool = False
) -> Expr:
    """``input`` with ``values`` written, or added, where ``mask`` holds: the axes of ``mask`` are
    those of ``input`` from ``axis`` on.

    Raises:
        ShapeError: the mask hasn't these extents.
        UnsupportedOperatorError: each chosen element gets a value of its own, so that it depends on
            the mask which value that is.
    """
    end = axis + mask.ndim
    if mask.shape != input.shape[axis:end]:
        raise ShapeError(
            what="a mask that doesn't fit", got=str(mask.tensor.type),
            expected=f"the extents {input.shape[axis:end]}", hint="expand the mask",
        )  # fmt: skip
    # The chosen elements form one axis of the values, before the axes that the mask doesn't have.
    rest = input.ndim - end
    chosen = values.ndim - rest - 1
    if chosen > axis or chosen >= 0 and values.shape[chosen] != 1:
        raise UnsupportedOperatorError(
            what="a value for each element that a mask chooses", got=str(values.tensor.type),
            expected="values that don't depend on the mask", hint="the operator stays opaque",
        )  # fmt: skip
    if chosen >= 0:
        before, after = values.shape[:chosen], values.shape[chosen + 1 :]
        values = views.reshape(values, (*before, *(1,) * mask.ndim, *after))
    mask = views.reshape(mask, (*mask.shape, *(1,) * rest))
    values = cast(values, input.dtype)
    written: Expr = pointwise.where(
        mask, pointwise.add(input, values) if accumulate else values, input
    )
    return written


def _joined(pieces: Sequence[Expr], axis: int) -> Expr:
    return views.cat([piece for piece in pieces if piece.shape[axis]], axis)


def _check_shape(name: str, src: Expr, expected: Shape) -> None:
    if src.shape != expected:
        raise ShapeError(
            what=f"{name}: the part that is written has another shape", got=str(src.tensor.type),
            expected=f"the shape {expected}", hint="expand it",
        )  # fmt: skip
