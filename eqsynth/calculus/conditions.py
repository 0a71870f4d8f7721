"""What laws ask of scopes: whether a body is a product of finite factors, where it is zero.

Each function is a sufficient condition: what it affirms is so, what it denies may be so too.
"""

from __future__ import annotations

import math
from typing import Final

from eqsynth.ir.functions import REDUCERS
from eqsynth.ir.index import FloorDiv, Index, It
from eqsynth.ir.scalar import Num, Read, Scalar, composites, dtype_of, factors_of, leaves
from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import is_float


def is_product(scope: Scope) -> bool:
    """True for ``L sum . read * read * … * number`` with at least one read.

    Numbers and fills are finite, so that one zero makes the whole product zero (a read alone may
    have any fill), and something is summed if there is a sum.
    """
    factors = factors_of(scope.body)
    return (
        scope.reducer == "sum"
        and 0 not in scope.reduction
        and all(isinstance(f, Read | Num) for f in factors)
        and any(isinstance(f, Read) for f in factors)
        and (len(factors) == 1 or all(map(is_finite, factors)))
    )


def is_finite(factor: Scalar) -> bool:
    """A number that is finite, or a read that can't give an infinite fill."""
    if isinstance(factor, Read):
        return math.isfinite(factor.fill) or factor.in_range()
    return isinstance(factor, Num) and math.isfinite(factor.value)


def is_view(scope: Scope) -> bool:
    """True for ``L . tensor[phi]``: elements are moved, nothing is computed."""
    return not scope.reduction and isinstance(scope.body, Read)


def neutral_outside(scope: Scope) -> float | None:
    """What is read outside if that changes nothing: zero in a sum of products, and in a reduction
    of a read alone the reducer's identity. Of other bodies (a bias, a scaled maximum) nothing is
    known there: their box is as it is."""
    if is_product(scope):
        return 0.0
    body, identity = scope.body, REDUCERS[scope.reducer]
    alone = isinstance(body, Read) and body.fill == identity and is_float(scope.dtype)
    return identity if alone else None


BOTH: Final = (True, True)
"""An iterator may leave its extent on either side, below 0 and at its end."""


def vanishes_outside(
    scope: Scope, axis: int, fill: float, sides: tuple[bool, bool] = BOTH
) -> bool:
    """True if the scope is ``fill`` wherever traversal iterator ``axis`` leaves its extent, on the
    sides that are asked about.

    A read whose index along some axis is ``a*z + rest``, a of either sign, leaves its tensor as
    soon as ``z`` leaves [0, extent); in a product one such factor with fill 0 is enough. In another
    reduction the read stands alone, and its fill is what changes nothing there.
    """
    if not is_view(scope) and fill != neutral_outside(scope):
        return False
    factors = [f for f in factors_of(scope.body) if isinstance(f, Read)]
    at = It(axis, scope.traversal[axis])
    return any(factor.fill == fill and leaves_with(factor, at, sides) for factor in factors)


def leaves_with(read: Read, it: It, sides: tuple[bool, bool] = BOTH) -> bool:
    """The read is outside of its tensor wherever iterator ``it`` is outside of its extent."""
    return any(
        _leaves(index, it.slot, it.extent, size, sides)
        for index, size in zip(read.index, read.tensor.shape, strict=True)
    )


def _leaves(index: Index, axis: int, extent: int, size: int, sides: tuple[bool, bool]) -> bool:
    """``index`` is outside [0, size) for every value of iterator ``axis`` outside [0, extent).

    ``x // d`` is outside where x is outside of [0, d * size), and ``size - 1 - x`` where x is.
    """
    while len(index.terms) == 1 and isinstance(index.terms[0][0], FloorDiv):
        (atom, c), *_ = index.terms
        if c != 1 or index.const or not isinstance(atom, FloorDiv):
            break
        index, size = atom.value, size * atom.divisor
    a = index.coefficient(axis)
    if a == 0 or not index.is_affine or extent == 1:
        return False
    index, a = (index, a) if a > 0 else (-index + (size - 1), -a)
    rest = index - Index.iterator(axis, extent) * a
    low, high = rest.range()
    below, above = sides
    return (not below or high - a < 0) and (not above or a * extent + low >= size)


def independent(inner: Scope, outside: list[int]) -> bool:
    """No index mixes two iterators that may both be outside: then each is judged alone."""
    return not any(
        len({it.slot for it in index.iterators()} & set(outside)) > 1
        for factor in factors_of(inner.body)
        if isinstance(factor, Read)
        for index in factor.index
    )


def support(body: Scalar, it: It, outside: float = 0.0) -> tuple[int, int]:
    """The range of an iterator outside of which some factor reads ``outside``: by default zero,
    and with it the product."""
    low, high = 0, it.extent
    for factor in factors_of(body):
        if not isinstance(factor, Read) or factor.fill != outside:
            continue
        for index, size in zip(factor.index, factor.tensor.shape, strict=True):
            step = index.coefficient(it.slot)
            if step == 0 or not index.is_affine:
                continue
            index, step = (index, step) if step > 0 else (-index + (size - 1), -step)
            rest = index - Index.iterator(it.slot, it.extent) * step
            rest_low, rest_high = rest.range()
            # step*it + rest in [0, size) for some value of the rest.
            low = max(low, -(rest_high // step))
            high = min(high, (size - 1 - rest_low) // step + 1)
    return low, high


def keeps_one_dtype(scalar: Scalar, dtype: str | None) -> bool:
    """All that is read and computed has this dtype; numbers take that of what they meet.

    So an operand of it may change places: uint8 arithmetic wraps modulo 256 wherever it stops, and
    taken into a sum of floats it wouldn't.
    """
    parts = (*composites(scalar), *leaves(scalar))
    return all(dtype_of(part) in (None, dtype) for part in parts)
