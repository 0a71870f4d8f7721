"""Maxima and minima of polynomials as one form: the largest of some least values.

    min(max(x, 0), 3)            ->  max(min(x, 3), 0)
    max(x, min(x, y))            ->  x
    min(max(x, y), max(x, z))    ->  max(x, min(y, z))

A form is a set of sets of polynomials: the maximum, over the sets, of the minimum of each. Of two
polynomials whose difference is known not to be negative (``x`` and ``x + 1``) the larger is left
out of a minimum, and a set whose minimum is no more than another's is left out of the maximum. What
is left is unique: these are the free distributive lattice over the polynomials in this order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import product as choices
from typing import Final

from eqsynth.ir.ring import (
    Polynomial,
    collect,
    is_not_negative,
    of_atom,
    order,
    plus,
    scaled,
)
from eqsynth.ir.scalar import Call, Num, Scalar

Least = tuple[Polynomial, ...]
"""The minimum of polynomials."""

Form = tuple[Least, ...]
"""The maximum of minima, in no order."""

# A form of more polynomials, or of more minima while it is made, is given up.
MAX_SIZE: Final = 12
MAX_MINIMA: Final = 64
_FUNCTIONS: Final = frozenset({"relu", "max", "min"})
_MINUS: Final = Fraction(-1)

Opened = Callable[[Scalar], Polynomial]
"""The polynomial that an argument of a function is."""


class TooLarge(Exception):
    """The form has too many polynomials."""


def form_of(polynomial: Polynomial, opened: Opened) -> Form:
    """The polynomial as a maximum of minima: itself, or, if one of its terms is a maximum times a
    number, that maximum with everything else taken in: ``3 - relu(x)`` is ``min(3, 3 - x)``."""
    found = [
        (monomial, coefficient)
        for monomial, coefficient in polynomial.items()
        if any(isinstance(atom, Call) and atom.fn in _FUNCTIONS for atom, _ in monomial)
    ]
    if len(found) != 1 or len(found[0][0]) != 1 or found[0][0][0][1] != 1:
        return ((polynomial,),)
    ((monomial, coefficient),) = found
    ((atom, _),) = monomial
    assert isinstance(atom, Call)
    rest = {m: c for m, c in polynomial.items() if m != monomial}
    args = [form_of(opened(arg), opened) for arg in atom.args]
    match atom.fn:
        case "relu":
            whole = largest([args[0], (({},),)])
        case "max":
            whole = largest(args)
        case _:
            whole = least(args)
    whole = negative(whole) if coefficient < 0 else whole
    return tuple(
        tuple(plus([scaled(part, abs(coefficient)), rest]) for part in parts) for parts in whole
    )


def largest(forms: Iterable[Form]) -> Form:
    """``max(f, g)``, without what is never the largest."""
    sets = [_smallest(parts) for form in forms for parts in form]
    kept: list[Least] = []
    for at, one in enumerate(sets):
        others = [*kept, *sets[at + 1 :]]
        if not any(_is_below(one, other) for other in others):
            kept.append(one)
    if sum(map(len, kept)) > MAX_SIZE:
        raise TooLarge
    return tuple(kept)


def least(forms: Sequence[Form]) -> Form:
    """``min(f, g)``: min distributes over max."""
    if math.prod(map(len, forms)) > MAX_MINIMA:
        raise TooLarge
    ways = choices(*forms)
    return largest([(tuple(part for parts in way for part in parts),) for way in ways])


def negative(form: Form) -> Form:
    """``-max(f, g) = min(-f, -g)``."""
    return least([tuple((scaled(part, _MINUS),) for part in parts) for parts in form])


def moved(form: Form, by: Polynomial) -> Form:
    """Each polynomial with another one added."""
    return tuple(tuple(plus([part, by]) for part in parts) for parts in form)


def common(form: Form) -> Polynomial:
    """The terms that all polynomials have."""
    first, *rest = (part for parts in form for part in parts)
    return {m: c for m, c in first.items() if all(other.get(m) == c for other in rest)}


def as_atom(form: Form) -> Polynomial:
    """A form of several polynomials as a function of them times a number, the same function for
    all its multiples: ``max(2*x, 2*y)`` is ``2 * max(x, y)`` and ``min(-x, -y)`` ``-max(x, y)``."""
    parts = [part for parts in form for part in parts]
    first = min((monomial for part in parts for monomial in part), key=order)
    unit = max(abs(part.get(first, Fraction(0))) for part in parts)
    form = tuple(tuple(scaled(part, 1 / unit) for part in parts) for parts in form)
    above, below = _written(form), _written(negative(form))
    turned = _rank(below) < _rank(above)
    return scaled(of_atom(below if turned else above), -unit if turned else unit)


def _rank(scalar: Scalar) -> tuple[bool, bytes]:
    return isinstance(scalar, Call) and scalar.fn == "min", scalar.digest


def _written(form: Form) -> Scalar:
    return _call("max", [_call("min", [collect(part) for part in parts]) for parts in form])


def _call(fn: str, parts: Iterable[Scalar]) -> Scalar:
    """Numbers last: they are what something is compared with."""
    ordered = {part.digest: part for part in parts}
    first, *rest = sorted(
        ordered.values(), key=lambda part: (isinstance(part, Num), part.digest)
    )
    for part in rest:
        zero = fn == "max" and part == Num(0.0)
        first = Call("relu", (first,)) if zero else Call(fn, (first, part))
    return first


def _smallest(parts: Least) -> Least:
    """A minimum without what is never the smallest."""
    kept: list[Polynomial] = []
    for at, one in enumerate(parts):
        others = [*kept, *parts[at + 1 :]]
        if not any(is_known_below(other, one) for other in others):
            kept.append(one)
    return tuple(kept)


def _is_below(one: Least, other: Least) -> bool:
    """Whether the minimum of ``one`` is known to be no more than that of ``other``."""
    return all(any(is_known_below(low, high) for low in one) for high in other)


def is_known_below(low: Polynomial, high: Polynomial) -> bool:
    """Whether ``high - low`` is a sum of what isn't negative."""
    rest = plus([high, scaled(low, _MINUS)])
    return all(c > 0 and all(map(is_not_negative, monomial)) for monomial, c in rest.items())
