"""Arithmetics that judge an equality without rounding: high precision, and a finite field.

**High precision** has 320 bits and an unbounded exponent: 1e60 + 1e-30 keeps all of its digits. Its
functions are those of the reals, so it shows whether two terms are equal over the reals, at sampled
data.

**A finite field** decides polynomial identities: two different polynomials of degree d agree at a
random point of a field of p elements with a probability of at most d/p (Schwartz and Zippel), and
here p is 2**61 - 1 or larger. Functions that aren't polynomials are uninterpreted: their value is
the hash of the function's name and its arguments. Terms that are equal in the field are equal
whatever these functions mean. Terms that differ in the field may still be equal, by a law of such a
function.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final

import mpmath
import numpy as np

from eqsynth.ir.arithmetic import Arithmetic, Array
from eqsynth.ir.functions import FUNCTIONS, Made
from eqsynth.ir.types import is_float, numpy_dtype

PRIMES: Final = (2**61 - 1, 2**89 - 1, 2**107 - 1)
"""Mersenne primes: the fields in which equalities are decided."""

_BITS: Final = 320
_SIMPLE: Final = 10**6
# Numbers above this have more digits before the point than are kept.
_LARGEST: Final = 2**_BITS
# exp of a number below this is 0: of the lowest float32, and of scaled scores at such places. Data
# and its sums are above it (``extremes.py``), so their exponentials are those of the reals.
_HIDDEN: Final = -1e36


class Undecided(Exception):
    """The field has no answer: a float would become an integer, or something is divided by 0."""


def simplest(value: float) -> Fraction:
    """The simplest fraction that rounds to a constant, such as 1/3 for the float 0.333….

    >>> simplest(1 / 3), simplest(0.5)
    (Fraction(1, 3), Fraction(1, 2))
    """
    close = Fraction(value).limit_denominator(_SIMPLE)
    return close if float(close) == value else Fraction(value)


class TooLarge(ArithmeticError):
    """A number of high precision would have too many digits: exp(exp(1e30))."""


def _elementwise(function: Callable[..., Any], *arrays: Any) -> Array:
    applied = np.frompyfunc(function, len(arrays), 1)(*arrays)
    return np.asarray(applied, dtype=object)


def _as_number(value: Any) -> Any:
    """A NumPy scalar as a Python number."""
    return value.item() if isinstance(value, np.generic) else value


# ---- high precision ----------------------------------------------------------

_context: Final = mpmath.MPContext()
_context.prec = _BITS


def exact(array: Array) -> Array:
    """Data as numbers of high precision. Each float is taken exactly, not as a simple fraction."""
    return _elementwise(_context.mpf, array) if array.dtype.kind == "f" else array


def _real(value: Any) -> Any:
    if isinstance(value, _context.mpf):
        return value
    value = _as_number(value)
    if isinstance(value, int):
        return _context.mpf(value)
    if not math.isfinite(value):
        return _context.mpf(value)
    fraction = simplest(value)
    return _context.mpf(fraction.numerator) / fraction.denominator


def _limited(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``function`` with an error for large arguments, since its work grows with them.

    Raises (when called):
        TooLarge: the argument is too large, but not infinite.
    """

    def limited(x: Any) -> Any:
        if _LARGEST < abs(x) < _context.inf:
            raise TooLarge
        return function(x)

    return limited


def _floor(x: Any) -> Any:
    # A number this large has no digits after the point.
    return x if abs(x) > _LARGEST else _context.floor(x)


@_limited
def _exp(x: Any) -> Any:
    # 0, so that the lowest float32 hides scores of a softmax as -inf does (calculus/restrict.py).
    return _context.mpf(0) if x < _HIDDEN else _context.exp(x)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + _exp(-x))


def _log(x: Any) -> Any:
    return -_context.inf if x == 0 else _context.ln(x) if x > 0 else _context.nan


def _divided(x: Any, y: Any) -> Any:
    if y == 0 or _context.isnan(y):
        # The results of IEEE 754; mpmath would raise an error.
        return _context.nan if x == 0 or x != x or y != y else _context.inf * _context.sign(x)
    return x / y


def _modulo(x: Any, y: Any) -> Any:
    return _context.nan if y == 0 else x - y * _floor(x / y)


def _power(x: Any, y: Any) -> Any:
    if x == 0 and y < 0:
        return _context.inf
    if _LARGEST < abs(y) < _context.inf:
        raise TooLarge
    result = _context.power(x, y)
    return result if isinstance(result, _context.mpf) else _context.nan


