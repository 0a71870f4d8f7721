"""Scalar functions as TIR, by name; numbers and casts; how dtypes lie in memory.

exp, log, tanh, erf and the functions made of them are polynomials in float32: libm computes one
element at a time, and LLVM vectorizes polynomials. (8,192 numbers, one thread, loaded, ns each:
log 6.5 by libm, 1.1 as a polynomial; log1p 18.0, 1.4.) In float64 they are libm's functions. Not
here: whole bodies (``scalar_code.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np
from tvm import tirx

from eqsynth.ir.functions import FUNCTIONS, Made
from eqsynth.ir.types import ITEMSIZE, is_float

Expr = Any
"""A TIR expression; tvm has no annotations."""


class Code(Protocol):
    """The code that a function's statements are added to.

    Attributes:
        scales: whether the processor multiplies by a power of two in one instruction.
    """

    scales: bool

    def bind(self, value: Expr) -> Expr:
        """Store a value, and return an expression that may be used many times."""
        ...


# Coefficients from the lowest power on. They were fitted in float64 at Chebyshev points, with
# weights adapted until the largest relative error was the smallest. Tests compare the functions
# with the interpreter.
_EXP: Final = (0.499999996, 0.166665773, 0.0416668535, 0.00836314634, 0.00139012814)
# (log(1 + f) - f + f²/2) / f³ for 1 + f from √½ to √2.
_LOG: Final = (
    0.333333313, -0.250008196, 0.200012267, -0.166233569, 0.142017573, -0.131601825, 0.127615765,
    -0.0763449669,
)  # fmt: skip
_TANH: Final = (-0.333333284, 0.133327192, -0.0538433095, 0.0209615132, -0.00604539406)
_ERF: Final = (
    1.12837917, -0.376126258, 0.112835851, -0.0268538118, 0.0051883275, -0.000801019197,
    7.8538559e-05,
)  # fmt: skip
_LOG_ERFC: Final = (
    0.000291026183, -1.13011972, -0.632013439, -0.109909731, 0.0263275243, -0.00472768877,
    0.000590203334, -4.52981092e-05, 1.59981997e-06,
)  # fmt: skip
# log(erfc(y) / t) + y² in powers of t = 1 / (1 + y / 2), for y from 0 on.
_ERFC_TAIL: Final = (
    -1.26544637, 0.998591673, 0.387057135, 0.0323416099, 0.00860064842, -0.0951756183,
    -0.677137766, 1.14168499, -0.674192081, 0.14367583,
)  # fmt: skip


def arithmetic(dtype: str) -> str:
    """The dtype in which values of ``dtype`` are computed."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _f32(value: float) -> Expr:
    return tirx.const(value, "float32")


def _u32(value: int) -> Expr:
    return tirx.const(value, "uint32")


def stored(dtype: str) -> str:
    """The dtype of memory that holds ``dtype``: bfloat16 lies there as uint16, since LLVM has no
    bfloat16 on most machines."""
    return "uint16" if dtype == "bfloat16" else dtype


def loaded(value: Expr, dtype: str) -> Expr:
    """A value that was read from memory, in ``arithmetic(dtype)``."""
    if dtype == "bfloat16":
        wide = tirx.shift_left(value.astype("uint32"), tirx.const(16, "uint32"))
        return tirx.reinterpret("float32", wide)
    return value if arithmetic(dtype) == dtype else value.astype(arithmetic(dtype))


def to_storage(value: Expr, dtype: str) -> Expr:
    """A value in ``arithmetic(dtype)`` as memory holds it; bfloat16 is rounded to nearest, ties to
    even."""
    if dtype != "bfloat16":
        return value if arithmetic(dtype) == dtype else value.astype(dtype)
    bits = tirx.reinterpret("uint32", value)
    odd = tirx.bitwise_and(tirx.shift_right(bits, _u32(16)), _u32(1))
    rounded = tirx.shift_right(bits + _u32(0x7FFF) + odd, _u32(16))
    # Rounding up would carry a NaN's mantissa into its exponent.
    return tirx.Select(is_nan("float32", value), _u32(0x7FC0), rounded).astype("uint16")


