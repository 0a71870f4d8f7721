"""Reads at positions that are data, under torch's names: gather, embedding, rows, one_hot.

A position that there isn't is an error when the program runs, as in torch: what looks rows up
(torch's own embedding and gather) checks it. Positions that count from the end are moved to the
front first, and only where torch allows them.
"""

from __future__ import annotations

import math

from eqsynth.errors import DtypeError, ShapeError
from eqsynth.frontend.expr import Expr, cast, make
from eqsynth.frontend.ops import pointwise
from eqsynth.frontend.ops.creation import iota
from eqsynth.frontend.ops.positions import at_positions
from eqsynth.frontend.ops.views import axis_of, flatten, movedim, permute, reshape
from eqsynth.ir.tensor import Op, Tensor


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

    Rows of an identity matrix, so that a class that there isn't is an error as in torch.

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
    """``input`` at an index tensor of any rank on one axis, whose place its axes take.

    The index may count from the end, as torch's indexing by tensors allows.
    """
    axis = axis_of(dim, input.ndim)
    known = at_positions(input, {axis: _positions(index)})
    if known is not None:
        return known
    extent = input.shape[axis]
    if lower_bound(index.tensor) < 0:
        index = pointwise.where(pointwise.lt(index, 0), pointwise.add(index, extent), index)
    return _rows(input, dim, index)


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


def index_select(input: Expr, dim: int, index: Expr) -> Expr:
    """``input`` at a vector of positions on one axis; none counts from the end.

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
