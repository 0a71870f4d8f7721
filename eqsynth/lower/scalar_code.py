"""The body of a scope as TIR.

Example: ``exp(x) * (1 + exp(x))`` becomes ``v0 = load x; v1 = exp(v0); v2 = 1 + v1; v1 * v2``: each
distinct subexpression is computed and stored once.

Floats of 16 bits are computed in float32, and rounded where the term says so (at a cast, and in the
result). Not here: the functions themselves (``scalar_functions.py``), loops and addresses
(``eoperators.py``, ``loop_nest.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, Final

import numpy as np
from tvm import tirx

from eqsynth.errors import LoweringError
from eqsynth.ir.functions import STEEP
from eqsynth.ir.index import FloorDiv, Index, It, Max, Min, Mod, number_of
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    dtype_of,
    iterators,
    product,
)
from eqsynth.ir.types import INTEGERS, is_float
from eqsynth.lower.scalar_functions import (
    COMPARE,
    FLOAT,
    INTEGER,
    LOGIC,
    Expr,
    arithmetic,
    convert,
    differ,
    loaded,
    number,
    quotient,
    to_storage,
    wrapping,
)

# Without this attribute TVM allocates by a call of its runtime, even a single element.
ON_STACK: Final = {"disable_lower_builtin": tirx.const(True, "bool")}


_ONE_FACTOR: Final = 1e-6
"""A factor and the inverse of a divisor that are so close to each other were one number."""

_OPERATIONS: Final[dict[type, Callable[[Expr, Expr], Expr]]] = {
    FloorDiv: tirx.floordiv, Mod: tirx.floormod, Min: tirx.min, Max: tirx.max,
}  # fmt: skip


def index_code(index: Index, iterators: Mapping[int, Expr], dtype: str) -> Expr:
    """An index as TIR; ``//`` and ``%`` round down."""
    total: Expr = tirx.const(index.const, dtype)
    for atom, coefficient in index.terms:
        if isinstance(atom, It):
            part = iterators[atom.slot]
        else:
            value = index_code(atom.value, iterators, dtype)
            operation = _OPERATIONS[type(atom)]
            part = operation(value, tirx.const(number_of(atom), dtype))
        total = total + part * tirx.const(coefficient, dtype)
    return total


def rounded_sum(terms: Sequence[tuple[Expr, bool]]) -> Expr:
    """A sum in which each product is rounded before it is added. Each term comes with whether it is
    a product.

    Without this LLVM compiles ``exp(c*x - c*m)``, a weight of a softmax, as ``exp(fma(c, x,
    -(c*m)))``. At the largest score, x = m, this is the exponential of the rounding error of
    ``c*m``: with scores around 1e9 the error is 32, and the weight is ``exp(32)`` instead of 1. If
    both products are rounded, they cancel.
    """
    total, *others = [_fenced(term) if is_product else term for term, is_product in terms]
    for term in others:
        total = total + term
    return total


def _fenced(product: Expr) -> Expr:
    """A product that LLVM doesn't fuse with the addition that follows."""
    dtype = str(product.ty.dtype)
    if not dtype.startswith("float"):
        return product
    return tirx.call_llvm_pure_intrin(dtype, "llvm.arithmetic.fence", product)


def _scaled_alike(terms: Sequence[Scalar]) -> list[Scalar]:
    """The terms of a sum, in which ``x / 11.3`` is ``0.0885 * x`` if a term has this factor.

    Example: a weight of a softmax, ``exp(x / 11.3 - 0.0885 * m)``, whose m is the largest x, since
    the factor was moved out of the maximum. With scores around 1e10 the quotient and the product
    may differ by 500, and the weight is ``exp(500)`` instead of 1. As two products they cancel.

    Other quotients stay as they are: 41 times the float 1/41 is less than 1, and floor of it is 0.
    """
    factors = [
        abs(f.value) for t in terms if isinstance(t, Prod) for f in t.factors if isinstance(f, Num)
    ]

    def scaled(term: Scalar) -> Scalar:
        match term:
            case Call(fn="where", args=(test, yes, no)):
                return Call("where", (test, scaled(yes), scaled(no)))
            case Call(fn="div", args=(over, Num(value=under))) if is_float(dtype_of(term) or ""):
                for factor in factors:
                    if abs(factor * abs(under) - 1) < _ONE_FACTOR:
                        return product([Num(math.copysign(factor, under)), over])
        return term

    return [scaled(term) for term in terms]


