"""Cumulative sums: a sum over the places up to a bound is read off a running sum.

    L_{i,e} sum_k k[k, d] v[k, e] ones[i - k]  =  cumsum({L_{k,e} k[k, d] v[k, e]}, 0)

A read of ones at ``e - k``, which is never beyond their end, is the condition ``k <= e``. What else
the sum takes must not depend on the iterators of e. The sum is then an element of a cumulative sum
over k, at e: 0 where e is negative, since that is a read outside. A condition ``e <= k`` is a
cumulative sum in reverse order. With n places of k that is n additions where the sum has n * n.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from eqsynth.calculus import conditions
from eqsynth.calculus.define import Meanings
from eqsynth.calculus.deriving import Match, Steps
from eqsynth.calculus.recount import Count, Recount
from eqsynth.egraph.defined import comprehension
from eqsynth.egraph.tactics.opening import follows
from eqsynth.egraph.tactics.requests import number_of, settled
from eqsynth.egraph.view import View
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Num, Read, Scalar, factors_of, iterators, product
from eqsynth.ir.scopes import bare, reduction_iterators, scope_over, traversal_iterators
from eqsynth.ir.tensor import ClassRef, Op, Scope, Tensor
from eqsynth.ir.types import is_float


@dataclass(frozen=True)
class _Bound:
    """A factor of a sum that is 1 where ``over`` is at most ``end``, and 0 elsewhere.

    Attributes:
        ones: the factor, a read of ones.
        from_end: whether it is 1 where ``over`` is at least ``end`` instead.
    """

    ones: Read
    over: It
    end: Index
    from_end: bool


def match_cumsum(view: View, row: Sequence[Any]) -> Iterable[Steps]:
    """Return the steps from a sum over the places up to a bound to an element of a running sum."""
    scope = settled(view, row)
    if scope is None or not conditions.is_product(scope) or not is_float(scope.dtype):
        return []
    for bound in _bounds(view, scope):
        found = _running(scope, bound)
        if found is None:
            continue
        term, running = found
        by = comprehension(running, view.meanings)
        ones = next((op for op in view.operators(bound.ones.tensor) if op.name == "Full"), None)
        if by is None or ones is None:
            continue
        known: Meanings = ((running, by), (bound.ones.tensor, ones))
        for steps in _turned(scope, bound.over) if bound.from_end else [()]:
            if follows(scope, term, known, steps):
                return [(Match(term, known, steps),)]
    return []


def _turned(scope: Scope, over: It) -> Iterator[Steps]:
    """Yield the steps that count one of the reduced iterators as long as ``over`` backward."""
    new = It(len(scope.extents) + 1, over.extent)
    for it in reduction_iterators(scope):
        if it.extent == over.extent:
            yield (Recount((Count(it, over.extent - 1 - bare(new), (new,)),)),)


def _bounds(view: View, scope: Scope) -> Iterator[_Bound]:
    reduced = set(reduction_iterators(scope))
    for factor in factors_of(scope.body):
        if not isinstance(factor, Read) or not isinstance(factor.tensor, ClassRef):
            continue
        if factor.fill != 0 or number_of(view, factor.tensor) != 1.0:
            continue
        (index,) = factor.index
        over = [it for it in index.iterators() if it in reduced]
        if len(over) != 1 or not is_one_sided(factor):
            continue
        (it,) = over
        step = index.coefficient(it.slot)
        rest = index - bare(it) * step
        if abs(step) == 1 and rest.terms and it not in rest.iterators():
            yield _Bound(factor, it, rest if step < 0 else -rest, step > 0)


def is_one_sided(read: Read) -> bool:
    """Whether the read has one index, which may be below the tensor, and is never beyond it."""
    if len(read.index) != 1:
        return False
    low, high = read.index[0].range()
    return low < 0 <= high < read.tensor.shape[0]


def _running(scope: Scope, bound: _Bound) -> tuple[Tensor, Op] | None:
    """Return a term that reads a cumulative sum at the bound, and the cumulative sum; None if the
    other factors depend on the bound, or if it may lie beyond the end of the sum."""
    others = list(factors_of(scope.body))
    others.remove(bound.ones)
    used = {it for factor in others for it in iterators(factor)}
    place = set(bound.end.iterators())
    over, last = bound.over, bound.over.extent - 1
    end = last - bound.end if bound.from_end else bound.end
    if place & used or over not in used or end.range()[1] > last:
        return None
    # The place of the sum among the axes is that of the bound, so that it may be the result itself.
    at = bound.end.bare()
    axes = [over if it == at else it for it in traversal_iterators(scope) if it == at or it in used]
    if at is None:
        axes.append(over)
    body: Scalar = product(others)
    axes = _axes_of(body, axes)
    axis = axes.index(over)
    rest = [it for it in reduction_iterators(scope) if it != over and it in used]
    inner: Tensor
    if not rest and isinstance(body, Read) and list(map(bare, axes)) == list(body.index):
        inner = body.tensor
        if inner.shape != tuple(it.extent for it in axes):
            inner = scope_over(axes, rest, body)
    else:
        inner = scope_over(axes, rest, body)
    if bound.from_end:
        inner = Op("Reverse", (inner,), ((axis,),))
    running = Op("CumSum", (inner,), (axis,))
    index = tuple(end if it == over else bare(it) for it in axes)
    if list(index) == list(map(bare, traversal_iterators(scope))):
        return running, running
    return scope_over(traversal_iterators(scope), [], Read(running, index)), running


def _axes_of(body: Scalar, axes: list[It]) -> list[It]:
    """Return the axes in the order of the tensor, if the body reads one whole tensor by them."""
    if isinstance(body, Read):
        own = [index.bare() for index in body.index]
        if len(own) == len(axes) and set(own) == set(axes):
            return [it for it in own if it is not None]
    return axes
