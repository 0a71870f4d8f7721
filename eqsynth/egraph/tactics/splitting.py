"""Expression splitting and merging (papers: EinNet §4.2), on one scope.

    expression_split   sum_y a * {b + c}[p]            ->  {sum_y a * b[p]} + {sum_y a * c[p]}
    tap_merge          {sum_y f(0, y)} + {sum_y f(1, y)}  ->  sum_{t,y} f(t, y)

Splitting is for sums whose terms are zero outside of a box, such as the pieces of a concatenation:
each part is computed on its own box. Merging is for sums of one computation at several taps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from eqsynth.calculus.conditions import independent, is_product, support, vanishes_outside
from eqsynth.calculus.same import Same
from eqsynth.egraph.tactics.merging import merge
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import (
    Num,
    Read,
    Scalar,
    factors_of,
    iterators,
    product,
    substitute,
    terms_of,
    total,
)
from eqsynth.ir.scopes import (
    bare,
    reduction_iterators,
    same_scope,
    scope_over,
    traversal_iterators,
)
from eqsynth.ir.tensor import Scope, Tensor, topological

# Sums of more terms than this aren't split or merged: each term is a computation of its own.
MAX_TERMS = 6
# Scopes with more reduction iterators than this aren't compared: all orders of these are tried.
MAX_REDUCED = 4

Piece = Callable[[Read], Scalar | None]


def read_terms(read: Read, inner: Scope) -> list[Scalar]:
    """The terms of ``inner`` at the index of ``read``, which reads ``inner``; none if not valid.

    They are valid if ``inner`` is a sum of products, each of which is zero outside of ``inner``
    along every axis on which ``read`` goes outside. Constant indices are substituted first: at one
    place of a stack the other pieces are zero and are dropped, even if they aren't zero outside.
    """
    terms = terms_of(inner.body)
    outside = [
        axis
        for axis, (index, extent) in enumerate(zip(read.index, inner.traversal, strict=True))
        if not (index.range()[0] >= 0 and index.range()[1] < extent)
    ]
    if inner.reduction or len(terms) < 2 or (outside and read.fill != 0):
        return []

    def numbered(it: It) -> Index:
        index = read.index[it.slot]
        return bare(it) if index.terms or it.slot in outside else index

    there = [substitute(term, numbered) for term in terms]
    there = [term for term in there if not any(map(_is_outside, factors_of(term)))] or there[:1]
    separate = all(
        is_product(part)
        and all(vanishes_outside(part, axis, 0.0) for axis in outside)
        and (len(outside) < 2 or independent(part, outside))
        for part in (Scope(inner.traversal, (), term) for term in there)
    )
    return [substitute(t, lambda it: read.index[it.slot]) for t in there] if separate else []


def piece(read: Read, inner: Scope) -> Scalar | None:
    """``{b + c}[p] = b[p]`` where c is 0 at every p: return the one piece that is read."""
    moved = read_terms(read, inner)
    kept = [term for term in moved if not any(map(_is_outside, factors_of(term)))]
    return kept[0] if len(kept) == 1 else None


def _is_outside(factor: Scalar) -> bool:
    return (
        isinstance(factor, Read)
        and factor.fill == 0
        and any(
            index.range()[1] < 0 or index.range()[0] >= size
            for index, size in zip(factor.index, factor.tensor.shape, strict=True)
        )
    )


def expression_split(scope: Scope, read: Read, inner: Scope, piece_of: Piece) -> Scope | None:
    """``L_x sum_y a * {b + c}[p] = L_x {L_x' sum_y a * b[p]}[x] + {L_x'' sum_y a * c[p]}[x]``.

    Each part is computed on the smallest box outside of which it is zero. Another factor of which
    only one piece is read in that box is replaced by the piece (``piece_of``). If the parts aren't
    smaller than the whole, constants aren't split, since they are computed once, nor are
    differences, since digits would be lost.
    """
    factors = list(factors_of(scope.body))
    if not is_product(scope) or not scope.reduction or read not in factors:
        return None
    terms = read_terms(read, inner)
    if inner.dtype != scope.dtype or not 0 < len(terms) <= MAX_TERMS:
        return None
    factors.remove(read)
    parts: list[Read] = []
    for term in terms:
        part = _part(scope, product([*factors, term]), piece_of)
        parts += [part] if part else []
    whole = math.prod(scope.extents)
    smaller = all(math.prod(_computed(part).extents) < whole for part in parts)
    once = len(parts) > 1 and (read.tensor.constant or _is_difference(terms))
    if not parts or (once and not smaller):
        return None
    result = same_scope(scope, total(parts), [])
    return result if result.type == scope.type else None


def points(split: Scope) -> int:
    """The number of points of all parts of a split together."""
    parts = [t for t in topological([split]) if isinstance(t, Scope) and t != split]
    return sum(math.prod(part.extents) for part in parts)


def _is_difference(terms: Sequence[Scalar]) -> bool:
    return any(isinstance(f, Num) and f.value < 0 for term in terms for f in factors_of(term))


def _computed(part: Read) -> Scope:
    assert isinstance(part.tensor, Scope)
    return part.tensor


def _part(scope: Scope, body: Scalar, piece_of: Piece) -> Read | None:
    """A read, at the scope's iterators, of the scope that computes ``body`` where it isn't zero."""
    bounds: dict[int, tuple[int, int]] = {
        slot: (0, extent) for slot, extent in enumerate(scope.extents)
    }
    while True:
        tight = {it: b for it in iterators(body) if (b := support(body, it)) != (0, it.extent)}
        if any(low >= high for low, high in tight.values()):
            return None
        for it, (low, high) in tight.items():
            start = bounds[it.slot][0]
            bounds[it.slot] = start + low, start + high
        body = substitute(body, lambda it, by=tight: _narrowed(it, by))  # type: ignore[misc]
        found = [(piece_of(f) if isinstance(f, Read) else None) or f for f in factors_of(body)]
        if found == list(factors_of(body)) and not tight:
            break
        body = product(found)
    used = {it.slot for it in iterators(body)}
    idle = [it for it in reduction_iterators(scope) if it.slot not in used]
    idle = [it for it in idle if bounds[it.slot][1] - bounds[it.slot][0] > 1]
    times = math.prod(bounds[it.slot][1] - bounds[it.slot][0] for it in idle)
    kept, at = [], []
    for it in traversal_iterators(scope):
        low, high = bounds[it.slot]
        broadcast = it.slot not in used and (low, high) == (0, it.extent)
        kept.append(It(it.slot, 1 if broadcast else high - low))
        at.append(Index(0) if broadcast else bare(it) - low)
    reduced = [
        It(it.slot, bounds[it.slot][1] - bounds[it.slot][0])
        for it in reduction_iterators(scope)
        if it.slot in used
    ]
    return Read(scope_over(kept, reduced, product([Num(times), body])), tuple(at))


def _narrowed(it: It, bounds: dict[It, tuple[int, int]]) -> Index:
    low, high = bounds.get(it, (0, it.extent))
    return Index.iterator(it.slot, high - low) + low


# ---- the taps of one computation --------------------------------------------------------------


def tap_merge(scope: Scope, flats: Callable[[Read], Sequence[Scope]]) -> Path | None:
    """``{sum_y f(0, y)}[x] + {sum_y f(1, y)}[x] + .. = sum_{t,y} f(t, y)``: taps of one sum, or
    ``{sum_{k<3} f(k)}[x] + {sum_{k<4} f(k + 3)}[x] = sum_{k<7} f(k)``: parts of one.

    All terms of the sum are merged. They may differ only in the constants of their indices, which
    change by the same amounts from tap to tap.

    Args:
        flats: the flat scopes of the e-class that a read reads.
    """
    terms = terms_of(scope.body)
    if scope.reduction or not 2 <= len(terms) <= MAX_TERMS:
        return None
    found: list[list[_Tap]] = []
    for term in terms:
        view = Scope(scope.traversal, (), term)
        if not is_product(view):
            return None
        taps = [_Tap((), view, _reads(view))]
        if isinstance(term, Read):
            for flat in flats(term):
                if merged := merge(view, term, flat):
                    taps.append(_Tap(((term.tensor, flat),), merged, _reads(merged)))
        found.append(taps)
    for n, first in ((n, tap) for n, taps in enumerate(found) for tap in taps):
        rests = [*found[:n], *found[n + 1 :]]
        for along in (*([] if n else [None]), *reduction_iterators(first.scope)):
            ways = (list(_alike(first.scope, rest, along)) for rest in rests)
            for others in itertools.product(*ways):
                taps = [first, *others]
                joined = _taps(taps) if along is None else _parts(taps, along)
                meanings = dict.fromkeys(known for tap in taps for known in tap.meanings)
                whole, (cut, at) = joined or (scope, (It(0, 0), ()))
                for it in reduction_iterators(whole) if joined else ():
                    if it.extent == cut.extent:  # its slot may be another one
                        same = Same(whole, tuple(meanings), ((it, at),))
                        if answer := path(scope, same):
                            return answer
    return None


@dataclass(frozen=True)
class _Tap:
    """A term of a sum, as a scope.

    Attributes:
        meanings: the tensor that the term reads, with the scope that was inlined for it, if any.
        scope: the term with that scope inlined.
        reads: the reads of ``scope``.
        extent: the number of values of the iterator along which parts are joined.
    """

    meanings: tuple[tuple[Tensor, Scope], ...]
    scope: Scope
    reads: list[Read]
    extent: int = 1


def _reads(scope: Scope) -> list[Read]:
    return [factor for factor in factors_of(scope.body) if isinstance(factor, Read)]


def _alike(first: Scope, taps: Sequence[_Tap], along: It | None) -> Iterator[_Tap]:
    """The taps that are equal to ``first`` up to the constants of indices.

    Their reads are put in the order of those of ``first``. The extent of the iterator ``along`` may
    differ too; a tap with one value of it may lack the iterator.
    """
    mine = _reads(first)
    numbers = [f for f in factors_of(first.body) if not isinstance(f, Read)]
    tensors = [read.tensor for read in mine]
    its = reduction_iterators(first)
    if len(its) > MAX_REDUCED or len(set(tensors)) != len(tensors):
        return
    for tap in taps:
        other = tap.scope
        own = reduction_iterators(other)
        if other.traversal != first.traversal:
            continue
        if [f for f in factors_of(other.body) if not isinstance(f, Read)] != numbers:
            continue
        for order in itertools.permutations(its, len(own)):
            place = dict(zip(own, order, strict=True))
            if any(old.extent != it.extent and it != along for old, it in place.items()):
                continue
            if set(its) - {*order, along}:
                continue
            missing = along if along not in order else None
            theirs = {read.tensor: _moved(read, place) for read in _reads(other)}
            if len(theirs) == len(mine) and all(
                tensor in theirs and _differs_in_constants(_without(read, missing), theirs[tensor])
                for read, tensor in zip(mine, tensors, strict=True)
            ):
                extent = next((old.extent for old, it in place.items() if it == along), 1)
                yield replace(tap, reads=[theirs[tensor] for tensor in tensors], extent=extent)


def _without(read: Read, it: It | None) -> Read:
    """Return the read with ``it`` set to 0; the read itself if ``it`` is None."""
    if it is None:
        return read
    return replace(read, index=tuple(i - bare(it) * i.coefficient(it.slot) for i in read.index))


def _moved(read: Read, place: Mapping[It, It]) -> Read:
    def image(it: It) -> Index:
        return bare(place.get(it, it))

    return replace(read, index=tuple(index.substitute(image) for index in read.index))


def _differs_in_constants(a: Read, b: Read) -> bool:
    pairs = zip(a.index, b.index, strict=True)
    return a.fill == b.fill and all(i.terms == j.terms for i, j in pairs)


_Joined = tuple[Scope, tuple[It, tuple[int, ...]]]
"""A merged sum, one of its iterators, and the values of it at which the merged parts begin."""


def _constants(tap: _Tap) -> tuple[int, ...]:
    return tuple(i.const for read in tap.reads for i in read.index)


def _taps(taps: Sequence[_Tap]) -> _Joined | None:
    """The sum over the taps, if the constants of the indices grow by equal steps."""
    constants = sorted(map(_constants, taps))
    steps = {
        tuple(b - a for a, b in zip(*pair, strict=True)) for pair in itertools.pairwise(constants)
    }
    if len(steps) != 1 or not any(next(iter(steps))):
        return None
    (step,) = steps
    first = taps[0].scope
    tap = It(len(first.extents), len(taps))
    moved = iter(zip(constants[0], step, strict=True))
    reads = []
    for read in taps[0].reads:
        index = []
        for i in read.index:
            start, by = next(moved)
            index.append(Index(start, i.terms) + bare(tap) * by)
        reads.append(replace(read, index=tuple(index)))
    return _whole(first, reads, [*reduction_iterators(first), tap], (tap, range(1, len(taps))))


def _parts(taps: Sequence[_Tap], along: It) -> _Joined | None:
    """The sum over an iterator whose values are divided among the taps, in any order."""
    first = taps[0]
    taps = [replace(first, extent=along.extent), *taps[1:]]
    steps = [i.coefficient(along.slot) for read in first.reads for i in read.index]
    starts: list[int] = []
    for tap in taps:
        gaps = [b - a for a, b in zip(_constants(first), _constants(tap), strict=True)]
        start = next((gap // step for gap, step in zip(gaps, steps, strict=True) if step), 0)
        if gaps != [step * start for step in steps]:
            return None
        starts.append(start)
    ordered = sorted(zip(starts, (tap.extent for tap in taps), strict=True))
    if any(start + size != after for (start, size), (after, _) in itertools.pairwise(ordered)):
        return None
    least = ordered[0][0]
    whole = It(along.slot, sum(size for _, size in ordered))

    def image(it: It) -> Index:
        return bare(whole) + least if it == along else bare(it)

    reads = [
        replace(read, index=tuple(index.substitute(image) for index in read.index))
        for read in first.reads
    ]
    its = [whole if it == along else it for it in reduction_iterators(first.scope)]
    return _whole(first.scope, reads, its, (whole, [start - least for start, _ in ordered[1:]]))


def _whole(
    first: Scope, reads: Sequence[Read], its: Sequence[It], cut: tuple[It, Sequence[int]]
) -> _Joined:
    numbers = [f for f in factors_of(first.body) if not isinstance(f, Read)]
    return same_scope(first, product([*numbers, *reads]), its), (cut[0], tuple(cut[1]))
