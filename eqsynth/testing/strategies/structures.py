"""Builders of several operators at once, for laws that need a certain structure.

Single random operators seldom form these structures: bands of matrices, look-ups of rows, identity
matrices, sums of several constants, products with a common operand, views and their inverses. Not
here: single operators (``programs.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import strategies as st

from eqsynth.ir.tensor import Op, Tensor
from eqsynth.ir.types import is_float
from eqsynth.testing.strategies.terms import Build, axis_of, leaf, number, op, simple


def _matrix(x: Tensor, most: int = 64) -> Tensor | None:
    """A small float tensor of two axes or more as a matrix; None for other tensors."""
    if len(x.shape) < 2 or 0 in x.shape or x.type.size > most or not is_float(x.dtype):
        return None
    if len(x.shape) == 2:
        return x
    return op("Reshape", x, attrs=((math.prod(x.shape[:-1]), x.shape[-1]),))


def _band(draw: st.DrawFn, x: Tensor) -> Op:
    """A band of a product of matrices, or a band times a matrix."""
    matrix = _matrix(x, 36)
    if matrix is None:
        return simple(x)
    rows, columns = matrix.shape
    batch = op("Reshape", matrix, attrs=((1, rows, columns),))
    width, dilation = number(draw, 1, 2), number(draw, 1, 2)
    if draw(st.booleans()):
        other = leaf("k", 1, rows, columns, dtype=x.dtype)
        return op("G2BMM", batch, other, attrs=(width, dilation))
    band = leaf("band", 1, rows, 2 * width + 1, dtype=x.dtype)
    return op("GBMM", band, batch, attrs=(dilation,))


def _upsampled(draw: st.DrawFn, x: Tensor) -> Op:
    matrix = _matrix(x, 16)
    if matrix is None:
        return simple(x)
    image = op("Reshape", matrix, attrs=((1, 1, *matrix.shape),))
    size = tuple(extent * number(draw, 1, 2) for extent in matrix.shape)
    return op("UpsampleBilinear2d", image, attrs=(size, number(draw, 0, 1)))


def _grouped_up_convolution(draw: st.DrawFn, x: Tensor) -> Op:
    matrix = _matrix(x, 32)
    if matrix is None:
        return simple(x)
    channels, length = matrix.shape
    groups = draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0]))
    image = op("Reshape", matrix, attrs=((1, channels, 1, length),))
    kernel = number(draw, 1, 4)
    w = leaf("w", channels, number(draw, 1, 2), 1, kernel, dtype=x.dtype, constant=True)
    stride = (1, number(draw, 1, 3))
    return op("ConvTranspose2d", image, w, attrs=(stride, (0, 0), (0, 0), (1, 1), groups))


def _identity(draw: st.DrawFn, x: Tensor) -> Op:
    """A product with an identity matrix, of which some rows may be missing."""
    matrix = _matrix(x)
    if matrix is None or x.dtype not in ("float32", "float64"):
        return simple(x)
    shape = (number(draw, 1, 4), matrix.shape[0])
    rows, columns = (op("Iota", attrs=(shape, axis, "int64")) for axis in (0, 1))
    one = op("Cast", op("Equal", rows, columns), attrs=(x.dtype,))
    return op("Matmul", one, matrix)


def _rows(draw: st.DrawFn, x: Tensor) -> Op:
    """Rows of a product, chosen by an index tensor; or a product of rows of a table."""
    matrix = _matrix(x)
    if matrix is None:
        return simple(x)
    n = matrix.shape[1]
    w = leaf("w", n, number(draw, 1, 3), dtype=x.dtype, constant=True)
    if draw(st.booleans()):
        ids = leaf(f"id{matrix.shape[0]}_", number(draw, 1, 3), dtype="int64")
        return op("Embedding", op("Matmul", matrix, w), ids)
    count = number(draw, 2, 4)
    table = leaf("t", count, n, dtype=x.dtype, constant=True)
    ids = leaf(f"id{count}_", number(draw, 1, 3), dtype="int64")
    return op("Matmul", op("Embedding", table, ids), w)


def _constants(draw: st.DrawFn, x: Tensor) -> Op:
    """Sums or products with two constants, some of which are computed (``tanh(b)``)."""
    if not is_float(x.dtype):
        return simple(x)
    name = draw(st.sampled_from(["Add", "Mul"]))
    result: Tensor = x
    for letter in "bc":
        shape = tuple(extent if draw(st.booleans()) else 1 for extent in x.shape)
        constant: Tensor = leaf(letter, *shape, dtype=x.dtype, constant=True)
        constant = op("Tanh", constant) if draw(st.booleans()) else constant
        result = op(name, result, constant)
    assert isinstance(result, Op)
    return result


def _clamped(draw: st.DrawFn, x: Tensor) -> Op:
    """The maximum or minimum of the tensor and a number, in either order."""
    if x.dtype == "bool":
        return simple(x)
    bound = op("Full", attrs=((1,), draw(st.sampled_from([0.0, 1.0])), x.dtype))
    pair = (x, bound) if draw(st.booleans()) else (bound, x)
    return op(draw(st.sampled_from(["Maximum", "Minimum"])), *pair)


def _shared(draw: st.DrawFn, x: Tensor) -> Op:
    """Two products with a common operand, joined by an elementwise operator."""
    matrix = _matrix(x)
    if matrix is None:
        return simple(x)
    n = number(draw, 1, 3)
    v, w = (leaf(name, matrix.shape[1], n, dtype=x.dtype, constant=True) for name in "vw")
    first, second = op("Matmul", matrix, v), op("Matmul", matrix, w)
    return op(draw(st.sampled_from(["Mul", "Add", "Sub", "Maximum"])), op("Tanh", first), second)


def _split_and_merged(draw: st.DrawFn, x: Tensor) -> Op:
    """An axis split and merged again, or merged and split; perhaps at another place."""
    axis, turned = axis_of(draw, x), draw(st.booleans())
    extent = x.shape[axis]
    blocks = [n for n in range(1, max(extent, 1) + 1) if extent % n == 0]
    if len(x.shape) > 1 and axis + 1 < len(x.shape) and turned:
        merged = op("Merge", x, attrs=(axis,))
        n = merged.shape[axis]
        whole = [d for d in range(1, max(n, 1) + 1) if n % d == 0]
        block = x.shape[axis + 1] if draw(st.booleans()) else draw(st.sampled_from(whole))
        return op("Split", merged, attrs=(axis, max(block, 1)))
    split = op("Split", x, attrs=(axis, draw(st.sampled_from(blocks))))
    return op("Merge", split, attrs=(axis if draw(st.booleans()) else max(axis - 1, 0),))


def _diagonal(draw: st.DrawFn, x: Tensor) -> Op:
    """A gather along an axis at positions that are computed (``Iota``)."""
    if 0 in x.shape:
        return simple(x)
    axis = axis_of(draw, x)
    counted = op("Iota", attrs=(x.shape, axis, "int64"))
    return op("Gather", x, counted, attrs=(axis,))


_STRUCTURES: Sequence[Build] = (
    _band, _upsampled, _grouped_up_convolution, _identity, _rows, _rows, _constants, _clamped,
    _shared, _split_and_merged, _diagonal,
)  # fmt: skip


def structure(draw: st.DrawFn, x: Tensor) -> Op:
    """One of the structures over a tensor."""
    return draw(st.sampled_from(list(_STRUCTURES)))(draw, x)
