"""Scalar functions (``ir/functions.py``) as operators of ONNX.

    log1p(x)    ->    Add, Log, Sub, Div, Mul, Where

ONNX lacks some functions, and defines others differently: its ``Div`` of integers truncates, its
``Sign`` of NaN is NaN, its ``Max`` takes no bools. Such functions are composed of other operators,
so that they mean what they mean in the IR and lose no more digits than the function itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.types import is_float, promote
from eqsynth.lower.onnx_out.graph import Graph, Value, refuse, wide

Composed = Callable[..., Value]


def apply(graph: Graph, function: str, args: Sequence[Value], where: str = "") -> Value:
    """Return the value of a function of ``FUNCTIONS``, or of Add, Mul, Sub or Neg, of broadcast
    arguments.

    16-bit floats are computed in float32 by the caller, who rounds the result. Integers have the
    dtype that the arguments are promoted to. A comparison's result is bool.

    Raises:
        UnsupportedOperatorError: ONNX has no operators that mean the same.
    """
    first = 1 if function == "where" else 0
    joined = reduce(promote, (arg.dtype for arg in args[first:]))
    result = FUNCTIONS[function].result if function in FUNCTIONS else "same"
    if result == "float" and not is_float(joined):
        joined = "float32"
    inner = wide("uint8" if joined == "bool" else joined)
    if function in ("and", "or", "not"):
        inner = "bool"
    parts = [graph.cast(arg, inner) for arg in args[first:]]
    if first:
        parts = [graph.cast(args[0], "bool"), *parts]
    if function == "pow" and not is_float(inner):
        refuse(where, f"pow of {joined}", "a power of floats: of integers runtimes aren't exact")
    made = _made(graph, function, parts, is_float(inner))
    return made if result == "bool" else graph.cast(made, joined)


def _made(graph: Graph, function: str, args: Sequence[Value], floats: bool) -> Value:
    """Return the value of a function of arguments that have the dtype in which it is computed."""
    if not floats and function in _OF_INTEGERS:
        return _OF_INTEGERS[function](graph, *args)
    if function in _DIRECT:
        return graph.map(_DIRECT[function], *args)
    if function in _COMPARISONS:
        return graph.map(_COMPARISONS[function], *args, dtype="bool")
    made = FUNCTIONS[function].made
    if made is not None and function not in _COMPOSED:
        part = made.of(
            _Part(graph, args[0]),
            lambda name, inner: _Part(graph, _made(graph, name, [inner.value], floats)),
            lambda value: _Part(graph, _number(graph, args[0], value)),
        )
        return part.value  # type: ignore[no-any-return]
    return _COMPOSED[function](graph, *args)


@dataclass(frozen=True)
class _Part:
    """A value in the definition of a function that is composed of other functions."""

    graph: Graph
    value: Value

    def __add__(self, other: _Part) -> _Part:
        return _Part(self.graph, self.graph.map("Add", self.value, other.value))

    def __mul__(self, other: _Part) -> _Part:
        return _Part(self.graph, self.graph.map("Mul", self.value, other.value))


_DIRECT: Final = {
    "Add": "Add", "Sub": "Sub", "Mul": "Mul", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
    "reciprocal": "Reciprocal", "abs": "Abs", "sin": "Sin", "cos": "Cos", "tanh": "Tanh",
    "erf": "Erf", "sigmoid": "Sigmoid", "div": "Div", "pow": "Pow", "max": "Max", "min": "Min",
    "where": "Where", "and": "And", "or": "Or", "not": "Not", "Neg": "Neg",
}  # fmt: skip
_COMPARISONS: Final = {
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
}  # fmt: skip


def _number(graph: Graph, like: Value, value: float) -> Value:
    return graph.number(value, like.dtype)


def _scaled(operator: str, factor: float) -> Composed:
    """A logarithm to another base: the natural logarithm times a factor."""
    return lambda g, x: g.map("Mul", g.map(operator, x), _number(g, x, factor))


def _exp2(g: Graph, x: Value) -> Value:
    return g.map("Pow", g.expand(_number(g, x, 2.0), x.shape), x)


def _expm1(g: Graph, x: Value) -> Value:
    """exp(x) - 1. Near zero, where this loses all digits, 2 t / (1 - t) with t = tanh(x / 2)."""
    one = _number(g, x, 1.0)
    t = g.map("Tanh", g.map("Mul", x, _number(g, x, 0.5)))
    near = g.map("Div", g.map("Add", t, t), g.map("Sub", one, t))
    far = g.map("Sub", g.map("Exp", x), one)
    small = g.map("Less", g.map("Abs", x), one, dtype="bool")
    return g.map("Where", small, near, far)


def _log1p(g: Graph, x: Value) -> Value:
    """log(u) x / (u - 1) with u = 1 + x: the quotient corrects the rounding of the addition."""
    one = _number(g, x, 1.0)
    u = g.map("Add", x, one)
    log = g.map("Log", u)
    mended = g.map("Mul", log, g.map("Div", x, g.map("Sub", u, one)))
    small = g.map("Less", g.map("Abs", x), one, dtype="bool")
    same = g.map("Equal", u, one, dtype="bool")
    return g.map("Where", same, x, g.map("Where", small, mended, log))


def _sign(g: Graph, x: Value) -> Value:
    """The sign; 0 for NaN."""
    zero = _number(g, x, 0)
    above, below = (g.map(name, x, zero, dtype="bool") for name in ("Greater", "Less"))
    return g.map("Sub", g.cast(above, x.dtype), g.cast(below, x.dtype))


def _trunc(g: Graph, x: Value) -> Value:
    below = g.map("Less", x, _number(g, x, 0.0), dtype="bool")
    return g.map("Where", below, g.map("Ceil", x), g.map("Floor", x))


def _signs_differ(g: Graph, x: Value, y: Value) -> Value:
    zero = _number(g, x, 0.0)
    below = [g.map("Less", part, zero, dtype="bool") for part in (x, y)]
    return g.map("Xor", *below, dtype="bool")


def _remainder(g: Graph, x: Value, y: Value) -> Value:
    """The remainder with the sign of the divisor, computed from C's remainder, which has the sign
    of the dividend."""
    rest = g.map("Mod", x, y, fmod=1)
    zero = g.map("Equal", rest, _number(g, x, 0.0), dtype="bool")
    other = g.map("And", g.map("Not", zero), _signs_differ(g, rest, y))
    return g.map("Where", other, g.map("Add", rest, y), rest)


def _floor_divide(g: Graph, x: Value, y: Value) -> Value:
    """Floor division as torch computes it, from the exact remainder: x / y may be rounded up to the
    next integer."""
    zero, one = _number(g, x, 0.0), _number(g, x, 1.0)
    rest = g.map("Mod", x, y, fmod=1)
    whole = g.map("Div", g.map("Sub", x, rest), y)
    exact = g.map("Equal", rest, zero, dtype="bool")
    lower = g.map("And", g.map("Not", exact), _signs_differ(g, rest, y))
    whole = g.map("Where", lower, g.map("Sub", whole, one), whole)
    floor = g.map("Floor", whole)
    up = g.map("Greater", g.map("Sub", whole, floor), _number(g, x, 0.5), dtype="bool")
    floor = g.map("Where", up, g.map("Add", floor, one), floor)
    by_zero = g.map("Equal", y, zero, dtype="bool")
    return g.map("Where", by_zero, g.map("Div", x, y), floor)


def _divisor(g: Graph, y: Value) -> Value:
    """The divisor, with 1 in place of 0 and -1, for which a division of integers may end the
    process."""
    one, zero, minus = (_number(g, y, n) for n in (1, 0, -1))
    unsafe = g.map("Or", *(g.map("Equal", y, n, dtype="bool") for n in (zero, minus)), dtype="bool")
    return g.map("Where", unsafe, one, y)


def truncated(g: Graph, x: Value, y: Value) -> Value:
    """The quotient of signed integers, rounded towards 0; 0 if the divisor is 0."""
    zero = _number(g, x, 0)
    quotient = g.map("Div", x, _divisor(g, y))
    minus = g.map("Equal", y, _number(g, y, -1), dtype="bool")
    quotient = g.map("Where", minus, g.map("Sub", zero, x), quotient)
    return g.map("Where", g.map("Equal", y, zero, dtype="bool"), zero, quotient)


def _integer_remainder(g: Graph, x: Value, y: Value) -> Value:
    """The remainder of integers; 0 if the divisor is 0."""
    zero = _number(g, x, 0)
    rest = g.map("Mod", x, _divisor(g, y), fmod=0)
    return g.map("Where", g.map("Equal", y, zero, dtype="bool"), zero, rest)


def _integer_floor_divide(g: Graph, x: Value, y: Value) -> Value:
    """Floor division of integers, from ONNX's quotient, which is rounded towards 0; 0 if the
    divisor is 0."""
    zero, one = _number(g, x, 0), _number(g, x, 1)
    safe = _divisor(g, y)
    quotient = g.map("Div", x, safe)
    rest = g.map("Sub", x, g.map("Mul", quotient, safe))
    exact = g.map("Equal", rest, zero, dtype="bool")
    lower = g.map("And", g.map("Not", exact), _signs_differ(g, rest, safe))
    quotient = g.map("Where", lower, g.map("Sub", quotient, one), quotient)
    minus = g.map("Equal", y, _number(g, y, -1), dtype="bool")
    quotient = g.map("Where", minus, g.map("Sub", zero, x), quotient)
    return g.map("Where", g.map("Equal", y, zero, dtype="bool"), zero, quotient)


def _gelu(approximate: str) -> Composed:
    return lambda g, x: g.map("Gelu", x, approximate=approximate)


def _same(_: Graph, x: Value) -> Value:
    return x


_COMPOSED: Final[dict[str, Composed]] = {
    "relu": lambda g, x: g.map("Relu", x),
    "exp2": _exp2,
    "expm1": _expm1,
    "log2": _scaled("Log", 1 / math.log(2.0)),
    "log10": _scaled("Log", 1 / math.log(10.0)),
    "log1p": _log1p,
    "sign": _sign,
    "floor": lambda g, x: g.map("Floor", x),
    "ceil": lambda g, x: g.map("Ceil", x),
    "trunc": _trunc,
    "gelu": _gelu("none"),
    "gelu_tanh": _gelu("tanh"),
    "mod": _remainder,
    "floordiv": _floor_divide,
    "ne": lambda g, x, y: g.map("Not", g.map("Equal", x, y, dtype="bool")),
}


def _extreme(comparison: str) -> Composed:
    """The larger or smaller of two integers, by a comparison: ONNX Runtime's ``Max`` and ``Min`` of
    int64 ignore the high bits."""
    return lambda g, x, y: g.map("Where", g.map(comparison, x, y, dtype="bool"), x, y)


_OF_INTEGERS: Final[dict[str, Composed]] = {
    "max": _extreme("Greater"),
    "min": _extreme("Less"),
    "relu": lambda g, x: _extreme("Greater")(g, x, _number(g, x, 0)),
    "sign": _sign,
    "floor": _same,
    "ceil": _same,
    "trunc": _same,
    "mod": _integer_remainder,
    "floordiv": _integer_floor_divide,
}