def number(value: float, dtype: str) -> Expr:
    """A constant. Infinities and numbers outside of an integer dtype's range become the same
    integers as in the interpreter."""
    if is_float(dtype):
        if math.isnan(value):
            return tirx.reinterpret(dtype, _bits(dtype, np.array(np.nan, dtype)))
        if math.isinf(value) or dtype == "float64" and float(f"{value:.15f}") != value:
            # TVM writes a float64 into CUDA's text with 15 decimals: 1e-20 would be 0.
            return tirx.reinterpret(dtype, _bits(dtype, np.array(value, dtype)))
        return tirx.const(value, dtype)
    if dtype == "bool":
        return tirx.const(bool(value), "bool")
    limits = np.iinfo(dtype)
    if not math.isfinite(value):
        return tirx.const(int(limits.max if value > 0 else limits.min), dtype)
    wrapped = (int(value) - int(limits.min)) % (1 << limits.bits) + int(limits.min)
    return tirx.const(wrapped, dtype)


def quotient(x: Expr, y: Expr) -> Expr:
    """x / y of floats. TVM refuses to divide by the number 0; x / 0 is x * inf."""
    if isinstance(y, tirx.FloatImm) and y.value == 0:
        return x * number(math.copysign(math.inf, y.value), str(y.ty.dtype))
    return x / y


def wrapping(code: Code, is_sum: bool, dtype: str, x: Expr, y: Expr) -> Expr:
    """A sum or a product, which wraps around if it is one of integers.

    Code for integers of 32 and 64 bits takes it that they don't overflow, signed or not: ``4 * x //
    4`` would be x, and ``2 * x == 2 * y`` would be ``x == y``. So 32 bits are computed in 64, and
    64 bits by their halves, of which no sum and no product overflows. Two numbers are computed
    here: in ``2 ** x`` the squares of 2 leave int32, and TVM refuses the number 1 << 32 as an
    int32.
    """
    if isinstance(x, tirx.IntImm) and isinstance(y, tirx.IntImm):
        a, b = int(x.value), int(y.value)
        return number(a + b if is_sum else a * b, dtype)
    if dtype == "int32":
        wide = x.astype("int64"), y.astype("int64")
        return (wide[0] + wide[1] if is_sum else wide[0] * wide[1]).astype(dtype)
    if dtype != "int64":
        return x + y if is_sum else x * y
    (a, b), (c, d) = _halves(code, x), _halves(code, y)
    if is_sum:
        low = code.bind(a + c)
        high = b + d + tirx.shift_right(low, _HALF)
    else:
        low = code.bind(a * c)
        crossed = tirx.bitwise_and(a * d, _LOW) + tirx.bitwise_and(b * c, _LOW)
        high = tirx.shift_right(low, _HALF) + crossed
    high = tirx.shift_left(tirx.bitwise_and(high, _LOW), _HALF)
    return tirx.reinterpret(dtype, tirx.bitwise_or(high, tirx.bitwise_and(low, _LOW)))


_HALF: Final = tirx.const(32, "uint64")
_LOW: Final = tirx.const(0xFFFFFFFF, "uint64")


def _halves(code: Code, value: Expr) -> tuple[Expr, Expr]:
    """The lower and the upper 32 bits of an int64, as uint64."""
    if isinstance(value, tirx.IntImm):  # in CUDA a number has no address
        upper, lower = divmod(int(value.value) % (1 << 64), 1 << 32)
        return tirx.const(lower, "uint64"), tirx.const(upper, "uint64")
    bits = code.bind(tirx.reinterpret("uint64", value))
    return tirx.bitwise_and(bits, _LOW), tirx.shift_right(bits, _HALF)


