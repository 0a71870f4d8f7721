"""Operators that move elements, under torch's names; negative axes count from the end."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Literal

from eqsynth.errors import DtypeError, ShapeError
from eqsynth.frontend.expr import Expr, as_tensor, cast, make
from eqsynth.frontend.ops import pointwise
from eqsynth.frontend.promotion import Number, common_dtype, number_dtype
from eqsynth.ir.index import Index, row_major
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.ir.types import is_float


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
    """Axes in ascending order; None or nothing is all of them."""
    if dim is None or (not isinstance(dim, int) and not dim):
        return tuple(range(rank))
    dims = (dim,) if isinstance(dim, int) else dim
    return tuple(sorted({axis_of(d, rank) for d in dims})) if rank else ()


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
    """Axes as given, counted from 0."""
    return tuple(axis_of(d, rank) for d in ((dim,) if isinstance(dim, int) else dim))


def reshape(input: Expr, shape: Sequence[int]) -> Expr:
    """The elements in order under another shape; one extent may be -1."""
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
    """Axes start_dim to end_dim as one."""
    if input.ndim == 0:
        return reshape(input, (1,))
    first, last = axis_of(start_dim, input.ndim), axis_of(end_dim, input.ndim)
    merged = math.prod(input.shape[first : last + 1])
    return reshape(input, (*input.shape[:first], merged, *input.shape[last + 1 :]))


def unflatten(input: Expr, dim: int, sizes: Sequence[int]) -> Expr:
    """One axis as several."""
    axis = axis_of(dim, input.ndim)
    part = list(sizes)
    if -1 in part:
        part[part.index(-1)] = input.shape[axis] // -math.prod(part)
    return reshape(input, (*input.shape[:axis], *part, *input.shape[axis + 1 :]))


def squeeze(input: Expr, dim: int | Sequence[int] | None = None) -> Expr:
    """Without axes of extent 1: all of them, or those given."""
    axes = range(input.ndim) if dim is None else axes_in_order(dim, input.ndim)
    gone = {axis for axis in axes if input.ndim and input.shape[axis] == 1}
    return reshape(input, [e for axis, e in enumerate(input.shape) if axis not in gone])


def unsqueeze(input: Expr, dim: int) -> Expr:
    """With a new axis of extent 1 at ``dim``."""
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
    """The tensor tiled, as often as given on each axis."""
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
    """``input[start:end:step]`` on one axis, bounds clamped as in Python."""
    axis = axis_of(dim, input.ndim)
    extent = input.shape[axis]
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
    """Every element of an axis."""
    axis = axis_of(dim, input.ndim)
    return tuple(select(input, axis, i) for i in range(input.shape[axis]))


def split(
    input: Expr, split_size_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Expr, ...]:
    """Parts of an axis: all of one size (the last may be shorter), or of the sizes given."""
    axis = axis_of(dim, input.ndim)
    extent = input.shape[axis]
    if isinstance(split_size_or_sections, int):
        size = max(split_size_or_sections, 1)
        sizes = [min(size, extent - at) for at in range(0, extent, size)] or [0]
    else:
        sizes = list(split_size_or_sections)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(narrow(input, axis, at, size) for at, size in zip(starts, sizes, strict=True))


def chunk(input: Expr, chunks: int, dim: int = 0) -> tuple[Expr, ...]:
    """At most ``chunks`` parts of one size."""
    extent = input.shape[axis_of(dim, input.ndim)]
    return split(input, -(-extent // chunks) if extent else 1, dim)


def cat(tensors: Sequence[Expr], dim: int = 0) -> Expr:
    """The tensors one after the other on an axis, promoted."""
    # torch skips empty vectors of shape (0,) here, whatever the rank of the others.
    parts = [x for x in tensors if x.shape != (0,)] or list(tensors[:1])
    dtype = common_dtype([x.tensor.type for x in tensors])
    parts = [cast(x, dtype) for x in parts]
    return parts[0] if len(parts) == 1 else make("Concat", parts, axis_of(dim, parts[0].ndim))


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
    """The last axes longer by (before, after) of the last, of the one before it, …; negative
    amounts cut off.

    Outside stands ``value``, or what is read round the other end (``circular``), back from the
    border (``reflect``), or at the border (``replicate``).

    Raises:
        ShapeError: no such mode; more is read than the axis has.
    """
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
        return make("Pad", (input,), tuple(before), tuple(after), float(value or 0.0))
    shape, index = [], []
    for slot, (n, b, a) in enumerate(zip(input.shape, before, after, strict=True)):
        shape.append(n + b + a)
        at = Index.iterator(slot, n + b + a) - b
        index.append(_repeating(mode, at, n, max(b, a)) if b or a else at)
    return Expr(Scope(tuple(shape), (), Read(input.tensor, tuple(index))), input.values)


def _repeating(mode: str, at: Index, n: int, width: int) -> Index:
    """Where an axis of n elements is read at ``at``, outside of it by up to ``width``."""
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
        # Within the axis in any case, which the ranges of the parts don't show: so it is said.
        at = at - at.minimum(0) * 2 - (at - (n - 1)).maximum(0) * 2
    return at.maximum(0).minimum(n - 1)


def roll(input: Expr, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Expr:
    """``result[i] = input[(i - shift) % extent]``; without axes, on the flattened tensor."""
    shifts = (shifts,) if isinstance(shifts, int) else shifts
    if not isinstance(dims, int) and not dims:
        return reshape(roll(flatten(input), shifts, 0), input.shape)
    result = input
    for shift, axis in zip(shifts, axes_in_order(dims, input.ndim), strict=True):
        extent = input.shape[axis]
        if extent and shift % extent:
            result = make("Shift", (result,), axis, -shift % extent)
    return result


def tile(input: Expr, dims: Sequence[int]) -> Expr:
    """The tensor tiled, as often as given on each of the last axes."""
    return repeat(input, (*(1,) * (input.ndim - len(dims)), *dims))


def flip(input: Expr, dims: int | Sequence[int]) -> Expr:
    """The order of the elements reversed on the given axes."""
    axes = set(axes_in_order(dims, input.ndim)) if input.ndim else set()
    at = [Index.iterator(slot, extent) for slot, extent in enumerate(input.shape)]
    index = tuple(input.shape[a] - 1 - i if a in axes else i for a, i in enumerate(at))
    return Expr(Scope(input.shape, (), Read(input.tensor, index)), input.values)


def as_strided(
    input: Expr, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0
) -> Expr:
    """The elements of a contiguous input at ``storage_offset + sum(stride * position)``."""
    flat = flatten(input)
    if tuple(stride) == row_major(tuple(size)) and not storage_offset:
        return reshape(narrow(flat, 0, 0, math.prod(size)), size)
    at = Index(storage_offset)
    for slot, (extent, step) in enumerate(zip(size, stride, strict=True)):
        at = at + Index.iterator(slot, extent) * step
    return Expr(Scope(tuple(size), (), Read(flat.tensor, (at,))), input.values)


def diagonal(input: Expr, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Expr:
    """The diagonal of two axes, as the last axis."""
    a, b = axis_of(dim1, input.ndim), axis_of(dim2, input.ndim)
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
    distance = pointwise.sub(iota(shape, 1), iota(shape, 0))
    kept = keep(distance, diagonal)  # type: ignore[operator]
    return pointwise.where(kept, input, full((), 0, input.dtype))  # type: ignore[no-any-return]


def iota(shape: Sequence[int], axis: int, dtype: str = "int64") -> Expr:
    """The position on one axis, at each element."""
    return make("Iota", (), tuple(shape), axis, dtype)


def full(size: Sequence[int], fill_value: Number, dtype: str | None = None) -> Expr:
    """A constant tensor."""
    value = as_tensor(fill_value, dtype or number_dtype(fill_value))
    assert isinstance(value.tensor, Op)
    return make("Full", (), tuple(size), value.tensor.attrs[1], value.dtype)


def arange(
    start: Number, end: Number | None = None, step: Number = 1, dtype: str | None = None
) -> Expr:
    """``start, start + step, …`` up to ``end``, which is left out."""
    if end is None:
        start, end = 0, start
    if dtype is None:
        dtype = common_dtype([start, end, step])
    length = max(math.ceil((end - start) / step), 0)
    # Counted in the widest type of its kind and then converted, as torch does.
    line = iota((length,), 0, dtype if step == 1 and start == 0 else _wide(dtype))
    line = pointwise.mul_if(line, step)
    return cast(line if start == 0 else pointwise.add(line, start), dtype)


def _wide(dtype: str) -> str:
    return ("float64" if dtype == "float64" else "float32") if is_float(dtype) else "int64"


def gather(input: Expr, dim: int, index: Expr) -> Expr:
    """``result[.., i, ..] = input[.., index[.., i, ..], ..]``"""
    return make("Gather", (input, index), axis_of(dim, input.ndim))


def embedding(weight: Expr, input: Expr) -> Expr:
    """Rows of ``weight`` (v, d) at the integers of ``input``: (*i) -> (*i, d)."""
    return make("Embedding", (weight, input))


def take_rows(input: Expr, dim: int, index: Expr) -> Expr:
    """``input`` at an index tensor of any rank on one axis, whose place its axes take.

    The index may count from the end, as torch's indexing by tensors allows.
    """
    axis = axis_of(dim, input.ndim)
    extent = input.shape[axis]
    if is_float(index.dtype) or index.dtype == "bool":
        raise DtypeError(
            what="an index tensor isn't made of integers",
            got=index.dtype,
            expected="integers",
            hint="cast it",
        )
    if lower_bound(index.tensor) < 0:
        index = pointwise.where(pointwise.lt(index, 0), pointwise.add(index, extent), index)
    rest = [e for a, e in enumerate(input.shape) if a != axis]
    table = reshape(movedim(input, axis, 0), (extent, math.prod(rest)))
    taken = reshape(embedding(table, index), (*index.shape, *rest))
    front = list(range(index.ndim))
    before = [index.ndim + i for i in range(axis)]
    after = [index.ndim + i for i in range(axis, len(rest))]
    return permute(taken, [*before, *front, *after])


def index_select(input: Expr, dim: int, index: Expr) -> Expr:
    """``input`` at a vector of positions on one axis."""
    return take_rows(input, dim, index)


def lower_bound(term: Tensor) -> float:
    """A number that no element of an integer term is below, -inf if nothing is known."""
    return _bounds(term)[0]


def _bounds(term: Tensor) -> tuple[float, float]:
    if isinstance(term, Op):
        parts = [_bounds(arg) for arg in term.args]
        match term.name:
            case "Full":
                value = float(term.attrs[1])  # type: ignore[arg-type]
                return value, value
            case "Iota":
                shape, axis, _ = term.attrs
                return 0.0, float(max(shape[axis] - 1, 0))  # type: ignore[index,operator]
            case "Add":
                return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
            case "Sub":
                return parts[0][0] - parts[1][1], parts[0][1] - parts[1][0]
            case "Mul":
                ends = [a * b for a in parts[0] for b in parts[1]]
                return (
                    (-math.inf, math.inf) if any(map(math.isnan, ends)) else (min(ends), max(ends))
                )
            case "Maximum":
                return max(parts[0][0], parts[1][0]), max(parts[0][1], parts[1][1])
            case "Minimum":
                return min(parts[0][0], parts[1][0]), min(parts[0][1], parts[1][1])
            case "Reshape" | "Split" | "Merge" | "Expand" | "Permute" | "Slice" | "Shift":
                return parts[0]
    return (0.0, math.inf) if term.dtype in ("uint8", "bool") else (-math.inf, math.inf)
