"""Functions of integers as polynomials, by identities that hold though integers wrap around.

    min(p, q)         ->  p + q - max(p, q)
    abs(p)            ->  max(p, -p)
    p % 6             ->  p - 6 * (p // 6)
    (p // 2) // 3     ->  p // 6
    (p % 6) % 3       ->  p - 3 * (p // 3)

A remainder of p by a number d > 0 lies in [0, d), so a quotient of it can't overflow. But
``(p + 6) // 3`` isn't ``p // 3 + 2``, because ``p + 6`` may overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final

import numpy as np

from eqsynth.expansion.ring import ONE, Monomial, Polynomial, collect, of_atom, plus, scaled
from eqsynth.ir.scalar import Call, Num

_MINUS: Final = Fraction(-1)

Opened = Callable[..., dict[Monomial, Fraction]]
"""Returns a function's argument, or a function of polynomials, as a polynomial."""


def functions(dtype: str | None, of: Opened) -> dict[str, Opened]:
    """The functions of integers of ``dtype`` by name, from polynomials to a polynomial.

    Args:
        of: returns the polynomial of a scalar.
    """
    signed = (dtype or "").startswith("int")
    most = int(np.iinfo(dtype).max) if dtype and signed else 0

    def absolute(x: Polynomial) -> dict[Monomial, Fraction]:
        """``abs(x)`` is ``max(x, -x)`` for signed dtypes. Of the least integer both sides are the
        integer itself, since its negative wraps around to it."""
        return _larger(x, scaled(x, _MINUS)) if signed else of_atom(Call("abs", (collect(x),)))

    def quotient(x: Polynomial, y: Polynomial) -> dict[Monomial, Fraction]:
        by = _divisor(y)
        if by is None:
            return of_atom(Call("floordiv", (collect(x), collect(y))))
        if (rest := _as_rest(x)) is not None:
            inner, size = rest
            if by % size == 0:
                return {}  # it is less than the divisor
            if size % by == 0:
                # floor((p - size * (p // size)) / by), in which nothing overflows
                turns = quotient(inner, {ONE: Fraction(size)})
                return plus([quotient(inner, y), scaled(turns, Fraction(-(size // by)))])
        match collect(x):
            case Num(value=value):
                return _number(int(value) // by)
            case Call(fn="floordiv", args=(inner_, Num(value=first))) if 0 < first * by <= most:
                return quotient(of(inner_), {ONE: Fraction(int(first) * by)})
        whole = by == 1 or not x
        return {**x} if whole else of_atom(Call("floordiv", (collect(x), Num(float(by)))))

    def rest(x: Polynomial, y: Polynomial) -> dict[Monomial, Fraction]:
        by = _divisor(y)
        if by is None:
            return of_atom(Call("mod", (collect(x), collect(y))))
        return plus([x, scaled(quotient(x, y), Fraction(-by))])

    def _divisor(y: Polynomial) -> int | None:
        """Return the positive number that y is, for a signed dtype; otherwise None."""
        value = y.get(ONE) if set(y) == {ONE} else None
        return int(value) if value is not None and 0 < value <= most else None

    def _as_rest(x: Polynomial) -> tuple[Polynomial, int] | None:
        """Return p and d if x is ``p - d * (p // d)``; otherwise None."""
        for monomial, coefficient in x.items():
            match monomial:
                case ((Call(fn="floordiv", args=(inner, Num(value=by))), 1),):
                    if (
                        by > 0
                        and coefficient == -by
                        and plus([x, {monomial: -coefficient}, scaled(of(inner), _MINUS)]) == {}
                    ):
                        return of(inner), int(by)
        return None

    return {"max": _larger, "min": _smaller, "abs": absolute, "floordiv": quotient, "mod": rest}


def _number(value: int) -> dict[Monomial, Fraction]:
    return {ONE: Fraction(value)} if value else {}


def _larger(x: Polynomial, y: Polynomial) -> dict[Monomial, Fraction]:
    """``max(p, q)`` as an atom; a sum can't move out of it, since integers wrap around."""
    if x == y:
        return {**x}
    first, second = sorted(map(collect, (x, y)), key=lambda one: one.digest)
    return of_atom(Call("max", (first, second)))


def _smaller(x: Polynomial, y: Polynomial) -> dict[Monomial, Fraction]:
    """``min(p, q)`` is ``p + q - max(p, q)``."""
    return plus([x, y, scaled(_larger(x, y), _MINUS)])
