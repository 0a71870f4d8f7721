"""Polynomials with rational coefficients over atoms, and turning a polynomial into a scope's body.

An atom is a scalar, as a read or a function, whose powers may be negative or fractions:
``3 * x**2 * exp(y)**-1`` is ``{((x, 2), (exp(y), -1)): 3}``. Not here: turning a body into a
polynomial (``polynomial.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from itertools import product as pairs
from typing import Final

from eqsynth.ir.index import Index
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    dtype_of,
    product,
    total,
)

Monomial = tuple[tuple[Scalar, Fraction], ...]
"""Atoms with their powers, sorted by the atoms' digests."""

Polynomial = Mapping[Monomial, Fraction]
"""Monomial -> its coefficient, which isn't 0."""

ONE: Final[Monomial] = ()
ONCE: Final = Fraction(1)
_ROUNDED: Final = Fraction(1, 2**50)
_LARGEST_FACTOR: Final = 1000
_MAX_CONDITIONS: Final = 4
_TOTAL: Final = frozenset({"relu", "sigmoid", "tanh", "erf", "abs", "sin", "cos"})
_NOT_NEGATIVE: Final = frozenset({"relu", "exp", "sigmoid", "sqrt"})


class NotReal(ValueError):
    """A number in the body is infinite or NaN, so that the laws of a ring don't hold."""


def number(value: float) -> Fraction:
    """Return the simple fraction whose nearest float is ``value``: 1/49 for 0.020408163265306121.

    A mean multiplies by the float nearest to 1/n. Taken as exactly 1/n, n of them add up to 1. A
    float that is nearest to no fraction with a denominator up to 1,000,000 stays as it is.

    Raises:
        NotReal: the number is infinite or NaN.
    """
    if not math.isfinite(value):
        raise NotReal
    simple = Fraction(value).limit_denominator(1_000_000)
    return simple if float(simple) == value else Fraction(value)


def near(value: Fraction) -> Fraction:
    """Return the simple fraction within the rounding error of a product of two rounded numbers: 1
    for ``log(2) * log2(e)``; the value itself if there is none."""
    simple = value.limit_denominator(1_000_000)
    return simple if abs(simple - value) <= abs(value) * _ROUNDED else value


def square_part(value: Fraction) -> Fraction:
    """Return a square that divides a positive fraction: 9/4 for 27/4, 1/16 for 3/16.

    For ``p/q`` it is the largest square found that divides ``p*q``, over ``q*q``; prime factors
    above 1000 are found only if the rest is a square."""
    whole, square, factor = value.numerator * value.denominator, 1, 2
    while factor <= _LARGEST_FACTOR and factor * factor <= whole:
        while whole % (factor * factor) == 0:
            whole //= factor * factor
            square *= factor
        factor += 1
    if (root := math.isqrt(whole)) ** 2 == whole:
        square *= root
    return Fraction(square, value.denominator) ** 2


def root_of(square: Fraction) -> Fraction:
    """Return the square root of a fraction that is a square."""
    return Fraction(math.isqrt(square.numerator), math.isqrt(square.denominator))


def collect(polynomial: Polynomial) -> Scalar:
    """Return the polynomial as a body: a sum of products and quotients of products.

    >>> from eqsynth.ir.scalar import Value
    >>> collect({}) == Num(0.0)
    True
    """
    return total(
        [_term(monomial, polynomial[monomial]) for monomial in sorted(polynomial, key=order)]
    )


def order(monomial: Monomial) -> tuple[object, ...]:
    return tuple((atom.digest, power) for atom, power in monomial)


def _term(monomial: Monomial, coefficient: Fraction) -> Scalar:
    """Return one term as a scalar, ``c * a * a / b``, with one exponential of the sum of the
    exponentials' arguments."""
    above: list[Scalar] = [Num(float(coefficient))]
    below: list[Scalar] = []
    exponent: list[Scalar] = []
    for atom, power in monomial:
        if isinstance(atom, Call) and atom.fn == "exp":
            exponent.append(product([Num(float(power)), atom.args[0]]))
        else:
            # Only powers of exponentials can be fractions.
            (above if power > 0 else below).extend([atom] * abs(int(power)))
    if exponent:
        above.append(Call("exp", (total(exponent),)))
    if not below:
        return product(above)
    return Call("div", (product(above), product(below)))


def times(left: Polynomial, right: Polynomial) -> dict[Monomial, Fraction]:
    """Return the product, multiplied out."""
    found: dict[Monomial, Fraction] = {}
    for (m, c), (n, d) in pairs(left.items(), right.items()):
        add(found, joined(m, n), c * d)
    return found


