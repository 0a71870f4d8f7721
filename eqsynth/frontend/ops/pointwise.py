"""Elementwise operators under torch's names; on scalars of a scope they are the same functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from eqsynth.frontend import expr
from eqsynth.frontend.expr import Elementwise, Expr, IndexExpr, Operand, ScalarExpr, pointwise
from eqsynth.frontend.promotion import Number, common_dtype
from eqsynth.ir.types import is_float


def _unary(operator: str, name: str) -> Callable[[Elementwise], Elementwise]:
    def apply(input: Elementwise) -> Elementwise:
        return pointwise(operator, input)  # type: ignore[no-any-return]

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"torch.{name}, elementwise."
    return apply


relu = _unary("Relu", "relu")
exp = _unary("Exp", "exp")
log = _unary("Log", "log")
sqrt = _unary("Sqrt", "sqrt")
rsqrt = _unary("Rsqrt", "rsqrt")
reciprocal = _unary("Reciprocal", "reciprocal")
abs = _unary("Abs", "abs")
sign = _unary("Sign", "sign")
floor = _unary("Floor", "floor")
ceil = _unary("Ceil", "ceil")
sin = _unary("Sin", "sin")
cos = _unary("Cos", "cos")
tanh = _unary("Tanh", "tanh")
erf = _unary("Erf", "erf")
sigmoid = _unary("Sigmoid", "sigmoid")
silu = _unary("Silu", "silu")
neg = _unary("Neg", "neg")
logical_not = _unary("LogicalNot", "logical_not")


def _binary(operator: str, name: str) -> Callable[[Any, Any], Any]:
    def apply(input: Operand, other: Operand) -> Any:
        return pointwise(operator, input, other)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"torch.{name}: elementwise, broadcast, promoted."
    return apply


maximum = _binary("Maximum", "maximum")
minimum = _binary("Minimum", "minimum")
remainder = _binary("Remainder", "remainder")
floor_divide = _binary("FloorDivide", "floor_divide")
eq = _binary("Equal", "eq")
ne = _binary("NotEqual", "ne")
lt = _binary("Less", "lt")
le = _binary("LessEqual", "le")
gt = _binary("Greater", "gt")
ge = _binary("GreaterEqual", "ge")
logical_and = _binary("LogicalAnd", "logical_and")
logical_or = _binary("LogicalOr", "logical_or")
logical_xor = _binary("NotEqual", "logical_xor")
mul = _binary("Mul", "mul")


def add(input: Operand, other: Operand, alpha: Number = 1) -> Any:
    """``input + alpha * other``"""
    return pointwise("Add", input, other if alpha == 1 else pointwise("Mul", other, alpha))


def sub(input: Operand, other: Operand, alpha: Number = 1) -> Any:
    """``input - alpha * other``"""
    return pointwise("Sub", input, other if alpha == 1 else pointwise("Mul", other, alpha))


def rsub(input: Operand, other: Operand, alpha: Number = 1) -> Any:
    """``other - alpha * input``"""
    return sub(other, input, alpha)


def div(input: Operand, other: Operand, rounding_mode: str | None = None) -> Any:
    """True division; ``rounding_mode="floor"`` rounds down, ``"trunc"`` toward zero."""
    if rounding_mode == "floor":
        return pointwise("FloorDivide", input, other)
    quotient = pointwise("Div", input, other)
    if rounding_mode is None:
        return quotient
    rounded = where(gt(quotient, 0), floor(quotient), ceil(quotient))
    if not isinstance(rounded, Expr):
        return rounded
    kinds = [o.tensor.type if isinstance(o, Expr) else o for o in (input, other)]
    return expr.cast(rounded, common_dtype(kinds))  # type: ignore[arg-type]


def pow(input: Operand, exponent: Operand) -> Any:
    """A power; small whole exponents become products, ±0.5 and -1 their own functions."""
    if isinstance(input, Expr | ScalarExpr) and isinstance(exponent, int | float):
        floating = isinstance(input, ScalarExpr) or is_float(input.dtype)
        if exponent in (2, 3) and (floating or isinstance(exponent, int)):
            square = mul(input, input)
            return square if exponent == 2 else mul(square, input)
        simple = {1: lambda x: x, 0.5: sqrt, -0.5: rsqrt, -1: reciprocal}
        if floating and exponent in simple:
            return simple[exponent](input)
    return pointwise("Pow", input, exponent)


def square(input: Elementwise) -> Elementwise:
    """``input * input``"""
    return mul(input, input)  # type: ignore[no-any-return]


def where(condition: Operand, input: Operand, other: Operand) -> Any:
    """``input`` where the condition holds, else ``other``."""
    return pointwise("Where", condition, input, other)


def masked_fill(input: Expr, mask: Expr, value: Operand) -> Expr:
    """``value`` where the mask holds, in the dtype of ``input``."""
    if isinstance(value, Expr):
        value = expr.cast(value, input.dtype)
    return where(mask, expr.as_tensor(value, input.dtype), input)  # type: ignore[no-any-return]


def clamp(input: Operand, min: Operand | None = None, max: Operand | None = None) -> Any:
    """``input`` limited to [min, max]."""
    if min is not None:
        input = maximum(input, min)
    return input if max is None else minimum(input, max)


def hardtanh(input: Elementwise, min_val: float = -1.0, max_val: float = 1.0) -> Elementwise:
    """``clamp(input, min_val, max_val)``"""
    return clamp(input, min_val, max_val)  # type: ignore[no-any-return]


def relu6(input: Elementwise) -> Elementwise:
    """``clamp(input, 0, 6)``"""
    return clamp(input, 0, 6)  # type: ignore[no-any-return]


def hardsigmoid(input: Elementwise) -> Elementwise:
    """``relu6(input + 3) / 6``"""
    return div(clamp(add(input, 3), 0, 6), 6)  # type: ignore[no-any-return]


def hardswish(input: Elementwise) -> Elementwise:
    """``input * relu6(input + 3) / 6``"""
    return div(mul(input, clamp(add(input, 3), 0, 6)), 6)  # type: ignore[no-any-return]


def gelu(input: Elementwise, approximate: str = "none") -> Elementwise:
    """``input * Φ(input)``, exact or by tanh."""
    name = "GeluTanh" if approximate == "tanh" else "Gelu"
    return pointwise(name, input)  # type: ignore[no-any-return]


def leaky_relu(input: Elementwise, negative_slope: float = 0.01) -> Elementwise:
    """``input`` if positive, else ``negative_slope * input``"""
    return where(gt(input, 0), input, mul(input, negative_slope))  # type: ignore[no-any-return]


def prelu(input: Expr, weight: Expr) -> Expr:
    """Leaky ReLU with a slope a channel (axis 1), or one for all."""
    if weight.shape and input.ndim > 1:
        weight = expr.make("Reshape", (weight,), (weight.shape[0], *(1,) * (input.ndim - 2)))
    return where(gt(input, 0), input, mul(input, weight))  # type: ignore[no-any-return]


def elu(
    input: Elementwise, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Elementwise:
    """``scale * (input if positive else alpha * (exp(input_scale * input) - 1))``"""
    # The exponent is cut at 0, so that the branch not taken can't overflow.
    bent = mul(sub(exp(minimum(mul_if(input, input_scale), 0)), 1), alpha)
    return mul_if(where(gt(input, 0), input, bent), scale)  # type: ignore[no-any-return]


def mul_if(input: Operand, factor: Number) -> Any:
    """``input * factor``, without a product by 1."""
    return input if factor == 1 else mul(input, factor)


def softplus(input: Elementwise, beta: float = 1.0, threshold: float = 20.0) -> Elementwise:
    """``log(1 + exp(beta * input)) / beta``; the input itself where beta * input > threshold."""
    scaled = mul_if(input, beta)
    # max(x, 0) + log(1 + exp(-|x|)) is the same value and can't overflow.
    soft = add(maximum(scaled, 0), log(add(exp(neg(abs(scaled))), 1)))
    soft = soft if beta == 1 else div(soft, beta)
    return where(gt(scaled, threshold), input, soft)  # type: ignore[no-any-return]


def isnan(input: Elementwise) -> Elementwise:
    """True where the input is not a number."""
    return ne(input, input)  # type: ignore[no-any-return]


def isinf(input: Elementwise) -> Elementwise:
    """True where the input is infinite."""
    return eq(abs(input), math.inf)  # type: ignore[no-any-return]


def to(input: Expr | ScalarExpr | IndexExpr, dtype: str) -> Any:
    """The input converted to ``dtype``."""
    return expr.cast(input, dtype) if isinstance(input, Expr) else expr.cast_scalar(input, dtype)
