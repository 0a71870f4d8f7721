"""Which reads become what they read: what is worth inlining (``calculus/inline.py``)."""

from __future__ import annotations

import math

from eqsynth.calculus.conditions import is_view, vanishes_outside
from eqsynth.calculus.inline import Inline
from eqsynth.egraph.tactics.paths import path
from eqsynth.ir.index import Index
from eqsynth.ir.normal import remembered
from eqsynth.ir.scalar import Num, Read, factors_of, reads, tree_size
from eqsynth.ir.tensor import Scope

# A body with more reads than this isn't grown any further.
MAX_READS = 16


def is_permutation(scope: Scope) -> bool:
    """True for a view that changes the order of axes only (and axes of extent 1)."""
    if not is_view(scope):
        return False
    (read,) = factors_of(scope.body)
    assert isinstance(read, Read)
    own = [index.bare() for index in read.index if index != Index(0)]
    whole = read.in_range() and math.prod(scope.traversal) == read.tensor.type.size
    return None not in own and len(set(own)) == len(own) and whole


@remembered(maxsize=1 << 15)
def merge(outer: Scope, read: Read, inner: Scope) -> Scope | None:
    """``outer`` with ``read`` inlined; None if that isn't an equality, the body would grow too
    large, or a sum would come out that isn't one of a product."""
    if inner.reduction and outer.body != read and not _is_product_with(outer, read, inner):
        return None
    if not _keeps_its_box(read, inner):
        return None
    merged = path(outer, Inline(read, inner))
    return merged.scope if merged and tree_size(merged.scope.body) <= MAX_READS else None


def _is_product_with(outer: Scope, read: Read, inner: Scope) -> bool:
    """What a sum inside is taken out of stays a product: a square would be one of itself."""
    return sum(factor == read for factor in factors_of(outer.body)) == 1 and all(
        isinstance(factor, Read | Num) for factor in factors_of(inner.body)
    )


def _keeps_its_box(read: Read, inner: Scope) -> bool:
    """What is read beyond its ends is zero there by itself, on both sides, whether or not both are
    reached: what a bound has cut off at one side is computed as it was cut."""
    inside = all(
        index.range()[0] >= 0 and index.range()[1] < extent
        or vanishes_outside(inner, axis, read.fill)
        for axis, (index, extent) in enumerate(zip(read.index, inner.traversal, strict=True))
    )
    return inside and (read.in_range() or not inner.reduction or inner.reducer == "sum")


def sums_each_once(scope: Scope) -> bool:
    """A sum of one operand that is read no more often than it has elements: computing them where
    they are read costs no more than computing them before."""
    found = list(reads(scope.body))
    return (
        bool(scope.reduction)
        and len(found) == 1
        and math.prod(scope.extents) <= found[0].tensor.type.size
    )