def _values(term: Scalar) -> float:
    """The number of values of the iterators of a term, by which the terms of a sum are added, most
    first; a number comes before them.

    Example: two kernels of one softmax, ``exp(x[i, k] - b[k] - m[i])`` and ``exp(-m[i] + x[i, k] -
    b[k])``, whose m is the largest ``x - b`` over k. With scores around 1e9 the second is
    ``exp(-b[k])`` at the largest score, if it is added from left to right, where the first is 1. So
    both compute ``(x - b) - m``.
    """
    own = iterators(term)
    return math.prod(it.extent for it in own) if own else math.inf


def _one_divisor(parts: Sequence[Scalar]) -> tuple[Sequence[Scalar], Scalar | None]:
    """The factors of a product without its one reciprocal, and what that is the reciprocal of; None
    if there isn't exactly one.

    ``y * (1 / s)`` is compiled as ``y / s``: for s below 2.9e-39 the reciprocal is infinite, and
    the quotient may be 1. (A sum of weights exp(-d) of far points.)
    """
    under = [p.args[0] for p in parts if isinstance(p, Call) and p.fn == "reciprocal"]
    if len(under) != 1 or len(parts) < 2 or isinstance(under[0], Num):
        return parts, None
    return [p for p in parts if not (isinstance(p, Call) and p.fn == "reciprocal")], under[0]


