"""Constant tensors: one number everywhere (``full``), positions (``iota``), ranges (``arange``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from eqsynth.errors import DtypeError, ShapeError
from eqsynth.frontend.expr import Expr, as_tensor, cast, make
from eqsynth.frontend.ops import pointwise
from eqsynth.frontend.promotion import Number, common_dtype, dtype_name, number_dtype
from eqsynth.ir.types import MOST, is_float

if TYPE_CHECKING:
    from eqsynth.frontend.promotion import Dtype


def iota(shape: Sequence[int], axis: int, dtype: str = "int64") -> Expr:
    """The tensor whose elements are their own positions on one axis: ``result[i, j] = j`` for
    ``axis=1``."""
    return make("Iota", (), tuple(shape), axis, dtype)


def full(size: Sequence[int], fill_value: Number, dtype: Dtype | None = None) -> Expr:
    """A tensor whose elements are all ``fill_value``.

    Raises:
        DtypeError: the dtype doesn't hold the number.
    """
    kind = dtype_name(dtype) or number_dtype(fill_value)
    if isinstance(fill_value, int) and kind in ("int64", "float64"):
        as_tensor(fill_value, kind)  # raises an error if a float64 doesn't hold the integer
    return make("Full", (), tuple(size), held(float(fill_value), kind), kind)


def held(value: float, dtype: str) -> float:
    """The number that a constant of ``dtype`` holds for ``value``, as torch converts it.

    A bool holds 0 or 1 for any number, an integer dtype drops the fraction, and uint8 wraps
    negative numbers around: -1 -> 255.

    Raises:
        DtypeError: the number is outside of the dtype's range.
    """
    if dtype == "bool":
        return float(bool(value))
    if is_float(dtype):
        largest = MOST[dtype]
        fits = not math.isfinite(value) or abs(value) <= largest
    else:
        limits = np.iinfo(dtype)
        fits = math.isfinite(value) and int(limits.min) <= int(value) <= int(limits.max)
        if dtype == "uint8" and math.isfinite(value) and -256 < value < 0:
            return float(int(value) % 256)
    if not fits:
        raise DtypeError(
            what="a constant doesn't fit its dtype",
            got=str(value),
            expected=f"a number that {dtype} holds",
            hint="take a wider dtype",
        )
    return float(value) if is_float(dtype) else float(int(value))


def arange(
    start: Number, end: Number | None = None, step: Number = 1, dtype: Dtype | None = None
) -> Expr:
    """The vector ``start, start + step, …`` up to ``end``, which isn't included.

    Raises:
        ShapeError: the step is 0, or leads away from the end.
        DtypeError: a number isn't whole and the dtype is of integers, or a number is too large.
    """
    if end is None:
        start, end = 0, start
    dtype = dtype_name(dtype) or common_dtype([start, end, step])
    if step == 0 or (end - start) * step < 0:
        raise ShapeError(
            what="arange: the step doesn't lead to the end",
            got=f"{start} to {end} by {step}",
            expected="a step towards the end",
            hint="",
        )
    whole = all(isinstance(v, int) or v.is_integer() for v in (start, end, step))
    if dtype == "bool" or not (whole or is_float(dtype)):
        raise DtypeError(
            what="arange: fractions in a dtype of integers",
            got=f"{start} to {end} by {step} as {dtype}",
            expected="whole numbers, or a dtype of floats",
            hint="make it of floats and cast it",
        )
    if max(abs(start), abs(end)) > 2**53:
        raise DtypeError(
            what="arange: numbers that a float64 doesn't hold",
            got=f"{start} to {end}",
            expected="numbers up to 2**53",
            hint="use a weight of dtype int64",
        )
    length = math.ceil((end - start) / step)
    # The numbers are computed in float64 or int64 and then converted, as torch does.
    wide = "float64" if is_float(dtype) else "int64"
    line = iota((length,), 0, dtype if step == 1 and start == 0 else wide)
    line = pointwise.mul_if(line, step)
    return cast(line if start == 0 else pointwise.add(line, start), dtype)
