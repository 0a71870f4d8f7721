"""Elementwise operators under torch's names, on tensors and on the scalars of a scope.

Operators that the IR's table has are one term (``relu``, ``add``). The others are compositions of
those, with torch's rounding: in float16, torch computes a composite operator in float32, and rounds
once at the end (``_in_float32``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eqsynth.frontend import expr
from eqsynth.frontend.expr import Elementwise, Expr, IndexExpr, Operand, ScalarExpr, pointwise
from eqsynth.frontend.promotion import Number, common_dtype, dtype_name
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.operators import OPERATORS, Operator
from eqsynth.ir.types import INTEGERS, TensorType, is_float

if TYPE_CHECKING:
    from eqsynth.frontend.promotion import Dtype


def mapped(name: str) -> Callable[[Elementwise], Elementwise]:
    """The elementwise operator of one argument that torch calls ``name``.

    Raises:
        AttributeError: the IR's table has no such operator.
    """
    operators = [row.name for row in OPERATORS.values() if _name_in_torch(row) == name != ""]
    if not operators:
        raise AttributeError(f"eqsynth.ops has no {name}")

    def apply(input: Elementwise) -> Elementwise:
        return pointwise(operators[0], input)  # type: ignore[no-any-return]

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"torch.{name}, elementwise."
    return apply


def _name_in_torch(row: Operator) -> str:
    function = FUNCTIONS.get(row.function)
    if function is None:
        return "neg" if row.name == "Neg" else ""
    return function.aten if function.arity == 1 else ""


relu = mapped("relu")
exp = mapped("exp")
exp2 = mapped("exp2")
expm1 = mapped("expm1")
log = mapped("log")
log2 = mapped("log2")
log10 = mapped("log10")
log1p = mapped("log1p")
sqrt = mapped("sqrt")
rsqrt = mapped("rsqrt")
reciprocal = mapped("reciprocal")
abs = mapped("abs")
sign = mapped("sign")
floor = mapped("floor")
ceil = mapped("ceil")
trunc = mapped("trunc")
sin = mapped("sin")
cos = mapped("cos")
tanh = mapped("tanh")
erf = mapped("erf")
sigmoid = mapped("sigmoid")
silu = mapped("silu")
neg = mapped("neg")
logical_not = mapped("logical_not")


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
mul = _binary("Mul", "mul")


def logical_xor(input: Operand, other: Operand) -> Any:
    """True where exactly one of the two isn't 0."""
    return ne(ne(input, 0), ne(other, 0))


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
    """True division; ``rounding_mode="floor"`` rounds down, ``"trunc"`` toward zero.

    A rounded quotient of integers is an integer. If an integer is divided by 0, a compiled program
    raises an error, as torch does; the division of scalars inside a scope gives 0 there.
    """
    if rounding_mode is None:
        return pointwise("Div", input, other)
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if _joined(input, other) in INTEGERS:
        quotient, rest = floor_divide(input, other), remainder(input, other)
        # Where the division isn't exact and the signs differ, the quotient is negative, and so the
        # rounded-down quotient is 1 below the one rounded toward zero.
        above = logical_and(ne(rest, 0), ne(lt(input, 0), lt(other, 0)))
        return where(above, add(quotient, 1), quotient)
    return _in_float32(lambda x, y: trunc(div(x, y)), input, other)


def _joined(*operands: Operand) -> str:
    """The dtype in which torch computes on these operands; float32 if one is a scope's scalar."""
    kinds = [o.tensor.type if isinstance(o, Expr) else o for o in operands]
    if all(isinstance(kind, TensorType | bool | int | float) for kind in kinds):
        return common_dtype(kinds)  # type: ignore[arg-type]
    return "float32"


def _in_float32(function: Callable[..., Any], *operands: Any) -> Any:
    """Apply a composition of operators as torch does on floats of 16 bits: compute it in float32,
    and round the result once."""
    dtype = _joined(*operands)
    if dtype not in ("float16", "bfloat16"):
        return function(*operands)
    wide = [expr.cast(o, "float32") if isinstance(o, Expr) else o for o in operands]
    return expr.cast(function(*wide), dtype)


def pow(input: Operand, exponent: Operand) -> Any:
    """``input ** exponent``: x ** 2 -> x * x, x ** 3 -> x * x * x, x ** 0.5 -> sqrt(x), x ** -0.5
    -> rsqrt(x), x ** -1 -> 1 / x; any other exponent stays a power."""
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
    return _in_float32(lambda x: div(clamp(add(x, 3), 0, 6), 6), input)  # type: ignore[no-any-return]


def hardswish(input: Elementwise) -> Elementwise:
    """``input * relu6(input + 3) / 6``"""
    return _in_float32(_hardswish, input)  # type: ignore[no-any-return]


def _hardswish(x: Any) -> Any:
    return div(mul(x, clamp(add(x, 3), 0, 6)), 6)


def gelu(input: Elementwise, approximate: str = "none") -> Elementwise:
    """``input * Φ(input)``, exact or by tanh."""
    name = "GeluTanh" if approximate == "tanh" else "Gelu"
    return pointwise(name, input)  # type: ignore[no-any-return]


