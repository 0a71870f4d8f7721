"""Scalar functions by name: the vocabulary of a scope's body besides sums and products.

One table: name -> arity, value in NumPy, what its result's dtype is, and what kernels and proofs
need to know of it. Elementwise operators are these functions mapped over tensors
(``operators.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from eqsynth.ir.arithmetic import arithmetic

Result = Literal["float", "same", "bool"]


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function.

    Attributes:
        result: ``float`` (an integer argument becomes float32), ``same`` (promotion of the
            arguments) or ``bool``.
        keeps_zero: f(0, …, 0) = 0 for every argument at zero; then padding stays padding.
        increasing: defined everywhere, and never smaller for a larger argument.
    """

    name: str
    arity: int
    evaluate: Callable[..., Any]
    result: Result = "float"
    keeps_zero: bool = False
    increasing: bool = False

    def value(self, *args: Any) -> Any:
        """The value; what makes floats of integers makes float64, not NumPy's narrowest."""
        apply = arithmetic().apply
        if apply is not None and (
            self.result == "float" or any(np.asarray(arg).dtype == object for arg in args)
        ):
            return apply(self.name, args)
        if self.result == "float":
            args = tuple(np.asarray(arg, dtype=np.float64) for arg in args)
        elif self.result == "same" and all(np.asarray(arg).dtype == bool for arg in args):
            # NumPy has no arithmetic of bools: 0 and 1 stand for them.
            args = tuple(np.asarray(arg, dtype=np.uint8) for arg in args)
        return self.evaluate(*args)


def _elementwise(function: Callable[[float], float]) -> Callable[[Any], Any]:
    """A function of Python's floats on arrays."""
    vectorized = np.vectorize(function, otypes=[np.float64])
    return lambda x: vectorized(x) if np.size(x) else np.asarray(x)


_erf = _elementwise(math.erf)
_erfc = _elementwise(math.erfc)


def _power(x: Any, y: Any) -> Any:
    """Of integers exact, modulo the size of the dtype; below one it is 0, but for 1 and -1."""
    base, exponent = np.asarray(x), np.asarray(y)
    if "f" in (base.dtype.kind, exponent.dtype.kind):
        return np.power(np.asarray(base, np.float64), exponent)
    below = np.where(base == 1, 1, np.where(base == -1, 1 - 2 * (exponent % 2), 0))
    return np.where(exponent < 0, below, np.power(base, np.maximum(exponent, 0)))


def _sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(np.asarray(x) >= 0, 1 / (1 + e), e / (1 + e))


# 1 + erf(y) and 1 + tanh(y) lose their digits where y is negative: erfc and sigmoid keep them.


def _gelu(x: Any) -> Any:
    return 0.5 * x * _erfc(-x * math.sqrt(0.5))


def _gelu_tanh(x: Any) -> Any:
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _sign(x: Any) -> Any:
    """0 for NaN, as in torch."""
    return np.where(np.isnan(x), 0, np.sign(x))


_TABLE: Final = (
    Function("relu", 1, lambda x: np.where(np.isnan(x), x, np.maximum(x, 0)), "same", True, True),
    Function("exp", 1, np.exp, increasing=True),
    Function("exp2", 1, np.exp2, increasing=True),
    Function("expm1", 1, np.expm1, "float", True, True),
    Function("log", 1, np.log),
    Function("log2", 1, np.log2),
    Function("log10", 1, np.log10),
    Function("log1p", 1, np.log1p, "float", True),
    Function("sqrt", 1, np.sqrt, "float", True),
    Function("rsqrt", 1, lambda x: 1 / np.sqrt(x)),
    Function("reciprocal", 1, lambda x: 1 / np.asarray(x, np.float64)),
    Function("abs", 1, np.abs, "same", True),
    Function("sign", 1, _sign, "same", True, True),
    Function("floor", 1, np.floor, "same", True, True),
    Function("ceil", 1, np.ceil, "same", True, True),
    Function("trunc", 1, np.trunc, "same", True, True),
    Function("sin", 1, np.sin, "float", True),
    Function("cos", 1, np.cos),
    Function("tanh", 1, np.tanh, "float", True, True),
    Function("erf", 1, _erf, "float", True, True),
    Function("sigmoid", 1, _sigmoid, increasing=True),
    Function("silu", 1, lambda x: x * _sigmoid(x), "float", True),
    Function("gelu", 1, _gelu, "float", True),
    Function("gelu_tanh", 1, _gelu_tanh, "float", True),
    Function("not", 1, np.logical_not, "bool"),
    Function("div", 2, lambda x, y: np.true_divide(x, y)),
    Function("pow", 2, _power, "same"),
    Function("floordiv", 2, np.floor_divide, "same"),
    Function("mod", 2, np.mod, "same"),
    Function("max", 2, np.maximum, "same", True, True),
    Function("min", 2, np.minimum, "same", True, True),
    Function("eq", 2, np.equal, "bool"),
    Function("ne", 2, np.not_equal, "bool"),
    Function("lt", 2, np.less, "bool"),
    Function("le", 2, np.less_equal, "bool"),
    Function("gt", 2, np.greater, "bool"),
    Function("ge", 2, np.greater_equal, "bool"),
    Function("and", 2, np.logical_and, "bool"),
    Function("or", 2, np.logical_or, "bool"),
    Function("where", 3, np.where, "same"),
)

FUNCTIONS: Final[dict[str, Function]] = {function.name: function for function in _TABLE}

COMMUTATIVE: Final = frozenset({"max", "min", "eq", "ne", "and", "or"})

# The identity of each reducer: what an empty reduction gives, and the fill that changes nothing.
REDUCERS: Final[dict[str, float]] = {
    "sum": 0.0,
    "prod": 1.0,
    "max": -math.inf,
    "min": math.inf,
}
