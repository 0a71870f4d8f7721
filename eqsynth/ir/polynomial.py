"""The body of a scope as a polynomial: two bodies that are equal as polynomials are one term.

    -(x - y)           ->  y - x
    (x + y) * (x + y)  ->  x*x + 2*x*y + y*y
    exp(x) / exp(y)    ->  exp(x - y)

Indeterminates ("atoms") are reads, and functions of polynomials; they have powers, also negative
ones. A few functions are taken apart by what they are: an exponential of a sum is a product, a
maximum lets a common term out, a ReLU a positive factor. A condition is an atom, too, which is 1 or
0: ``where(c, x, y)`` is ``[c] * x + (1 - [c]) * y`` where x and y are finite. Everything holds over
the real numbers, wherever all parts of both sides are defined (``x / x`` is 1 but at 0); rounding
and range (``exp(500) / exp(499)``) are another matter, and so the form serves proofs.

What is in no way equal over the floats stands behind ``cancels``: a product of two differences, as
``(x - y)**2``, loses digits when it is multiplied out. A product of one difference and of sums of
positive terms doesn't: it is no less exact than its operands.

Not here: the order of iterators (``normal.py``), reads that leave their tensor, and reductions
(``egraph/tactics/expansion.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from eqsynth.ir.made import written_out
from eqsynth.ir.ring import (
    ONE,
    Monomial,
    NotReal,
    Polynomial,
    as_index,
    collect,
    common_exponentials,
    is_condition,
    is_difference,
    is_exponential,
    is_not_negative,
    joined,
    leading_coefficient,
    number,
    of_atom,
    order,
    plus,
    rectified,
    scaled,
    times,
)
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    children,
    dtype_of,
    rebuild,
)

# More terms than this are not multiplied out.
MAX_TERMS: Final = 64

_ODD: Final = frozenset({"tanh", "erf", "sin", "sign", "trunc"})
_EVEN: Final = frozenset({"cos"})
_TOTAL: Final = frozenset({"relu", "sigmoid", "tanh", "erf", "abs", "sin", "cos"})
_LOGIC: Final = frozenset({"and", "or", "not"})
# ``x < y`` is ``y > x``: whether the sides are exchanged, and whether it is what doesn't hold.
_ORDER: Final = {
    "gt": (False, False), "lt": (True, False), "le": (False, True), "ge": (True, True),
}  # fmt: skip


def expand(body: Scalar, cancels: bool = False, dtype: str | None = None) -> Polynomial:
    """The polynomial that the body is.

    Args:
        body: of one floating-point dtype; a part of another dtype (a condition) is an atom.
        cancels: products of differences are multiplied out, and functions are replaced by others
            whose values lose digits near 0 (``1 - sigmoid(x)``).
        dtype: the body's, where it is made of numbers alone.

    Raises:
        NotReal: a number in the body is infinite or NaN.
    """
    return _Expansion(dtype_of(body) or dtype, cancels).polynomial(body)


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
            "sigmoid": self._sigmoid, "tanh": self._tanh, "gelu": self._gelu,
            "log1p": self._log1p, "expm1": self._expm1,
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
            return of_atom(scalar)
        match scalar:
            case Sum(terms=terms):
                return plus(map(self.polynomial, terms))
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
            case Cast(arg=arg) if is_condition(scalar):
                return self._condition(arg)
        return of_atom(scalar)

    def _inside(self, arg: Scalar) -> Scalar:
        """An argument of a function that isn't taken apart, or of a comparison, in its form."""
        if isinstance(arg, Num):
            return arg
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
        differences = [s for s in sums if is_difference(s) and not _of_conditions(s)]
        apart = len(differences) > 1 and not self._cancels
        for factor in sorted(sums, key=lambda s: sorted(map(order, s))):
            closed = (apart and factor in differences) or len(found) * len(factor) > MAX_TERMS
            found = times(found, self._closed(factor) if closed else factor)
        return self._without_roots(rectified(found))

    def _closed(self, polynomial: Polynomial) -> dict[Monomial, Fraction]:
        """A sum as a number, exponentials, and an atom whose leading coefficient is 1, and of whose
        exponentials none is in every term: ``1 + exp(-x)`` is ``exp(x)**-1 * (exp(x) + 1)``."""
        common = common_exponentials(polynomial)
        rest = times(polynomial, {tuple((atom, -power) for atom, power in common): Fraction(1)})
        leading = leading_coefficient(rest)
        inner = collect(scaled(rest, 1 / leading))
        return {joined(common, ((inner, Fraction(1)),)): leading}

    def _without_roots(self, polynomial: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``sqrt(x) * sqrt(x)`` as x."""
        for monomial, coefficient in polynomial.items():
            for atom, power in monomial:
                if isinstance(atom, Call) and atom.fn == "sqrt" and abs(power) >= 2:
                    whole = int(power / 2)
                    rest = joined(monomial, ((atom, Fraction(-2 * whole)),))
                    base = self.polynomial(atom.args[0])
                    power_of = self._power(base, whole)
                    others = {m: c for m, c in polynomial.items() if m != monomial}
                    opened = self._product([{rest: coefficient}, power_of])
                    return self._without_roots(plus([others, opened]))
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
            if x[ONE] == x[exponential] and all(map(is_exponential, exponential)):
                # 1 / (1 + exp(-y))
                arg = plus(
                    scaled(self.polynomial(atom.args[0]), -power)
                    for atom, power in exponential
                    if isinstance(atom, Call)
                )
                return scaled(self._sigmoid(arg), 1 / x[ONE])
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
        return of_atom(Call("pow", (collect(x), collect(y))))

    def _sqrt(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        return of_atom(Call("sqrt", (collect(x),)))

    def _rsqrt(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        return self._reciprocal(self._sqrt(x))

    def _exp(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``exp(2*x - m)`` is ``exp(x)**2 * exp(m)**-1``, ``exp(x - log(s))`` is ``exp(x) / s``."""
        powers: list[tuple[Scalar, Fraction]] = []
        others: list[dict[Monomial, Fraction]] = []
        for m, c in x.items():
            log = m[0][0] if len(m) == 1 and m[0][1] == 1 else None
            if isinstance(log, Call) and log.fn == "log" and c.denominator == 1 and abs(c) <= 4:
                others.append(self._power(self.polynomial(log.args[0]), int(c)))
            else:
                powers.append((Call("exp", (collect({m: Fraction(1)}),)), c))
        found = {tuple(sorted(powers, key=lambda one: one[0].digest)): Fraction(1)}
        return self._product([found, *others]) if others else found

    def _log(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``log(exp(x) / s)`` is ``x - log(s)``: an exponential is positive, so s is where the
        whole is."""
        if len(x) != 1:
            return of_atom(Call("log", (collect(x),)))
        ((monomial, coefficient),) = x.items()
        found: dict[Monomial, Fraction] = {}
        rest: list[tuple[Scalar, Fraction]] = []
        for atom, power in monomial:
            if isinstance(atom, Call) and atom.fn == "exp":
                found = plus([found, scaled(self.polynomial(atom.args[0]), power)])
            else:
                rest.append((atom, power))
        sign = Fraction(1)
        if len(rest) == 1 and rest[0][1] == -1 and coefficient == 1:
            rest, sign = [(rest[0][0], Fraction(1))], Fraction(-1)
        if not rest and coefficient == 1:
            return found
        inner = collect({tuple(rest): coefficient})
        return plus([found, {((Call("log", (inner,)), Fraction(1)),): sign}])

    def _relu(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``relu(2*x)`` is ``2*relu(x)``, ``relu(-x)`` is ``relu(x) - x``, and of what isn't
        negative it is that itself, and what isn't negative stands outside."""
        if not x or (_is_number(x) and x[ONE] < 0):
            return {}
        if all(c > 0 and all(map(is_not_negative, m)) for m, c in x.items()):
            return x
        if len(x) == 1:
            ((monomial, coefficient),) = x.items()
            outside = tuple(filter(is_not_negative, monomial))
            if outside:
                rest = tuple(one for one in monomial if one not in outside)
                return times({outside: Fraction(1)}, self._relu({rest: coefficient}))
        leading = leading_coefficient(x)
        positive = of_atom(Call("relu", (collect(scaled(x, 1 / leading)),)))
        return plus([scaled(positive, abs(leading)), x if leading < 0 else {}])

    def _abs(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``abs(x)`` is ``2*relu(x) - x``."""
        return plus([scaled(self._relu(x), Fraction(2)), scaled(x, Fraction(-1))])

    def _max(
        self, x: dict[Monomial, Fraction], y: dict[Monomial, Fraction]
    ) -> dict[Monomial, Fraction]:
        """``max(x + s, y + s)`` is ``max(x, y) + s``, ``max(x, 0)`` is ``relu(x)``, and
        ``max(x, x/2)`` is ``x/2 + relu(x)/2``; ``max(x, y)`` is ``y + relu(x - y)``, which loses
        the digits of the smaller of two."""
        common = {m: c for m, c in x.items() if y.get(m) == c}
        x, y = (plus([one, scaled(common, Fraction(-1))]) for one in (x, y))
        if not x or not y:
            return plus([common, self._relu(x or y)])
        if self._cancels or (len(x) == 1 and x.keys() == y.keys()):
            more = self._relu(plus([x, scaled(y, Fraction(-1))]))
            return plus([common, y, more])
        largest = {part.digest: part for one in (x, y) for part in _operands("max", collect(one))}
        first, *rest = (largest[digest] for digest in sorted(largest))
        for part in rest:
            first = Call("max", (first, part))
        return plus([common, of_atom(first)])

    def _min(
        self, x: dict[Monomial, Fraction], y: dict[Monomial, Fraction]
    ) -> dict[Monomial, Fraction]:
        negative = (scaled(one, Fraction(-1)) for one in (x, y))
        return scaled(self._max(*negative), Fraction(-1))

    def _gelu(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``gelu(x)`` is ``x/2 * (1 + erf(x * sqrt(1/2)))``."""
        erf = self._function("erf", [collect(scaled(x, number(math.sqrt(0.5))))])
        return self._product([scaled(x, Fraction(1, 2)), plus([{ONE: Fraction(1)}, erf])])

    def _log1p(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``log1p(x)`` is ``log(1 + x)``, which loses the digits of small values."""
        if self._cancels:
            return self._log(plus([{ONE: Fraction(1)}, x]))
        return of_atom(Call("log1p", (collect(x),)))

    def _expm1(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``expm1(x)`` is ``exp(x) - 1``, which loses the digits of small values."""
        if self._cancels:
            return plus([self._exp(x), {ONE: Fraction(-1)}])
        return of_atom(Call("expm1", (collect(x),)))

    def _sigmoid(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``sigmoid(-x)`` is ``exp(x)**-1 * sigmoid(x)``, and ``1 - sigmoid(x)``, which loses the
        digits of small values."""
        if not x or leading_coefficient(x) > 0:
            return of_atom(Call("sigmoid", (collect(x),)))
        turned = self._sigmoid(scaled(x, Fraction(-1)))
        if self._cancels:
            return plus([{ONE: Fraction(1)}, scaled(turned, Fraction(-1))])
        return times(self._exp(x), turned)

    def _where(self, condition: Scalar, x: Scalar, y: Scalar) -> dict[Monomial, Fraction]:
        """``where(c, x, x)`` is x, ``where(x > 0, x, 0)`` is ``relu(x)``."""
        yes, no = self.polynomial(x), self.polynomial(y)
        step = plus([yes, scaled(no, Fraction(-1))])
        if not step:
            return no
        if isinstance(condition, Call) and condition.fn in ("gt", "ge", "lt", "le"):
            left, right = (self.polynomial(arg) for arg in condition.args)
            above = plus([left, scaled(right, Fraction(-1))])
            if condition.fn in ("lt", "le"):
                above = scaled(above, Fraction(-1))
            slope = leading_coefficient(step) / leading_coefficient(above) if above else Fraction(0)
            exact = not no or (len(step) == 1 and no.keys() == step.keys())
            if slope and step == scaled(above, slope) and (exact or self._cancels):
                return plus([no, scaled(self._relu(above), slope)])
        if self._dtype and all(map(_is_total, (*step, *no))):
            return plus([no, self._product([self._condition(condition), step])])
        parts = self._inside(condition), collect(yes), collect(no)
        return of_atom(Call("where", parts))

    def _condition(self, scalar: Scalar) -> dict[Monomial, Fraction]:
        """``[c]``, 1 where a condition holds and 0 elsewhere: ``[not c]`` is ``1 - [c]``, and
        ``[x <= y]`` is ``1 - [x - y > 0]``."""
        one: dict[Monomial, Fraction] = {ONE: Fraction(1)}
        if isinstance(scalar, Call) and scalar.fn in _LOGIC:
            if any(dtype_of(arg) != "bool" for arg in scalar.args):
                return self._held(scalar)
            x, *rest = map(self._condition, scalar.args)
            if scalar.fn == "not":
                return plus([one, scaled(x, Fraction(-1))])
            both = times(x, rest[0])
            return both if scalar.fn == "and" else plus([x, rest[0], scaled(both, Fraction(-1))])
        if isinstance(scalar, Call) and scalar.fn in _ORDER:
            a, b = scalar.args
            turned, negated = _ORDER[scalar.fn]
            above = self._above(*((b, a) if turned else (a, b)))
            return plus([one, scaled(above, Fraction(-1))]) if negated else above
        return self._held(scalar)

    def _above(self, a: Scalar, b: Scalar) -> dict[Monomial, Fraction]:
        """``[a > b]`` as ``[a - b > 0]``, which of indices is ``1 - [b - a + 1 > 0]``, too."""
        infinite = any(isinstance(arg, Num) and math.isinf(arg.value) for arg in (a, b))
        if all(dtype_of(arg) in (None, self._dtype) for arg in (a, b)) and not infinite:
            above = plus([self.polynomial(a), scaled(self.polynomial(b), Fraction(-1))])
            if above:
                above = scaled(above, 1 / abs(leading_coefficient(above)))
                return self._held(Call("gt", (collect(above), Num(0.0))))
        elif (first := as_index(a)) is not None and (second := as_index(b)) is not None:
            step = first - second
            least = min((step, step * -1 + 1), key=lambda index: (index.terms, index.const))
            found = self._held(Call("gt", (Value(least), Num(0.0))))
            if least == step:
                return found
            return plus([{ONE: Fraction(1)}, scaled(found, Fraction(-1))])
        return self._held(Call("gt", (self._inside(a), self._inside(b))))

    def _held(self, scalar: Scalar) -> dict[Monomial, Fraction]:
        assert self._dtype is not None
        return of_atom(Cast(self._dtype, self._inside(scalar)))

    def _tanh(self, x: dict[Monomial, Fraction]) -> dict[Monomial, Fraction]:
        """``tanh(x)`` is ``2*sigmoid(2*x) - 1``, which loses the digits of small values."""
        if self._cancels:
            doubled = scaled(self._sigmoid(scaled(x, Fraction(2))), Fraction(2))
            return plus([doubled, {ONE: Fraction(-1)}])
        return self._function("tanh", [collect(x)])

    def _function(self, fn: str, args: list[Scalar]) -> dict[Monomial, Fraction]:
        """A function as an atom; of an odd one the sign stands outside."""
        if len(args) == 1 and fn in _ODD | _EVEN:
            x = self.polynomial(args[0])
            if x and leading_coefficient(x) < 0:
                turned = collect(scaled(x, Fraction(-1)))
                return scaled(of_atom(Call(fn, (turned,))), Fraction(-1 if fn in _ODD else 1))
            if not x and fn in _ODD:
                return {}
        return of_atom(Call(fn, tuple(args)))


def _operands(fn: str, scalar: Scalar) -> list[Scalar]:
    """x, y and z of ``f(f(x, y), z)``."""
    if isinstance(scalar, Call) and scalar.fn == fn:
        return [part for arg in scalar.args for part in _operands(fn, arg)]
    return [scalar]


def _of_conditions(polynomial: Polynomial) -> bool:
    """Whether it is exact in floats, as ``1 - [c]``."""
    return all(is_condition(atom) for monomial in polynomial for atom, _ in monomial)


def _is_total(monomial: Monomial) -> bool:
    """Whether it is a finite number wherever the elements are: ``0 * log(x)`` isn't 0."""
    return all(
        power > 0
        and (
            (isinstance(atom, Read) and math.isfinite(atom.fill))
            or is_condition(atom)
            or (isinstance(atom, Call) and atom.fn in _TOTAL)
        )
        for atom, power in monomial
    )


def _is_number(polynomial: Polynomial) -> bool:
    return set(polynomial) == {ONE}
