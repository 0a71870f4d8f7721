"""Write an element as a sum of terms; each has a factor, iterators, conditions and atoms.

    sum_k [0 <= i - k] * (a[k] + 2 b[k])  ->  sum_k [..] a[k],  2 sum_k [..] b[k]

An atom is a factor that isn't a sum, product or number: a read, or a function's value. A product
is distributed over a sum only if all numbers in it are finite (:data:`FINITE`): 0 * inf is nan.

A rule that is claimed only where both sides have finite values (``partial``) may have quotients
too, and these are products with inverses:

    (x / y) / (z / w)  ->  x * inverse(y) * inverse(z) * w
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import z3

from eqsynth.ir.functions import FUNCTIONS, REDUCERS
from eqsynth.verify.values import (
    Call,
    Guard,
    Number,
    Reduce,
    Value,
    renamed,
    substituted,
)
from eqsynth.verify.verdict import Left

_RING: Final = frozenset({"add", "sub", "mul", "neg"})

FINITE: Final = frozenset({"points", *(f.name for f in FUNCTIONS.values() if f.finite)})
"""The functions whose value is a finite real number for all finite arguments. ``points`` is one
over the number of points in a window, and a window has at least one point."""


@dataclass(frozen=True, eq=False)
class Term:
    """``factor * sum over iterators of (conditions hold) * atoms``."""

    factor: Fraction
    iterators: tuple[tuple[Any, Any], ...] = ()
    conditions: tuple[Any, ...] = ()
    atoms: tuple[Value, ...] = ()

    def times(self, factor: Fraction) -> Term:
        return self.with_factor(self.factor * factor)

    def with_factor(self, factor: Fraction) -> Term:
        return Term(factor, self.iterators, self.conditions, self.atoms)

    @property
    def names(self) -> tuple[str, ...]:
        """The sorted kinds and names of the atoms. Like terms have the same names."""
        return tuple(sorted(
            f"{type(a).__name__} {getattr(a, 'name', '') or getattr(a, 'reducer', '')}"
            for a in self.atoms
        ))  # fmt: skip


def terms(value: Value, apart: bool = False, partial: bool = False) -> Iterator[Term]:
    """Write a value as a sum of terms.

    Args:
        partial: quotients are allowed: the value only matters where it is a finite number, so no
            divisor in it is 0.
        apart: write a guard ``c ? f : g`` as ``[c] f + [not c] g``. The default is
            ``[c] f + g - [c] g``, which needs no negated condition.

    Raises:
        Left: a number or a function may be infinite.
    """
    match value:
        case Number(value=float() as n) if math.isfinite(n):
            yield Term(Fraction(n))
        case Guard():
            yield from (_with(t, value.condition) for t in terms(value.inside, apart, partial))
            for term in terms(value.outside, apart, partial):
                if apart:
                    yield _with(term, z3.Not(value.condition))
                else:
                    yield term
                    yield _with(term.times(Fraction(-1)), value.condition)
        case Call(name="add" | "sub"):
            yield from terms(value.args[0], apart, partial)
            sign = Fraction(1 if value.name == "add" else -1)
            yield from (term.times(sign) for term in terms(value.args[1], apart, partial))
        case Call(name="neg"):
            yield from (term.times(Fraction(-1)) for term in terms(value.args[0], apart, partial))
        case Call(name="mul"):
            for one in terms(value.args[0], apart, partial):
                for two in terms(value.args[1], apart, partial):
                    yield _product(one, two)
        case Call(name="div") if partial:
            for one in terms(value.args[0], apart, partial):
                for two in _inverse(value.args[1], apart):
                    yield _product(one, two)
        case Reduce(reducer="sum"):
            for term in terms(value.body, apart, partial):
                yield Term(term.factor, (*value.iterators, *term.iterators), term.conditions,
                            term.atoms)  # fmt: skip
        case _ if not finite(value):
            name = getattr(value, "name", "") or getattr(value, "reducer", "a number")
            raise Left(f"{name} takes part in a sum or product, and may be infinite")
        case _:
            yield Term(Fraction(1), (), (), (value,))


def _inverse(value: Value, apart: bool) -> Iterator[Term]:
    """One over a value, as a sum of terms, where the value isn't 0."""
    match value:
        case Number(value=float() as n) if math.isfinite(n) and n:
            yield Term(1 / Fraction(n))
        case Call(name="mul"):
            for one in _inverse(value.args[0], apart):
                for two in _inverse(value.args[1], apart):
                    yield _product(one, two)
        case Call(name="div"):
            for one in terms(value.args[1], apart, True):
                for two in _inverse(value.args[0], apart):
                    yield _product(one, two)
        case _ if finite(value):
            yield Term(Fraction(1), (), (), (Call("inverse", (value,)),))
        case _:
            raise Left("a divisor is a finite number")


def finite(value: Value) -> bool:
    """Whether a value is a finite real number. Elements of tensors are supposed to be; a maximum
    that may be of padding alone (-inf) isn't, nor is a number that the rule only names."""
    match value:
        case Number():
            return isinstance(value.value, float) and math.isfinite(value.value)
        case Call():
            return value.name in FINITE | _RING and all(map(finite, value.args))
        case Guard():
            return finite(value.inside) and finite(value.outside)
        case Reduce():
            return value.reducer in REDUCERS and finite(value.body)
    return True


def _with(term: Term, condition: Any) -> Term:
    return Term(term.factor, term.iterators, (*term.conditions, condition), term.atoms)


def _product(one: Term, two: Term) -> Term:
    # The iterators of the second term are renamed, since a sum may be multiplied by itself.
    named = [(i, z3.FreshInt("k")) for i, _ in two.iterators]
    iterators = tuple((k, e) for (_, k), (_, e) in zip(named, two.iterators, strict=True))
    conditions = tuple(renamed(c, named) for c in two.conditions)
    atoms = tuple(substituted(atom, named) for atom in two.atoms)
    return Term(one.factor * two.factor, (*one.iterators, *iterators),
                 (*one.conditions, *conditions), (*one.atoms, *atoms))  # fmt: skip