class ScalarCode:
    """The code of one evaluation of a body: ``value`` returns an expression over memory that
    ``statements`` write and ``allocations`` allocate.

    Each subexpression is stored in memory of its own, one element for each lane, which LLVM turns
    into a register. (TIR bindings would do, but TVM's analyses substitute them by their values,
    which takes exponential time in nested functions.)

    Args:
        load: gives the value of a read, in the arithmetic dtype of its tensor.
        iterators: the value of each iterator of the scope, by slot.
        index_dtype: the dtype of ``iterators``.
        lane: the variable of the vectorized loop around, if there is one.
        lanes: the extent of that loop.
        rounds: whether products of the whole body are rounded before they are added, and not only
            those in the arguments of steep functions: the body of ``max(k) c*x[k] + b[k]``, which
            is subtracted from ``c*x[k] + b[k]`` in another kernel.
        add_rounded: makes a sum whose products are rounded before they are added.
        scales: whether the processor multiplies by a power of two in one instruction.
    """

    def __init__(
        self,
        load: Callable[[Read], Expr],
        iterators: Mapping[int, Expr],
        index_dtype: str,
        lane: Expr | None = None,
        lanes: int = 1,
        rounds: bool = False,
        add_rounded: Callable[[Sequence[tuple[Expr, bool]]], Expr] = rounded_sum,
        scales: bool = False,
    ) -> None:
        self._add_rounded, self.scales = add_rounded, scales
        self.allocations: list[Any] = []
        self.statements: list[Any] = []
        self._load = load
        self._iterators = iterators
        self._index_dtype = index_dtype
        self._lane = tirx.const(0, index_dtype) if lane is None else lane
        self._lanes = tirx.const(lanes, index_dtype)
        self._known: dict[tuple[bytes, str, bool], Expr] = {}
        # Whether products are rounded before they are added: in the argument of a steep function.
        self._rounded = rounds

    def bind(self, value: Expr) -> Expr:
        """Store a value in memory of its own, and return the expression that reads it."""
        if isinstance(value, tirx.IntImm | tirx.FloatImm):
            return value
        dtype = str(value.ty.dtype)
        name = f"v{len(self.allocations)}"
        memory = tirx.decl_buffer([self._lanes], dtype, name, scope="local", layout=None)
        self.allocations.append(tirx.AllocBuffer(memory, ON_STACK))
        self.statements.append(tirx.BufferStore(memory, value, [self._lane]))
        return tirx.BufferLoad(memory, [self._lane])

    def value(self, scalar: Scalar, dtype: str) -> Expr:
        """A scalar's value in ``arithmetic(dtype)``. Numbers are written in this dtype; all other
        values are computed in their own and converted."""
        key = (scalar.digest, dtype, self._rounded)
        if key not in self._known:
            self._known[key] = self.bind(self._value(scalar, dtype))
        return self._known[key]

    def _value(self, scalar: Scalar, dtype: str) -> Expr:
        if isinstance(scalar, Num):
            return number(scalar.value, arithmetic(dtype))
        own = dtype_of(scalar) or dtype
        if arithmetic(own) != arithmetic(dtype):
            return convert(self.value(scalar, own), arithmetic(own), arithmetic(dtype))
        match scalar:
            case Read():
                return self._load(scalar)
            case Value(index=index):
                return index_code(index, self._iterators, self._index_dtype).astype("int64")
            case Cast(arg=arg):
                source = arithmetic(dtype_of(arg) or own)
                value = convert(self.value(arg, source), source, arithmetic(own))
                return loaded(to_storage(self.bind(value), own), own)
            case Call(fn=fn, args=args):
                return self._call(fn, args, own)
            case Sum(terms=parts) | Prod(factors=parts):
                return self._fold(isinstance(scalar, Sum), parts, own)
        raise LoweringError(
            what=f"no kernel code for {type(scalar).__name__}",
            got=type(scalar).__name__,
            expected="a scalar of eqsynth/ir/scalar.py",
            hint="lower the term through torch",
        )

    def _fold(self, is_sum: bool, parts: Sequence[Scalar], dtype: str) -> Expr:
        """A sum or a product of scalars."""
        if dtype == "bool" and any(isinstance(part, Num) for part in parts):
            return differ(self._fold(is_sum, parts, "int64"), number(0, "int64"))
        zeros = [part for part in parts if isinstance(part, Num) and part.value == 0]
        if zeros and not is_sum and is_float(arithmetic(dtype)):
            # TVM simplifies 0 * x to 0, but 0 * inf is NaN; x - x is NaN there, too.
            rest = [part for part in parts if not isinstance(part, Num)]
            product = self.bind(self._fold(False, rest, dtype)) if rest else None
            return number(0.0, arithmetic(dtype)) if product is None else product - product
        if is_sum and self._rounded:
            parts = sorted(_scaled_alike(parts), key=_values, reverse=True)
        if not (is_sum or self._rounded) and is_float(arithmetic(dtype)):
            over, under = _one_divisor(parts)
            if under is not None:
                return quotient(self._fold(False, over, dtype), self.value(under, dtype))
        values = [self.value(part, dtype) for part in parts]
        if is_sum and self._rounded and dtype != "bool":
            products = [isinstance(part, Prod) for part in parts]
            return self._add_rounded(list(zip(values, products, strict=True)))
        result = values[0]
        for value in values[1:]:
            if dtype == "bool":
                result = tirx.Or(result, value) if is_sum else tirx.And(result, value)
            else:
                result = wrapping(self, is_sum, arithmetic(dtype), result, value)
        return result

    def _call(self, fn: str, args: Sequence[Scalar], own: str) -> Expr:
        """A function of scalars."""
        if fn == "where":
            test = self._truth(args[0])
            return tirx.Select(test, self.value(args[1], own), self.value(args[2], own))
        if fn in ("not", "and", "or"):
            return LOGIC[fn](*map(self._truth, args))
        joined = self._joined(args)
        if fn in COMPARE:
            joined = "uint8" if joined == "bool" else joined
            return COMPARE[fn](*(self.value(arg, joined) for arg in args))
        if fn == "pow" and isinstance(args[1], Num):
            power = self._small_power(args[0], args[1].value, own)
            if power is not None:
                return power
        if own == "bool":
            # Bools are computed as the numbers 0 and 1, as in the interpreter.
            numbers = [self.value(arg, "uint8") for arg in args]
            return differ(INTEGER[fn](self, "uint8", *numbers), number(0, "uint8"))
        dtype = arithmetic(own)
        outside, self._rounded = self._rounded, self._rounded or fn in STEEP
        values = [self.value(arg, dtype) for arg in args]
        self._rounded = outside
        if is_float(dtype):
            return FLOAT[fn](self, dtype, *values)
        return INTEGER[fn](self, dtype, *values)

    def _truth(self, arg: Scalar) -> Expr:
        """A value as a bool: whether it isn't 0."""
        dtype = arithmetic(dtype_of(arg) or "float32")
        value = self.value(arg, dtype)
        return value if dtype == "bool" else differ(value, number(0, dtype))

    def _joined(self, args: Sequence[Scalar]) -> str:
        """The dtype in which arguments are compared: wide enough for each number among them."""
        dtype = arithmetic(dtype_of(Sum(tuple(args))) or "float32")
        if dtype in INTEGERS or dtype == "bool":
            if any(isinstance(a, Num) and not math.isfinite(a.value) for a in args):
                return "float64"
            low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            if any(isinstance(a, Num) and not low <= a.value <= high for a in args):
                return "int64"
        return dtype

    def _small_power(self, base: Scalar, exponent: float, own: str) -> Expr | None:
        """A power with a small exponent as multiplications or a square root; None for other
        exponents."""
        if exponent not in (1.0, 2.0, 3.0, 4.0, 0.5) or (exponent == 0.5 and not is_float(own)):
            return None
        x = self.value(base, own)
        if exponent == 0.5:
            return tirx.sqrt(x)
        product = partial(wrapping, self, False, arithmetic(own))
        square = x if exponent == 1.0 else self.bind(product(x, x))
        powers = {1.0: (x,), 2.0: (square,), 3.0: (square, x), 4.0: (square, square)}
        return reduce(product, powers[exponent])