def _negative(code: Code, dtype: str, x: Expr) -> Expr:
    return wrapping(code, False, dtype, x, number(-1, dtype))


def _bits(dtype: str, value: Any) -> Expr:
    integer = "uint32" if dtype == "float32" else "int64"  # in CUDA an int32 has no address
    return tirx.const(int(value.view(integer)), integer)


def convert(value: Expr, source: str, target: str) -> Expr:
    """A cast between dtypes of arithmetic as torch does it: to bool it is "not 0", and integers
    wrap around."""
    if source == target:
        return value
    if target == "bool":
        return differ(value, number(0, source))
    if source == "bool":
        return tirx.Select(value, number(1, target), number(0, target))
    if is_float(source) and target in ("uint8", "int8", "int16"):
        value = value.astype("int32")
    return value.astype(target)


def maximum(dtype: str, x: Expr, y: Expr) -> Expr:
    """The larger number, or NaN if one is NaN."""
    if dtype == "bool":
        return tirx.Or(x, y)
    return _nan_or(dtype, y, tirx.Select(x < y, y, x)) if is_float(dtype) else tirx.max(x, y)


def minimum(dtype: str, x: Expr, y: Expr) -> Expr:
    """The smaller number, or NaN if one is NaN."""
    if dtype == "bool":
        return tirx.And(x, y)
    return _nan_or(dtype, y, tirx.Select(y < x, y, x)) if is_float(dtype) else tirx.min(x, y)


def _nan_or(dtype: str, y: Expr, other: Expr) -> Expr:
    """``y`` if it is NaN, else the other value, which is x if x is NaN. (The smaller or larger of
    two numbers is one instruction that keeps a NaN of one operand. Asking for both NaNs in one
    condition would make it three.)"""
    return other if _number(y) else tirx.Select(is_nan(dtype, y), y, other)


def _number(value: Expr) -> bool:
    return isinstance(value, tirx.FloatImm)


def is_nan(dtype: str, x: Expr) -> Expr:
    """Whether a float is NaN: it isn't at most infinity. (``x != x`` may be simplified away.)"""
    return tirx.Not(x <= tirx.const(math.inf, dtype))


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    result: Expr = tirx.const(coefficients[-1], "float32")
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + tirx.const(coefficient, "float32")
    return result


def _exp(code: Code, dtype: str, x: Expr) -> Expr:
    """e^x; in float32 also where the result is infinite, subnormal or 0."""
    if dtype != "float32":
        return tirx.exp(x)
    n, rest = _exp_parts(code, _clamped(code, x, -104.0, 89.0))
    return _scaled(code, code.bind(rest + _f32(1.0)), n)


def _scaled(code: Code, value: Expr, n: Expr) -> Expr:
    """value * 2^n, also where the result is infinite, subnormal or 0."""
    if code.scales:
        return tirx.call_llvm_pure_intrin("float32", "llvm.ldexp", value, n)
    # 2^n itself may be out of range; its two halves, 2^(n/2) each, are not.
    half = code.bind(tirx.shift_right(n, tirx.const(1, "int32")))
    return value * _power_of_two(half) * _power_of_two(code.bind(n - half))


def _expm1(code: Code, dtype: str, x: Expr) -> Expr:
    """e^x - 1 = 2^n (e^r - 1) + (2^n - 1). Above 20 the 1 is less than a rounding, so the result is
    e^x."""
    if dtype != "float32":
        return _libm("expm1", dtype, x)
    x = _clamped(code, x, -25.0, 89.0)
    n, rest = _exp_parts(code, x)
    large = _scaled(code, code.bind(rest + _f32(1.0)), n)
    bounded = tirx.Select(n > tirx.const(40, "int32"), tirx.const(40, "int32"), n)
    power = code.bind(_power_of_two(code.bind(bounded)))
    return tirx.Select(x > _f32(20.0), large, power * rest + (power - _f32(1.0)))


