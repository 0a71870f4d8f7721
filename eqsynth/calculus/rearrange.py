"""Rearranging: a body becomes any body that is the same polynomial in its reads and functions.

    L_x R_y f  =  L_x R_y g        f and g the same polynomial

This one law covers distributing, factoring, collecting like terms, ``x - x``, ``0 * x`` and
``-(x - y)``: equality of polynomials is decided, not listed. ``f / g`` counts as ``f * (1 / g)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Final, TypeVar

from eqsynth.calculus import checking
from eqsynth.calculus.conditions import is_finite
from eqsynth.ir.scalar import Call, Num, Prod, Scalar, Sum, Value, dtype_of, iterators
from eqsynth.ir.scopes import reduction_iterators, same_scope
from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import is_float

_require = partial(checking.require, law="rearrange")

# Beyond this many monomials the comparison would take too long, and the law refuses.
MAX_MONOMIALS = 4096
# How many times a coefficient of floats is larger than its rounding error, which the numbers of a
# program have: 0.1 + 0.2 isn't exactly 0.3.
_DIGITS: Final = 1 << 44

ZERO, ONE = (Fraction(0),) * 2, (Fraction(1),) * 2

Monomial = tuple[Scalar, ...]
Polynomial = dict[Monomial, tuple[Fraction, Fraction]]
"""Monomial (its factors, sorted by digest) -> its coefficient, and the sum of the absolute values
of the numbers that were added up to the coefficient: ``x - 3*x`` is ``{(x,): (-2, 4)}``. Both are
computed without rounding: ``2**53 + 3 - 2**53`` is 3."""


@dataclass(frozen=True)
class Rearrange:
    """The new body of the scope."""

    body: Scalar


def rearrange(scope: Scope, given: Rearrange) -> Scope:
    """``L_x R_y f = L_x R_y g``, f and g the same polynomial.

    Factors that may be infinite (a function, a read with an infinite fill) obey fewer identities,
    since ``inf - inf`` is NaN. Terms with such factors aren't multiplied out, and are added up only
    if their coefficients have one sign.

    Raises:
        LawError: ``iterators``: the body uses iterators that the scope doesn't have; ``dtype``:
            bools, or the result has another dtype; ``polynomial``: the bodies are different
            polynomials; ``finite``: they are equal only if all factors are finite, which isn't
            known; ``large``: too many monomials.
    """
    own = dict(enumerate(scope.extents))
    _require(all(own.get(it.slot) == it.extent for it in iterators(given.body)),
             condition="iterators", what="the new body uses other iterators")  # fmt: skip
    dtype = scope.dtype
    _require(dtype != "bool", condition="dtype", what="bools form no ring")
    before, after = (Terms(dtype, deep=False) for _ in range(2))
    terms = before.of(scope.body), after.of(given.body)
    if not (agree(*terms, dtype) and all(map(_has_one_sign, terms))):
        before, after = (Terms(dtype, deep=True) for _ in range(2))
        equal = agree(before.of(scope.body), after.of(given.body), dtype)
        _require(equal, condition="polynomial", what="the bodies are two polynomials")
        _require(before.finite and after.finite, condition="finite", what="inf - inf is no number")
    result = same_scope(scope, given.body, reduction_iterators(scope))
    _require(result.type == scope.type, condition="dtype", what="the result is of another type")
    return result


Key = TypeVar("Key")


def agree(
    left: Mapping[Key, tuple[Fraction, Fraction]],
    right: Mapping[Key, tuple[Fraction, Fraction]],
    dtype: str,
) -> bool:
    """Whether two polynomials have the same coefficients, for floats up to rounding."""
    for monomial in left.keys() | right.keys():
        (a, _), (b, _) = (side.get(monomial, ZERO) for side in (left, right))
        near = is_float(dtype) and abs(a - b) * _DIGITS <= max(abs(a), abs(b))
        if a != b and not near:
            return False
    return True


def _has_one_sign(terms: Polynomial) -> bool:
    return all(abs(number) == size and number != 0 for number, size in terms.values())


class Terms:
    """Scalars as sums of monomials.

    Args:
        dtype: the dtype of all computed parts.
        deep: multiply out products of sums and powers; otherwise a sum that is a factor is an atom.

    Attributes:
        finite: no atom met so far can be infinite.
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
        # Without a dtype, where(c, 1, 2.5) is rounded if it is an operand of integers.
        own = (self._dtype, None) if floats or isinstance(scalar, Num) else (self._dtype,)
        match scalar if dtype_of(scalar) in own else None:
            case Num(value=value):
                _require(math.isfinite(value), condition="finite", what="an infinite number")
                return {(): (Fraction(value), abs(Fraction(value)))}
            case Sum(terms=terms):
                result: Polynomial = {}
                for term in terms:
                    _add(result, self.of(term))
                return result
            case Prod(factors=factors):
                result = {(): ONE}
                for factor in factors:
                    result = _times(result, self._factor(factor))
                return result
            case Call(fn="div", args=(over, under)) if floats:
                return _times(self._factor(over), self._factor(Call("reciprocal", (under,))))
            case Call(fn="reciprocal", args=(Num(value=value),)) if 0 < abs(value) < math.inf:
                return {(): (1 / Fraction(value), abs(1 / Fraction(value)))}
            case Call(fn="pow", args=(base, Num(value=2 | 3 | 4 as n))) if self._deep:
                return self.of(Prod((base,) * int(n)))
        # An atom: a function, a read, or arithmetic in another dtype, which wraps or rounds there.
        if not (isinstance(scalar, Value) or is_finite(scalar)):
            self.finite = False
        return {(scalar,): ONE}

    def _factor(self, scalar: Scalar) -> Polynomial:
        if self._deep or not isinstance(scalar, Sum):
            return self.of(scalar)
        return {(scalar,): ONE}


def _digest(scalar: Scalar) -> bytes:
    return scalar.digest


def _add(into: Polynomial, terms: Polynomial) -> None:
    for monomial, (number, size) in terms.items():
        a, b = into.get(monomial, ZERO)
        into[monomial] = a + number, b + size


def _times(left: Polynomial, right: Polynomial) -> Polynomial:
    # Refused before the time is spent; like monomials could leave fewer.
    _require(len(left) * len(right) <= MAX_MONOMIALS * 16, condition="large",
             what="too many monomials")  # fmt: skip
    result: Polynomial = {}
    for a, (x, p) in left.items():
        for b, (y, q) in right.items():
            _add(result, {tuple(sorted((*a, *b), key=_digest)): (x * y, p * q)})
    return result
