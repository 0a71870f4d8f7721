"""Polynomials: sums of products of atoms with numbers, and the body that each of them is.

Atoms are scalars that the ring knows nothing of; they have powers, also negative ones. What a body
is as a polynomial stands in ``polynomial.py``.
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
"""Atoms with their powers, in the order of the atoms' digests."""

Polynomial = Mapping[Monomial, Fraction]
"""Monomials with their coefficients, none of which is 0."""

ONE: Final[Monomial] = ()
ONCE: Final = Fraction(1)
_ROUNDED: Final = Fraction(1, 2**50)
_LARGEST_FACTOR: Final = 1000
_TOTAL: Final = frozenset({"relu", "sigmoid", "tanh", "erf", "abs", "sin", "cos"})
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


def near(value: Fraction) -> Fraction:
    """The simple fraction that a product of two rounded numbers was meant to be: 1 for
    ``log(2) * log2(e)``."""
    simple = value.limit_denominator(1_000_000)
    return simple if abs(simple - value) <= abs(value) * _ROUNDED else value


def square_part(value: Fraction) -> Fraction:
    """The largest square that divides a positive fraction, of whole numbers without large prime
    factors: 9/4 of 27/4, and 1/16 of 3/16; for ``p/q`` that of ``p*q``, over ``q*q``."""
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
    """The root of a fraction that is a square."""
    return Fraction(math.isqrt(square.numerator), math.isqrt(square.denominator))


def collect(polynomial: Polynomial) -> Scalar:
    """The body that a polynomial is: a sum of products, of which some are divided.

    >>> from eqsynth.ir.scalar import Value
    >>> collect({}) == Num(0.0)
    True
    """
    return total([
        _term(monomial, polynomial[monomial]) for monomial in sorted(polynomial, key=order)
    ])


def order(monomial: Monomial) -> tuple[object, ...]:
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
        add(found, joined(m, n), c * d)
    return found


def is_condition(scalar: Scalar) -> bool:
    """Whether it is ``[c]``: 1 where a condition holds, and 0 elsewhere."""
    return isinstance(scalar, Cast) and dtype_of(scalar.arg) == "bool"


def as_index(scalar: Scalar) -> Index | None:
    """The index that a sum of indices is, or None: ``(j) + -1 * (i)`` is ``(j - i)``."""
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
    """Whether an atom to this power is 0 or more wherever it is defined."""
    atom, power = factor
    known = isinstance(atom, Call) and atom.fn in _NOT_NEGATIVE
    return known or is_condition(atom) or power % 2 == 0


def by_sign(monomial: Monomial) -> tuple[Monomial, Monomial]:
    """What of a monomial is 0 or more wherever it is defined, and the rest: ``x**2`` of ``x**3``,
    and x."""
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
    """The product of two monomials; a condition as a number (1 or 0) is its own square."""
    powers = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, Fraction(0)) + power
        if is_condition(atom):
            powers[atom] = Fraction(1)
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
    """The coefficient of the first monomial in the order of their atoms."""
    return polynomial[min(polynomial, key=order)]


def is_difference(polynomial: Polynomial) -> bool:
    return len({coefficient > 0 for coefficient in polynomial.values()}) > 1


def is_exponential(part: tuple[Scalar, Fraction]) -> bool:
    return isinstance(part[0], Call) and part[0].fn == "exp"


def common_exponentials(polynomial: Polynomial) -> Monomial:
    """The exponentials with the least power that each has in any of the terms."""
    powers = [dict(filter(is_exponential, monomial)) for monomial in polynomial]
    atoms = {atom for power in powers for atom in power}
    least = {atom: min(power.get(atom, Fraction(0)) for power in powers) for atom in atoms}
    kept = [(atom, power) for atom, power in least.items() if power]
    return tuple(sorted(kept, key=lambda one: one[0].digest))


def rectified(
    polynomial: Polynomial, of: Callable[[Scalar], Polynomial]
) -> dict[Monomial, Fraction]:
    """``[x > 0] * x`` is ``relu(x)``, ``[-x > 0] * x`` is ``x - relu(x)``, ``[x > 0] * relu(x)``
    and ``relu(x) * x`` are ``relu(x)`` and ``relu(x) * relu(x)``, and ``[-x > 0] * relu(x)`` is 0.

    Args:
        of: the polynomial of what is compared with 0.
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


def _positive(
    condition: Scalar, of: Callable[[Scalar], Polynomial]
) -> tuple[Scalar | None, bool]:
    """x of ``[x > 0]`` and True, of ``[-x > 0]`` and False."""
    match condition:
        case Cast(arg=Call(fn="gt", args=(above, Num(value=0.0)))):
            x = of(above)
            forward = not x or leading_coefficient(x) > 0
            return above if forward else collect(scaled(x, -ONCE)), forward
    return None, False


def is_exact(polynomial: Polynomial) -> bool:
    """Whether it is exact in floats, as ``1 - [c]`` and ``2*relu(x) - x``, which is abs(x)."""
    atoms = {atom for monomial in polynomial for atom, _ in monomial}
    relus = [atom for atom in atoms if isinstance(atom, Call) and atom.fn == "relu"]
    one = len(relus) == 1 and atoms == {relus[0], relus[0].args[0]}
    alone = all(len(monomial) == 1 and monomial[0][1] == 1 for monomial in polynomial)
    return all(map(is_condition, atoms)) or (one and alone)


def is_total(monomial: Monomial) -> bool:
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
