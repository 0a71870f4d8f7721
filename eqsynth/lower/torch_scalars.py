"""Scalar functions in torch, mapped over tensors; dtypes in torch.

It is torch's counterpart of ``ir/functions.py``: ``apply("gelu_tanh", [x])`` is that function of
each element of x. Not here: operators (``torch_ops.py``), scopes (``torch_scopes.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

import torch
import torch.nn.functional as F

from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.types import is_float

Function = Callable[..., torch.Tensor]


def torch_dtype(dtype: str) -> torch.dtype:
    """torch's dtype of this name."""
    result = getattr(torch, dtype)
    assert isinstance(result, torch.dtype)
    return result


def kept_dtype(dtype: str, exact: bool) -> torch.dtype:
    """The dtype in which a value of ``dtype`` is kept: float64 for every float if ``exact``."""
    return torch.float64 if exact and is_float(dtype) else torch_dtype(dtype)


def arithmetic_dtype(dtype: str, exact: bool) -> torch.dtype:
    """The dtype in which a scope computes. It is float32 for 16-bit floats, which are rounded only
    where the term says so."""
    if dtype in ("float16", "bfloat16") and not exact:
        return torch.float32
    return kept_dtype(dtype, exact)


def limits(dtype: torch.dtype) -> tuple[float, float]:
    """The least and the largest value; infinities for floats."""
    if dtype.is_floating_point:
        return float("-inf"), float("inf")
    if dtype == torch.bool:
        return 0, 1
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def number(value: float, dtype: torch.dtype) -> float | int | bool:
    """A Python number that fits ``dtype``: infinities become the limits of an integer dtype, and
    other numbers outside of its range wrap around."""
    if dtype.is_floating_point:
        return value
    if dtype == torch.bool:
        return bool(value) and value != float("-inf")
    low, high = limits(dtype)
    if not math.isfinite(value):
        return int(high if value > 0 else low)
    return (int(value) - int(low)) % (int(high) - int(low) + 1) + int(low)


def apply(function: str, args: Sequence[torch.Tensor], exact: bool = False) -> torch.Tensor:
    """Apply a function of ``ir/functions.py``; integers become floats if the function's result is a
    float."""
    if FUNCTIONS[function].result == "float":
        wide = torch.float64 if exact else torch.float32
        args = [a if a.is_floating_point() else a.to(wide) for a in args]
    elif FUNCTIONS[function].result == "same" and all(a.dtype == torch.bool for a in args):
        # torch has no arithmetic of bools; they are computed as the numbers 0 and 1.
        return SCALAR_FUNCTIONS[function](*(a.to(torch.uint8) for a in args)).bool()
    return SCALAR_FUNCTIONS[function](*args)


def _divisor(y: torch.Tensor) -> torch.Tensor:
    """The divisor with 1 in place of 0 and -1, at which a division of integers is an error or ends
    the process."""
    unsafe = (y == 0) | (y == -1) if y.dtype.is_signed else y == 0
    return torch.where(unsafe, 1, y)


def _floor_divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A floored quotient. For integers it is 0 if the divisor is 0, as in NumPy, and the least
    integer divided by -1 is itself."""
    if x.is_floating_point() or y.is_floating_point():
        return torch.floor_divide(x, y)
    quotient = torch.floor_divide(x, _divisor(y))
    if y.dtype.is_signed:
        quotient = torch.where(y == -1, -x, quotient)
    return torch.where(y == 0, 0, quotient)


def _remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A remainder; for integers it is 0 if the divisor is 0, as in NumPy."""
    if x.is_floating_point() or y.is_floating_point():
        return torch.remainder(x, y)
    return torch.where(y == 0, 0, torch.remainder(x, _divisor(y)))


SCALAR_FUNCTIONS: Final[dict[str, Function]] = {
    **{f.name: attrgetter(f.torch)(torch) for f in FUNCTIONS.values() if f.torch},
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "floordiv": _floor_divide,
    "mod": _remainder,
    "where": lambda c, x, y: torch.where(c.bool(), x, y),
}
assert set(FUNCTIONS) == set(SCALAR_FUNCTIONS), "a scalar function that torch hasn't"


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor's elements in row-major order, without a copy if the tensor is
    contiguous.

    A contiguous tensor of one element may have any strides, with which `view` refuses it; so the
    strides are set first.
    """
    whole = x.detach().contiguous()
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)
