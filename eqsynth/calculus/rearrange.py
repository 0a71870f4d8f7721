"""Rearranging: a body becomes any body that is the same polynomial in its reads and functions.

    L_x R_y f  =  L_x R_y g        f and g the same polynomial

This one law covers distributing, factoring, collecting like terms, ``x - x``, ``0 * x`` and
``-(x - y)``: equality of polynomials is decided, not listed. ``f / g`` counts as ``f * (1 / g)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
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
# The largest rounding error of a coefficient, relative to the absolute sum of its parts.
_TOLERANCE = 2.0**-44

MAX_NUMBER: Final = 1 << 40
"""Coefficients of integers must be smaller: two of them never differ by less than the tolerance."""

Monomial = tuple[Scalar, ...]
Polynomial = dict[Monomial, tuple[float, float]]
"""Monomial (its factors, sorted by digest) -> its coefficient, and the sum of the absolute values
of the numbers that were added up to the coefficient: ``x - 3*x`` is ``{(x,): (-2, 4)}``."""


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
            known; ``large``: too many monomials, or too large coefficients of integers, to decide.
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
    """Whether two polynomials have the same coefficients, up to rounding."""
    for monomial in left.keys() | right.keys():
        (a, size), (b, other) = (side.get(monomial, (0.0, 0.0)) for side in (left, right))
        if not abs(a - b) <= _TOLERANCE * max(size, other):
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
            exact = is_float(self._dtype) or all(size < MAX_NUMBER for _, size in found.values())
            _require(exact, condition="large", what="too large a number")
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
        # An atom: a function, a read, or arithmetic in another dtype, which wraps or rounds there.
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