def _exp2(code: Code, dtype: str, x: Expr) -> Expr:
    if dtype != "float32":
        return _libm("exp2", dtype, x)
    x = _clamped(code, x, -151.0, 129.0)
    n, whole = _nearest(code, x)
    r = code.bind((x - whole) * _f32(0.693147181))
    return _scaled(code, code.bind(_exp_minus_1(code, r) + _f32(1.0)), n)


def _exp_bounded(code: Code, dtype: str, x: Expr) -> Expr:
    """e^x for |x| <= 87, where the result is a normal number."""
    if dtype != "float32":
        return tirx.exp(x)
    n, rest = _exp_parts(code, x)
    if code.scales:
        return _scaled(code, code.bind(rest + _f32(1.0)), n)
    return (rest + _f32(1.0)) * _power_of_two(n)


def _exp_parts(code: Code, x: Expr) -> tuple[Expr, Expr]:
    """n and e^r - 1 where x = n ln 2 + r, |r| <= ln 2 / 2."""
    n, whole = _nearest(code, code.bind(x * _f32(1.44269504)))
    # ln 2 in two parts, the first short enough that its product with n is exact.
    r = code.bind(x - whole * _f32(0.693359375) - whole * _f32(-2.12194440e-4))
    return n, _exp_minus_1(code, r)


def _exp_minus_1(code: Code, r: Expr) -> Expr:
    """e^r - 1 = r + r² q(r) for |r| <= ln 2 / 2, q fitted."""
    return code.bind(_polynomial(r, _EXP) * (r * r) + r)


def _log(code: Code, dtype: str, x: Expr) -> Expr:
    """log x = e ln 2 + log(1 + f)."""
    if dtype != "float32":
        return tirx.log(x)
    e, f, rest = _log_parts(code, x)
    # ln 2 in two parts, the first short enough that its product with e is exact.
    near = code.bind(rest + e * _f32(-2.12194440e-4))
    return _log_of_any(x, code.bind(f + near) + e * _f32(0.693359375))


def _log2(code: Code, dtype: str, x: Expr) -> Expr:
    if dtype != "float32":
        return _libm("log2", dtype, x)
    e, f, rest = _log_parts(code, x)
    return _log_of_any(x, code.bind(code.bind(f + rest) * _f32(1.44269504)) + e)


def _log10(code: Code, dtype: str, x: Expr) -> Expr:
    if dtype != "float32":
        return _libm("log10", dtype, x)
    e, f, rest = _log_parts(code, x)
    # log10 of 2 in two parts, as ln 2 in `_log`.
    near = code.bind(code.bind(f + rest) * _f32(0.434294482) + e * _f32(4.60503898e-6))
    return _log_of_any(x, near + e * _f32(0.301025391))


def _log1p(code: Code, dtype: str, x: Expr) -> Expr:
    """log(1 + x), and what rounding 1 + x has lost, by the derivative."""
    if dtype != "float32":
        return _libm("log1p", dtype, x)
    one = _f32(1.0)
    whole = code.bind(one + x)
    lost = code.bind((x - code.bind(whole - one)) / whole)
    inside = tirx.And(x > _f32(-1.0), x < _f32(math.inf))
    found = code.bind(_log(code, dtype, whole))
    return tirx.Select(inside, found + lost, found)


def _log_parts(code: Code, x: Expr) -> tuple[Expr, Expr, Expr]:
    """e, f and log(1 + f) - f where x = 2^e (1 + f) is positive and finite, 1 + f from √½ to √2."""
    subnormal = x < _f32(1.17549435e-38)
    bits = code.bind(tirx.reinterpret("int32", tirx.Select(subnormal, x * _f32(8388608.0), x)))
    step, half = tirx.const(23, "int32"), tirx.const(0x3F3504F3, "int32")  # the bits of √½
    e = code.bind(tirx.shift_right(bits - half, step))
    f = code.bind(tirx.reinterpret("float32", bits - tirx.shift_left(e, step)) - _f32(1.0))
    square = code.bind(f * f)
    rest = _polynomial(f, _LOG) * code.bind(f * square) - _f32(0.5) * square
    shifted = tirx.Select(subnormal, e - step, e)
    return code.bind(shifted.astype("float32")), f, code.bind(rest)