def without(polynomial: Polynomial, factors: Monomial) -> dict[Monomial, Fraction]:
    """Return the polynomial divided by the factors."""
    return times(polynomial, {tuple((atom, -power) for atom, power in factors): ONCE})


def is_condition(scalar: Scalar) -> bool:
    """Whether the scalar is ``[c]``: 1 where a condition holds, 0 elsewhere (a cast of a bool)."""
    return isinstance(scalar, Cast) and dtype_of(scalar.arg) == "bool"


def as_index(scalar: Scalar) -> Index | None:
    """Return a sum of index values as one index, ``(j) + -1 * (i)`` as ``j - i``; None for other
    scalars."""
    match scalar:
        case Value(index=index):
            return index
        case Num(value=value) if value.is_integer() and abs(value) < 2**31:
            return Index(int(value))
        case Prod(factors=(Num() as times_, rest)):
            factor, inner = as_index(times_), as_index(rest)
            return None if factor is None or inner is None else inner * factor.const
        case Sum(terms=terms):
            found = Index(0)
            for term in terms:
                inner = as_index(term)
                if inner is None:
                    return None
                found = found + inner
            return found
    return None


def is_not_negative(factor: tuple[Scalar, Fraction]) -> bool:
    """Whether the power of an atom is known to be 0 or more wherever it is defined."""
    atom, power = factor
    known = isinstance(atom, Call) and atom.fn in _NOT_NEGATIVE
    return known or is_condition(atom) or power % 2 == 0


def is_never_negative(polynomial: Polynomial) -> bool:
    """Whether the value is known to be 0 or more wherever it is defined: each term is, or, as in
    ``1 - [c]``, the value is so where a condition holds and where it doesn't."""
    if all(c > 0 and all(map(is_not_negative, monomial)) for monomial, c in polynomial.items()):
        return True
    conditions = {one for monomial in polynomial for one in monomial if is_condition(one[0])}
    if not 0 < len(conditions) <= _MAX_CONDITIONS:
        return False
    held = conditions.pop()
    failed = {monomial: c for monomial, c in polynomial.items() if held not in monomial}
    opened = plus({tuple(one for one in m if one != held): c} for m, c in polynomial.items())
    return is_never_negative(failed) and is_never_negative(opened)


def common_factors(polynomial: Polynomial) -> Monomial:
    """Return the factors of all terms, each with the power nearest to 0: x for ``x*x*y - x``."""
    powers = list(map(dict, polynomial))
    return tuple(
        (atom, min((one[atom] for one in powers), key=abs))
        for atom, power in next(iter(polynomial))
        if all(one.get(atom, 0) * power > 0 for one in powers)
    )


def by_sign(monomial: Monomial) -> tuple[Monomial, Monomial]:
    """Split a monomial into factors that are 0 or more wherever they are defined, and the rest:
    ``x**3`` -> ``x**2`` and ``x``."""
    taken: dict[Scalar, Fraction] = {}
    for atom, power in monomial:
        if is_not_negative((atom, power)):
            taken[atom] = power
        elif power > 1 and power % 2 == 1:
            taken[atom] = power - 1
    outside = tuple((atom, taken[atom]) for atom, _ in monomial if atom in taken)
    return outside, tuple((a, n - taken.get(a, 0)) for a, n in monomial if n != taken.get(a))


def add(into: dict[Monomial, Fraction], monomial: Monomial, coefficient: Fraction) -> None:
    value = into.get(monomial, Fraction(0)) + coefficient
    if value:
        into[monomial] = value
    else:
        into.pop(monomial, None)


def joined(left: Monomial, right: Monomial) -> Monomial:
    """Return the product of two monomials; a condition, which is 1 or 0, equals its square."""
    powers = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, Fraction(0)) + power
        if is_condition(atom):
            powers[atom] = Fraction(bool(powers[atom]))
    kept = [(atom, power) for atom, power in powers.items() if power]
    return tuple(sorted(kept, key=lambda one: one[0].digest))


def plus(polynomials: Iterable[Polynomial]) -> dict[Monomial, Fraction]:
    found: dict[Monomial, Fraction] = {}
    for polynomial in polynomials:
        for monomial, coefficient in polynomial.items():
            add(found, monomial, coefficient)
    return found


