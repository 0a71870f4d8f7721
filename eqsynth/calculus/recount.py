"""Recounting: a reduction runs through the same values with other iterators.

    R_k f(k)  =  R_{q,r} f(d*q + r)        d*q + r takes each value of k, and each once
    sum_k f(x, k)  =  sum_q f(x, s*q + x % s)        f(x, k) = 0 unless s divides x - k
    sum_k t[x - k] f(k)  =  sum_q t[q] f(x - q)      f(k) = 0 for k < 0
    sum_{k,l} t[x + k + l] f(k) g(l)  =  sum_{u,l} t[x + u] f(u - l) g(l)    f(k) = 0 for k < 0
                                                     and beyond the last k

A maximum or minimum may take a value twice. A sum of products may omit the values of k at which a
factor is zero, and may take values beyond k's extent at which a factor is zero. If the value isn't
evidently a number written in digits (``d*q + r``, r < d), the law enumerates all values. The other
direction, ``R_{q,r} f(d*q + r) = R_k f(k)``, is ``match``: the proposed scope, recounted, is the
given one.

    max_k x[i + k - 1 else -inf]  =  max_k x[max(i + k - 1, 0)]                        ``cover``

A maximum that omits what is outside may take a place inside twice instead, so that no read leaves
its tensor any more: max pooling of ReLU is then ReLU of max pooling, also at the borders.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from eqsynth.calculus import checking
from eqsynth.calculus.conditions import is_product, leaves_with, neutral_outside
from eqsynth.ir.index import Index, It
from eqsynth.ir.indices import substituted
from eqsynth.ir.scalar import Read, Scalar, factors_of
from eqsynth.ir.scopes import bare, reduction_iterators, same_scope, traversal_iterators
from eqsynth.ir.tensor import Scope

_require = partial(checking.require, law="recount")

LARGEST: Final = 1 << 22
"""The most values that the law enumerates."""


@dataclass(frozen=True)
class Count:
    """A reduction iterator ``old`` and the index that replaces it, ``value``, over iterators of the
    traversal, reduction iterators that no count replaces, and the reduction iterators ``new``:
    ``Count(k, 4*q + r, (q, r))``. For each value of the others ``new`` runs through those of k."""

    old: It
    value: Index
    new: tuple[It, ...]


@dataclass(frozen=True)
class Recount:
    """The iterators to replace; the slots of new iterators lie beyond the slots of the scope."""

    counts: tuple[Count, ...]


@dataclass(frozen=True)
class Cover:
    """The indices that the one read of a maximum has instead."""

    index: tuple[Index, ...]


def recount(scope: Scope, given: Recount) -> Scope:
    """``R_k f(k) = R_{q,r} f(d*q + r)``.

    Raises:
        LawError: ``iterators``: the arguments don't fit; ``values``: a value is omitted or taken
            twice, where the body isn't known to be zero; ``beyond``: a value outside of the old
            extent is taken, where the body isn't known to be zero; ``large``: too many values.
    """
    old = [count.old for count in given.counts]
    new = [it for count in given.counts for it in count.new]
    reduced = reduction_iterators(scope)
    outside = {*traversal_iterators(scope), *reduced} - {*old}
    fits = len(set(old)) == len(old) and set(old) <= set(reduced)
    fits = fits and len({it.slot for it in new}) == len(new)
    fits = fits and all({*outside, *c.new} >= set(c.value.iterators()) for c in given.counts)
    _require(fits and all(it.slot >= len(scope.extents) and it.extent > 0 for it in new),
             condition="iterators", what="no new iterators for some of the reduction")  # fmt: skip
    body = scope.body
    for count in given.counts:
        # One at a time: the zero beyond one iterator's extent may depend on the other's range.
        factors = factors_of(body) if is_product(scope) else ()
        if not _are_digits(count) and not _runs_down(count, factors):
            _check(count, factors, scope.reducer in ("max", "min"))
        body = substituted(body, {count.old: count.value})
    return same_scope(scope, body, [*(it for it in reduced if it not in old), *new])


def _are_digits(count: Count) -> bool:
    """Whether the value is a number in digits, ``d*q + r`` with r < d, that takes each value of the
    old iterator once."""
    span = 1
    for atom, step in sorted(count.value.terms, key=lambda term: abs(term[1])):
        if abs(step) != span or atom not in count.new:
            return False
        span *= next(it.extent for it in count.new if it == atom)
    every = span == count.old.extent == math.prod(it.extent for it in count.new)
    return every and count.value.range() == (0, span - 1)


def _runs_down(count: Count, factors: Sequence[Scalar]) -> bool:
    """Whether the value is ``e - q`` for a q with more places than e has values, and the body is
    zero for k > e, for k < 0, and, if e may be beyond the old extent, there too.

    Then q takes k = e, e - 1, … down to some number below 1, each once. The old values beyond e are
    left out: there the factor that reads ``t[e - k]`` reads before the begin of t. The new values
    outside of the old extent are some at which another factor is outside of its tensor. Nothing is
    enumerated, so e and q may have any number of values.
    """
    read = [f for f in factors if isinstance(f, Read) and f.fill == 0]
    end, old = count.value + sum(map(bare, count.new), Index(0)), count.old
    if len(count.new) != 1 or {old, *count.new} & {*end.iterators()}:
        return False
    sides = True, end.range()[1] >= old.extent
    ends = any(end - bare(old) in factor.index for factor in read)
    reaches = end.range()[1] < count.new[0].extent
    return ends and reaches and any(leaves_with(f, old, sides) for f in read)


def _check(count: Count, factors: Sequence[Scalar], twice: bool) -> None:
    """Enumerate the values, for each value of the traversal iterators that they depend on.

    Args:
        factors: scalars such that the body is zero where one of them is zero.
        twice: whether the reduction may take a value twice (a maximum or minimum).
    """
    its = sorted({*count.value.iterators()} - {*count.new}, key=lambda it: it.slot)
    if any(it.extent == 0 for it in its):
        return
    low, high = count.value.range()
    start, end = min(low, 0), max(high + 1, count.old.extent)
    places, width = math.prod(it.extent for it in its), end - start
    size = places * max(width, math.prod(it.extent for it in count.new))
    _require(size <= LARGEST, condition="large", what="too many values")
    values = count.value.evaluate(_grid([*its, *count.new]))
    values = np.broadcast_to(values, [it.extent for it in (*its, *count.new)])
    rows = np.arange(places)[:, None] * width + values.reshape(places, -1) - start
    met = np.bincount(rows.ravel(), minlength=places * width).reshape(places, width)
    own = (np.arange(start, end) >= 0) & (np.arange(start, end) < count.old.extent)
    wrong = ((met > 0) if twice else met) != own
    # Zeros are looked for only if they matter, since this takes time.
    wrong &= ~_zero(factors if wrong.any() else (), its, count.old, (start, end))
    _require(not wrong[:, own].any(), condition="values",
             what="some values are left out, or counted twice")  # fmt: skip
    _require(not wrong.any(), condition="beyond", what="more than zero beyond the last value")


def _zero(
    factors: Sequence[Scalar], its: Sequence[It], it: It, values: tuple[int, int]
) -> npt.NDArray[Any]:
    """Return bools with an axis for the values of all ``its`` and an axis for ``it``: True where a
    factor reads the zero outside of its tensor for all values of the other iterators."""
    own = [*its, it]
    found = np.zeros([*(it.extent for it in its), values[1] - values[0]], dtype=bool)
    for factor in factors:
        if not isinstance(factor, Read) or factor.fill != 0:
            continue
        for index, size in zip(factor.index, factor.tensor.shape, strict=True):
            others = [other for other in dict.fromkeys(index.iterators()) if other not in own]
            if found.size * math.prod(other.extent for other in others) > LARGEST:
                continue
            at = index.evaluate(_grid([*own, *others], {it: values}))
            outside = np.broadcast_to((at < 0) | (at >= size),
                                      [*found.shape, *(o.extent for o in others)])  # fmt: skip
            found |= outside.all(axis=tuple(range(len(own), len(own) + len(others))))
    return found.reshape(-1, values[1] - values[0])


def cover(scope: Scope, given: Cover) -> Scope:
    """``L_x max_k t[m(x, k) else -inf] = L_x max_k t[n(x, k) else -inf]``, and for min with inf.

    Raises:
        LawError: ``extremum``: the body isn't one read of floats whose fill the reducer omits;
            ``index``: the new read has another number of indices, or an iterator that isn't the
            scope's; ``values``: for some x the places in range differ; ``large``: too many values.
    """
    read, reduced = scope.body, set(reduction_iterators(scope))
    _require(scope.reducer in ("max", "min") and neutral_outside(scope) is not None,
             condition="extremum", what="no maximum or minimum of one read")  # fmt: skip
    assert isinstance(read, Read)
    own = [*traversal_iterators(scope), *reduction_iterators(scope)]
    used = {it for index in given.index for it in index.iterators()}
    _require(len(given.index) == len(read.index) and used <= {*own}, condition="index",
             what="no read of this scope")  # fmt: skip
    axes = list(zip(read.index, given.index, read.tensor.shape, strict=True))
    # Along the other axes both reads are at one place for each x.
    axes = [axis for axis in axes
            if axis[0] != axis[1] or reduced & {*axis[0].iterators()}]  # fmt: skip
    used = {it for *indices, _ in axes for index in indices for it in index.iterators()}
    its = [it for it in own if it in used]
    _require(math.prod(it.extent for it in its) <= LARGEST, condition="large",
             what="too many values")  # fmt: skip
    old = _places([(index, size) for index, _, size in axes], its, reduced)
    new = _places([(index, size) for _, index, size in axes], its, reduced)
    _require(np.array_equal(old, new), condition="values", what="it takes other places")
    body = Read(read.tensor, given.index, read.fill)
    return same_scope(scope, body, reduction_iterators(scope))


def _places(
    axes: Sequence[tuple[Index, int]], its: Sequence[It], reduced: Container[It]
) -> npt.NDArray[np.int64]:
    """The places in range that the indices take, in ascending order, each as one number: the values
    of the iterators that aren't reduced, which come first in ``its``, and then the place."""
    values, shape = _grid(its), [it.extent for it in its]
    rows = math.prod(it.extent for it in its if it not in reduced)
    place, inside = np.zeros(shape, np.int64), np.ones(shape, bool)
    for index, size in axes:
        at = index.evaluate(values)
        place, inside = place * size + at, inside & (at >= 0) & (at < size)
    row = np.arange(rows).repeat(place.size // max(rows, 1)).reshape(shape)
    return np.unique((row * math.prod(size for _, size in axes) + place)[inside])


def _grid(
    its: Sequence[It], ranges: Mapping[It, tuple[int, int]] | None = None
) -> dict[int, npt.NDArray[np.int64]]:
    """Map each slot to its iterator's values, broadcastable; ``ranges`` replaces some ranges."""
    spans = [(ranges or {}).get(it, (0, it.extent)) for it in its]
    arrays = np.meshgrid(*(np.arange(*span) for span in spans), indexing="ij", sparse=True)
    return {it.slot: array for it, array in zip(its, arrays, strict=True)}