def _log_of_any(x: Expr, value: Expr) -> Expr:
    """A logarithm that is ``value`` for positive finite x."""
    zero, infinite = _f32(0.0), _f32(math.inf)
    other = tirx.Select(tirx.EQ(x, zero), _f32(-math.inf), x)
    other = tirx.Select(x < zero, _f32(math.nan), other)
    return tirx.Select(tirx.And(x > zero, x < infinite), value, other)


def _nearest(code: Code, x: Expr) -> tuple[Expr, Expr]:
    """The integer nearest to x, as an int32 and as a float."""
    # Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
    shifted = code.bind(x + _f32(12582912.0))
    n = code.bind(tirx.reinterpret("int32", shifted) - tirx.const(0x4B400000, "int32"))
    return n, code.bind(shifted - _f32(12582912.0))


def _clamped(code: Code, x: Expr, low: float, high: float) -> Expr:
    """x limited to a range; NaN stays NaN."""
    below = code.bind(tirx.Select(x > _f32(high), _f32(high), x))
    return code.bind(tirx.Select(below < _f32(low), _f32(low), below))


def _power_of_two(n: Expr) -> Expr:
    """2^n for an exponent of a normal number, made from its bits."""
    bits = tirx.shift_left(n + tirx.const(127, "int32"), tirx.const(23, "int32"))
    return tirx.reinterpret("float32", bits)


def _tanh(code: Code, dtype: str, x: Expr) -> Expr:
    if dtype != "float32":
        return _libm("tanh", dtype, x)  # TVM's tanh uses exponentials, and gives 0 for small x
    size = code.bind(tirx.abs(x))
    size = code.bind(tirx.Select(size > _f32(10.0), _f32(10.0), size))
    square = code.bind(x * x)
    near = code.bind(_polynomial(square, _TANH) * square * x + x)
    grown = code.bind(_exp_bounded(code, dtype, code.bind(size * _f32(2.0))))
    far = code.bind(_f32(1.0) - _f32(2.0) / (grown + _f32(1.0)))
    return tirx.Select(size < _f32(0.625), near, tirx.Select(x < _f32(0.0), _f32(0.0) - far, far))


def _erf(code: Code, dtype: str, x: Expr) -> Expr:
    """x p(x²) up to 1, and 1 - e^q(x) above, where q is fitted to log erfc; in float32 it is 1 from
    4 on."""
    if dtype != "float32":
        return _libm("erf", dtype, x)
    size = code.bind(tirx.abs(x))
    size = code.bind(tirx.Select(size > _f32(4.0), _f32(4.0), size))
    near = code.bind(x * _polynomial(code.bind(x * x), _ERF))
    far = code.bind(_f32(1.0) - _exp_bounded(code, dtype, code.bind(_polynomial(size, _LOG_ERFC))))
    return tirx.Select(size < _f32(1.0), near, tirx.Select(x < _f32(0.0), _f32(0.0) - far, far))


def _sigmoid(code: Code, dtype: str, x: Expr) -> Expr:
    """1 / (1 + e^-|x|), times e^-|x| for negative x: both tails keep their digits, and nothing
    overflows."""
    one, zero = number(1, dtype), number(0, dtype)
    small = code.bind(_exp(code, dtype, code.bind(zero - tirx.abs(x))))
    return tirx.Select(x < zero, small, one) / (one + small)


