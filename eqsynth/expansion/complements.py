"""Identities of polynomials in functions: pairs that add up to 1, double arguments, the larger and
the smaller of two values, and logarithms split by cases.

    sigmoid(x) + exp(-x) * sigmoid(x)    ->  1
    sin(x) * sin(x) + cos(x) * cos(x)    ->  1
    log(1 + exp(x - 2*relu(x)))          ->  log(1 + exp(x)) - relu(x)

Not here: the expanded form that uses these identities (``polynomial.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from eqsynth.expansion.lattice import FUNCTIONS
from eqsynth.expansion.ring import (
    ONE,
    Monomial,
    Polynomial,
    add,
    collect,
    is_exponential,
    joined,
    order,
    plus,
    scaled,
    times,
)
from eqsynth.ir.scalar import Call, Num, Scalar, composites, product, total

Opened = Callable[[Scalar], Polynomial]
"""Returns a function's argument as a polynomial."""


def exponential(argument: Polynomial, power: Fraction) -> Monomial:
    """Return ``exp(argument) ** power``: ``exp(x + 2*y)`` -> ``exp(x) * exp(y)**2``."""
    atoms = [(Call("exp", (collect({m: Fraction(1)}),)), c * power) for m, c in argument.items()]
    return tuple(sorted(atoms, key=lambda one: one[0].digest))


def exponent(exponentials: Monomial, of: Opened) -> dict[Monomial, Fraction]:
    """Return the argument of a product of exponentials: ``exp(x) * exp(y)**2`` -> ``x + 2*y``."""
    found = ((of(atom.args[0]), n) for atom, n in exponentials if isinstance(atom, Call))
    return plus(scaled(argument, power) for argument, power in found)


def two_exponentials(x: Polynomial, of: Opened) -> tuple[Monomial, Polynomial] | None:
    """Return ``exp(x)`` and ``x - y`` for ``exp(x) + exp(y)``, which equals
    ``exp(x) / sigmoid(x - y)``; None for another polynomial."""
    known = all(is_exponential(part) for monomial in x for part in monomial)
    if len(x) != 2 or not known or len({*x.values()}) > 1:
        return None
    first, second = sorted(x, key=order)
    return first, plus([exponent(first, of), scaled(exponent(second, of), Fraction(-1))])


def two_exponents(
    x: Polynomial, y: Polynomial, of: Opened
) -> tuple[Polynomial, Fraction, Polynomial, Polynomial] | None:
    """Return r, c > 0, p and q such that x is ``r + c*exp(p)`` and y is ``r + c*exp(q)``: -1, 1, p
    and 0 for ``exp(p) - 1`` and 0; None if there are none."""
    step = plus([x, scaled(y, Fraction(-1))])
    known = all(is_exponential(part) for monomial in step for part in monomial)
    if len(step) != 2 or not known or sum(step.values(), Fraction(0)):
        return None
    second, first = sorted(step, key=lambda monomial: step[monomial])
    rest = plus([x, {first: -step[first]}])
    return rest, step[first], exponent(first, of), exponent(second, of)


def doubled(polynomial: Polynomial, of: Opened) -> dict[Monomial, Fraction]:
    """Replace products by functions of a double argument: ``sin(x) * cos(x)`` -> ``sin(2*x) / 2``,
    ``tanh(x) / (1 + tanh(x)**2)`` -> ``tanh(2*x) / 2``."""
    found: list[Polynomial] = []
    for monomial, coefficient in polynomial.items():
        powers, value = dict(monomial), {ONE: coefficient}
        for atom in [atom for atom, power in monomial if power == 1]:
            other: Scalar
            match atom:
                case Call(fn="sin", args=args):
                    other, power = Call("cos", args), 1
                case Call(fn="tanh", args=args):
                    square = ((atom, Fraction(2)),)
                    other, power = collect({ONE: Fraction(1), square: Fraction(1)}), -1
                case _:
                    continue
            if powers.get(other) == power:
                del powers[atom], powers[other]
                twice = of(Call(atom.fn, (product([Num(2.0), *args]),)))
                value = times(value, scaled(twice, Fraction(1, 2)))
        rest = tuple((atom, powers[atom]) for atom, _ in monomial if atom in powers)
        found.append(times(value, {rest: Fraction(1)}))
    return plus(found)


def larger_and_smaller(polynomial: Polynomial, of: Opened) -> dict[Monomial, Fraction]:
    """Replace the sum of a maximum and the minimum of the same values: ``max(x, y) + min(x, y)`` ->
    ``x + y``, and their difference: ``max(x, y) - min(x, y)`` -> ``abs(x - y)``. For real values
    only: ``x - y`` of integers may wrap around. Values that contain maxima themselves are left:
    opened again, a maximum of maxima may be written the other way round, without end."""
    found = dict(polynomial)
    for monomial in sorted(polynomial, key=order):
        for atom, power in monomial:
            if not (isinstance(atom, Call) and atom.fn == "max" and power == 1):
                continue
            x, y = atom.args
            step = total([x, product([Num(-1.0), y])])
            if any(isinstance(part, Call) and part.fn in FUNCTIONS for part in composites(step)):
                continue
            smaller = of(Call("min", (x, y)))
            if len(smaller) != 1:
                continue
            ((least, number),) = smaller.items()
            rest = joined(monomial, ((atom, Fraction(-1)),))
            other = joined(rest, least)
            one, two = found.get(monomial, Fraction(0)), found.get(other, Fraction(0)) / number
            if other == monomial or abs(one) != abs(two) or not one:
                continue
            value = plus([of(x), of(y)]) if one == two else of(Call("abs", (step,)))
            del found[monomial], found[other]
            found = plus([found, times({rest: one}, value)])
    return found


