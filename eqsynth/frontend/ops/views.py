"""Operators that move elements, under torch's names; negative axes count from the end."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Literal

from eqsynth.errors import ShapeError
from eqsynth.frontend.expr import Expr, cast, make
from eqsynth.frontend.ops import pointwise
from eqsynth.frontend.ops.creation import full, held, iota
from eqsynth.frontend.promotion import common_dtype
from eqsynth.ir.index import Index, row_major
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Scope


def axis_of(dim: int, rank: int) -> int:
    """The axis, counted from 0; -1 is the last.

    Raises:
        ShapeError: no such axis.
    """
    limit = max(rank, 1)
    if not -limit <= dim < limit:
        raise ShapeError(
            what="no such axis",
            got=str(dim),
            expected=f"{-limit} to {limit - 1}",
            hint="the tensor has fewer axes than that",
        )
    return dim % limit


def axes_of(dim: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """The axes, counted from 0, in ascending order; None or an empty sequence means all axes.

    Raises:
        ShapeError: no such axis, or one is given twice.
    """
    if dim is None or (not isinstance(dim, int) and not dim):
        return tuple(range(rank))
    axes = axes_in_order(dim, rank)
    return tuple(sorted(axes)) if rank else ()


def permute(input: Expr, dims: Sequence[int]) -> Expr:
    """``result.shape[i] = input.shape[dims[i]]``"""
    order = tuple(axis_of(d, input.ndim) for d in dims)
    return input if order == tuple(range(input.ndim)) else make("Permute", (input,), order)


def transpose(input: Expr, dim0: int, dim1: int) -> Expr:
    """Two axes exchanged."""
    order = list(range(input.ndim))
    if order:
        a, b = axis_of(dim0, input.ndim), axis_of(dim1, input.ndim)
        order[a], order[b] = order[b], order[a]
    return permute(input, order)


def t(input: Expr) -> Expr:
    """The transpose of a matrix; a vector stays."""
    return transpose(input, 0, 1) if input.ndim == 2 else input


def movedim(input: Expr, source: int | Sequence[int], destination: int | Sequence[int]) -> Expr:
    """The source axes at the destination positions, the others in order."""
    sources = axes_in_order(source, input.ndim)
    places = axes_in_order(destination, input.ndim)
    rest = iter(axis for axis in range(input.ndim) if axis not in sources)
    at = dict(zip(places, sources, strict=True))
    return permute(input, [at[i] if i in at else next(rest) for i in range(input.ndim)])


def axes_in_order(dim: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """The axes in the given order, counted from 0.

    Raises:
        ShapeError: no such axis, or one is given twice.
    """
    axes = tuple(axis_of(d, rank) for d in ((dim,) if isinstance(dim, int) else dim))
    if len(set(axes)) != len(axes):
        raise ShapeError(
            what="an axis is given twice", got=str(dim), expected="each axis once", hint=""
        )
    return axes


def reshape(input: Expr, shape: Sequence[int]) -> Expr:
    """The same elements in the same order, in another shape; one extent may be -1."""
    sizes = list(shape)
    if -1 in sizes:
        known = math.prod(s for s in sizes if s != -1)
        size = math.prod(input.shape)
        if sizes.count(-1) > 1 or known == 0 or size % known:
            raise ShapeError(
                what="reshape: -1 can't be inferred",
                got=f"{tuple(input.shape)} to {tuple(shape)}",
                expected=f"one -1, and a divisor of {size}",
                hint="give the extents themselves",
            )
        sizes[sizes.index(-1)] = size // known
    return input if tuple(sizes) == input.shape else make("Reshape", (input,), tuple(sizes))


def flatten(input: Expr, start_dim: int = 0, end_dim: int = -1) -> Expr:
    """The axes from start_dim to end_dim merged into one."""
    if input.ndim == 0:
        return reshape(input, (1,))
    first, last = axis_of(start_dim, input.ndim), axis_of(end_dim, input.ndim)
    merged = math.prod(input.shape[first : last + 1])
    return reshape(input, (*input.shape[:first], merged, *input.shape[last + 1 :]))


def unflatten(input: Expr, dim: int, sizes: Sequence[int]) -> Expr:
    """One axis split into several; one extent may be -1."""
    axis = axis_of(dim, input.ndim)
    part = list(sizes)
    if -1 in part:
        part[part.index(-1)] = input.shape[axis] // -math.prod(part)
    return reshape(input, (*input.shape[:axis], *part, *input.shape[axis + 1 :]))


def squeeze(input: Expr, dim: int | Sequence[int] | None = None) -> Expr:
    """The tensor without its axes of extent 1: all such axes, or those in ``dim``."""
    axes = range(input.ndim) if dim is None else axes_in_order(dim, input.ndim)
    gone = {axis for axis in axes if input.ndim and input.shape[axis] == 1}
    return reshape(input, [e for axis, e in enumerate(input.shape) if axis not in gone])


def unsqueeze(input: Expr, dim: int) -> Expr:
    """The tensor with a new axis of extent 1 at ``dim``."""
    axis = axis_of(dim, input.ndim + 1)
    return reshape(input, (*input.shape[:axis], 1, *input.shape[axis:]))


def expand(input: Expr, size: Sequence[int]) -> Expr:
    """Broadcast to ``size``; -1 keeps an extent."""
    lead = len(size) - input.ndim
    shape = tuple(
        input.shape[i - lead] if extent == -1 and i >= lead else extent
        for i, extent in enumerate(size)
    )
    return input if shape == input.shape else make("Expand", (input,), shape)


def repeat(input: Expr, repeats: Sequence[int]) -> Expr:
    """``torch.Tensor.repeat``: the tensor ``repeats[i]`` times along axis i.

    Raises:
        ShapeError: there are fewer numbers than axes, or a number is below 0.
    """
    if len(repeats) < input.ndim or min(repeats, default=0) < 0:
        raise ShapeError(
            what="repeat: not one number an axis",
            got=f"{tuple(repeats)} for {input.tensor.type}",
            expected=f"{input.ndim} numbers or more, each 0 or more",
            hint="put a 1 before for an axis that stays",
        )
    shape = (1,) * (len(repeats) - input.ndim) + input.shape
    split = [extent for e in shape for extent in (1, e)]
    tiled = [extent for r, e in zip(repeats, shape, strict=True) for extent in (r, e)]
    result = tuple(r * e for r, e in zip(repeats, shape, strict=True))
    if result == shape:
        return reshape(input, shape)
    return reshape(expand(reshape(input, split), tiled), result)


def narrow(input: Expr, dim: int, start: int, length: int) -> Expr:
    """``length`` elements of an axis, from ``start``."""
    axis = axis_of(dim, input.ndim)
    start = start + input.shape[axis] if start < 0 else start
    if start == 0 and length == input.shape[axis]:
        return input
    return make("Slice", (input,), axis, start, start + length, 1)


def slice(
    input: Expr, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Expr:
    """``input[start:end:step]`` on one axis, with bounds clamped as in Python."""
    axis = axis_of(dim, input.ndim)
    extent = input.shape[axis]
    if step < 1:
        raise ShapeError(
            what="slice: the step isn't positive", got=str(step), expected="1 or more",
            hint="flip the axis for a negative step",
        )  # fmt: skip
    first, last, _ = builtins.slice(start, end, step).indices(extent)
    last = max(first, last)
    if (first, last, step) == (0, extent, 1):
        return input
    return make("Slice", (input,), axis, first, last, step)


def select(input: Expr, dim: int, index: int) -> Expr:
    """One element of an axis, without the axis."""
    axis = axis_of(dim, input.ndim)
    part = narrow(input, axis, index, 1)
    return reshape(part, (*input.shape[:axis], *input.shape[axis + 1 :]))


def unbind(input: Expr, dim: int = 0) -> tuple[Expr, ...]:
    """The elements of an axis, each without the axis: (a, n, b) -> n tensors (a, b)."""
    axis = axis_of(dim, input.ndim)
    return tuple(select(input, axis, i) for i in range(input.shape[axis]))


def split(
    input: Expr, split_size_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Expr, ...]:
    """The parts of an axis: all of one size (the last may be shorter), or of given sizes."""
    axis = axis_of(dim, input.ndim)
    extent = input.shape[axis]
    if isinstance(split_size_or_sections, int):
        size = max(split_size_or_sections, 0 if extent else 1)
        sizes = [min(size, extent - at) for at in range(0, extent, size or 1)] or [0]
    else:
        sizes = list(split_size_or_sections)
    if min(sizes, default=0) < 0 or sum(sizes) != extent:
        raise ShapeError(
            what="split: the parts aren't the axis",
            got=f"{split_size_or_sections} of {extent}",
            expected=f"a size of 1 or more, or sizes of 0 or more that add up to {extent}",
            hint="narrow takes a part",
        )
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(narrow(input, axis, at, size) for at, size in zip(starts, sizes, strict=True))


def chunk(input: Expr, chunks: int, dim: int = 0) -> tuple[Expr, ...]:
    """The axis in at most ``chunks`` parts of one size; the last may be shorter.

    Raises:
        ShapeError: ``chunks`` is below 1.
    """
    extent = input.shape[axis_of(dim, input.ndim)]
    if chunks < 1:
        raise ShapeError(
            what="chunk: no parts", got=str(chunks), expected="1 or more", hint=""
        )  # fmt: skip
    return split(input, -(-extent // chunks) if extent else (0,) * chunks, dim)


def cat(tensors: Sequence[Expr], dim: int = 0) -> Expr:
    """The tensors, promoted to a common dtype, one after the other along an axis."""
    # torch skips empty vectors of shape (0,) here, whatever the rank of the others.
    parts = [x for x in tensors if x.shape != (0,)] or list(tensors[:1])
    dtype = common_dtype([x.tensor.type for x in tensors])
    parts = [cast(x, dtype) for x in parts]
    axis = axis_of(dim, parts[0].ndim)
    if len(parts) == 1:
        return parts[0]
    whole = make("Concat", parts, axis)
    # Parts without elements, such as a cache that is still empty, are left out: rules aren't
    # applied to a program with tensors that have none.
    filled = [x for x in parts if x.shape[axis]]
    if whole.shape[axis] == 0 or len(filled) == len(parts):
        return whole
    return filled[0] if len(filled) == 1 else make("Concat", filled, axis)


def stack(tensors: Sequence[Expr], dim: int = 0) -> Expr:
    """The tensors along a new axis."""
    axis = axis_of(dim, tensors[0].ndim + 1)
    parts = [unsqueeze(x, axis) for x in tensors]
    return cat(parts, axis)


def pad(
    input: Expr,
    pad: Sequence[int],
    mode: Literal["constant", "circular", "reflect", "replicate"] = "constant",
    value: float | None = None,
) -> Expr:
    """``torch.nn.functional.pad``: add elements before and after the last axes.

    ``pad`` is (before, after) for the last axis, then for the one before it, and so on; negative
    amounts remove elements. The modes on ``[1, 2, 3]`` with (2, 0):

        constant    v v 1 2 3        circular    2 3 1 2 3
        reflect     3 2 1 2 3        replicate   1 1 1 2 3

    Raises:
        ShapeError: there is no such mode, or the axis has too few elements for it.
    """
    if len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise ShapeError(
            what="pad: not two amounts an axis",
            got=f"{tuple(pad)} for {input.tensor.type}",
            expected=f"an even number of amounts, {2 * input.ndim} at most",
            hint="(before, after) of the last axis, then of the one before it",
        )
    before, after = [0] * input.ndim, [0] * input.ndim
    for i in range(len(pad) // 2):
        before[-1 - i], after[-1 - i] = pad[2 * i], pad[2 * i + 1]
    for axis, (b, a) in enumerate(zip(before, after, strict=True)):
        if b < 0 or a < 0:
            input = slice(input, axis, max(-b, 0), input.shape[axis] - max(-a, 0))
    before, after = [max(b, 0) for b in before], [max(a, 0) for a in after]
    if not any((*before, *after)):
        return input
    if mode == "constant":
        fill = held(value or 0.0, input.dtype)
        return make("Pad", (input,), tuple(before), tuple(after), fill)
    shape, index = [], []
    for slot, (n, b, a) in enumerate(zip(input.shape, before, after, strict=True)):
        shape.append(n + b + a)
        at = Index.iterator(slot, n + b + a) - b
        index.append(_repeating(mode, at, n, max(b, a)) if b or a else at)
    return Expr(Scope(tuple(shape), (), Read(input.tensor, tuple(index))), input.values)


def _repeating(mode: str, at: Index, n: int, width: int) -> Index:
    """The index at which a padded axis reads its elements, always inside of the axis.

    Args:
        at: the index without padding modes, which lies outside by up to ``width``.
        n: the axis's extent.

    Raises:
        ShapeError: there is no such mode, or the axis has too few elements for it.
    """
    most = {"circular": n, "reflect": n - 1, "replicate": width if n else 0}.get(mode)
    if most is None or width > most:
        raise ShapeError(
            what="pad: no such mode" if most is None else f"pad: {mode} reads more than there is",
            got=mode if most is None else f"{width} of an axis of {n}",
            expected="constant, circular, reflect or replicate" if most is None else f"<= {most}",
            hint="pad in two steps, or use another mode",
        )
    if mode == "circular":
        return at % n
    if mode == "reflect":
        # This index lies inside of the axis, but interval arithmetic on its parts doesn't show
        # that. The clamp below changes no value, and shows it.
        at = at - at.minimum(0) * 2 - (at - (n - 1)).maximum(0) * 2
    return at.maximum(0).minimum(n - 1)


def roll(input: Expr, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Expr:
    """``result[i] = input[(i - shift) % extent]``; without axes, on the flattened tensor."""
    shifts = (shifts,) if isinstance(shifts, int) else shifts
    if not isinstance(dims, int) and not dims:
        return reshape(roll(flatten(input), shifts, 0), input.shape)
    result = input
    # An axis may be given twice, as in torch; it is then rolled twice.
    axes = [axis_of(d, input.ndim) for d in ((dims,) if isinstance(dims, int) else dims)]
    if len(axes) != len(shifts):
        raise ShapeError(
            what="roll: not one shift an axis",
            got=f"{tuple(shifts)} on {dims}",
            expected="as many shifts as axes",
            hint="without axes, one shift rolls the flattened tensor",
        )
    for shift, axis in zip(shifts, axes, strict=True):
        extent = input.shape[axis]
        if extent and shift % extent:
            result = make("Shift", (result,), axis, -shift % extent)
    return result


def tile(input: Expr, dims: Sequence[int]) -> Expr:
    """``torch.tile``: the tensor repeated along its last axes, ``dims[-1]`` times on the last."""
    return repeat(input, (*(1,) * (input.ndim - len(dims)), *dims))


def flip(input: Expr, dims: int | Sequence[int]) -> Expr:
    """The tensor with the order of its elements reversed along the given axes."""
    axes = set(axes_in_order(dims, input.ndim)) if input.ndim else set()
    at = [Index.iterator(slot, extent) for slot, extent in enumerate(input.shape)]
    index = tuple(input.shape[a] - 1 - i if a in axes else i for a, i in enumerate(at))
    return Expr(Scope(input.shape, (), Read(input.tensor, index)), input.values)


def as_strided(
    input: Expr, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0
) -> Expr:
    """``torch.as_strided`` of a contiguous input: ``result[i, j] = flatten(input)[storage_offset +
    stride[0] * i + stride[1] * j]``.

    Raises:
        ShapeError: a position lies outside of the input.
    """
    flat = flatten(input)
    last = storage_offset + sum((e - 1) * s for e, s in zip(size, stride, strict=True))
    if min(stride, default=0) < 0 or storage_offset < 0 or (
        0 not in size and last >= math.prod(input.shape)
    ):  # fmt: skip
        raise ShapeError(
            what="as_strided reads outside of the tensor",
            got=f"{tuple(size)} by {tuple(stride)} from {storage_offset} of {input.tensor.type}",
            expected=f"strides of 0 or more, and positions below {math.prod(input.shape)}",
            hint="pad the tensor first",
        )
    if tuple(stride) == row_major(tuple(size)) and not storage_offset:
        return reshape(narrow(flat, 0, 0, math.prod(size)), size)
    at = Index(storage_offset)
    for slot, (extent, step) in enumerate(zip(size, stride, strict=True)):
        at = at + Index.iterator(slot, extent) * step
    return Expr(Scope(tuple(size), (), Read(flat.tensor, (at,))), input.values)


def diagonal(input: Expr, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Expr:
    """The diagonal of two axes, as a new last axis: ``result[.., i] = input[i, i + offset]``."""
    a, b = axes_in_order((dim1, dim2), input.ndim)
    down, right = max(-offset, 0), max(offset, 0)
    length = max(min(input.shape[a] - down, input.shape[b] - right), 0)
    rest = [axis for axis in range(input.ndim) if axis not in (a, b)]
    traversal = (*(input.shape[axis] for axis in rest), length)
    step = Index.iterator(len(rest), length)
    at = {axis: Index.iterator(slot, input.shape[axis]) for slot, axis in enumerate(rest)}
    at |= {a: step + down, b: step + right}
    body = Read(input.tensor, tuple(at[axis] for axis in range(input.ndim)))
    return Expr(Scope(traversal, (), body), input.values)


def tril(input: Expr, diagonal: int = 0) -> Expr:
    """The lower triangle of the last two axes, 0 above."""
    return _triangle(input, pointwise.le, diagonal)


def triu(input: Expr, diagonal: int = 0) -> Expr:
    """The upper triangle of the last two axes, 0 below."""
    return _triangle(input, pointwise.ge, diagonal)


def _triangle(input: Expr, keep: object, diagonal: int) -> Expr:
    shape = input.shape[-2:]
    if len(shape) < 2:
        raise ShapeError(
            what="a triangle of no matrix", got=str(input.tensor.type), expected="(*, m, n)",
            hint="unsqueeze a vector",
        )  # fmt: skip
    distance = pointwise.sub(iota(shape, 1), iota(shape, 0))
    kept = keep(distance, diagonal)  # type: ignore[operator]
    return pointwise.where(kept, input, full((), 0, input.dtype))  # type: ignore[no-any-return]
