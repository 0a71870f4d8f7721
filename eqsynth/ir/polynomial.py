"""The body of a scope as a polynomial: two bodies that are equal as polynomials are one term.

    -(x - y)           ->  y - x
    (x + y) * (x + y)  ->  x*x + 2*x*y + y*y
    exp(x) / exp(y)    ->  exp(x - y)

Indeterminates ("atoms") are reads, and functions of polynomials; they have powers, also negative
ones. A few functions are taken apart by what they are: an exponential of a sum is a product, a
maximum lets a common term out, a ReLU a positive factor. Everything holds over the real numbers,
wherever all parts of both sides are defined (``x / x`` is 1 but at 0); rounding and range
(``exp(500) / exp(499)``) are another matter, and so the form serves proofs.

What is in no way equal over the floats stands behind ``cancels``: a product of two differences, as
``(x - y)**2``, loses digits when it is multiplied out. A product of one difference and of sums of
positive terms doesn't: it is no less exact than its operands.

Not here: the order of iterators (``normal.py``), reads that leave their tensor, and reductions
(``egraph/tactics/expansion.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from itertools import product as pairs
from typing import Final

from eqsynth.ir.made import written_out
from eqsynth.ir.scalar import (
    Call,
    Num,
    Prod,
    Scalar,
    Sum,
    children,
    dtype_of,
    product,
    rebuild,
    total,
)

Monomial = tuple[tuple[Scalar, Fraction], ...]
"""Atoms with their powers, in the order of the atoms' digests."""

Polynomial = Mapping[Monomial, Fraction]
"""Monomials with their coefficients, none of which is 0."""

# More terms than this are not multiplied out.
MAX_TERMS: Final = 64

ONE: Final[Monomial] = ()
_ODD: Final = frozenset({"tanh", "erf", "sin", "sign", "trunc"})
_EVEN: Final = frozenset({"cos"})
_NOT_NEGATIVE: Final = frozenset({"relu", "exp", "sigmoid", "sqrt"})


class NotReal(ValueError):
    """A number in the body is infinite or NaN: the laws of a ring don't hold."""


def number(value: float) -> Fraction:
    """The simplest fraction that the float is nearest to: 1/49 for 0.020408163265306121.

    A mean multiplies by the float next to 1/n; what is meant is 1/n, and n of them are 1.

    Raises:
        NotReal: the number is infinite or NaN.
    """
    if not math.isfinite(value):
        raise NotReal
    simple = Fraction(value).limit_denominator(1_000_000)
    return simple if float(simple) == value else Fraction(value)


def expand(body: Scalar, cancels: bool = False) -> Polynomial:
    """The polynomial that the body is.

    Args:
        body: of one floating-point dtype; a part of another dtype (a condition) is an atom.
        cancels: products of differences are multiplied out, and functions are replaced by others
            whose values lose digits near 0 (``1 - sigmoid(x)``).

    Raises:
        NotReal: a number in the body is infinite or NaN.
    """
    return _Expansion(dtype_of(body), cancels).polynomial(body)


def collect(polynomial: Polynomial) -> Scalar:
    """The body that a polynomial is: a sum of products, of which some are divided.

    >>> from eqsynth.ir.scalar import Value
    >>> collect({}) == Num(0.0)
    True
    """
    return total([
        _term(monomial, polynomial[monomial]) for monomial in sorted(polynomial, key=_order)
    ])


def _order(monomial: Monomial) -> tuple[object, ...]:
    return tuple((atom.digest, power) for atom, power in monomial)


def _term(monomial: Monomial, coefficient: Fraction) -> Scalar:
    """``c * a * a / b``; the exponentials of a term are one, of a sum."""
    above: list[Scalar] = [Num(float(coefficient))]
    below: list[Scalar] = []
    exponent: list[Scalar] = []
    for atom, power in monomial:
        if isinstance(atom, Call) and atom.fn == "exp":
            exponent.append(product([Num(float(power)), atom.args[0]]))
        else:
            # Only exponentials have powers that are no whole numbers.
            (above if power > 0 else below).extend([atom] * abs(int(power)))
    if exponent:
        above.append(Call("exp", (total(exponent),)))
    if not below:
        return product(above)
    return Call("div", (product(above), product(below)))