def _gelu(code: Code, dtype: str, x: Expr) -> Expr:
    """x / 2 * erfc(-x / √2): the form with 1 + erf loses digits for negative x."""
    half, inner = number(0.5, dtype) * x, code.bind(x * number(math.sqrt(0.5), dtype))
    if dtype != "float32":
        return half * _libm("erfc", dtype, number(0, dtype) - inner)
    size = code.bind(tirx.abs(inner))
    t = code.bind(_f32(1.0) / (_f32(1.0) + _f32(0.5) * size))
    power = code.bind(_polynomial(t, _ERFC_TAIL) - size * size)
    tail = code.bind(t * _exp(code, dtype, power))
    return half * tirx.Select(inner < _f32(0.0), tail, _f32(2.0) - tail)


def _gelu_tanh(code: Code, dtype: str, x: Expr) -> Expr:
    """x * sigmoid(2 y), which equals x / 2 * (1 + tanh(y)) and loses no digits."""
    scale = number(2 * math.sqrt(2 / math.pi), dtype)
    inner = code.bind(scale * (x + number(0.044715, dtype) * x * x * x))
    return x * _sigmoid(code, dtype, inner)


def _sign(code: Code, dtype: str, x: Expr) -> Expr:
    zero = number(0, dtype)
    negative = zero if dtype == "uint8" else tirx.Select(x < zero, number(-1, dtype), zero)
    return tirx.Select(x > zero, number(1, dtype), negative)


def _libm(name: str, dtype: str, *args: Expr) -> Expr:
    return tirx.call_pure_extern(dtype, name if dtype == "float64" else name + "f", *args)


def _remainder(code: Code, dtype: str, x: Expr, y: Expr) -> Expr:
    """fmod with the sign of the divisor, as in NumPy and torch."""
    rest = code.bind(_libm("fmod", dtype, x, y))
    return tirx.Select(_signs_differ(dtype, rest, y), rest + y, rest)


def _signs_differ(dtype: str, rest: Expr, y: Expr) -> Expr:
    zero = number(0, dtype)
    return tirx.Or(tirx.And(rest < zero, y > zero), tirx.And(rest > zero, y < zero))


def _floor_quotient(code: Code, dtype: str, x: Expr, y: Expr) -> Expr:
    """The floor of x / y, computed from fmod, since x / y may round up to an integer that is too
    large."""
    rest, one = code.bind(_libm("fmod", dtype, x, y)), number(1, dtype)
    towards_zero = code.bind(quotient(x - rest, y))
    near = tirx.Select(_signs_differ(dtype, rest, y), towards_zero - one, towards_zero)
    near = code.bind(near)
    floored = code.bind(tirx.floor(near))
    above = near - floored > number(0.5, dtype)
    nearest = tirx.Select(above, floored + number(1, dtype), floored)
    return tirx.Select(tirx.EQ(y, number(0, dtype)), quotient(x, y), nearest)


def _integer_division(
    operation: Callable[[Expr, Expr], Expr], at_minus_one: Callable[[Code, str, Expr], Expr]
) -> Callable[..., Expr]:
    """A division or remainder that never traps: by 0 it gives 0 (as in NumPy), by -1 it wraps
    around.

    Only `if_then_else` keeps the division from being executed; a `Select` evaluates both sides.
    """

    def emit(code: Code, dtype: str, x: Expr, y: Expr) -> Expr:
        result, zero = operation(x, y), number(0, dtype)
        if dtype != "uint8":
            minus_one = tirx.EQ(y, number(-1, dtype))
            result = tirx.if_then_else(minus_one, at_minus_one(code, dtype, x), result)
        return tirx.if_then_else(tirx.EQ(y, zero), zero, result)

    return emit