def scaled(polynomial: Polynomial, factor: Fraction) -> dict[Monomial, Fraction]:
    return {m: c * factor for m, c in polynomial.items()} if factor else {}


def of_atom(scalar: Scalar, power: int = 1) -> dict[Monomial, Fraction]:
    return {((scalar, Fraction(power)),): Fraction(1)}


def leading_coefficient(polynomial: Polynomial) -> Fraction:
    """Return the coefficient of the monomial that is first in the order of monomials."""
    return polynomial[min(polynomial, key=order)]


def is_difference(polynomial: Polynomial) -> bool:
    return len({coefficient > 0 for coefficient in polynomial.values()}) > 1


def is_exponential(part: tuple[Scalar, Fraction]) -> bool:
    return isinstance(part[0], Call) and part[0].fn == "exp"


def common_exponentials(polynomial: Polynomial) -> Monomial:
    """Return the exponentials common to all terms, each with its least power in any term."""
    powers = [dict(filter(is_exponential, monomial)) for monomial in polynomial]
    atoms = {atom for power in powers for atom in power}
    least = {atom: min(power.get(atom, Fraction(0)) for power in powers) for atom in atoms}
    kept = [(atom, power) for atom, power in least.items() if power]
    return tuple(sorted(kept, key=lambda one: one[0].digest))


def rectified(
    polynomial: Polynomial, of: Callable[[Scalar], Polynomial]
) -> dict[Monomial, Fraction]:
    """Replace products of x with its sign or its ReLU.

    ``[x > 0] * x`` -> ``relu(x)``, ``[-x > 0] * x`` -> ``x - relu(x)``, ``[x > 0] * relu(x)`` ->
    ``relu(x)``, ``relu(x) * x`` -> ``relu(x) * relu(x)``, ``[-x > 0] * relu(x)`` -> 0.

    Args:
        of: returns the polynomial of a scalar that is compared with 0.
    """
    found: list[Polynomial] = []
    for monomial, coefficient in polynomial.items():
        powers = dict(monomial)
        value: Polynomial = {ONE: coefficient}
        for atom in [atom for atom, _ in monomial if is_condition(atom)]:
            x, forward = _positive(atom, of)
            if x is None:
                continue
            relu = Call("relu", (x,))
            if powers.get(relu, 0) > 0:
                value = value if forward else {}
                del powers[atom]
                continue
            if powers.get(x, 0) <= 0:
                continue
            del powers[atom]
            part = of_atom(relu)
            for _ in range(int(powers.pop(x))):
                value = times(value, part if forward else plus([of_atom(x), scaled(part, -ONCE)]))
        for atom in [atom for atom in powers if isinstance(atom, Call) and atom.fn == "relu"]:
            if powers[atom] > 0 and powers.get(atom.args[0], 0) > 0:
                powers[atom] += powers.pop(atom.args[0])
        rest = tuple((atom, powers[atom]) for atom, _ in monomial if atom in powers)
        found.append(times(value, {rest: ONCE}))
    return plus(found)


def _positive(condition: Scalar, of: Callable[[Scalar], Polynomial]) -> tuple[Scalar | None, bool]:
    """Return x and True for ``[x > 0]``, x and False for ``[-x > 0]``, None and False otherwise."""
    match condition:
        case Cast(arg=Call(fn="gt", args=(above, Num(value=0.0)))):
            x = of(above)
            forward = not x or leading_coefficient(x) > 0
            return above if forward else collect(scaled(x, -ONCE)), forward
    return None, False


def is_exact(polynomial: Polynomial) -> bool:
    """Whether the polynomial loses no digits in floats, like ``1 - [c]`` and ``2*relu(x) - x``,
    which is ``abs(x)``."""
    atoms = {atom for monomial in polynomial for atom, _ in monomial}
    relus = [atom for atom in atoms if isinstance(atom, Call) and atom.fn == "relu"]
    one = len(relus) == 1 and atoms == {relus[0], relus[0].args[0]}
    alone = all(len(monomial) == 1 and monomial[0][1] == 1 for monomial in polynomial)
    return all(map(is_condition, atoms)) or (one and alone)


def is_total(monomial: Monomial) -> bool:
    """Whether the monomial is finite for all finite elements. ``log(x)`` isn't: ``0 * log(0)`` is
    NaN, not 0."""
    return all(
        power > 0
        and (
            (isinstance(atom, Read) and math.isfinite(atom.fill))
            or is_condition(atom)
            or (isinstance(atom, Call) and atom.fn in _TOTAL)
        )
        for atom, power in monomial
    )
