"""The table of scalar functions: what a scope's body may compute besides sums and products.

A row holds the function's name, arity, value in NumPy, result dtype, name in torch, and the facts
that kernels and proofs need. Elementwise operators map these functions over tensors
(``operators.py``). A function composed of others is defined in one line, as ``silu`` by
``x * sigmoid(x)``. From this line follow its value in every arithmetic, its generated code, its
ONNX operators and its expanded form; from its name in torch follow its capture, its lowering to
torch and its test.
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
    """The text of a function of ``x`` composed of sums, products, numbers and one-argument
    functions of the table.

    >>> Made("x * sigmoid(x)").of(3, lambda name, part: 10 * part, float)
    90
    """

    text: str

    def of(self, x: Any, call: Callable[[str, Any], Any], number: Callable[[float], Any]) -> Any:
        """Evaluate the text for ``x``, any object that defines ``+`` and ``*``.

        Args:
            call: applies the function of a name to an object.
            number: turns a number into such an object.
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
        result: the dtype of the result: ``float`` (integer arguments give float32), ``same`` (the
            promotion of the arguments' dtypes) or ``bool``.
        keeps_zero: f(0, …, 0) = 0, so that zero padding may be applied before or after f.
        increasing: f is defined everywhere and never decreases.
        finite: f is defined and finite for all finite real arguments.
        overflows: f of a float that isn't large may be infinite, like exp(100) in float32.
        torch: the same function's name in the module ``torch``, or empty; functions of
            ``nn.functional`` take floats only.
    """

    name: str
    arity: int
    evaluate: Callable[..., Any] | Made
    result: Result = "float"
    keeps_zero: bool = False
    increasing: bool = False
    finite: bool = False
    overflows: bool = False
    torch: str = ""

    @property
    def aten(self) -> str:
        """The name of torch's operator, as in ``silu``; empty if torch has no such function."""
        return self.torch.rpartition(".")[2]

    @property
    def made(self) -> Made | None:
        """The definition of a composed function; None for a basic function."""
        return self.evaluate if isinstance(self.evaluate, Made) else None

    def value(self, *args: Any) -> Any:
        """Return the value in the current arithmetic.

        A function with ``float`` results computes integers in float64, where NumPy would take the
        narrowest float dtype (float16 for uint8)."""
        apply = arithmetic().apply
        if apply is not None and (
            self.result == "float" or any(np.asarray(arg).dtype == object for arg in args)
        ):
            return apply(self.name, args)
        if self.result == "float":
            args = tuple(np.asarray(arg, dtype=np.float64) for arg in args)
        elif self.result == "same" and all(np.asarray(arg).dtype == bool for arg in args):
            # NumPy doesn't do arithmetic on bools: compute with 0 and 1.
            args = tuple(np.asarray(arg, dtype=np.uint8) for arg in args)
        if isinstance(self.evaluate, Made):
            return self.evaluate.of(args[0], _called, lambda number: number)
        return self.evaluate(*args)


def _called(name: str, x: Any) -> Any:
    return FUNCTIONS[name].value(x)


def _elementwise(function: Callable[[float], float]) -> Callable[[Any], Any]:
    """Map a function of Python floats over arrays."""
    vectorized = np.vectorize(function, otypes=[np.float64])
    return lambda x: vectorized(x) if np.size(x) else np.asarray(x)


_erf = _elementwise(math.erf)
_erfc = _elementwise(math.erfc)


def _power(x: Any, y: Any) -> Any:
    """A power; of integers exact, modulo the range of the dtype. With a negative exponent an
    integer power is 0, except of the bases 1 and -1."""
    base, exponent = np.asarray(x), np.asarray(y)
    if "f" in (base.dtype.kind, exponent.dtype.kind):
        return np.power(np.asarray(base, np.float64), exponent)
    below = np.where(base == 1, 1, np.where(base == -1, 1 - 2 * (exponent % 2), 0))
    return np.where(exponent < 0, below, np.power(base, np.maximum(exponent, 0)))


def _sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(np.asarray(x) >= 0, 1 / (1 + e), e / (1 + e))


# gelu is computed by erfc and sigmoid: 1 + erf(y) and 1 + tanh(y) lose digits for negative y.


def _gelu(x: Any) -> Any:
    return 0.5 * x * _erfc(-x * math.sqrt(0.5))


def _gelu_tanh(x: Any) -> Any:
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _sign(x: Any) -> Any:
    """The sign; 0 for NaN, as in torch."""
    return np.where(np.isnan(x), 0, np.sign(x))


_TABLE: Final = (
    Function("relu", 1, lambda x: np.where(np.isnan(x), x, np.maximum(x, 0)), "same", True, True,
             finite=True, torch="relu"),
    Function("exp", 1, np.exp, increasing=True, finite=True, overflows=True, torch="exp"),
    Function("exp2", 1, np.exp2, increasing=True, finite=True, overflows=True, torch="exp2"),
    Function("expm1", 1, np.expm1, "float", True, True, finite=True, overflows=True, torch="expm1"),
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

STEEP: Final = frozenset({"exp", "exp2", "expm1", "pow"})
"""Functions whose relative error is large if a large argument has a small one."""

COMMUTATIVE: Final = frozenset({"max", "min", "eq", "ne", "and", "or"})

# Reducer -> its identity: the value of an empty reduction, and the fill that leaves a result alone.
REDUCERS: Final[dict[str, float]] = {
    "sum": 0.0,
    "prod": 1.0,
    "max": -math.inf,
    "min": math.inf,
}
