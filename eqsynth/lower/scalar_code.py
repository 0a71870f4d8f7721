"""The body of a scope as TIR: one stored value per distinct subexpression.

Floats of 16 bits are computed in float32 and rounded where the term says so (a cast, the result).
Not here: the functions themselves (``scalar_functions.py``), loops and addresses
(``eoperators.py``, ``loop_nest.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from tvm import tirx

from eqsynth.errors import LoweringError
from eqsynth.ir.index import FloorDiv, Index, It, Max, Min, Mod, number_of
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value, dtype_of
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
    to_storage,
)

# Without this, an allocation is a call of the runtime, even of one element.
ON_STACK: Final = {"disable_lower_builtin": tirx.const(True, "bool")}


_STEEP: Final = frozenset({"exp", "exp2", "expm1", "pow"})
"""Functions that make a large error of a small one where their argument is large."""

_OPERATIONS: Final[dict[type, Callable[[Expr, Expr], Expr]]] = {
    FloorDiv: tirx.floordiv, Mod: tirx.floormod, Min: tirx.min, Max: tirx.max,
}  # fmt: skip


def index_code(index: Index, iterators: Mapping[int, Expr], dtype: str) -> Expr:
    """An index as TIR; ``//`` and ``%`` floor."""
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
    """A sum; of each term it is told whether it is a product, which then isn't fused with what it
    is added to.

    Of ``exp(c*x - c*m)``, the weights of a softmax, LLVM makes ``exp(fma(c, x, -(c*m)))``: the
    rounding of ``c*m`` by itself, which is 32 where the scores are 1e9, so that the weight of the
    largest score was ``exp(32)`` and not 1. Rounded alike, the two products cancel.
    """
    total, *others = [_fenced(term) if is_product else term for term, is_product in terms]
    for term in others:
        total = total + term
    return total


def _fenced(product: Expr) -> Expr:
    dtype = str(product.ty.dtype)
    if not dtype.startswith("float"):
        return product
    return tirx.call_llvm_pure_intrin(dtype, "llvm.arithmetic.fence", product)


class ScalarCode:
    """Emits one evaluation of a body; ``statements`` compute what the result refers to.

    What is used twice is stored in memory of its own, one element a lane, which LLVM turns into
    registers. (A binding would do, but TVM's analyses substitute bindings by their values, which
    takes exponential time in nested functions.)

    Args:
        load: the value of a read, in the arithmetic dtype of its tensor.
        iterators: the value of each iterator of the scope.
        index_dtype: the dtype of ``iterators``.
        lane: in a vectorized loop, its variable.
        lanes: the extent of that loop.
        add_rounded: a sum whose products are rounded before they are added.
    """

    def __init__(
        self,
        load: Callable[[Read], Expr],
        iterators: Mapping[int, Expr],
        index_dtype: str,
        lane: Expr | None = None,
        lanes: int = 1,
        add_rounded: Callable[[Sequence[tuple[Expr, bool]]], Expr] = rounded_sum,
    ) -> None:
        self._add_rounded = add_rounded
        self.allocations: list[Any] = []
        self.statements: list[Any] = []
        self._load = load
        self._iterators = iterators
        self._index_dtype = index_dtype
        self._lane = tirx.const(0, index_dtype) if lane is None else lane
        self._lanes = tirx.const(lanes, index_dtype)
        self._known: dict[tuple[bytes, str, bool], Expr] = {}
        # Inside of the argument of a steep function: products are rounded before they are added.
        self._rounded = False

    def bind(self, value: Expr) -> Expr:
        if isinstance(value, tirx.IntImm | tirx.FloatImm):
            return value
        dtype = str(value.ty.dtype)
        name = f"v{len(self.allocations)}"
        memory = tirx.decl_buffer([self._lanes], dtype, name, scope="local", layout=None)
        self.allocations.append(tirx.AllocBuffer(memory, ON_STACK))
        self.statements.append(tirx.BufferStore(memory, value, [self._lane]))
        return tirx.BufferLoad(memory, [self._lane])

    def value(self, scalar: Scalar, dtype: str) -> Expr:
        """The value in ``arithmetic(dtype)``; numbers take it, all else is converted to it."""
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
        if dtype == "bool" and any(isinstance(part, Num) for part in parts):
            return differ(self._fold(is_sum, parts, "int64"), number(0, "int64"))
        zeros = [part for part in parts if isinstance(part, Num) and part.value == 0]
        if zeros and not is_sum and is_float(arithmetic(dtype)):
            # TVM takes 0 * x for 0, and 0 * inf is NaN: what x - x is, too.
            rest = [part for part in parts if not isinstance(part, Num)]
            product = self.bind(self._fold(False, rest, dtype)) if rest else None
            return number(0.0, arithmetic(dtype)) if product is None else product - product
        values = [self.value(part, dtype) for part in parts]
        if is_sum and self._rounded and dtype != "bool":
            products = [isinstance(part, Prod) for part in parts]
            return self._add_rounded(list(zip(values, products, strict=True)))
        result = values[0]
        for value in values[1:]:
            if dtype == "bool":
                result = tirx.Or(result, value) if is_sum else tirx.And(result, value)
            else:
                result = result + value if is_sum else result * value
        return result

    def _call(self, fn: str, args: Sequence[Scalar], own: str) -> Expr:
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
            # 0 and 1 stand for bools, as in the interpreter.
            numbers = [self.value(arg, "uint8") for arg in args]
            return differ(INTEGER[fn](self, "uint8", *numbers), number(0, "uint8"))
        dtype = arithmetic(own)
        outside, self._rounded = self._rounded, self._rounded or fn in _STEEP
        values = [self.value(arg, dtype) for arg in args]
        self._rounded = outside
        if is_float(dtype):
            return FLOAT[fn](self, dtype, *values)
        return INTEGER[fn](self, dtype, *values)

    def _truth(self, arg: Scalar) -> Expr:
        dtype = arithmetic(dtype_of(arg) or "float32")
        value = self.value(arg, dtype)
        return value if dtype == "bool" else differ(value, number(0, dtype))

    def _joined(self, args: Sequence[Scalar]) -> str:
        """The dtype that arguments are compared in: wide enough for every number among them."""
        dtype = arithmetic(dtype_of(Sum(tuple(args))) or "float32")
        if dtype in INTEGERS or dtype == "bool":
            if any(isinstance(a, Num) and not math.isfinite(a.value) for a in args):
                return "float64"
            low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            if any(isinstance(a, Num) and not low <= a.value <= high for a in args):
                return "int64"
        return dtype

    def _small_power(self, base: Scalar, exponent: float, own: str) -> Expr | None:
        if exponent not in (1.0, 2.0, 3.0, 4.0, 0.5) or (exponent == 0.5 and not is_float(own)):
            return None
        x = self.value(base, own)
        if exponent == 0.5:
            return tirx.sqrt(x)
        square = x if exponent == 1.0 else self.bind(x * x)
        return {1.0: x, 2.0: square, 3.0: square * x, 4.0: square * square}[exponent]
