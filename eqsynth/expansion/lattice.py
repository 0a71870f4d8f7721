"""A normal form of maxima and minima of polynomials: a maximum of minima.

    min(max(x, 0), 3)            ->  max(min(x, 3), 0)
    max(x, min(x, y))            ->  x
    max(2*x, x, 0)               ->  max(2*x, 0)
    min(max(x, y), max(x, z))    ->  max(x, min(y, z))

A form is a set of sets of polynomials: the maximum, over the sets, of each set's minimum. If one
polynomial is known to be at most another (``x`` and ``x + 1``), a minimum omits the larger one; the
maximum omits a set whose minimum is known to be at most another set's. A polynomial between two
others is at most the larger one of them and at least the smaller one: ``x = (2*x + 0) / 2``. So a
maximum omits it beside those two, and so does a minimum; what remains of a maximum of polynomials
are the corners of their convex hull, which are unique.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import combinations as pairs
from itertools import product as choices
from typing import Final

from eqsynth.expansion.ring import (
    Polynomial,
    collect,
    is_never_negative,
    of_atom,
    order,
    plus,
    scaled,
)
from eqsynth.ir.scalar import Call, Num, Scalar

Least = tuple[Polynomial, ...]
"""The minimum of polynomials."""

Form = tuple[Least, ...]
"""The maximum of minima; the order has no meaning."""

# A form isn't computed if it has more polynomials, or more minima on the way.
MAX_SIZE: Final = 12
MAX_MINIMA: Final = 64
FUNCTIONS: Final = frozenset({"relu", "max", "min"})
_MINUS: Final = Fraction(-1)

Opened = Callable[[Scalar], Polynomial]
"""Returns a function's argument as a polynomial."""


class TooLarge(Exception):
    """The form has too many polynomials."""


def form_of(polynomial: Polynomial, opened: Opened) -> Form:
    """Return the polynomial as a maximum of minima.

    If exactly one term is a maximum, minimum or ReLU times a number, the other terms are added
    inside: ``3 - relu(x)`` is ``min(3, 3 - x)``. Otherwise the form is the polynomial alone."""
    found = [
        (monomial, coefficient)
        for monomial, coefficient in polynomial.items()
        if any(isinstance(atom, Call) and atom.fn in FUNCTIONS for atom, _ in monomial)
    ]
    if len(found) != 1 or len(found[0][0]) != 1 or found[0][0][0][1] != 1:
        return ((polynomial,),)
    ((monomial, coefficient),) = found
    ((atom, _),) = monomial
    assert isinstance(atom, Call)
    rest = {m: c for m, c in polynomial.items() if m != monomial}
    whole = _of_call(atom, opened)
    whole = negative(whole) if coefficient < 0 else whole
    return tuple(
        tuple(plus([scaled(part, abs(coefficient)), rest]) for part in parts) for parts in whole
    )


def _of_call(call: Call, opened: Opened) -> Form:
    """A maximum or minimum by its arguments; those that are maxima and minima themselves are taken
    as they are written, since as polynomials they may be written the other way round."""
    args = [
        _of_call(arg, opened)
        if isinstance(arg, Call) and arg.fn in FUNCTIONS
        else form_of(opened(arg), opened)
        for arg in call.args
    ]
    if call.fn == "relu":
        args.append((({},),))
    return least(args) if call.fn == "min" else largest(args)


def largest(forms: Iterable[Form]) -> Form:
    """Return ``max(f, g, …)``, without minima that are never the largest."""
    sets = [_smallest(parts) for form in forms for parts in form]
    kept: list[Least] = []
    for at, one in enumerate(sets):
        others = [*kept, *sets[at + 1 :]]
        alone = [other[0] for other in others if len(other) == 1]
        if not any(_is_below(one, other) for other in others) and not any(
            _is_between(part, low, high, 1) for part in one for low, high in pairs(alone, 2)
        ):
            kept.append(one)
    if sum(map(len, kept)) > MAX_SIZE:
        raise TooLarge
    return tuple(kept)