def complemented(
    polynomial: Polynomial, of: Opened, cancels: bool = False
) -> dict[Monomial, Fraction]:
    """Replace pairs that add up to 1: ``x * sin(y)**2 + x * cos(y)**2`` -> ``x``, and
    ``x * sigmoid(y) + x * sigmoid(-y)`` -> ``x``.

    Args:
        cancels: also split products of an exponential and a sigmoid of one argument
            (``exp(x) * sigmoid(x)`` -> ``exp(x) - sigmoid(x)``), which loses digits of small
            values.
    """
    if cancels:
        polynomial = _separated(polynomial, of)
    found = dict(polynomial)
    for monomial in sorted(polynomial, key=order):
        for atom, power in monomial:
            pair = _pair(atom, power, of)
            if pair is None:
                continue
            rest = joined(monomial, tuple((a, -n) for a, n in pair[0]))
            other = joined(rest, pair[1])
            one, two = (found.get(each, Fraction(0)) for each in (monomial, other))
            if one * two > 0:
                both = min(one, two, key=abs)
                add(found, monomial, -both)
                add(found, other, -both)
                add(found, rest, both)
    return found


def _separated(polynomial: Polynomial, of: Opened) -> dict[Monomial, Fraction]:
    """Split products of an exponential and a sigmoid: ``exp(x) * sigmoid(x)`` ->
    ``exp(x) - sigmoid(x)``, ``exp(-x) * sigmoid(x)`` -> ``1 - sigmoid(x)``. The differences lose
    digits of small values."""
    for monomial in sorted(polynomial, key=order):
        powers = dict(monomial)
        for atom in powers:
            if not (isinstance(atom, Call) and atom.fn == "sigmoid"):
                continue
            for way in (1, -1):
                turn = exponential(of(atom.args[0]), Fraction(way))
                if turn and all(powers.get(e, Fraction(0)) / n >= 1 for e, n in turn):
                    less = joined(monomial, tuple((e, -n) for e, n in turn))
                    alone = joined(monomial if way > 0 else less, ((atom, Fraction(-1)),))
                    rest = dict(polynomial)
                    coefficient = rest.pop(monomial)
                    add(rest, alone, coefficient)
                    add(rest, less, -coefficient)
                    return _separated(rest, of)
    return dict(polynomial)


def _pair(atom: Scalar, power: Fraction, of: Opened) -> tuple[Monomial, Monomial] | None:
    """Return two monomials that add up to 1, the first of which divides ``atom ** power``:
    ``sin(x)**2`` and ``cos(x)**2`` for ``sin(x)**3``; None if there are none."""
    match atom:
        case Call(fn="sigmoid", args=(x,)) if power >= 1:
            one = ((atom, Fraction(1)),)
            return one, joined(one, exponential(of(x), Fraction(-1)))
        case Call(fn="sin", args=args) if power >= 2:
            return ((atom, Fraction(2)),), ((Call("cos", args), Fraction(2)),)
    return None


def cases(polynomial: Polynomial, of: Opened) -> tuple[Scalar, Polynomial, Polynomial] | None:
    """Split a sum of exponentials by the sign of a ReLU's argument.

    ``exp(x - 2*relu(x)) + 1`` is ``exp(-x) + 1`` if x > 0, else ``exp(x) + 1``: return x and the
    two polynomials. None if the polynomial isn't a sum of exponentials with positive coefficients,
    or has no exponential of a ReLU."""
    positive = all(c > 0 and all(map(is_exponential, m)) for m, c in polynomial.items())
    relus = [
        atom
        for monomial in sorted(polynomial, key=order)
        for atom, _ in monomial
        if isinstance(atom, Call) and isinstance(atom.args[0], Call) and atom.args[0].fn == "relu"
    ]
    if not positive or not relus:
        return None
    relu = relus[0].args[0]
    assert isinstance(relu, Call)
    (x,) = relu.args
    return x, _placed(polynomial, relus[0], of(x)), _placed(polynomial, relus[0], {})


def _placed(polynomial: Polynomial, atom: Scalar, argument: Polynomial) -> dict[Monomial, Fraction]:
    """Return the polynomial with ``exp(argument)`` in place of the exponential ``atom``."""
    found = []
    for monomial, coefficient in polynomial.items():
        power = dict(monomial).get(atom, Fraction(0))
        rest = joined(monomial, ((atom, -power),)) if power else monomial
        image = exponential(argument, power) if power else ONE
        found.append(times({rest: coefficient}, {image: Fraction(1)}))
    return plus(found)