def _integer_power(code: Code, dtype: str, x: Expr, y: Expr) -> Expr:
    """A power by squaring, so that it wraps around as torch's does. With a negative exponent the
    result is 0, except for the bases 1 and -1."""
    one = number(1, dtype)
    signed = dtype not in ("uint8", "bool")
    result, base = one, x
    for bit in range(8 * ITEMSIZE[dtype] - signed):
        odd = tirx.EQ(tirx.bitwise_and(tirx.shift_right(y, number(bit, dtype)), one), one)
        result = code.bind(tirx.Select(odd, wrapping(code, False, dtype, result, base), result))
        base = code.bind(wrapping(code, False, dtype, base, base))
    if not signed:
        return result
    zero, minus = number(0, dtype), number(-1, dtype)
    turned = tirx.Select(tirx.EQ(tirx.bitwise_and(y, one), one), minus, one)
    below = tirx.Select(tirx.EQ(x, one), one, tirx.Select(tirx.EQ(x, minus), turned, zero))
    return tirx.Select(y < zero, below, result)


def differ(x: Expr, y: Expr) -> Expr:
    """Whether x and y differ; NaN differs from everything. (LLVM's comparison for TVM's NE is false
    for NaN.)"""
    return tirx.Not(tirx.EQ(x, y))


COMPARE: Final[dict[str, Callable[[Expr, Expr], Expr]]] = {
    "eq": tirx.EQ,
    "ne": differ,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}

LOGIC: Final[dict[str, Callable[..., Expr]]] = {"not": tirx.Not, "and": tirx.And, "or": tirx.Or}

_BOTH: Final[dict[str, Callable[..., Expr]]] = {
    "sign": _sign,
    "max": lambda code, dtype, x, y: maximum(dtype, x, y),
    "min": lambda code, dtype, x, y: minimum(dtype, x, y),
}

FLOAT: Final[dict[str, Callable[..., Expr]]] = {
    **_BOTH,
    "relu": lambda code, dtype, x: tirx.Select(x < number(0, dtype), number(0, dtype), x),
    "exp": _exp,
    "exp2": _exp2,
    "expm1": _expm1,
    "log": _log,
    "log2": _log2,
    "log10": _log10,
    "log1p": _log1p,
    "sqrt": lambda code, dtype, x: tirx.sqrt(x),
    "reciprocal": lambda code, dtype, x: quotient(number(1, dtype), x),
    "abs": lambda code, dtype, x: tirx.abs(x),
    "floor": lambda code, dtype, x: tirx.floor(x),
    "ceil": lambda code, dtype, x: tirx.ceil(x),
    "trunc": lambda code, dtype, x: tirx.trunc(x),
    "sin": lambda code, dtype, x: tirx.sin(x),
    "cos": lambda code, dtype, x: tirx.cos(x),
    "tanh": _tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "div": lambda code, dtype, x, y: quotient(x, y),
    "pow": lambda code, dtype, x, y: tirx.pow(x, y),
    "floordiv": _floor_quotient,
    "mod": _remainder,
}

INTEGER: Final[dict[str, Callable[..., Expr]]] = {
    **_BOTH,
    "relu": lambda code, dtype, x: maximum(dtype, x, number(0, dtype)),
    "abs": lambda code, dtype, x: (
        x
        if dtype in ("uint8", "bool")
        else tirx.Select(x < number(0, dtype), _negative(code, dtype, x), x)
    ),
    "floor": lambda code, dtype, x: x,
    "ceil": lambda code, dtype, x: x,
    "trunc": lambda code, dtype, x: x,
    "floordiv": _integer_division(tirx.floordiv, _negative),
    "mod": _integer_division(tirx.floormod, lambda code, dtype, x: number(0, dtype)),
    "pow": _integer_power,
}


def _of_others(made: Made) -> Callable[..., Expr]:
    """The code of a function that is defined by other functions."""

    def emit(code: Code, dtype: str, x: Expr) -> Expr:
        # A definition may use each of its parts twice, so parts are stored.
        return made.of(
            x, lambda name, part: FLOAT[name](code, dtype, part if part is x else code.bind(part)),
            lambda value: number(value, dtype),
        )  # fmt: skip

    return emit


FLOAT.update({n: _of_others(f.made) for n, f in FUNCTIONS.items() if f.made is not None})

assert set(FUNCTIONS) == {*FLOAT, *COMPARE, *LOGIC, "where"}, "a scalar function has no code"