def _gelu_tanh(x: Any) -> Any:
    inner = _context.sqrt(2 / _context.pi) * (x + _real(0.044715) * x**3)
    return x * (1 + _context.tanh(inner)) / 2


_REAL_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "relu": lambda x: x if x > 0 or x != x else _context.zero,
    "exp": _exp,
    "exp2": _limited(lambda x: _context.power(2, x)),
    "expm1": _limited(_context.expm1),
    "log": _log,
    "log2": lambda x: _log(x) / _context.ln(2),
    "log10": lambda x: _log(x) / _context.ln(10),
    "log1p": lambda x: _context.log1p(x) if x > -1 else _log(1 + x),
    "sqrt": lambda x: _context.sqrt(x) if x >= 0 else _context.nan,
    "reciprocal": lambda x: _divided(_context.one, x),
    "abs": abs,
    "sign": lambda x: _context.zero if x != x else _context.sign(x),
    "floor": _floor,
    "ceil": lambda x: -_floor(-x),
    "trunc": lambda x: _floor(x) if x > 0 else -_floor(-x),
    "sin": _limited(_context.sin),
    "cos": _limited(_context.cos),
    "tanh": _context.tanh,
    "erf": _context.erf,
    "sigmoid": _sigmoid,
    "gelu": lambda x: x * (1 + _context.erf(x / _context.sqrt(2))) / 2,
    "gelu_tanh": _gelu_tanh,
    "div": _divided,
    "pow": _power,
    "floordiv": lambda x, y: _floor(_divided(x, y)),
    "mod": _modulo,
    "max": lambda x, y: x if x >= y or x != x else y,
    "min": lambda x, y: x if x <= y or x != x else y,
}


def _of_others(
    functions: dict[str, Callable[..., Any]], number: Callable[[float], Any]
) -> dict[str, Callable[..., Any]]:
    """The functions of the IR that are defined by other functions (``silu`` by ``sigmoid``).

    Args:
        functions: the others, on elements of the arithmetic.
        number: converts a number into an element.
    """

    def element(made: Made) -> Callable[..., Any]:
        return lambda x: made.of(x, lambda name, part: functions[name](part), number)

    return {name: element(f.made) for name, f in FUNCTIONS.items() if f.made is not None}


_REAL_FUNCTIONS.update(_of_others(_REAL_FUNCTIONS, _real))
_TESTS: Final[dict[str, Callable[..., Any]]] = {
    "not": lambda x: not x,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "and": lambda x, y: bool(x) and bool(y),
    "or": lambda x, y: bool(x) or bool(y),
}


def _convert(element: Callable[[Any], Any]) -> Callable[[Array], Array]:
    def convert(array: Array) -> Array:
        return _elementwise(element, array) if array.size else array.astype(object)

    return convert


def _apply(
    convert: Callable[[Array], Array], functions: dict[str, Callable[..., Any]]
) -> Callable[[str, Sequence[Any]], Any]:
    """The function by which an arithmetic applies a named function to arrays of its elements.

    ``where`` chooses between elements, and comparisons give bools.
    """

    def apply(name: str, args: Sequence[Any]) -> Any:
        arrays = [np.asarray(arg) for arg in args]
        if name == "where":
            return np.where(arrays[0].astype(bool), convert(arrays[1]), convert(arrays[2]))
        elements = [convert(array) for array in arrays]
        if name in _TESTS:
            return _elementwise(_TESTS[name], *elements).astype(bool)
        return _elementwise(functions[name], *elements)

    return apply


def _real_cast(array: Array, dtype: str) -> Array:
    narrow = array.astype(np.float64)
    with np.errstate(all="ignore"):
        cast = narrow.astype(numpy_dtype(dtype))
    if not is_float(dtype):
        return cast
    # The rounded value is taken exactly and not as a simple fraction, since the program itself asks
    # for this rounding.
    return exact(cast.astype(np.float64))


_convert_real = _convert(_real)
REAL: Final = Arithmetic(
    "real", np.dtype(object), _convert_real, _apply(_convert_real, _REAL_FUNCTIONS), _real_cast
)
"""The arithmetic of high precision, which decides equality over the reals at sampled data."""


# ---- a finite field ----------------------------------------------------------