def leaky_relu(input: Elementwise, negative_slope: float = 0.01) -> Elementwise:
    """``input`` if positive, else ``negative_slope * input``"""
    return where(gt(input, 0), input, mul(input, negative_slope))  # type: ignore[no-any-return]


def prelu(input: Expr, weight: Expr) -> Expr:
    """Leaky ReLU with one slope per channel (axis 1), or one for all channels."""
    if weight.shape and input.ndim > 1:
        weight = expr.make("Reshape", (weight,), (weight.shape[0], *(1,) * (input.ndim - 2)))
    return where(gt(input, 0), input, mul(input, weight))  # type: ignore[no-any-return]


def elu(
    input: Elementwise, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Elementwise:
    """``scale * (input if positive else alpha * (exp(input_scale * input) - 1))``"""

    def compute(x: Any) -> Any:
        # The exponent is at most 0, so that exp can't overflow where the other branch is taken.
        bent = mul_if(expm1(mul_if(minimum(x, 0), input_scale)), alpha)
        return mul_if(where(gt(x, 0), x, bent), scale)

    return _in_float32(compute, input)  # type: ignore[no-any-return]


def mul_if(input: Operand, factor: Number) -> Any:
    """``input * factor``, without a product by 1."""
    return input if factor == 1 else mul(input, factor)


def softplus(input: Elementwise, beta: float = 1.0, threshold: float = 20.0) -> Elementwise:
    """``log(1 + exp(beta * input)) / beta``; the input itself where beta * input > threshold."""

    def compute(x: Any) -> Any:
        scaled = mul_if(x, beta)
        soft = softplus_of(scaled)
        soft = soft if beta == 1 else div(soft, beta)
        return where(gt(scaled, threshold), x, soft)

    return _in_float32(compute, input)  # type: ignore[no-any-return]


def softplus_of(x: Any) -> Any:
    """``log(1 + exp(x))``, as ``max(x, 0) + log1p(exp(-|x|))``: the exponential can't overflow, and
    log1p keeps the digits of a small one."""
    return add(maximum(x, 0), log1p(exp(neg(abs(x)))))


def mish(input: Elementwise) -> Elementwise:
    """``input * tanh(softplus(input))``"""
    return _in_float32(lambda x: mul(x, tanh(softplus_of(x))), input)  # type: ignore[no-any-return]


def logsigmoid(input: Elementwise) -> Elementwise:
    """``log(sigmoid(input))``"""
    return _in_float32(lambda x: neg(softplus_of(neg(x))), input)  # type: ignore[no-any-return]


def glu(value: Elementwise, gate: Elementwise) -> Elementwise:
    """``value * sigmoid(gate)``"""
    return _in_float32(lambda x, y: mul(x, sigmoid(y)), value, gate)  # type: ignore[no-any-return]


def threshold(input: Expr, threshold: Number, value: Number) -> Expr:
    """``value`` where the input is at most the threshold, else the input."""
    wide = expr.cast(input, "float32") if input.dtype in ("float16", "bfloat16") else input
    return masked_fill(input, le(wide, threshold), value)


def addcmul(input: Expr, a: Expr, b: Expr, value: Number = 1) -> Any:
    """``input + value * a * b``"""
    return _in_float32(lambda x, y, z: add(x, mul(mul_if(y, value), z)), input, a, b)


def addcdiv(input: Expr, a: Expr, b: Expr, value: Number = 1) -> Any:
    """``input + value * a / b``"""
    return _in_float32(lambda x, y, z: add(x, div(mul_if(y, value), z)), input, a, b)


def lerp(start: Expr, end: Expr, weight: Expr | Number) -> Any:
    """``start + weight * (end - start)``, computed as torch does from the nearer end: for a weight
    of 0.5 or more it is ``end - (1 - weight) * (end - start)``."""

    def compute(x: Any, y: Any, w: Any) -> Any:
        apart = sub(y, x)
        from_start, from_end = add(x, mul(apart, w)), sub(y, mul(apart, sub(1, w)))
        return where(lt(abs(w), 0.5), from_start, from_end)

    def fixed(x: Any, y: Any) -> Any:
        assert not isinstance(weight, Expr)
        apart = sub(y, x)
        near = math.fabs(weight) < 0.5
        return add(x, mul(apart, weight)) if near else sub(y, mul(apart, 1 - weight))

    if isinstance(weight, Expr):
        return _in_float32(compute, start, end, weight)
    return _in_float32(fixed, start, end)


def isnan(input: Elementwise) -> Elementwise:
    """True where the input is not a number."""
    return ne(input, input)  # type: ignore[no-any-return]


def isinf(input: Elementwise) -> Elementwise:
    """True where the input is infinite."""
    return eq(abs(input), math.inf)  # type: ignore[no-any-return]


def to(input: Expr | ScalarExpr | IndexExpr, dtype: Dtype) -> Any:
    """The input converted to ``dtype``."""
    name = dtype_name(dtype)
    return expr.cast(input, name) if isinstance(input, Expr) else expr.cast_scalar(input, name)
