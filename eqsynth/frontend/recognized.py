"""Buffers whose elements are a function of their places, said as that function.

    register_buffer("mask", torch.ones(n, n).tril())               ->  L[i, j] . 0 <= i - j
    register_buffer("at", arange(n)[:, None] + arange(w))          ->  L[i, j] . i + j

Rules look into a function: what a mask hides isn't computed, and a read at ``i + j`` is a window.
Of a weight they only know the shape. Matrices of two values (bands, triangles, blocks, each n-th
diagonal) and integers that are affine in their place are recognized. Parameters aren't looked at,
since they are trained.

A tensor that ``forward`` makes of a number (``z[mask] = 0``, ``torch.tensor(0.5)``) reaches capture
as a constant. It is said as the number (``filled``), since rules know what 0 is.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from eqsynth.frontend.expr import Expr
from eqsynth.frontend.ops import creation, pointwise
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Num, Value
from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import DTYPES, INTEGERS, Shape

FEWEST: Final = 8
"""A tensor of fewer elements is data: a size, a scale, a small kernel."""

MOST: Final = 1 << 24
"""A larger tensor isn't looked at: 4,096 by 4,096 elements take a tenth of a second."""

_LARGEST: Final = 1 << 53  # integers up to this one are floats of 64 bits


def recognized(tensor: torch.Tensor) -> Expr | None:
    """The tensor as a function of its places; None if it isn't known to be one.

    >>> recognized(torch.arange(12).reshape(3, 4))
    Expr(Scope: int64[3, 4])
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES or tensor.layout != torch.strided:
        return None
    if not FEWEST <= tensor.numel() <= MOST:
        return None
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    values = tensor.detach().cpu().numpy()
    if dtype in ("int64", "int32"):
        places = _affine(values)
        if places is not None:
            return pointwise.to(Expr(Scope(values.shape, (), Value(places))), dtype)  # type: ignore[no-any-return]
    return _of_two_values(values, dtype)


def filled(tensor: torch.Tensor) -> Expr | None:
    """The tensor as one number for all its elements; None if they differ, or if the number is NaN,
    -0 or too large an integer.

    >>> filled(torch.zeros(2, 3))
    Expr(Full: float32[2, 3])
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES or tensor.layout != torch.strided or not 0 < tensor.numel() <= MOST:
        return None
    number = tensor.detach().reshape(-1)[0].item()
    if dtype in INTEGERS and abs(number) > _LARGEST:
        return None
    if not (tensor == number).all() or number == 0 and torch.signbit(tensor).any():
        return None
    return creation.full(tuple(tensor.shape), number, dtype)


def said(tensor: torch.Tensor) -> Expr | None:
    """The tensor as a function of its places or as one number; None if it is neither.

    >>> said(torch.zeros(2, 3)), said(torch.tensor([1.0, 2.0]))
    (Expr(Full: float32[2, 3]), None)
    """
    found = recognized(tensor)
    return filled(tensor) if found is None else found


def _affine(values: Any) -> Index | None:
    """The integers as an affine index of their places, which isn't one number."""
    first = int(values[(0,) * values.ndim])
    index, line = Index(first), np.full((1,) * values.ndim, first, dtype=np.int64)
    for axis, size in enumerate(values.shape):
        if size > 1:
            step = int(np.take(values, 1, axis).flat[0]) - first
            along = [-1 if a == axis else 1 for a in range(values.ndim)]
            line = line + step * np.arange(size).reshape(along)
            index = index + step * Index.iterator(axis, size)
    return index if index.terms and np.array_equal(line, values) else None


def _of_two_values(values: Any, dtype: str) -> Expr | None:
    """``where(c, a, b)``, c a band of a matrix; other axes have the extent 1."""
    axes = [axis for axis, size in enumerate(values.shape) if size > 1]
    if len(axes) != 2 or len(np.unique(values.reshape(-1)[:1000])) > 2:
        return None
    one = values.flat[0]
    shown = values == one
    if shown.all() or not shown.flat[0]:
        return None
    other = values[~shown][0]
    if not (values[~shown] == other).all():
        return None
    matrix = shown.reshape([values.shape[axis] for axis in axes])
    for seen, inside, outside in ((matrix, one, other), (~matrix, other, one)):
        band = band_of(seen)
        if band is not None:
            condition = band.over(values.shape, axes)
            if band.low is not None and band.low == band.high:
                found = _shifted_diagonal(condition, inside, outside, dtype)
                if found is not None:
                    return found
            return _chosen(condition, inside, outside, dtype)
    return None


