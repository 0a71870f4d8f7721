"""Conditions as polynomials: the atom ``[c]`` is 1 where c holds, and 0 elsewhere.

    [not c]            ->  1 - [c]
    [c and d]          ->  [c] * [d]
    [c != d]           ->  [c] + [d] - 2 * [c] * [d]
    [x <= y]           ->  1 - [x - y > 0]
    [x > 0] [x > -1]   ->  [x > 0]

Not here: the expanded form that uses these identities (``polynomial.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations
from typing import Final

from eqsynth.expansion.ring import (
    ONE,
    Monomial,
    Polynomial,
    as_index,
    collect,
    is_condition,
    joined,
    leading_coefficient,
    of_atom,
    plus,
    scaled,
    times,
)
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Cast, Num, Scalar, Value, dtype_of

_MINUS: Final = Fraction(-1)
# Comparison -> (swap the sides, negate): ``x < y`` is ``y > x``, ``x <= y`` is ``not (x > y)``.
_ORDER: Final = {
    "gt": (False, False), "lt": (True, False), "le": (False, True), "ge": (True, True),
}  # fmt: skip


class Truths:
    """Turns conditions on values of one dtype into polynomials.

    Args:
        real: whether arithmetic of the dtype doesn't wrap around, so that ``x > y`` is
            ``x - y > 0``.
        polynomial: returns the polynomial of a scalar of this dtype.
        inside: returns the expanded form of an argument of a comparison.
    """

    def __init__(
        self,
        dtype: str,
        real: bool,
        polynomial: Callable[[Scalar], dict[Monomial, Fraction]],
        inside: Callable[[Scalar], Scalar],
    ) -> None:
        self._dtype, self._real = dtype, real
        self._polynomial, self._inside = polynomial, inside

    def of(self, scalar: Scalar) -> dict[Monomial, Fraction]:
        """Return the polynomial ``[c]`` of a condition c."""
        one: dict[Monomial, Fraction] = {ONE: Fraction(1)}
        match scalar:
            case Num(value=value):
                return one if value else {}
            case Cast(arg=arg) if dtype_of(arg) == "bool":
                return self.of(arg)
            case Call(fn="not", args=(arg,)) if dtype_of(arg) == "bool":
                return plus([one, scaled(self.of(arg), _MINUS)])
            case Call(fn=fn, args=args) if all(dtype_of(arg) == "bool" for arg in args):
                connected = self._connected(fn, [self.of(arg) for arg in args])
                if connected is not None:
                    return connected
            case Call(fn=fn, args=(a, b)) if fn in _ORDER:
                turned, negated = _ORDER[fn]
                above = self._above(*((b, a) if turned else (a, b)))
                return plus([one, scaled(above, _MINUS)]) if negated else above
            case Call(fn="ne", args=(Num(value=0.0), a) | (a, Num(value=0.0))):
                if isinstance(a, Cast) and is_condition(a):
                    return self.of(a.arg)
                if dtype_of(a) == self._dtype and is_truth(found := self._polynomial(a)):
                    return found
                return plus([one, scaled(self._held(Call("eq", (a, Num(0.0)))), _MINUS)])
            case Call(fn="ne", args=args):
                return plus([one, scaled(self._held(Call("eq", args)), _MINUS)])
        return self._held(scalar)

    def _connected(
        self, fn: str, args: list[dict[Monomial, Fraction]]
    ) -> dict[Monomial, Fraction] | None:
        """Return ``[fn(c, d, …)]`` from the polynomials ``[c]``, ``[d]``, …; None if unknown."""
        one: dict[Monomial, Fraction] = {ONE: Fraction(1)}
        if fn == "where":
            c, x, y = args
            step = plus([x, scaled(y, _MINUS)])
            return decided(plus([y, times(c, step)]), self._polynomial)
        if len(args) != 2:
            return None
        x, y = args
        both = times(x, y)
        match fn:
            case "and":
                found = both
            case "or":
                found = plus([x, y, scaled(both, _MINUS)])
            case "ne":
                found = plus([x, y, scaled(both, Fraction(-2))])
            case "eq":
                found = plus([one, scaled(x, _MINUS), scaled(y, _MINUS), scaled(both, Fraction(2))])
            case _:
                return None
        return decided(found, self._polynomial)

    def _above(self, a: Scalar, b: Scalar) -> dict[Monomial, Fraction]:
        """Return ``[a > b]`` as ``[a - b > 0]``. Of indices it also equals ``1 - [b - a + 1 > 0]``;
        one of the two forms is chosen by a fixed order."""
        infinite = any(isinstance(arg, Num) and math.isinf(arg.value) for arg in (a, b))
        if (first := as_index(a)) is not None and (second := as_index(b)) is not None:
            step = first - second
            least = min((step, step * -1 + 1), key=lambda index: (index.terms, index.const))
            found = self._held(Call("gt", (Value(least), Num(0.0))))
            if least == step:
                return found
            return plus([{ONE: Fraction(1)}, scaled(found, _MINUS)])
        same = all(dtype_of(arg) in (None, self._dtype) for arg in (a, b))
        if self._real and same and not infinite:
            above = plus([self._polynomial(a), scaled(self._polynomial(b), _MINUS)])
            if above:
                # Scale by the first coefficient of a term that isn't a number: 3*x > 1 -> x > 1/3.
                varying = {m: c for m, c in above.items() if m != ONE} or above
                above = scaled(above, 1 / abs(leading_coefficient(varying)))
                return self._held(Call("gt", (collect(above), Num(0.0))))
            return {}
        return self._held(Call("gt", (self._inside(a), self._inside(b))))

    def _held(self, scalar: Scalar) -> dict[Monomial, Fraction]:
        """Return the atom of a condition. Equal indices are written without differences:
        ``[i - j = 1]`` and ``[-1 = j - i]`` are ``[i = j + 1]``."""
        if isinstance(scalar, Call) and scalar.fn == "eq":
            first, second = args = scalar.args
            if (one := as_index(first)) is not None and (other := as_index(second)) is not None:
                apart = one - other
                above = Index(max(apart.const, 0), tuple(t for t in apart.terms if t[1] > 0))
                args = Value(above), Value(above - apart)
            inside = sorted(map(self._inside, args), key=lambda arg: arg.digest)
            return of_atom(Cast(self._dtype, Call("eq", tuple(inside))))
        return of_atom(Cast(self._dtype, self._inside(scalar)))


def is_truth(polynomial: Polynomial) -> bool:
    """Whether the polynomial is 0 or 1 whatever its conditions are: it equals its square."""
    conditions = all(is_condition(atom) for monomial in polynomial for atom, _ in monomial)
    return conditions and times(polynomial, polynomial) == dict(polynomial)


def decided(polynomial: Polynomial, of: Callable[[Scalar], Polynomial]) -> dict[Monomial, Fraction]:
    """Simplify products of comparisons: ``[x > 0] [x + 1 > 0]`` -> ``[x > 0]``,
    ``[x > 0] [-x > 0]`` -> 0.

    Args:
        of: returns the polynomial of a scalar that is compared with 0.
    """
    return plus(
        found
        for monomial, coefficient in polynomial.items()
        if (found := _decided(monomial, coefficient, of))
    )


def _decided(
    monomial: Monomial, coefficient: Fraction, of: Callable[[Scalar], Polynomial]
) -> Polynomial:
    above_zero = {atom: above for atom, _ in monomial if (above := compared(atom)) is not None}
    for a, b in permutations(above_zero, 2):
        above, other = above_zero[a], above_zero[b]
        first, second = as_index(above), as_index(other)
        if first is not None and second is not None:
            apart, met = second - first, second + first
            more = Fraction(apart.const) if not apart.terms else None
            # The sum of two positive integers is at least 2: the product is 0 if it's at most 1.
            least = Fraction(met.const - 1) if not met.terms else None
        else:
            more = _number(plus([of(other), scaled(of(above), _MINUS)]))
            least = _number(plus([of(other), of(above)]))
        if least is not None and least <= 0:
            return {}
        if more is not None and more >= 0:
            rest = tuple(one for one in monomial if one[0] != b)
            return _decided(rest, coefficient, of)
    return {joined(monomial, ()): coefficient}


def compared(atom: Scalar) -> Scalar | None:
    """Return x of ``[x > 0]``; None for another atom."""
    match atom:
        case Cast(arg=Call(fn="gt", args=(above, Num(value=0.0)))):
            return above
    return None


def _number(polynomial: Polynomial) -> Fraction | None:
    return polynomial.get(ONE, Fraction(0)) if set(polynomial) <= {ONE} else None
