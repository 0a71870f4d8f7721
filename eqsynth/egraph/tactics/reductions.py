"""Reductions in parts: rfactor, and two iterators as one (Syno §8; EinNet §4.1).

    L_x sum_{o,r} f(m(x, o), r)  =  L_x sum_o {L_u sum_r f(u, r)}[m(x, o)]

So the parts that overlapping windows share are computed once. This holds for any reducer, since
each is associative and commutative, and for any body.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from eqsynth.calculus.conditions import neutral_outside, support
from eqsynth.calculus.define import opened
from eqsynth.calculus.deriving import Match, Steps
from eqsynth.calculus.recount import Count, Cover, Recount
from eqsynth.calculus.same import Same
from eqsynth.egraph.tactics.moving import reindexed
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.errors import LawError
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import canonical_order, remembered
from eqsynth.ir.scalar import (
    Read,
    Scalar,
    Value,
    indices_of,
    iterators,
    leaves,
    reads,
    rewrite_leaves,
    substitute,
)
from eqsynth.ir.scopes import (
    bare,
    reduction_iterators,
    renumber,
    scope_over,
    traversal_iterators,
)
from eqsynth.ir.tensor import Scope
from eqsynth.ir.work import operations

# Reductions over more iterators than this aren't factored; iterators of larger extent aren't split.
MAX_REDUCED = 5
MAX_WINDOW = 4096

_IDEMPOTENT = ("max", "min")


def clamp(scope: Scope) -> Path | None:
    """``max_k x[i + k - 1 else -inf] = max_k x[max(i + k - 1, 0)]``: a window that reaches over the
    border reads the last place inside again. None if no index with a reduced iterator may leave."""
    read, reduced = scope.body, set(reduction_iterators(scope))
    if scope.reducer not in _IDEMPOTENT or not isinstance(read, Read):
        return None
    index = tuple(
        _within(at, size) if reduced & {*at.iterators()} else at
        for at, size in zip(read.index, read.tensor.shape, strict=True)
    )
    return path(scope, Cover(index)) if index != read.index else None


def _within(index: Index, size: int) -> Index:
    low, high = index.range()
    index = index.maximum(0) if low < 0 else index
    return index.minimum(size - 1) if high >= size else index


@remembered(maxsize=1 << 14)
def merge_iterators(scope: Scope) -> Path | None:
    """``sum_{q,r} f(s*q + r) = sum_p f(p)``, r over [0, s), if no other index has q or r.

    In a maximum or minimum r may run further than s, since p may then occur twice.
    """
    for q, r in itertools.permutations(reduction_iterators(scope), 2):
        merged = _merged(scope, q, r)
        if merged is not None:
            return merged
    return None


def _merged(scope: Scope, q: It, r: It) -> Path | None:
    """The scope over p = step * q + r; None if indices contain q and r in different proportions."""
    steps: set[tuple[int, int]] = set()
    for index in indices_of(scope.body):
        if not {q, r} & set(index.iterators()):
            continue
        c = index.coefficient(r.slot)
        within = [a for a, _ in index.terms if not isinstance(a, It)]
        if not c or any({q, r} & set(a.value.iterators()) for a in within if not isinstance(a, It)):
            return None
        steps.add(divmod(index.coefficient(q.slot), c))
    if len(steps) != 1:
        return None
    ((step, rest),) = steps
    if rest or step != r.extent and not (scope.reducer in _IDEMPOTENT and 0 < step < r.extent):
        return None
    p = It(len(scope.extents), step * (q.extent - 1) + r.extent)

    def image(it: It) -> Index:
        # In an index c*step*q + c*r, q becomes 0 and r becomes p: c*p.
        return Index(0) if it == q else bare(p) if it == r else bare(it)

    width, size = len(scope.traversal), len(scope.extents)
    kept = [it for it in reduction_iterators(scope) if it not in (q, r)] + [p]
    place = {slot: slot for slot in range(width)}
    place |= {it.slot: width + n for n, it in enumerate(kept)}
    reduced = tuple(it.extent for it in kept)
    body = renumber(substitute(scope.body, image), place)
    other = Scope(scope.traversal, reduced, body, scope.reducer)
    digits = It(size, q.extent), It(size + 1, r.extent)
    value = bare(digits[0]) * step + bare(digits[1])
    try:
        places = reduction_iterators(opened(other, {}))
    except LawError:
        return None
    # Opened, the scope may have its iterators in another order; a body of numbers alone has none.
    counts = [Count(it, value, digits) for it in places if it.extent == p.extent]
    ways: list[Steps] = [(Recount((count,)),) for count in counts] or [()]
    merged = (path(scope, Match(other, (), steps)) for steps in ways)
    return next(filter(None, merged), None)


SUPPORT = 2
"""A box may have up to this many times the allowed points before it is narrowed to the support of
its body."""


@dataclass(frozen=True)
class _Factored:
    """An answer of rfactor, with its cost in operations."""

    path: Path
    cost: int


def rfactor(scope: Scope) -> Path | None:
    """The reduction in the two parts that take the fewest operations; None if none take fewer.

    A reduction iterator may be split first, ``r = d*r1 + r0`` for a divisor d of its extent: a
    window of k*s elements that moves by s consists of k blocks, which neighbouring windows share.

    Source: Syno §8, Fig. 4: ``k*H`` becomes ``(1 + k/s)*H``.
    """
    reduced = reduction_iterators(scope)
    if not reduced or len(reduced) > MAX_REDUCED or not _is_windowed(scope):
        return None
    if scope.reducer == "prod" and any(not r.fill and not r.in_range() for r in reads(scope.body)):
        # With a 0 from outside the whole product is 0, but a part without it may overflow to
        # infinity, and infinity times 0 is NaN.
        return None
    each = operations(scope.body) + 1
    limit = math.prod(scope.extents) * each
    traversal = traversal_iterators(scope)

    def pays(indices: Sequence[Index], reduced: Sequence[It]) -> bool:
        return any(_worth(indices, traversal, reduced, each, limit))

    best: _Factored | None = None
    for whole in (Path(scope), *splits(scope, pays)):
        best = _factored(whole, each, limit, best)
    return best.path if best is not None and best.cost < limit else None


def _is_windowed(scope: Scope) -> bool:
    """Whether an index mixes a reduction iterator with others, and its windows overlap.

    Windows that don't overlap, as in ``x[64*i + k]`` with k < 64, share nothing.
    """
    mixed = _mixed(scope)
    return any(_overlaps(index) for index in indices_of(scope.body) if mixed & {*index.iterators()})


def _overlaps(index: Index) -> bool:
    """Whether an index may take one value for two different values of its iterators.

    It can't if it is affine, and each coefficient is larger than the greatest sum of the terms with
    smaller coefficients.
    """
    reach = 0
    for coefficient, it in sorted((abs(c), it) for it, c in index.terms if isinstance(it, It)):
        if coefficient <= reach:
            return True
        reach += coefficient * (it.extent - 1)
    return not index.is_affine


def _mixed(scope: Scope) -> set[It]:
    """The reduction iterators that share an index with another iterator."""
    return _mixing(indices_of(scope.body), set(reduction_iterators(scope)))


def _mixing(indices: Iterable[Index], reduced: set[It]) -> set[It]:
    mixing = (set(index.iterators()) for index in indices)
    return {it for its in mixing if len(its) > 1 for it in its & reduced}


Pays = Callable[[Sequence[Index], Sequence[It]], bool]


def splits(scope: Scope, pays: Pays = lambda _indices, _reduced: True) -> Iterator[Path]:
    """The scope with r replaced by ``d*r1 + r0``, for every mixed iterator r and divisor d of it.

    ``pays`` gets the new indices and reduction iterators; only if it is true a scope is built.
    """
    indices, size = list(dict.fromkeys(indices_of(scope.body))), len(scope.extents)
    for r in sorted(_mixed(scope), key=lambda r: r.slot):
        rest = [it for it in reduction_iterators(scope) if it != r]
        for d in range(2, r.extent // 2 + 1 if r.extent <= MAX_WINDOW else 0):
            if r.extent % d == 0:
                new = It(size, r.extent // d), It(size + 1, d)
                value = bare(new[0]) * d + bare(new[1])
                moved = [index.substitute(_image(r, value)) for index in indices]
                if pays(moved, [*rest, *new]):
                    apart = path(scope, Recount((Count(r, value, new),)))
                    if apart is not None:
                        yield apart


def _image(r: It, value: Index) -> Callable[[It], Index]:
    return lambda it: value if it == r else bare(it)


def _factored(whole: Path, each: int, limit: int, best: _Factored | None) -> _Factored | None:
    """The cheapest way to reduce in two parts, or ``best`` if none is cheaper.

    Ways that are known to take too many operations, or more than ``best``, aren't built.
    """
    scope = whole.scope
    reduced, traversal = reduction_iterators(scope), traversal_iterators(scope)
    indices = list(dict.fromkeys(indices_of(scope.body)))
    for outer, inner, parts in _worth(indices, traversal, reduced, each, limit):
        most = limit if best is None else min(limit, best.cost + 1)
        step = _through(scope, parts, inner, outer, each, most)
        answer = whole.then(step) if step else None
        if answer is None:
            continue
        read = next(leaf for leaf in leaves(answer.scope.body) if isinstance(leaf, Read))
        assert isinstance(read.tensor, Scope)
        cost = math.prod(read.tensor.extents) * each + math.prod(answer.scope.extents)
        if best is None or (cost, answer.scope.order) < (best.cost, best.path.scope.order):
            best = _Factored(answer, cost)
    return best


def _worth(
    indices: Sequence[Index], traversal: Sequence[It], reduced: Sequence[It], each: int, limit: int
) -> Iterator[tuple[tuple[It, ...], list[It], list[Index]]]:
    """The outer iterators, the inner iterators and the coordinates of each way that may pay."""
    mixed = _mixing(indices, set(reduced))
    for size in range(1, len(reduced)):
        for outer in itertools.combinations(reduced, size):
            inner = [it for it in reduced if it not in outer]
            parts = _coordinates(indices, {*traversal, *outer}) if mixed & {*outer} else None
            if parts is not None and _points(parts, inner) * each < SUPPORT * limit:
                yield outer, inner, parts


def _points(parts: Sequence[Index], inner: Sequence[It]) -> int:
    spans = (high - low + 1 for low, high in (part.range() for part in parts))
    return math.prod(spans) * math.prod(it.extent for it in inner)


def _coordinates(indices: Iterable[Index], outside: set[It]) -> list[Index] | None:
    """The combinations of outer iterators in the indices; None if they can't be taken out.

    ``x[2*i + o + r]`` with i and o outside gives ``2*i + o``.
    """
    found: dict[Index, None] = {}
    for index in indices:
        if not index.is_affine:
            if set(index.iterators()) & outside:
                return None
            continue
        part = _outer_part(index, outside)
        if part.terms:
            found[part] = None
    return list(found)


def _outer_part(index: Index, outside: set[It]) -> Index:
    """The terms of outer iterators, divided by their greatest common divisor."""
    terms = tuple((it, c) for it, c in index.terms if it in outside)
    divisor = math.gcd(*(c for _, c in terms)) if terms else 1
    return Index(0, tuple((it, c // divisor) for it, c in terms))


def _through(
    scope: Scope,
    parts: Sequence[Index],
    inner: Iterable[It],
    outer: Iterable[It],
    each: int,
    limit: int,
) -> Same | None:
    """The scope as a reduction of an inner scope, which reduces ``inner``.

    The inner scope has one axis for each of ``parts``. None if both together take ``limit``
    operations or more, at ``each`` operations for an inner point.
    """
    mixed = {it for part in parts for it in part.iterators()}
    fresh: dict[Index, It] = {}
    for n, part in enumerate(parts):
        low, high = part.range()
        fresh[part] = part.bare() or It(len(scope.extents) + n, high - low + 1)

    def rewrite(index: Index) -> Index:
        part = _outer_part(index, mixed) if index.is_affine else Index(0)
        if not part.terms or part.bare():
            return index
        factor = _factor(index, part)
        return index - part * factor + (bare(fresh[part]) + part.range()[0]) * factor

    def leaf(at: Scalar) -> Scalar:
        if isinstance(at, Read):
            return Read(at.tensor, tuple(map(rewrite, at.index)), at.fill)
        return Value(rewrite(at.index)) if isinstance(at, Value) else at

    body = rewrite_leaves(scope.body, leaf)
    inner = list(inner)
    kept = [fresh[part] for part in parts]
    place = {fresh[part]: part if part.bare() else part - part.range()[0] for part in parts}
    outside = neutral_outside(scope)
    if outside is not None:
        # A coordinate runs only over the support of the body; elsewhere the body is the identity.
        bounds = {it: support(body, it, outside) for it in kept if it.extent > 1}
        narrow = {it: (a, b) for it, (a, b) in bounds.items() if b - a > 1 and b - a < it.extent}
        body = substitute(
            body,
            lambda it: (
                Index.iterator(it.slot, narrow[it][1] - narrow[it][0]) + narrow[it][0]
                if it in narrow
                else bare(it)
            ),
        )
        resized = {it: It(it.slot, b - a) for it, (a, b) in narrow.items()}
        place = {resized.get(it, it): at - narrow.get(it, (0, 0))[0] for it, at in place.items()}
        kept = [resized.get(it, it) for it in kept]
    used = iterators(body)
    kept = [it for it in kept if it in used]
    # Iterators that the body doesn't use are dropped, and cost nothing.
    points = math.prod(it.extent for it in (*kept, *(it for it in inner if it in used)))
    remaining = {it for at in kept for it in place[at].iterators()} & {*outer}
    whole_box = math.prod(scope.traversal) * math.prod(it.extent for it in remaining)
    if points * each + whole_box >= limit:
        return None
    order = canonical_order(body, kept, inner)
    whole = scope_over(order, inner, body, scope.reducer)
    at = tuple(place[it] for it in order)
    return reindexed(scope, whole, at, outer, outside or 0.0)


def _factor(index: Index, part: Index) -> int:
    it = next(part.iterators())
    return index.coefficient(it.slot) // part.coefficient(it.slot)
