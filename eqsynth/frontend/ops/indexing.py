"""Reads at positions that are data, under torch's names: gather, embedding, index_select, one_hot.

A position outside of the tensor is an error when the program runs, as in torch: all reads here
become the IR's ``Embedding`` or ``Gather``, whose kernels check positions. Negative positions are
made positive first (``i`` -> ``i + n``), in functions for which torch allows negative ones. Not
here: positions that are known at capture (``positions.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from eqsynth.errors import DtypeError, ShapeError, UnsupportedOperatorError
from eqsynth.frontend.expr import Expr, cast, make
from eqsynth.frontend.ops import pointwise
from eqsynth.frontend.ops.creation import iota
from eqsynth.frontend.ops.positions import at_positions, counted_axes
from eqsynth.frontend.ops.views import axis_of, expand, flatten, movedim, permute, reshape
from eqsynth.ir.normal import remembered
from eqsynth.ir.tensor import Op, Tensor
from eqsynth.ir.types import INTEGERS


def gather(input: Expr, dim: int, index: Expr) -> Expr:
    """``result[.., i, ..] = input[.., index[.., i, ..], ..]``

    Raises:
        DtypeError, ShapeError: the index isn't made of integers, or is larger than the input.
    """
    if not input.ndim or not index.ndim:
        alike = gather(flatten(input), dim, flatten(index))
        return reshape(alike, index.shape)
    return make("Gather", (input, _positions(index)), axis_of(dim, input.ndim))


def embedding(weight: Expr, input: Expr) -> Expr:
    """Rows of ``weight`` (v, d) at the integers of ``input``: (*i) -> (*i, d).

    Raises:
        DtypeError: the input isn't made of integers.
    """
    return make("Embedding", (weight, _positions(input)))


def one_hot(input: Expr, num_classes: int) -> Expr:
    """``result[.., c] = 1`` where ``input[..] = c``, else 0: (*i) -> (*i, num_classes).

    The result is rows of an identity matrix, so that a class that doesn't exist is an error when
    the program runs, as in torch.

    Raises:
        DtypeError, ShapeError: the input isn't made of integers; the number isn't positive.
    """
    if input.dtype != "int64" or num_classes < 1:
        raise DtypeError(
            what="one_hot: no classes",
            got=f"{input.dtype}, {num_classes} classes",
            expected="int64, and 1 class or more",
            hint="cast the input, and give num_classes",
        )
    grid = (num_classes, num_classes)
    identity = cast(pointwise.eq(iota(grid, 0), iota(grid, 1)), "int64")
    return embedding(identity, input)


def _positions(index: Expr) -> Expr:
    if index.dtype not in ("int32", "int64"):
        raise DtypeError(
            what="an index tensor isn't made of integers",
            got=index.dtype,
            expected="int32 or int64",
            hint="cast it",
        )
    return index


def take_rows(input: Expr, dim: int, index: Expr) -> Expr:
    """``x[:, index]`` in torch: read one axis at an index tensor of any rank.

    The axes of the index tensor take the place of the axis: (a, n, b), (*i) -> (a, *i, b). An index
    may be negative, as in torch.
    """
    axis = axis_of(dim, input.ndim)
    known = at_positions(input, {axis: _positions(index)})
    if known is not None:
        return known
    return _rows(input, dim, _from_front(index, input.shape[axis]))


def _rows(input: Expr, dim: int, index: Expr) -> Expr:
    axis = axis_of(dim, input.ndim)
    extent = input.shape[axis]
    rest = [e for a, e in enumerate(input.shape) if a != axis]
    table = reshape(movedim(input, axis, 0), (extent, math.prod(rest)))
    taken = reshape(embedding(table, index), (*index.shape, *rest))
    front = list(range(index.ndim))
    before = [index.ndim + i for i in range(axis)]
    after = [index.ndim + i for i in range(axis, len(rest))]
    return permute(taken, [*before, *front, *after])


def at_indices(input: Expr, indices: Mapping[int, Expr]) -> Expr:
    """``x[i, j]`` in torch: read several axes at index tensors.

        x[arange(b), i]   ->   gather(x, 1, i[:, None, None].expand(b, 1, d)), of x (b, n, d)
        x[i, j]           ->   the rows of x, its first two axes flattened, at i * n + j

    An index that is out of range must be an error when the program runs. With n = 4, the position
    (0, 5) is out of range, but 0 * 4 + 5 is a row of the flattened tensor. Therefore all index
    tensors but one must be known to be in range, as ``arange`` is. The axis of the other one comes
    first in the flattened order: if its index is out of range, the row is, too.

    Raises:
        DtypeError: an index isn't made of integers.
        UnsupportedOperatorError: more than one index tensor may be out of range.
    """
    known = at_positions(input, {axis: _positions(index) for axis, index in indices.items()})
    if known is not None:
        return known
    gathered = _beside_counts(input, indices)
    if gathered is not None:
        return gathered
    axes = sorted(indices, key=lambda axis: _is_within(indices[axis].tensor, input.shape[axis]))
    open_ = [axis for axis in axes if not _is_within(indices[axis].tensor, input.shape[axis])]
    if len(open_) > 1:
        raise UnsupportedOperatorError(
            what="indexing by several tensors of data",
            got=f"{len(open_)} index tensors of unknown range",
            expected="one at most",
            hint="the operator stays opaque",
        )
    rows: Expr | None = None
    for axis in axes:
        at = _from_front(cast(indices[axis], "int64"), input.shape[axis])
        rows = at if rows is None else pointwise.add(pointwise.mul(rows, input.shape[axis]), at)
    assert rows is not None
    rest = [axis for axis in range(input.ndim) if axis not in indices]
    extents = [input.shape[axis] for axis in rest]
    table = reshape(
        permute(input, [*axes, *rest]),
        (math.prod(input.shape[axis] for axis in axes), math.prod(extents)),
    )
    taken = reshape(embedding(table, rows), (*rows.shape, *extents))
    first, last = min(axes), max(axes)
    before = first if last - first == len(axes) - 1 else 0
    order = list(range(rows.ndim, taken.ndim))
    order[before:before] = range(rows.ndim)
    return permute(taken, order)


def _beside_counts(input: Expr, indices: Mapping[int, Expr]) -> Expr | None:
    """``x[arange(b), i]``: one index tensor is data, and each other one counts along an axis of its
    own; a gather keeps their axes apart, so that what it picks from needs no other order of axes.
    None for other index tensors."""
    shape = np.broadcast_shapes(*(index.shape for index in indices.values()))
    counted: dict[int, int] = {}  # axis of the input -> axis of the indices
    for axis, index in indices.items():
        places = counted_axes(index.tensor, shape, input.shape[axis])
        for place in places:
            if place not in counted.values():
                counted[axis] = place
                break
    data = [axis for axis in indices if axis not in counted]
    if len(data) != 1 or not counted or 0 in shape:
        return None
    (axis,) = data
    free = [place for place in range(len(shape)) if place not in counted.values()]
    # What each axis of the input becomes: axes of the indices (True), or itself (False).
    axes = [
        [(False, a)] if a not in indices
        else [(True, place) for place in (free if a == axis else [counted[a]])]
        for a in range(input.ndim)
    ]  # fmt: skip
    now = [one for part in axes for one in part]
    size = [math.prod(shape[n] if of_indices else input.shape[n] for of_indices, n in part)
            for part in axes]  # fmt: skip
    at = expand(_from_front(indices[axis], input.shape[axis]), shape)
    at = permute(at, [n for of_indices, n in now if of_indices])
    at = reshape(at, [n if a in indices else 1 for a, n in enumerate(size)])
    taken = gather(input, axis, expand(at, size))
    taken = reshape(taken, [shape[n] if of_indices else input.shape[n] for of_indices, n in now])
    first, last = min(indices), max(indices)
    before = first if last - first == len(indices) - 1 else 0
    rest = [one for one in now if not one[0]]
    wanted = [*rest[:before], *((True, n) for n in range(len(shape))), *rest[before:]]
    return permute(taken, [now.index(one) for one in wanted])


def _is_within(index: Tensor, extent: int) -> bool:
    low, high = _bounds(index)
    return -extent <= low and high < extent


def _from_front(index: Expr, extent: int) -> Expr:
    """Make negative positions positive: ``i`` -> ``i + extent``."""
    if lower_bound(index.tensor) >= 0:
        return index
    behind = pointwise.lt(index, 0)
    return pointwise.where(behind, pointwise.add(index, extent), index)  # type: ignore[no-any-return]


def index_select(input: Expr, dim: int, index: Expr) -> Expr:
    """``input`` at a vector of positions on one axis; a negative position is an error.

    Raises:
        DtypeError, ShapeError: the index is no vector of integers.
    """
    if index.ndim > 1:
        raise ShapeError(
            what="index_select: the index is no vector",
            got=str(index.tensor.type),
            expected="rank 1",
            hint="flatten it",
        )
    line = reshape(index, (1,)) if not index.ndim else index
    if not input.ndim:
        return reshape(_rows(reshape(input, (1,)), dim, line), ())
    return _rows(input, dim, line)


def lower_bound(term: Tensor) -> float:
    """A lower bound of the elements of an integer term; -inf if none is known."""
    return _bounds(term)[0]


@remembered(maxsize=1 << 12)
def _bounds(term: Tensor) -> tuple[float, float]:
    """A lower and an upper bound of the elements of an integer term, by interval arithmetic.

    Each term is visited once, and no floats: an index may be the argmax of a whole network."""
    if term.dtype not in INTEGERS:
        return (0.0, math.inf) if term.dtype == "bool" else (-math.inf, math.inf)
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
            case "Where":
                return min(parts[1][0], parts[2][0]), max(parts[1][1], parts[2][1])
            case "Cast" if term.dtype == "int64" and term.args[0].dtype in INTEGERS:
                return parts[0]
            case "ReduceMax" | "ReduceMin" if 0 not in term.args[0].shape:
                return parts[0]
            case "Reshape" | "Split" | "Merge" | "Expand" | "Permute" | "Slice":
                return parts[0]
            case "Shift" | "Reverse":
                return parts[0]
    return (0.0, math.inf) if term.dtype == "uint8" else (-math.inf, math.inf)
