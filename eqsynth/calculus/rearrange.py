"""Rearranging a body: any identity of a commutative ring, in its reads and functions.

    L_x R_y f  =  L_x R_y g        f and g the same polynomial

So distributing, collecting, multiplying out, common factors, like terms, ``x - x``, ``0 * x`` and
``-(x - y)`` are one law, decided and not listed. ``f / g`` is ``f * (1 / g)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from eqsynth.calculus import checking
from eqsynth.calculus.conditions import is_finite
from eqsynth.calculus.scopes import reduction_iterators, same_scope
from eqsynth.ir.scalar import Call, Num, Prod, Scalar, Sum, Value, dtype_of, iterators
from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import is_float

_require = partial(checking.require, law="rearrange")

# The procedure that decides equality is given up beyond so many monomials; it would take too long.
MAX_MONOMIALS = 4096
# What float64 may have lost of a coefficient, relative to what it was summed up of.
_TOLERANCE = 2.0**-44

Monomial = tuple[Scalar, ...]
Polynomial = dict[Monomial, tuple[float, float]]
"""Coefficients by a monomial's factors, in the order of their digests; beside each what its parts
sum up to in absolute value."""


@dataclass(frozen=True)
class Rearrange:
    """The body in the place of the scope's."""

    body: Scalar


def rearrange(scope: Scope, given: Rearrange) -> Scope:
    """``L_x R_y f = L_x R_y g``, f and g the same polynomial.

    What may be infinite (a function, a read with such a fill) obeys fewer laws: ``inf - inf`` is no
    number. Terms with it are compared as they stand, up to the order of factors, and are added up
    only if their coefficients have one sign.

    Raises:
        LawError: ``iterators``: the body isn't one of the scope; ``dtype``: bools, or the new body
            is of another dtype; ``integers``: a coefficient of integers is none; ``polynomial``:
            the bodies differ; ``finite``: they agree only where all is finite, which may not be so;
            ``large``: too many monomials to decide.
    """
    own = {it.slot: it.extent for it in iterators(scope.body)}
    own |= dict(enumerate(scope.extents))
    _require(all(own.get(it.slot) == it.extent for it in iterators(given.body)),
             condition="iterators", what="the new body uses other iterators")  # fmt: skip
    dtype = dtype_of(scope.body) or scope.dtype
    _require(dtype != "bool", condition="dtype", what="bools form no ring")
    before, after = (Terms(dtype, deep=False) for _ in range(2))
    terms = before.of(scope.body), after.of(given.body)
    if not (agree(*terms) and all(map(_has_one_sign, terms))):
        before, after = (Terms(dtype, deep=True) for _ in range(2))
        equal = agree(before.of(scope.body), after.of(given.body))
        _require(equal, condition="polynomial", what="the bodies are two polynomials")
        _require(before.finite and after.finite, condition="finite", what="inf - inf is no number")
    result = same_scope(scope, given.body, reduction_iterators(scope))
    _require(result.type == scope.type, condition="dtype", what="the result is of another type")
    return result


Key = TypeVar("Key")


def agree(
    left: Mapping[Key, tuple[float, float]], right: Mapping[Key, tuple[float, float]]
) -> bool:
    """The same coefficients, up to rounding."""
    for monomial in left.keys() | right.keys():
        (a, size), (b, other) = (side.get(monomial, (0.0, 0.0)) for side in (left, right))
        if not abs(a - b) <= _TOLERANCE * max(size, other):
            return False
    return True


def _has_one_sign(terms: Polynomial) -> bool:
    return all(abs(number) == size and number != 0 for number, size in terms.values())


class Terms:
    """A scalar as a sum of monomials.

    Args:
        dtype: in which all is computed.
        deep: multiply sums out, and powers; else a sum among factors is a factor of its own.

    Attributes:
        finite: nothing that was met can be infinite.
    """

    def __init__(self, dtype: str, deep: bool) -> None:
        self._dtype, self._deep = dtype, deep
        self._known: dict[Scalar, Polynomial] = {}
        self.finite = True

    def of(self, scalar: Scalar) -> Polynomial:
        found = self._known.get(scalar)
        if found is None:
            found = self._known[scalar] = self._made(scalar)
            _require(len(found) <= MAX_MONOMIALS, condition="large", what="too many monomials")
        return found

    def _made(self, scalar: Scalar) -> Polynomial:
        floats = is_float(self._dtype)
        match scalar if dtype_of(scalar) in (None, self._dtype) else None:
            case Num(value=value):
                _require(math.isfinite(value), condition="finite", what="an infinite number")
                return {(): (value, abs(value))}
            case Sum(terms=terms):
                result: Polynomial = {}
                for term in terms:
                    _add(result, self.of(term))
                return result
            case Prod(factors=factors):
                result = {(): (1.0, 1.0)}
                for factor in factors:
                    result = _times(result, self._factor(factor))
                return result
            case Call(fn="div", args=(over, under)) if floats:
                return _times(self._factor(over), self._factor(Call("reciprocal", (under,))))
            case Call(fn="reciprocal", args=(Num(value=value),)) if floats and value:
                return {(): (1 / value, abs(1 / value))}
            case Call(fn="pow", args=(base, Num(value=2 | 3 | 4 as n))) if floats and self._deep:
                return self.of(Prod((base,) * int(n)))
        # A function or a read; or a sum in a dtype of its own, which wraps or rounds by itself.
        if not (isinstance(scalar, Value) or is_finite(scalar)):
            self.finite = False
        return {(scalar,): (1.0, 1.0)}

    def _factor(self, scalar: Scalar) -> Polynomial:
        if self._deep or not isinstance(scalar, Sum):
            return self.of(scalar)
        return {(scalar,): (1.0, 1.0)}


def _digest(scalar: Scalar) -> bytes:
    return scalar.digest


def _add(into: Polynomial, terms: Polynomial) -> None:
    for monomial, (number, size) in terms.items():
        a, b = into.get(monomial, (0.0, 0.0))
        into[monomial] = a + number, b + size


def _times(left: Polynomial, right: Polynomial) -> Polynomial:
    _require(len(left) * len(right) <= MAX_MONOMIALS * 16, condition="large",
             what="too many monomials")  # fmt: skip
    result: Polynomial = {}
    for a, (x, p) in left.items():
        for b, (y, q) in right.items():
            _add(result, {tuple(sorted((*a, *b), key=_digest)): (x * y, p * q)})
    return result
