"""Cumulative sums: a sum over all places up to one is read off a running sum.

    L_{i,d,e} sum_k k[k, d] v[k, e] ones[i - k]
      =  L_{i,d,e} sum_q k[i - q, d] v[i - q, e]           q = i - k; what is before the begin is 0
      =  cumsum({L_{k,d,e} k[k, d] v[k, e]}, 0)

A read of ones at ``e - k`` that is never beyond their end is the condition ``k <= e``. What else
the sum takes depends on e only by ``e - q``, so the sum is an element of a cumulative sum over k:
that at e. A sum over the places from one on, ``x[e + q]``, is a cumulative sum in reverse order.
With n places of k a cumulative sum takes n additions, and the sum n for each e.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from eqsynth.calculus import conditions
from eqsynth.calculus.deriving import Steps
from eqsynth.calculus.recount import Count, Recount
from eqsynth.calculus.select import Numbers
from eqsynth.egraph.defined import comprehension
from eqsynth.egraph.tactics.opening import matched
from eqsynth.egraph.tactics.ordering import is_one_sided
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.egraph.tactics.requests import number_of, settled, some
from eqsynth.egraph.view import View
from eqsynth.ir.index import Index, It
from eqsynth.ir.indices import substituted
from eqsynth.ir.scalar import Read, factors_of, iterators, reads
from eqsynth.ir.scopes import bare, reduction_iterators, scope_over, traversal_iterators
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.ir.types import is_float

Number = Callable[[Tensor], float | None]
"""The number that all elements of a tensor are; None if they aren't one number."""


@dataclass(frozen=True)
class _Run:
    """The places that a sum runs through: ``end - by``, or ``end + by`` if ``forward``.

    Attributes:
        by: the reduced iterator that counts the steps from the end.
        end: an index over iterators of the result.
        size: the extent of an axis that is read at the places.
    """

    by: It
    end: Index
    forward: bool
    size: int


def match_cumsum(view: View, row: Sequence[Any]) -> Iterable[Steps]:
    """Return the steps from a sum over all places up to one to an element of a running sum."""
    scope = settled(view, row)
    if scope is None or not conditions.is_product(scope) or not is_float(scope.dtype):
        return []
    for found in (Path(scope), *_without_conditions(scope, partial(number_of, view))):
        for run in dict.fromkeys(_runs(found.scope)):
            answers: list[Steps] = []
            for said in _read_off(found.scope, run):
                by = comprehension(said.running, view.meanings)
                known = () if by is None else ((said.running, by),)
                ways = matched(found.scope, said.term, known)
                answers += [(*found.steps, *steps) for steps in ways]
            if answers:
                return answers
    return []


def _without_conditions(scope: Scope, number: Number, turned: bool = False) -> Iterator[Path]:
    """Yield the paths on which ``k`` becomes ``e - q``, for each factor ``ones[e - k]``; and, with
    k counted backward first, ``e + q`` for ``ones[k - e]``.

    Args:
        turned: whether an iterator has been counted backward.
    """
    reduced = set(reduction_iterators(scope))
    for factor in factors_of(scope.body):
        if not isinstance(factor, Read) or not is_one_sided(factor):
            continue
        (index,) = factor.index
        over = [it for it in index.iterators() if it in reduced]
        if len(over) != 1 or number(factor.tensor) != 1.0:
            continue
        (it,), slot = over, len(scope.extents)
        if index.coefficient(it.slot) == 1 and not turned:
            back = It(slot, it.extent)
            turn = path(scope, Recount((Count(it, it.extent - 1 - bare(back), (back,)),)))
            for found in _without_conditions(turn.scope, number, True) if turn else ():
                yield Path(found.scope, (*(turn.steps if turn else ()), *found.steps))
        elif index.coefficient(it.slot) == -1:
            end = index + bare(it)
            steps = It(slot, end.range()[1] + 1)
            recount = Recount((Count(it, end - bare(steps), (steps,)),))
            yield from some(path(scope, recount, Numbers(((factor.tensor, 1.0),))))


def _runs(scope: Scope) -> Iterator[_Run]:
    reduced = reduction_iterators(scope)
    for read in reads(scope.body):
        for index, size in zip(read.index, read.tensor.shape, strict=True):
            for by in index.iterators():
                step = index.coefficient(by.slot)
                end = index - bare(by) * step
                if by in reduced and abs(step) == 1 and not {*end.iterators()} & {*reduced}:
                    yield _Run(by, end, step == 1, size)


@dataclass(frozen=True)
class _ReadOff:
    """A cumulative sum, and the term that reads it at the end of each run."""

    term: Tensor
    running: Op


def _read_off(scope: Scope, run: _Run) -> Iterator[_ReadOff]:
    """Yield the cumulative sums that a sum can be read off: along the axis at which the end stands,
    and along the last axis, where it is fastest. There is none if the sum depends on the end in
    another way, or doesn't run over all places up to it."""
    low, high = run.end.range()
    steps = run.by.extent
    # In reverse order the first place is the last one that the run meets from every end.
    last = low + steps - 1
    if low == high or not (run.size <= last + 1 if run.forward else high < steps):
        return
    place = It(len(scope.extents), steps)
    by = last - bare(place) - run.end if run.forward else run.end - bare(place)
    body = substituted(scope.body, {run.by: by})
    ends, used = {*run.end.iterators()}, iterators(body)
    if run.by in used or ends & used:
        return
    traversal = traversal_iterators(scope)
    axes: list[It] = []
    for outer in traversal:
        if outer in ends and place not in axes:
            axes.append(place)
        elif outer in used:
            axes.append(outer)
    rest = [it for it in reduction_iterators(scope) if it != run.by]
    at = last - run.end if run.forward else run.end
    for order in dict.fromkeys((tuple(axes), (*(it for it in axes if it != place), place))):
        inner: Tensor = scope_over(order, rest, body)
        if isinstance(body, Read) and not rest and _is_whole(body, axes):
            order = tuple(it for index in body.index if (it := index.bare()) is not None)
            inner = body.tensor
        running = Op("CumSum", (inner,), (order.index(place),))
        index = tuple(at if it == place else bare(it) for it in order)
        whole = list(index) == list(map(bare, traversal))
        term = running if whole else scope_over(traversal, [], Read(running, index))
        yield _ReadOff(term, running)
        if not isinstance(inner, Scope):
            return  # a tensor that is there is summed as it lies


def _is_whole(read: Read, axes: Sequence[It]) -> bool:
    """Whether the read takes each element of its tensor once, by these iterators in some order."""
    own = [index.bare() for index in read.index]
    return (
        len(own) == len(axes)
        and {*own} == {*axes}
        and read.tensor.shape == tuple(it.extent for it in own if it is not None)
    )
