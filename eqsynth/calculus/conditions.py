"""Conditions that laws check: is a body a product of finite factors, where is it zero, and so on.

Each condition is sufficient, not necessary: True is a proof, False only means "not proved here".
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from eqsynth.ir.functions import REDUCERS
from eqsynth.ir.index import FloorDiv, Index, It
from eqsynth.ir.normal import remembered
from eqsynth.ir.scalar import (
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    composites,
    dtype_of,
    factors_of,
    leaves,
    reads,
)
from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import is_float


@remembered(maxsize=1 << 15)
def is_product(scope: Scope) -> bool:
    """True for ``L sum . read * read * … * number``.

    All numbers and fills are finite, so that a factor of zero makes the product zero; a body that
    is one read alone may have any fill. No reduction extent is 0.
    """
    body = scope.body
    product = isinstance(body, Prod) and all(map(is_finite, body.factors))
    summed = scope.reducer == "sum" and 0 not in scope.reduction
    return summed and (product or isinstance(body, Read))


def is_finite(factor: Scalar) -> bool:
    """Whether the factor is a finite number, or a read with a finite fill.

    An infinite fill counts even if the read is in range here (a canonical form has fill 0 then). In
    ``L_{z<4} x[z] * y[z]`` the fills of both reads of 4 elements don't matter, but the law that
    reads this scope at ``z - 1`` meets ``0 * inf`` if the fills are 0 and inf."""
    if isinstance(factor, Read):
        return math.isfinite(factor.fill)
    return isinstance(factor, Num) and math.isfinite(factor.value)


def is_view(scope: Scope) -> bool:
    """True for ``L . tensor[phi]``: elements are moved, nothing is computed."""
    return not scope.reduction and isinstance(scope.body, Read)


def neutral_outside(scope: Scope) -> float | None:
    """Return the value that an element outside of the scope may have without changing the result.

    It is zero in a sum of products and the reducer's identity in a reduction of one read, such as
    -inf in a maximum. None for other bodies (a bias, a scaled maximum)."""
    if is_product(scope):
        return 0.0
    body, identity = scope.body, REDUCERS[scope.reducer]
    alone = isinstance(body, Read) and body.fill == identity and is_float(scope.dtype)
    return identity if alone else None


BOTH: Final = (True, True)
"""Both sides on which an iterator may leave its extent: below 0, and at its end or beyond."""


def vanishes_outside(scope: Scope, axis: int, fill: float, sides: tuple[bool, bool] = BOTH) -> bool:
    """Whether the scope is ``fill`` wherever traversal iterator ``axis`` leaves its extent on
    one of ``sides``.

    One factor of a product with fill 0 is enough, if its index along some axis, ``a*z + rest``,
    leaves its tensor whenever ``z`` leaves [0, extent). Of a sum each term is such a product. In
    another reduction the body is one read, whose fill is the reducer's identity.
    """
    if isinstance(scope.body, Sum):
        parts = (replace(scope, body=term) for term in scope.body.terms)
        return fill == 0 and all(vanishes_outside(part, axis, fill, sides) for part in parts)
    if not is_view(scope) and fill != neutral_outside(scope):
        return False
    factors = [f for f in factors_of(scope.body) if isinstance(f, Read)]
    at = It(axis, scope.traversal[axis])
    return any(factor.fill == fill and leaves_with(factor, at, sides) for factor in factors)


def leaves_with(read: Read, it: It, sides: tuple[bool, bool] = BOTH) -> bool:
    """Whether the read leaves its tensor wherever ``it`` leaves its extent on ``sides``."""
    return any(
        _leaves(index, it.slot, it.extent, size, sides)
        for index, size in zip(read.index, read.tensor.shape, strict=True)
    )


def _leaves(index: Index, axis: int, extent: int, size: int, sides: tuple[bool, bool]) -> bool:
    """Whether ``index`` is outside [0, size) wherever iterator ``axis`` is outside [0, extent).

    ``x // d`` is outside [0, size) where x is outside [0, d*size), ``size - 1 - x`` where x is.
    """
    match index:
        case Index(const=0, terms=((FloorDiv(value=value, divisor=divisor), 1),)):
            return _leaves(value, axis, extent, size * divisor, sides)
    if not index.is_affine:
        return False
    a = index.coefficient(axis)
    index, a = (index, a) if a > 0 else (-index + (size - 1), -a)
    rest = index - Index.iterator(axis, extent) * a
    low, high = rest.range()
    below, above = sides
    return (not below or high - a < 0) and (not above or a * extent + low >= size)


def independent(inner: Scope, outside: list[int]) -> bool:
    """Whether no index uses two iterators of ``outside``; each may then be checked by itself."""
    return not any(
        len({it.slot for it in index.iterators()} & set(outside)) > 1
        for read in reads(inner.body)
        for index in read.index
    )


def support(body: Scalar, it: It, outside: float = 0.0) -> tuple[int, int]:
    """Return ``(low, high)``: for each value of ``it`` outside [low, high) some factor of the body
    has the value ``outside`` (by default zero, so that the product is zero)."""
    low, high = 0, it.extent
    for factor in factors_of(body):
        if not isinstance(factor, Read) or factor.fill != outside:
            continue
        for index, size in zip(factor.index, factor.tensor.shape, strict=True):
            step = index.coefficient(it.slot)
            if step == 0:
                continue
            index, step = (index, step) if step > 0 else (-index + (size - 1), -step)
            rest = index - Index.iterator(it.slot, it.extent) * step
            rest_low, rest_high = rest.range()
            # The values of `it` for which step*it + rest is in [0, size) for some value of rest.
            low = max(low, -(rest_high // step))
            high = min(high, (size - 1 - rest_low) // step + 1)
    return low, high


def keeps_one_dtype(scalar: Scalar, dtype: str | None) -> bool:
    """Whether all reads and operations have this dtype (a number has no dtype of its own).

    An operand may then be moved within the body. Beside other dtypes it may not: a sum of uint8
    wraps modulo 256, and its terms, moved into a sum of floats, don't.
    """
    parts = (*composites(scalar), *leaves(scalar))
    return all(dtype_of(part) in (None, dtype) for part in parts)