def _chosen(condition: Expr, inside: Any, outside: Any, dtype: str) -> Expr:
    if dtype == "bool":
        return condition if inside else pointwise.logical_not(condition)
    if (inside, outside) == (1, 0):
        return pointwise.to(condition, dtype)  # type: ignore[no-any-return]
    pair = (creation.full((), number.item(), dtype) for number in (inside, outside))
    return pointwise.where(condition, *pair)  # type: ignore[no-any-return]


def _shifted_diagonal(condition: Expr, inside: Any, outside: Any, dtype: str) -> Expr | None:
    """``b + (a - b) * [i == j]``, b not 0: what centers, ``I - 1 / n``, is a mean that is taken
    away. None if b + (a - b) isn't a to the last bit."""
    if dtype not in ("float32", "float64") or not np.isfinite([inside, outside]).all():
        return None
    step = inside - outside
    if not outside or outside + step != inside:
        return None
    scaled = pointwise.mul(pointwise.to(condition, dtype), creation.full((), step.item(), dtype))
    return pointwise.add(scaled, creation.full((), outside.item(), dtype))  # type: ignore[no-any-return]


class Band(NamedTuple):
    """Where ``low <= q <= high`` and q - first is a multiple of ``step``, for q = j//blocks[1] -
    i//blocks[0]. A bound is None where no place is beyond it."""

    blocks: tuple[int, int]
    low: int | None
    high: int | None
    first: int
    step: int

    def over(self, shape: Shape, axes: list[int]) -> Expr:
        """The condition, for the places along two axes of a shape."""
        row, column = (
            Index.iterator(axis, shape[axis]) // block
            for axis, block in zip(axes, self.blocks, strict=True)
        )
        apart = column - row
        if self.low is not None and self.low == self.high:
            one = Call("eq", (Num(0), Value(apart - self.low)))
            return Expr(Scope(shape, (), one))
        parts: list[Any] = []
        if self.low is not None:
            parts.append(Call("le", (Num(0), Value(apart - self.low))))
        if self.high is not None:
            parts.append(Call("le", (Num(0), Value(-apart + self.high))))
        if self.step > 1:
            parts.append(Call("eq", (Num(0), Value((apart - self.first) % self.step))))
        body = parts[0]
        for part in parts[1:]:
            body = Call("and", (body, part))
        return Expr(Scope(shape, (), body))


def band_of(shown: Any) -> Band | None:
    """The band that a matrix of bools shows; None if it shows something else."""
    return next(filter(None, (_band(shown, blocks) for blocks in _blocks(shown))), None)


def _band(shown: Any, blocks: tuple[int, int]) -> Band | None:
    small = shown[:: blocks[0], :: blocks[1]]
    rows, columns = small.shape
    again = small.repeat(blocks[0], 0).repeat(blocks[1], 1)[: shown.shape[0], : shown.shape[1]]
    if not np.array_equal(again, shown) or not _is_toeplitz(small):
        return None
    diagonals = [*(-np.flatnonzero(small[:, 0])[::-1]), *np.flatnonzero(small[0])]
    found = np.unique(np.array(diagonals, dtype=np.int64))
    if not found.size:
        return None
    low, high = int(found[0]), int(found[-1])
    step = int(np.gcd.reduce(found - low)) or 1
    if len(found) != (high - low) // step + 1:
        return None
    return Band(
        blocks,
        None if low - step < 1 - rows else low,
        None if high + step > columns - 1 else high,
        low,
        step,
    )


def _is_toeplitz(shown: Any) -> bool:
    return bool((shown[1:, 1:] == shown[:-1, :-1]).all())


def _blocks(shown: Any) -> list[tuple[int, int]]:
    """The sizes of blocks to try: of rows and columns, between which the matrix may change."""
    if _is_toeplitz(shown):
        return [(1, 1)]
    row, column = (
        math.gcd(*(int(n) for n in np.flatnonzero((lines[1:] != lines[:-1]).any(1)) + 1))
        for lines in (shown, shown.T)
    )
    square = math.gcd(row, column) or 1
    return [(square, square), (row or 1, column or 1)]