class Element:
    """A number of a finite field. Numbers are ordered by their representatives; comparisons only
    need some total order."""

    __slots__ = ("n", "field")

    def __init__(self, n: int, field: Field) -> None:
        self.n = n
        self.field = field

    def _of(self, other: Any) -> int:
        return other.n if isinstance(other, Element) else self.field.number(other)

    def __add__(self, other: Any) -> Element:
        return self.field.element(self.n + self._of(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Element:
        return self.field.element(self.n - self._of(other))

    def __rsub__(self, other: Any) -> Element:
        return self.field.element(self._of(other) - self.n)

    def __mul__(self, other: Any) -> Element:
        return self.field.element(self.n * self._of(other))

    __rmul__ = __mul__

    def __neg__(self) -> Element:
        return self.field.element(-self.n)

    def __truediv__(self, other: Any) -> Element:
        return self.field.element(self.n * self.field.inverse(self._of(other)))

    def __rtruediv__(self, other: Any) -> Element:
        return self.field.element(self._of(other) * self.field.inverse(self.n))

    def __eq__(self, other: object) -> bool:
        return self.field.compared(self.n == self._of(other))

    def __lt__(self, other: Any) -> bool:
        return self.field.compared(self.n < self._of(other))

    def __le__(self, other: Any) -> bool:
        return self.field.compared(self.n <= self._of(other))

    def __gt__(self, other: Any) -> bool:
        return self.field.compared(self.n > self._of(other))

    def __ge__(self, other: Any) -> bool:
        return self.field.compared(self.n >= self._of(other))

    def __hash__(self) -> int:
        return hash(self.n)

    def __repr__(self) -> str:
        return str(self.n)


class Field:
    """The integers modulo a prime.

    Attributes:
        polynomial: whether only sums, products and quotients were computed since it was last set
            to True.
    """

    def __init__(self, prime: int) -> None:
        self.prime = prime
        self.polynomial = True

    def __reduce__(self) -> tuple[type[Field], tuple[int]]:
        """A field is its prime: the functions of its arithmetic can't go to another process, and a
        counterexample holds elements of the field."""
        return Field, (self.prime,)

    @functools.cached_property
    def arithmetic(self) -> Arithmetic:
        names = (*_REAL_FUNCTIONS, "not")
        functions: dict[str, Callable[..., Any]] = {
            name: functools.partial(self._uninterpreted, name) for name in names
        }
        functions |= {
            "div": lambda x, y: x / y,
            "reciprocal": lambda x: 1 / x,
            "pow": self._power,
            "max": lambda x, y: x if x >= y else y,
            "min": lambda x, y: x if x <= y else y,
        }
        functions |= _of_others(functions, self._converted)
        convert = _convert(self._converted)
        return Arithmetic(
            f"field of {self.prime}", np.dtype(object), convert, _apply(convert, functions),
            self._cast,
        )  # fmt: skip

    def element(self, n: int) -> Element:
        return Element(n % self.prime, self)

    def number(self, value: Any) -> int:
        """The representative of a number."""
        value = _as_number(value)
        if isinstance(value, int):
            return value % self.prime
        if math.isinf(value):
            self.polynomial = False
            # The infinities are the largest and the smallest element of the order. In sums and
            # products they are ordinary elements.
            return self.prime - 1 if value > 0 else 0
        if math.isnan(value):
            raise Undecided
        fraction = simplest(value)
        return fraction.numerator * self.inverse(fraction.denominator) % self.prime

    def inverse(self, n: int) -> int:
        if n % self.prime == 0:
            raise Undecided
        return pow(n, -1, self.prime)

    def compared(self, answer: bool) -> bool:
        self.polynomial = False
        return answer

    def _converted(self, value: Any) -> Element:
        return value if isinstance(value, Element) else self.element(self.number(value))

    def _uninterpreted(self, name: str, *args: Element) -> Element:
        self.polynomial = False
        text = repr((name, [arg.n for arg in args]))
        return self.element(int.from_bytes(hashlib.blake2b(text.encode()).digest(), "little"))

    def _power(self, x: Element, y: Element) -> Element:
        if y.n <= 16:
            return self.element(pow(x.n, y.n, self.prime))
        return self._uninterpreted("pow", x, y)

    def _cast(self, array: Array, dtype: str) -> Array:
        if not is_float(dtype):
            raise Undecided
        cast = functools.partial(self._uninterpreted, f"cast to {dtype}")
        return _elementwise(cast, _convert(self._converted)(array))
