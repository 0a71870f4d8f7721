"""Elementwise operators, casts among them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F

from eqsynth.frontend.onnx.table import Refused, dtype_of, enter, op

Tensor = torch.Tensor

# ONNX's operators that are one function of torch, with the same arguments.
_SAME: Final[dict[str, Callable[..., Any]]] = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin,
    "Asinh": torch.asinh, "Atan": torch.atan, "Atanh": torch.atanh, "Ceil": torch.ceil,
    "Cos": torch.cos, "Cosh": torch.cosh, "Erf": torch.erf, "Exp": torch.exp,
    "Floor": torch.floor, "Log": torch.log, "Neg": torch.neg, "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal, "Relu": torch.relu,
    # Both round halves to even.
    "Round": torch.round,
    "Sigmoid": torch.sigmoid, "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh,
    "Softplus": F.softplus, "Softsign": F.softsign, "Sqrt": torch.sqrt, "Tan": torch.tan,
    "Tanh": torch.tanh, "IsNaN": torch.isnan, "Mish": F.mish, "HardSwish": F.hardswish,
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "And": torch.logical_and,
    "Or": torch.logical_or, "Xor": torch.logical_xor, "Equal": torch.eq, "Greater": torch.gt,
    "GreaterOrEqual": torch.ge, "Less": torch.lt, "LessOrEqual": torch.le, "Where": torch.where,
    "BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor, "BitwiseNot": torch.bitwise_not,
}  # fmt: skip

_UNARY: Final = frozenset(
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor Log Neg Not Reciprocal Relu "
    "Round Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh IsNaN Mish HardSwish "
    "BitwiseNot".split()
)


def _unary(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x)


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: function(x, y)


for _name, _function in _SAME.items():
    if _name == "Where":
        enter(_name, lambda condition, x, y: torch.where(condition, x, y))
    else:
        enter(_name, _unary(_function) if _name in _UNARY else _binary(_function))


@op("Div")
def div(x: Tensor, y: Tensor) -> Tensor:
    """Division; of integers rounded towards zero."""
    return torch.div(x, y) if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


@op("Pow", scalar=(1,))
def power(x: Tensor, y: Any) -> Tensor:
    return torch.pow(x, y).to(x.dtype)


@op("Mod")
def mod(x: Tensor, y: Tensor, *, fmod: int = 0) -> Tensor:
    """The remainder, with the sign of the divisor, or with ``fmod`` the sign of the dividend."""
    return torch.fmod(x, y) if fmod else torch.remainder(x, y)


@op("BitShift")
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    shift = torch.bitwise_left_shift if direction == "LEFT" else torch.bitwise_right_shift
    return shift(x, y)


@op("Max")
def maximum(*xs: Tensor) -> Tensor:
    return functools.reduce(torch.maximum, xs)


@op("Min")
def minimum(*xs: Tensor) -> Tensor:
    return functools.reduce(torch.minimum, xs)


@op("Sum")
def total(*xs: Tensor) -> Tensor:
    return functools.reduce(torch.add, xs)


@op("Mean")
def mean(*xs: Tensor) -> Tensor:
    if not xs[0].is_floating_point():
        raise Refused("a mean of integers")
    return total(*xs) / len(xs)


@op("Clip", scalar=(1, 2))
def clip(x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    """``min(max(x, low), high)``, which is ``high`` if ``low`` is larger than ``high``."""
    if low is None and high is None:
        return x
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        low, high = (
            torch.tensor(b, dtype=x.dtype) if isinstance(b, int | float) else b for b in (low, high)
        )
    return torch.clamp(x, low, high)


@op("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return F.leaky_relu(x, alpha)


@op("PRelu")
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


@op("Elu")
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.elu(x, alpha)


@op("Selu")
def selu(
    x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Tensor:
    return gamma * F.elu(x, alpha)


@op("Celu")
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.celu(x, alpha)


@op("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.threshold(x, alpha, 0.0)


@op("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return torch.clamp(alpha * x + beta, 0.0, 1.0)


@op("Gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return F.gelu(x, approximate=approximate)


@op("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x)


@op("Shrink")
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    inside = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, inside)).to(x.dtype)


@op("IsInf")
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    if detect_negative and detect_positive:
        return torch.isinf(x)
    if not detect_negative and not detect_positive:
        return torch.zeros_like(x, dtype=torch.bool)
    return torch.isposinf(x) if detect_positive else torch.isneginf(x)


# ---- element types ----------------------------------------------------------------------------

_SMALL: Final = frozenset(
    {torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz}
)


@op("Cast")
def cast(x: Tensor, *, to: int, saturate: int = 1) -> Tensor:
    return to_dtype(x, dtype_of(to), bool(saturate))


@op("CastLike", shaped=(1,))
def cast_like(x: Tensor, like: Tensor, *, saturate: int = 1) -> Tensor:
    return to_dtype(x, like.dtype, bool(saturate))


def to_dtype(x: Tensor, dtype: torch.dtype, saturate: bool = True) -> Tensor:
    if x.dtype.is_complex or dtype.is_complex:
        raise Refused("a cast of complex numbers")
    if dtype in _SMALL and x.dtype not in _SMALL:
        if x.dtype in (torch.float64, torch.int64, torch.int32):
            raise Refused("a cast to 8 bits that torch rounds twice")
        if not saturate:
            raise Refused("a cast to 8 bits that doesn't saturate: torch's does, for some types")
        most = torch.finfo(dtype).max
        x = x.to(torch.float32)
        x = torch.where(torch.isnan(x), x, torch.clamp(x, -most, most))
    elif dtype in _SMALL and dtype != x.dtype:
        return to_dtype(x.to(torch.float32), dtype, saturate)
    return x.to(dtype)


@op("BitCast")
def bit_cast(x: Tensor, *, to: int) -> Tensor:
    dtype = dtype_of(to)
    if dtype.itemsize != x.dtype.itemsize:
        raise Refused("a cast of bits to another size")
    return x.contiguous().view(dtype)