def times(left: Polynomial, right: Polynomial) -> dict[Monomial, Fraction]:
    """The product, multiplied out."""
    found: dict[Monomial, Fraction] = {}
    for (m, c), (n, d) in pairs(left.items(), right.items()):
        _add(found, _joined(m, n), c * d)
    return found


def _add(into: dict[Monomial, Fraction], monomial: Monomial, coefficient: Fraction) -> None:
    value = into.get(monomial, Fraction(0)) + coefficient
    if value:
        into[monomial] = value
    else:
        into.pop(monomial, None)


def _joined(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, Fraction(0)) + power
    kept = [(atom, power) for atom, power in powers.items() if power]
    return tuple(sorted(kept, key=lambda one: one[0].digest))


def _plus(polynomials: Iterable[Polynomial]) -> dict[Monomial, Fraction]:
    found: dict[Monomial, Fraction] = {}
    for polynomial in polynomials:
        for monomial, coefficient in polynomial.items():
            _add(found, monomial, coefficient)
    return found


def _scaled(polynomial: Polynomial, factor: Fraction) -> dict[Monomial, Fraction]:
    return {m: c * factor for m, c in polynomial.items()} if factor else {}


def _atom(scalar: Scalar, power: int = 1) -> dict[Monomial, Fraction]:
    return {((scalar, Fraction(power)),): Fraction(1)}


def _leading(polynomial: Polynomial) -> Fraction:
    """The coefficient of the first monomial in the order of their atoms."""
    return polynomial[min(polynomial, key=_order)]


def _is_difference(polynomial: Polynomial) -> bool:
    return len({coefficient > 0 for coefficient in polynomial.values()}) > 1