def least(forms: Sequence[Form]) -> Form:
    """Return ``min(f, g, …)``, as a maximum of minima: min distributes over max."""
    if math.prod(map(len, forms)) > MAX_MINIMA:
        raise TooLarge
    ways = choices(*forms)
    return largest([(tuple(part for parts in way for part in parts),) for way in ways])


def negative(form: Form) -> Form:
    """Return the negative of a form: ``-max(f, g) = min(-f, -g)``."""
    return least([tuple((scaled(part, _MINUS),) for part in parts) for parts in form])


def moved(form: Form, by: Polynomial) -> Form:
    """Return the form plus a polynomial, added to each of its polynomials."""
    return tuple(tuple(plus([part, by]) for part in parts) for parts in form)


def common(form: Form) -> Polynomial:
    """Return the terms that all polynomials of the form have: ``y`` for ``max(x + y, y)``."""
    first, *rest = (part for parts in form for part in parts)
    return {m: c for m, c in first.items() if all(other.get(m) == c for other in rest)}


def clamped(form: Form) -> tuple[Polynomial, Polynomial, Polynomial] | None:
    """Return x, a and b for ``max(min(x, b), a)`` with a known to be at most b, which is x clamped
    to [a, b]; None for another form."""
    if sorted(map(len, form)) != [1, 2]:
        return None
    (low,), (one, other) = sorted(form, key=len)
    ways = ((one, other), (other, one))
    return next(((x, low, high) for x, high in ways if is_known_below(low, high)), None)


def as_atom(form: Form) -> Polynomial:
    """Return a form of several polynomials as a number times one function, such that all multiples
    of a form have one function: ``max(2*x, 2*y)`` is ``2 * max(x, y)``, ``min(-x, -y)`` is
    ``-max(x, y)``."""
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
    """Return ``fn`` of the parts, numbers last, as in ``max(x, 3)``; a maximum with 0 is a ReLU."""
    ordered = {part.digest: part for part in parts}
    first, *rest = sorted(ordered.values(), key=lambda part: (isinstance(part, Num), part.digest))
    for part in rest:
        zero = fn == "max" and part == Num(0.0)
        first = Call("relu", (first,)) if zero else Call(fn, (first, part))
    return first


def _smallest(parts: Least) -> Least:
    """Return the minimum without polynomials that are never the smallest."""
    kept: list[Polynomial] = []
    for at, one in enumerate(parts):
        others = [*kept, *parts[at + 1 :]]
        if not any(is_known_below(other, one) for other in others) and not any(
            _is_between(one, low, high, -1) for low, high in pairs(others, 2)
        ):
            kept.append(one)
    return tuple(kept)


def _is_below(one: Least, other: Least) -> bool:
    """Whether the minimum of ``one`` is known to be at most the minimum of ``other``."""
    return all(any(is_known_below(low, high) for low in one) for high in other)


def _is_between(part: Polynomial, one: Polynomial, other: Polynomial, sign: int) -> bool:
    """Whether ``part`` is known to be at most (at least, for sign -1) ``n * one + (1 - n) * other``
    for some n between 0 and 1, so that it is at most the larger (at least the smaller) of them."""
    across = plus([one, scaled(other, _MINUS)])
    above = plus([part, scaled(other, _MINUS)])
    shares = {above.get(monomial, Fraction(0)) / step for monomial, step in across.items()}
    return any(
        is_never_negative(plus([scaled(across, share * sign), scaled(above, Fraction(-sign))]))
        for share in shares
        if 0 < share < 1
    )


def is_known_below(low: Polynomial, high: Polynomial) -> bool:
    """Whether ``low <= high`` is known: ``high - low`` is never negative."""
    return is_never_negative(plus([high, scaled(low, _MINUS)]))
