"""Which scopes are worth inlining where they are read (``calculus/inline.py``)."""

from __future__ import annotations

import math

from eqsynth.calculus.conditions import is_view, vanishes_outside
from eqsynth.calculus.inline import Inline
from eqsynth.egraph.tactics.ordering import FEWER, in_best_order
from eqsynth.egraph.tactics.paths import path
from eqsynth.ir.index import Index
from eqsynth.ir.normal import remembered
from eqsynth.ir.scalar import Num, Read, Sum, factors_of, reads, tree_size
from eqsynth.ir.tensor import Scope

# A scope isn't inlined if the tree of the resulting body would be larger than this.
MAX_READS = 16


def is_permutation(scope: Scope) -> bool:
    """Whether ``scope`` only changes the order of axes, or adds and drops axes of extent 1."""
    return is_broadcast(scope) and math.prod(scope.traversal) == _read_of(scope).tensor.type.size


def is_broadcast(scope: Scope) -> bool:
    """Whether ``scope`` is a view of a whole tensor that only changes the order of its axes, and
    repeats it along others: ``L_{i,j,l} t[l, i]``."""
    if not is_view(scope):
        return False
    read = _read_of(scope)
    own = [index.bare() for index in read.index if index != Index(0)]
    whole = math.prod(it.extent for it in own if it is not None) == read.tensor.type.size
    return None not in own and len(set(own)) == len(own) and whole and read.in_range()


def repeats_nothing(scope: Scope) -> bool:
    """Whether ``scope`` is a view of no more elements than the tensor has, as ``L_x t[x % 2, x //
    2]``: what it reads is computed no more often in it than by itself."""
    return is_view(scope) and math.prod(scope.traversal) <= _read_of(scope).tensor.type.size


def _read_of(view: Scope) -> Read:
    (read,) = factors_of(view.body)
    assert isinstance(read, Read)
    return read


def merge(outer: Scope, read: Read, inner: Scope, padded: bool = False) -> Scope | None:
    """Return ``outer`` with ``read`` replaced by the body of ``inner``, which ``read`` reads.

    If ``padded``, a sum may be read beyond its end. Of a concatenation with ``q * cos + r * sin``
    each reader would else be there with each subset of the products (Phi's layer: 13,833 e-nodes
    for 7,594).

    None if the result wouldn't be equal to ``outer``, if its body would be larger than
    ``MAX_READS``, or if it would be a sum of something else than a product.
    """
    return _merge(outer, read, inner, padded)


@remembered(maxsize=1 << 15)
def _merge(outer: Scope, read: Read, inner: Scope, padded: bool) -> Scope | None:
    if inner.reduction and outer.body != read and not _is_product_with(outer, read, inner):
        return None
    if isinstance(inner.body, Sum) and not (padded or read.in_range()):
        return None
    if not _keeps_its_box(read, inner):
        return None
    merged = path(outer, Inline(read, inner))
    return merged.scope if merged and tree_size(merged.scope.body) <= MAX_READS else None


def _is_product_with(outer: Scope, read: Read, inner: Scope) -> bool:
    """Whether ``outer`` stays a product when the sum ``inner`` is inlined.

    A square of a sum is opened where that is less work (:func:`_is_less_squared`).
    """
    times = sum(factor == read for factor in factors_of(outer.body))
    if not all(isinstance(factor, Read | Num) for factor in factors_of(inner.body)):
        return False
    return times == 1 or (times == 2 and _is_less_squared(outer, read, inner))


def _is_less_squared(outer: Scope, read: Read, inner: Scope) -> bool:
    """Whether a product with the square of a sum is less work with both sums inlined.

        sum_j s[i, j]^2 v[j]  ->  sum_{k,l} q[i, k] q[i, l] {sum_j k[j, k] k[j, l] v[j]}

    s = q k', of more rows than the square of q's width. Both are counted in the best order, with
    what makes s: ``sum_j s[i, j]^2`` of 512 x 512 by way of 16 is opened, and ``s^2`` never is.
    """
    kept = in_best_order(outer) + in_best_order(inner)
    once = path(outer, Inline(read, inner))
    # The iterators of the other factor may have other names now.
    for left in reads(once.scope.body) if once else ():
        if once and left.tensor == read.tensor:
            twice = once.then(Inline(left, inner))
            return twice is not None and FEWER * in_best_order(twice.scope) <= kept
    return False


def _keeps_its_box(read: Read, inner: Scope) -> bool:
    """Whether ``inner`` can be inlined without its bounds.

    Along each axis, ``read`` stays inside ``inner``, or the body of ``inner`` gives the fill of
    ``read`` on both sides outside. Both sides count, even if ``read`` reaches only one: an axis
    that was narrowed at one side stays narrowed.
    """
    inside = all(
        index.range()[0] >= 0
        and index.range()[1] < extent
        or vanishes_outside(inner, axis, read.fill)
        for axis, (index, extent) in enumerate(zip(read.index, inner.traversal, strict=True))
    )
    return inside and (read.in_range() or not inner.reduction or inner.reducer == "sum")


def sums_each_once(scope: Scope) -> bool:
    """Whether ``scope`` reduces one operand and reads it at most once an element.

    Computing such a reduction's operand where it is read costs no more than computing it before.
    """
    found = list(reads(scope.body))
    return (
        bool(scope.reduction)
        and len(found) == 1
        and math.prod(scope.extents) <= found[0].tensor.type.size
    )