class _Expansion:
    """The polynomials of a body's parts, each computed once."""

    def __init__(self, dtype: str | None, cancels: bool) -> None:
        self._dtype = dtype
        self._cancels = cancels
        self._known: dict[Scalar, dict[Monomial, Fraction]] = {}
        # The functions that are taken apart, by their names in ``functions.py``.
        self._taken_apart: dict[str, Callable[..., dict[Monomial, Fraction]]] = {
            "reciprocal": self._reciprocal, "div": self._div, "pow": self._pow,
            "sqrt": self._sqrt, "rsqrt": self._rsqrt, "exp": self._exp, "log": self._log,
            "relu": self._relu, "abs": self._abs, "max": self._max, "min": self._min,
            "sigmoid": self._sigmoid, "tanh": self._tanh,
        }  # fmt: skip

    def polynomial(self, scalar: Scalar) -> dict[Monomial, Fraction]:
        if scalar not in self._known:
            self._known[scalar] = self._expanded(scalar)
        return self._known[scalar]

    def _expanded(self, scalar: Scalar) -> dict[Monomial, Fraction]:
        if isinstance(scalar, Num):
            value = number(scalar.value)
            return {ONE: value} if value else {}
        if dtype_of(scalar) not in (None, self._dtype):
            return _atom(scalar)
        match scalar:
            case Sum(terms=terms):
                return _plus(map(self.polynomial, terms))
            case Prod(factors=factors):
                return self._product([self.polynomial(f) for f in factors])
            case Call(fn=fn, args=args):
                same = all(dtype_of(arg) in (None, self._dtype) for arg in args)
                if same and fn in self._taken_apart:
                    return self._taken_apart[fn](*map(self.polynomial, args))
                if same and (written := written_out(scalar)) is not None:
                    return self.polynomial(written)
                if fn == "where":
                    return self._where(*args)
                return self._function(fn, [self._inside(arg) for arg in args])
        return _atom(scalar)

    def _inside(self, arg: Scalar) -> Scalar:
        """An argument of a function that isn't taken apart, or of a comparison, in its form."""
        if dtype_of(arg) in (None, self._dtype):
            return collect(self.polynomial(arg))
        return rebuild(arg, [self._inside(part) for part in children(arg)])

    # ---- products --------------------------------------------------------------------------

    def _product(self, factors: list[dict[Monomial, Fraction]]) -> dict[Monomial, Fraction]:
        """Multiplied out where no digits are lost and the terms are few; else sums are atoms."""
        if any(not factor for factor in factors):
            return {}
        sums = [factor for factor in factors if len(factor) > 1]
        found: dict[Monomial, Fraction] = {ONE: Fraction(1)}
        for factor in factors:
            if len(factor) == 1:
                found = times(found, factor)
        differences = [s for s in sums if _is_difference(s)]
        apart = len(differences) > 1 and not self._cancels
        for factor in sorted(sums, key=lambda s: sorted(map(_order, s))):
            closed = (apart and factor in differences) or len(found) * len(factor) > MAX_TERMS
            found = times(found, self._closed(factor) if closed else factor)
        return self._without_roots(found)

    def _closed(self, polynomial: Polynomial) -> dict[Monomial, Fraction]:
        """A sum as a number, exponentials, and an atom whose leading coefficient is 1, and of whose
        exponentials none is in every term: ``1 + exp(-x)`` is ``exp(x)**-1 * (exp(x) + 1)``."""
        common = _common_exponentials(polynomial)
        rest = times(polynomial, {tuple((atom, -power) for atom, power in common): Fraction(1)})
        leading = _leading(rest)
        inner = collect(_scaled(rest, 1 / leading))
        return {_joined(common, ((inner, Fraction(1)),)): leading}

    def _without_roots(self, polynomial: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``sqrt(x) * sqrt(x)`` as x."""
        for monomial, coefficient in polynomial.items():
            for atom, power in monomial:
                if isinstance(atom, Call) and atom.fn == "sqrt" and abs(power) >= 2:
                    whole = int(power / 2)
                    rest = _joined(monomial, ((atom, Fraction(-2 * whole)),))
                    base = self.polynomial(atom.args[0])
                    power_of = self._power(base, whole)
                    others = {m: c for m, c in polynomial.items() if m != monomial}
                    opened = self._product([{rest: coefficient}, power_of])
                    return self._without_roots(_plus([others, opened]))
        return polynomial

    def _power(self, base: dict[Monomial, Fraction], power: int) -> dict[Monomial, Fraction]:
        if power < 0:
            return self._power(self._reciprocal(base), -power)
        return self._product([base] * power) if power else {ONE: Fraction(1)}

    # ---- functions -------------------------------------------------------------------------

    def _reciprocal(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        if not x:
            raise NotReal
        if len(x) == 2 and ONE in x:
            (exponential,) = (monomial for monomial in x if monomial != ONE)
            if x[ONE] == x[exponential] and all(map(_is_exponential, exponential)):
                # 1 / (1 + exp(-y))
                arg = _plus(
                    _scaled(self.polynomial(atom.args[0]), -power)
                    for atom, power in exponential
                    if isinstance(atom, Call)
                )
                return _scaled(self._sigmoid(arg), 1 / x[ONE])
        if len(x) > 1:
            x = self._closed(x)
        ((monomial, coefficient),) = x.items()
        return {tuple((atom, -power) for atom, power in monomial): 1 / coefficient}

    def _div(
        self, x: dict[Monomial, Fraction], y: dict[Monomial, Fraction]
    ) -> dict[Monomial, Fraction]:
        return self._product([x, self._reciprocal(y)])

    def _pow(
        self, x: dict[Monomial, Fraction], y: dict[Monomial, Fraction]
    ) -> dict[Monomial, Fraction]:
        exponent = y.get(ONE, Fraction(0)) if set(y) <= {ONE} else None
        if exponent is not None and exponent.denominator == 1 and abs(exponent) <= 4:
            return self._power(x, int(exponent))
        if exponent is not None and abs(exponent) == Fraction(1, 2):
            return self._sqrt(x) if exponent > 0 else self._rsqrt(x)
        return _atom(Call("pow", (collect(x), collect(y))))

    def _sqrt(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        return _atom(Call("sqrt", (collect(x),)))

    def _rsqrt(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        return self._reciprocal(self._sqrt(x))

    def _exp(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``exp(2*x - m)`` is ``exp(x)**2 * exp(m)**-1``."""
        powers = [(Call("exp", (_term(m, Fraction(1)),)), c) for m, c in x.items()]
        return {tuple(sorted(powers, key=lambda one: one[0].digest)): Fraction(1)}

    def _log(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``log(exp(x) / s)`` is ``x - log(s)``: an exponential is positive, so s is where the
        whole is."""
        if len(x) != 1:
            return _atom(Call("log", (collect(x),)))
        ((monomial, coefficient),) = x.items()
        found: dict[Monomial, Fraction] = {}
        rest: list[tuple[Scalar, Fraction]] = []
        for atom, power in monomial:
            if isinstance(atom, Call) and atom.fn == "exp":
                found = _plus([found, _scaled(self.polynomial(atom.args[0]), power)])
            else:
                rest.append((atom, power))
        sign = Fraction(1)
        if len(rest) == 1 and rest[0][1] == -1 and coefficient == 1:
            rest, sign = [(rest[0][0], Fraction(1))], Fraction(-1)
        if not rest and coefficient == 1:
            return found
        inner = collect({tuple(rest): coefficient})
        return _plus([found, {((Call("log", (inner,)), Fraction(1)),): sign}])

    def _relu(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``relu(2*x)`` is ``2*relu(x)``, ``relu(-x)`` is ``relu(x) - x``, and of what isn't
        negative it is that itself."""
        if not x or (_is_number(x) and x[ONE] < 0):
            return {}
        if len(x) == 1 and _leading(x) > 0 and _is_not_negative(next(iter(x))):
            return x
        leading = _leading(x)
        positive = _atom(Call("relu", (collect(_scaled(x, 1 / leading)),)))
        return _plus([_scaled(positive, abs(leading)), x if leading < 0 else {}])

    def _abs(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``abs(x)`` is ``2*relu(x) - x``."""
        return _plus([_scaled(self._relu(x), Fraction(2)), _scaled(x, Fraction(-1))])

    def _max(
        self, x: dict[Monomial, Fraction], y: dict[Monomial, Fraction]
    ) -> dict[Monomial, Fraction]:
        """``max(x + s, y + s)`` is ``max(x, y) + s``, ``max(x, 0)`` is ``relu(x)``, and
        ``max(x, x/2)`` is ``x/2 + relu(x)/2``; ``max(x, y)`` is ``y + relu(x - y)``, which loses
        the digits of the smaller of two."""
        common = {m: c for m, c in x.items() if y.get(m) == c}
        x, y = (_plus([one, _scaled(common, Fraction(-1))]) for one in (x, y))
        if not x or not y:
            return _plus([common, self._relu(x or y)])
        if self._cancels or (len(x) == 1 and x.keys() == y.keys()):
            more = self._relu(_plus([x, _scaled(y, Fraction(-1))]))
            return _plus([common, y, more])
        largest = {part.digest: part for one in (x, y) for part in _operands("max", collect(one))}
        first, *rest = (largest[digest] for digest in sorted(largest))
        for part in rest:
            first = Call("max", (first, part))
        return _plus([common, _atom(first)])

    def _min(
        self, x: dict[Monomial, Fraction], y: dict[Monomial, Fraction]
    ) -> dict[Monomial, Fraction]:
        negative = (_scaled(one, Fraction(-1)) for one in (x, y))
        return _scaled(self._max(*negative), Fraction(-1))

    def _sigmoid(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``sigmoid(-x)`` is ``exp(x)**-1 * sigmoid(x)``, and ``1 - sigmoid(x)``, which loses the
        digits of small values."""
        if not x or _leading(x) > 0:
            return _atom(Call("sigmoid", (collect(x),)))
        turned = self._sigmoid(_scaled(x, Fraction(-1)))
        if self._cancels:
            return _plus([{ONE: Fraction(1)}, _scaled(turned, Fraction(-1))])
        return times(self._exp(x), turned)

    def _where(self, condition: Scalar, x: Scalar, y: Scalar) -> dict[Monomial, Fraction]:
        """``where(c, x, x)`` is x, ``where(x > 0, x, 0)`` is ``relu(x)``."""
        yes, no = self.polynomial(x), self.polynomial(y)
        step = _plus([yes, _scaled(no, Fraction(-1))])
        if not step:
            return no
        if isinstance(condition, Call) and condition.fn in ("gt", "ge", "lt", "le"):
            left, right = (self.polynomial(arg) for arg in condition.args)
            above = _plus([left, _scaled(right, Fraction(-1))])
            if condition.fn in ("lt", "le"):
                above = _scaled(above, Fraction(-1))
            slope = _leading(step) / _leading(above) if above else Fraction(0)
            exact = not no or (len(step) == 1 and no.keys() == step.keys())
            if slope and step == _scaled(above, slope) and (exact or self._cancels):
                return _plus([no, _scaled(self._relu(above), slope)])
        parts = self._inside(condition), collect(yes), collect(no)
        return _atom(Call("where", parts))

    def _tanh(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``tanh(x)`` is ``2*sigmoid(2*x) - 1``, which loses the digits of small values."""
        if self._cancels:
            doubled = _scaled(self._sigmoid(_scaled(x, Fraction(2))), Fraction(2))
            return _plus([doubled, {ONE: Fraction(-1)}])
        return self._function("tanh", [collect(x)])

    def _function(self, fn: str, args: list[Scalar]) -> dict[Monomial, Fraction]:
        """A function as an atom; of an odd one the sign stands outside."""
        if len(args) == 1 and fn in _ODD | _EVEN:
            x = self.polynomial(args[0])
            if x and _leading(x) < 0:
                turned = collect(_scaled(x, Fraction(-1)))
                return _scaled(_atom(Call(fn, (turned,))), Fraction(-1 if fn in _ODD else 1))
            if not x and fn in _ODD:
                return {}
        return _atom(Call(fn, tuple(args)))


def _is_exponential(part: tuple[Scalar, Fraction]) -> bool:
    return isinstance(part[0], Call) and part[0].fn == "exp"


def _common_exponentials(polynomial: Polynomial) -> Monomial:
    """The exponentials with the least power that each has in any of the terms."""
    powers = [dict(filter(_is_exponential, monomial)) for monomial in polynomial]
    atoms = {atom for power in powers for atom in power}
    least = {atom: min(power.get(atom, Fraction(0)) for power in powers) for atom in atoms}
    kept = [(atom, power) for atom, power in least.items() if power]
    return tuple(sorted(kept, key=lambda one: one[0].digest))


def _operands(fn: str, scalar: Scalar) -> list[Scalar]:
    """x, y and z of ``f(f(x, y), z)``."""
    if isinstance(scalar, Call) and scalar.fn == fn:
        return [part for arg in scalar.args for part in _operands(fn, arg)]
    return [scalar]


def _is_number(polynomial: Polynomial) -> bool:
    return set(polynomial) == {ONE}


def _is_not_negative(monomial: Monomial) -> bool:
    return all(
        (isinstance(atom, Call) and atom.fn in _NOT_NEGATIVE) or power % 2 == 0
        for atom, power in monomial
    )
