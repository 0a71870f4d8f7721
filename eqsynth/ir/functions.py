"""Scalar functions by name: the vocabulary of a scope's body besides sums and products.

One table: name -> arity, value in NumPy, what its result's dtype is, its name in torch, and what
kernels and proofs need to know of it. Elementwise operators are these functions mapped over tensors
(``operators.py``). A function that is made of others says so in one line, ``silu`` is
``x * sigmoid(x)``: its value in every arithmetic, its code, its operators of ONNX and its expanded
form follow, and with its name in torch its entry, its plain lowering and its test.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from eqsynth.ir.arithmetic import arithmetic

Result = Literal["float", "same", "bool"]


@dataclass(frozen=True, slots=True)
class Made:
    """A function of ``x`` that is made of others: of functions of the table of one argument, sums,
    products and numbers.

    >>> Made("x * sigmoid(x)").of(3, lambda name, part: 10 * part, float)
    90
    """

    text: str

    def of(
        self, x: Any, call: Callable[[str, Any], Any], number: Callable[[float], Any]
    ) -> Any:
        """The function of ``x``, of whatever ``+`` and ``*`` are defined for.

        Args:
            call: a function of the table, by its name, of a part.
            number: a number as a part.
        """

        def made(part: ast.expr) -> Any:
            match part:
                case ast.Name(id="x"):
                    return x
                case ast.Constant(value=int() | float() as value):
                    return number(float(value))
                case ast.BinOp(left=left, op=ast.Add(), right=right):
                    return made(left) + made(right)
                case ast.BinOp(left=left, op=ast.Mult(), right=right):
                    return made(left) * made(right)
                case ast.Call(func=ast.Name(id=name), args=[arg], keywords=[]):
                    return call(name, made(arg))
            raise ValueError(f"{ast.unparse(part)} in {self.text!r}")

        return made(ast.parse(self.text, mode="eval").body)


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function.

    Attributes:
        result: ``float`` (an integer argument becomes float32), ``same`` (promotion of the
            arguments) or ``bool``.
        keeps_zero: f(0, …, 0) = 0 for every argument at zero; then padding stays padding.
        increasing: defined everywhere, and never smaller for a larger argument.
        finite: of all finite numbers, as a real number.
        torch: its name below ``torch``, where torch has the same function; ``nn.functional`` takes
            floats only.
    """

    name: str
    arity: int
    evaluate: Callable[..., Any] | Made
    result: Result = "float"
    keeps_zero: bool = False
    increasing: bool = False
    finite: bool = False
    torch: str = ""

    @property
    def aten(self) -> str:
        """The name of torch's operator: ``silu``; empty where torch has none by this name."""
        return self.torch.rpartition(".")[2]

    @property
    def made(self) -> Made | None:
        """What it is made of; None of a function that is one by itself."""
        return self.evaluate if isinstance(self.evaluate, Made) else None

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
        if isinstance(self.evaluate, Made):
            return self.evaluate.of(args[0], _called, lambda number: number)
        return self.evaluate(*args)


def _called(name: str, x: Any) -> Any:
    return FUNCTIONS[name].value(x)


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
    Function("relu", 1, lambda x: np.where(np.isnan(x), x, np.maximum(x, 0)), "same", True, True,
             finite=True, torch="relu"),
    Function("exp", 1, np.exp, increasing=True, finite=True, torch="exp"),
    Function("exp2", 1, np.exp2, increasing=True, finite=True, torch="exp2"),
    Function("expm1", 1, np.expm1, "float", True, True, finite=True, torch="expm1"),
    Function("log", 1, np.log, torch="log"),
    Function("log2", 1, np.log2, torch="log2"),
    Function("log10", 1, np.log10, torch="log10"),
    Function("log1p", 1, np.log1p, "float", True, torch="log1p"),
    Function("sqrt", 1, np.sqrt, "float", True, torch="sqrt"),
    Function("rsqrt", 1, Made("reciprocal(sqrt(x))"), torch="rsqrt"),
    Function("reciprocal", 1, lambda x: 1 / np.asarray(x, np.float64), torch="reciprocal"),
    Function("abs", 1, np.abs, "same", True, finite=True, torch="abs"),
    Function("sign", 1, _sign, "same", True, True, finite=True, torch="sign"),
    Function("floor", 1, np.floor, "same", True, True, finite=True, torch="floor"),
    Function("ceil", 1, np.ceil, "same", True, True, finite=True, torch="ceil"),
    Function("trunc", 1, np.trunc, "same", True, True, finite=True, torch="trunc"),
    Function("sin", 1, np.sin, "float", True, finite=True, torch="sin"),
    Function("cos", 1, np.cos, finite=True, torch="cos"),
    Function("tanh", 1, np.tanh, "float", True, True, finite=True, torch="tanh"),
    Function("erf", 1, _erf, "float", True, True, finite=True, torch="erf"),
    Function("sigmoid", 1, _sigmoid, increasing=True, finite=True, torch="sigmoid"),
    Function("silu", 1, Made("x * sigmoid(x)"), "float", True, finite=True,
             torch="nn.functional.silu"),
    Function("gelu", 1, _gelu, "float", True, finite=True, torch="nn.functional.gelu"),
    Function("gelu_tanh", 1, _gelu_tanh, "float", True, finite=True),
    Function("not", 1, np.logical_not, "bool", torch="logical_not"),
    Function("div", 2, lambda x, y: np.true_divide(x, y), torch="true_divide"),
    Function("pow", 2, _power, "same", torch="pow"),
    Function("floordiv", 2, np.floor_divide, "same"),
    Function("mod", 2, np.mod, "same"),
    Function("max", 2, np.maximum, "same", True, True, finite=True, torch="maximum"),
    Function("min", 2, np.minimum, "same", True, True, finite=True, torch="minimum"),
    Function("eq", 2, np.equal, "bool", torch="eq"),
    Function("ne", 2, np.not_equal, "bool", torch="ne"),
    Function("lt", 2, np.less, "bool", torch="lt"),
    Function("le", 2, np.less_equal, "bool", torch="le"),
    Function("gt", 2, np.greater, "bool", torch="gt"),
    Function("ge", 2, np.greater_equal, "bool", torch="ge"),
    Function("and", 2, np.logical_and, "bool", torch="logical_and"),
    Function("or", 2, np.logical_or, "bool", torch="logical_or"),
    Function("where", 3, np.where, "same"),
)  # fmt: skip

FUNCTIONS: Final[dict[str, Function]] = {function.name: function for function in _TABLE}

COMMUTATIVE: Final = frozenset({"max", "min", "eq", "ne", "and", "or"})

# The identity of each reducer: what an empty reduction gives, and the fill that changes nothing.
REDUCERS: Final[dict[str, float]] = {
    "sum": 0.0,
    "prod": 1.0,
    "max": -math.inf,
    "min": math.inf,
}
