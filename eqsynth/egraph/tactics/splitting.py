"""Expression splitting and merging: a computation in parts, each over a box of its own.

Each function is one law (papers: EinNet §4.2) on one scope. What is read is a sum whose terms are
zero outside of their boxes, as the pieces of a concatenation are; or a sum of computations that are
one computation at several taps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from eqsynth.calculus.conditions import independent, is_product, support, vanishes_outside
from eqsynth.calculus.same import Same
from eqsynth.calculus.scopes import (
    bare,
    reduction_iterators,
    same_scope,
    scope_over,
    traversal_iterators,
)
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
from eqsynth.ir.tensor import Scope, Tensor, topological

# More terms than this are left as they are: each is a computation of its own.
MAX_TERMS = 6
# Orders of reductions that are tried to find one computation in another.
MAX_REDUCED = 4

Piece = Callable[[Read], Scalar | None]


def read_terms(read: Read, inner: Scope) -> list[Scalar]:
    """The terms of which ``read`` reads the sum, if ``inner`` is a sum of products and each of them
    is zero where ``inner`` ends.

    An index that is a number is put in first: at one place of a stack the other pieces are zero,
    though they may lie beyond its ends.
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
    """``{b + c}[p] = b[p]`` where c is 0 at every p: the one piece that is read."""
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

    Each part is computed on the smallest box outside of which it is zero. Other factors that are
    read in one piece there are that piece, as ``piece_of`` says. Where the parts aren't smaller, a
    constant isn't split, since it is computed once, nor is a difference, which would lose digits.
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
    """How many points the parts of a split have, all together."""
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
        found = [
            (piece_of(f) if isinstance(f, Read) else None) or f for f in factors_of(body)
        ]
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
    """``{sum_y f(0, y)}[x] + {sum_y f(1, y)}[x] + .. = sum_{t,y} f(t, y)``: taps of one sum.

    ``flats`` gives the flat scopes of what a read reads. The terms are all there are, and differ in
    the constants of their indices only, each by as much from tap to tap.
    """
    terms = terms_of(scope.body)
    if scope.reduction or not 2 <= len(terms) <= MAX_TERMS:
        return None
    found: list[list[_Tap]] = []
    for term in terms:
        if not isinstance(term, Read):
            return None
        view = Scope(scope.traversal, (), term)
        merged = ((flat, merge(view, term, flat)) for flat in flats(term))
        found.append([_Tap((term.tensor, flat), m, _reads(m)) for flat, m in merged if m])
    for first in found[0]:
        for others in itertools.product(*(_alike(first.scope, rest) for rest in found[1:])):
            taps = [first, *others]
            joined = _taps(first.scope, [tap.reads for tap in taps])
            for it in reduction_iterators(joined) if joined else ():
                if joined and it.extent == len(taps):
                    meanings = dict.fromkeys(tap.meaning for tap in taps)
                    if answer := path(scope, Same(joined, tuple(meanings), (it,))):
                        return answer
    return None


@dataclass(frozen=True)
class _Tap:
    """A term of a sum: what it reads is which scope, which it is then, and what that reads."""

    meaning: tuple[Tensor, Scope]
    scope: Scope
    reads: list[Read]


def _reads(scope: Scope) -> list[Read]:
    return [factor for factor in factors_of(scope.body) if isinstance(factor, Read)]


def _alike(first: Scope, taps: Sequence[_Tap]) -> Iterator[_Tap]:
    """Other taps with their reads in the first one's order: equal but for constants of indices."""
    mine = _reads(first)
    numbers = [f for f in factors_of(first.body) if not isinstance(f, Read)]
    tensors = [read.tensor for read in mine]
    for tap in taps:
        other = tap.scope
        if (other.traversal, sorted(other.reduction)) != (
            first.traversal, sorted(first.reduction),
        ) or [f for f in factors_of(other.body) if not isinstance(f, Read)] != numbers:  # fmt: skip
            continue
        its = reduction_iterators(first)
        if len(its) > MAX_REDUCED or len(set(tensors)) != len(tensors):
            continue
        for order in itertools.permutations(its):
            if tuple(it.extent for it in order) != other.reduction:
                continue
            place = dict(zip(reduction_iterators(other), order, strict=True))
            theirs = {read.tensor: _moved(read, place) for read in _reads(other)}
            if len(theirs) == len(mine) and all(
                tensor in theirs and _differs_in_constants(read, theirs[tensor])
                for read, tensor in zip(mine, tensors, strict=True)
            ):
                yield replace(tap, reads=[theirs[tensor] for tensor in tensors])


def _moved(read: Read, place: Mapping[It, It]) -> Read:
    def image(it: It) -> Index:
        return bare(place.get(it, it))

    return replace(read, index=tuple(index.substitute(image) for index in read.index))


def _differs_in_constants(a: Read, b: Read) -> bool:
    pairs = zip(a.index, b.index, strict=True)
    return a.fill == b.fill and all(i.terms == j.terms for i, j in pairs)


def _taps(first: Scope, rows: Sequence[list[Read]]) -> Scope | None:
    """The sum over the taps, if the constants of the indices go up by equal steps."""
    constants = sorted(tuple(i.const for read in row for i in read.index) for row in rows)
    steps = {
        tuple(b - a for a, b in zip(*pair, strict=True)) for pair in itertools.pairwise(constants)
    }
    if len(steps) != 1 or not any(next(iter(steps))):
        return None
    (step,) = steps
    tap = It(len(first.extents), len(rows))
    moved = iter(zip(constants[0], step, strict=True))
    reads = []
    for read in rows[0]:
        index = []
        for i in read.index:
            start, by = next(moved)
            index.append(Index(start, i.terms) + bare(tap) * by)
        reads.append(replace(read, index=tuple(index)))
    numbers = [f for f in factors_of(first.body) if not isinstance(f, Read)]
    return same_scope(first, product([*numbers, *reads]), [*reduction_iterators(first), tap])
