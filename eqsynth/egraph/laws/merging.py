"""Traversal merging: a read of a scope becomes the scope's body (EinNet §4.1, §4.2 fusion).

    L_x f({L_z g(z)}[phi(x)])  =  L_x f(g(phi(x)))
    L_x sum_y c * {L_z sum_s g(z, s)}[phi(x, y)]  =  L_x sum_{y,s} c * g(phi(x, y), s)
    L_x {L_z reduce_s g(z, s)}[phi(x)]  =  L_x reduce_s g(phi(x), s)

    L_x max_y {L_z max_s g(z, s)}[phi(x, y)]      =  L_x max_{y,s} g(phi(x, y), s); min, prod

valid where phi stays inside the inner traversal, or the body gives the read's fill outside of it
by itself (:func:`vanishes_outside`). A bias or a maximum in the body breaks that.
"""

from __future__ import annotations

import math

from eqsynth.egraph.laws.closing import same_scope
from eqsynth.ir.functions import REDUCERS
from eqsynth.ir.index import FloorDiv, Index, It
from eqsynth.ir.normal import remembered
from eqsynth.ir.scalar import (
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    dtype_of,
    factors_of,
    product,
    rewrite_leaves,
    substitute,
    tree_size,
)
from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import is_float

# A body with more reads than this isn't grown any further.
MAX_READS = 16


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


def is_permutation(scope: Scope) -> bool:
    """True for a view that changes the order of axes only (and axes of extent 1)."""
    if not is_view(scope):
        return False
    (read,) = factors_of(scope.body)
    assert isinstance(read, Read)
    own = [index.bare() for index in read.index if index != Index(0)]
    whole = read.in_range() and math.prod(scope.traversal) == read.tensor.type.size
    return None not in own and len(set(own)) == len(own) and whole


def neutral_outside(scope: Scope) -> float | None:
    """What is read outside if that changes nothing: zero in a sum of products, and in a reduction
    of a read alone the reducer's identity. Of other bodies (a bias, a scaled maximum) nothing is
    known there: their box is as it is."""
    if is_product(scope):
        return 0.0
    body, identity = scope.body, REDUCERS[scope.reducer]
    alone = isinstance(body, Read) and body.fill == identity and is_float(scope.dtype)
    return identity if alone else None


def vanishes_outside(scope: Scope, axis: int, fill: float) -> bool:
    """True if the body is ``fill`` wherever traversal iterator ``axis`` leaves its extent.

    A read whose index along some axis is ``a*z + rest`` leaves its tensor as soon as ``z`` leaves
    [0, extent); in a product one such factor with fill 0 is enough.
    """
    if scope.reducer != "sum" and scope.reduction:
        return False
    factors = [f for f in factors_of(scope.body) if isinstance(f, Read)]
    if not is_product(scope) or (fill != 0 and not is_view(scope)):
        return False
    at = It(axis, scope.traversal[axis])
    return any(factor.fill == fill and leaves_with(factor, at) for factor in factors)


def leaves_with(read: Read, it: It) -> bool:
    """The read is outside of its tensor wherever iterator ``it`` is outside of its extent."""
    return any(
        _leaves(index, it.slot, it.extent, size)
        for index, size in zip(read.index, read.tensor.shape, strict=True)
    )


def _leaves(index: Index, axis: int, extent: int, size: int) -> bool:
    """``index`` is outside [0, size) for every value of iterator ``axis`` outside [0, extent).

    ``x // d`` is outside where x is outside of [0, d * size).
    """
    while len(index.terms) == 1 and isinstance(index.terms[0][0], FloorDiv):
        (atom, c), *_ = index.terms
        if c != 1 or index.const or not isinstance(atom, FloorDiv):
            break
        index, size = atom.value, size * atom.divisor
    a = index.coefficient(axis)
    if a <= 0 or not index.is_affine or extent == 1:
        return False
    rest = index - Index.iterator(axis, extent) * a
    low, high = rest.range()
    return high - a < 0 and a * extent + low >= size


@remembered(maxsize=1 << 15)
def merge(outer: Scope, read: Read, inner: Scope) -> Scope | None:
    """``outer`` with ``read`` replaced by the body of ``inner``, which is equal to what is read.

    None where that isn't an equality, or the body would grow too large.
    """
    if inner.dtype != (dtype_of(inner.body) or inner.dtype) or _may_wrap(outer, inner):
        return None
    outside = [
        axis
        for axis, (index, extent) in enumerate(zip(read.index, inner.traversal, strict=True))
        if not (index.range()[0] >= 0 and index.range()[1] < extent)
    ]
    if len(outside) > 1 and not independent(inner, outside):
        return None
    if not all(vanishes_outside(inner, axis, read.fill) for axis in outside):
        return None
    reduced = bool(inner.reduction) and (
        is_view(outer) or (outer.reducer == inner.reducer and outer.body == read)
    )
    if inner.reduction and not reduced and not (
        inner.reducer == "sum"
        and (outer.reducer == "sum" or not outer.reduction)
        and sum(factor == read for factor in factors_of(outer.body)) == 1
        and all(isinstance(f, Read | Num) for f in factors_of(inner.body))
    ):
        return None
    size = len(outer.extents)
    width = len(inner.traversal)

    def image(it: It) -> Index:
        if it.slot < width:
            return read.index[it.slot]
        return Index.iterator(size + it.slot - width, it.extent)

    body = substitute(inner.body, image)
    replaced = _replace(outer.body, read, body)
    if tree_size(replaced) > MAX_READS:
        return None
    added = [It(size + j, extent) for j, extent in enumerate(inner.reduction)]
    before = [It(len(outer.traversal) + j, e) for j, e in enumerate(outer.reduction)]
    reducer = inner.reducer if reduced else outer.reducer
    merged = same_scope(outer, replaced, [*before, *added], reducer)
    return merged if merged.type == outer.type else None


def _may_wrap(outer: Scope, inner: Scope) -> bool:
    """True if a sum or product of small integers would be carried out in a wider dtype.

    uint8 arithmetic is modulo 256 wherever it stops; taken into a product of floats it isn't.
    """
    return (
        inner.dtype in ("uint8", "int8", "int16", "int32", "bool")
        and inner.dtype != outer.dtype
        and (isinstance(inner.body, Sum | Prod) or bool(inner.reduction))
    )


def independent(inner: Scope, outside: list[int]) -> bool:
    """No index mixes two iterators that may both be outside: then each is judged alone."""
    return not any(
        len({it.slot for it in index.iterators()} & set(outside)) > 1
        for factor in factors_of(inner.body)
        if isinstance(factor, Read)
        for index in factor.index
    )


def _replace(scalar: Scalar, read: Read, body: Scalar) -> Scalar:
    if isinstance(scalar, Prod) and read in scalar.factors:
        # Only the first occurrence: the square of a sum isn't the sum of squares.
        at = scalar.factors.index(read)
        return product([*scalar.factors[:at], body, *scalar.factors[at + 1 :]])
    return rewrite_leaves(scalar, lambda leaf: body if leaf == read else leaf)
