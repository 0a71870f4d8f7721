"""The common factor of a sum of contractions: ``sum_k a b + sum_k a c = sum_k a (b + c)``.

The factor may be read at other places of a window: then the smaller window is a part of the
larger one, zero elsewhere. So a 3x3 and a 1x1 convolution of one image, and the image itself, are
one 3x3 convolution, whose weight is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from eqsynth.egraph.laws.closing import (
    bare,
    close,
    read_all,
    same_scope,
    scope_over,
    traversal_iterators,
)
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
from eqsynth.ir.tensor import Op, Scope

# Slots from here on are out of the way of every scope's own.
_APART = 1000


@dataclass(frozen=True)
class _Placed:
    """A product over the iterators of the scope around and reduction iterators of its own."""

    factors: tuple[Scalar, ...]
    reduced: frozenset[It]


@dataclass(frozen=True)
class _Match:
    """How a read becomes another: images of its own reduction iterators, and which iterators of
    the other one take one value only (a window of which one place is read)."""

    image: Callable[[It], Index]
    fixed: tuple[tuple[It, Index], ...]
    narrowed: frozenset[It]


def common_factor(scope: Scope, flats: Callable[[Read], Sequence[Scope]]) -> Iterator[Scope]:
    """``{sum_k a b}[x] + {sum_k a c}[x] = sum_k a * (b + c)``, from a sum of reads.

    ``flats`` gives the flat scopes of what a read reads. Two terms are joined at a time. Where the
    windows differ, b and c must be constant: a larger window of data would be more work.
    """
    terms = terms_of(scope.body)
    if scope.reduction or len(terms) < 2:
        return
    traversal = traversal_iterators(scope)
    placed = [list(_in_place(term, flats)) for term in terms]
    for i in range(len(terms)):
        for j in range(len(terms)):
            if i == j:
                continue
            others = [t for n, t in enumerate(terms) if n not in (i, j)]
            for p in placed[i]:
                for q in placed[j]:
                    for joined in _join(scope, p, q, ordered=i < j):
                        if not others:
                            yield joined
                        else:
                            yield same_scope(scope, total([read_all(joined, traversal), *others]))


def _in_place(term: Scalar, flats: Callable[[Read], Sequence[Scope]]) -> Iterator[_Placed]:
    """A term ``number * read`` that is in range: the flat scopes of what it reads, and itself."""
    factors = factors_of(term)
    numbers = [f for f in factors if isinstance(f, Num)]
    others = [f for f in factors if not isinstance(f, Num)]
    # One read, and once: a square of it may be the same object twice.
    if len(others) != 1 or not isinstance(others[0], Read) or not others[0].in_range():
        return
    read = others[0]
    for flat in flats(read):
        # The flat scope's body over the outer iterators; its reductions keep their own slots,
        # moved out of the way of the outer traversal.
        width = len(flat.traversal)

        def image(it: It, read: Read = read, width: int = width) -> Index:
            if it.slot < width:
                return read.index[it.slot]
            return Index(0, ((It(_APART + it.slot - width, it.extent), 1),))

        body = substitute(product([*numbers, *factors_of(flat.body)]), image)
        reduced = frozenset(It(_APART + n, e) for n, e in enumerate(flat.reduction))
        yield _Placed(factors_of(body), reduced)
    yield _Placed((*numbers, read), frozenset())


def _join(scope: Scope, p: _Placed, q: _Placed, ordered: bool) -> Iterator[Scope]:
    """``p + q`` with a factor of p put outside; each pair once if neither window is larger."""
    traversal = traversal_iterators(scope)
    for a in p.factors:
        if not isinstance(a, Read):
            continue
        for b in q.factors:
            if not isinstance(b, Read) or b.tensor != a.tensor or b.fill != a.fill:
                continue
            match = _unify(b, a, q, p)
            if match is None or not (ordered or match.fixed or match.narrowed):
                continue
            shared = {it for it in iterators(a) if it in p.reduced}
            outside = set(traversal) | shared
            left = _rest(p.factors, a, outside)
            ones = [
                Read(Op("Full", (), ((1,), 1.0, a.tensor.dtype)), (bare(it) - value,))
                for it, value in match.fixed
            ]
            moved = [substitute(f, match.image) for f in q.factors if f is not b]
            right = _rest([*moved, *ones, a], a, outside)
            if isinstance(left, Num) or isinstance(right, Num):
                continue
            if (match.fixed or match.narrowed) and not (_constant(left) and _constant(right)):
                continue
            inner = close(total([left, right]), iterators(left) | iterators(right))
            joined = scope_over(
                traversal, sorted(shared, key=lambda i: i.slot), product([a, inner])
            )
            if joined.type == scope.type:
                yield joined


def _constant(scalar: Scalar) -> bool:
    return all(
        isinstance(f, Num) or (isinstance(f, Read) and f.tensor.constant)
        for f in factors_of(scalar)
    )


def _rest(factors: Sequence[Scalar], a: Scalar, outside: set[It]) -> Scalar:
    """What multiplies ``a``, with its own reductions carried out inside."""
    rest = [f for f in factors if f is not a]
    if not rest:
        return Num(1)
    body = product(rest)
    return body if iterators(body) <= outside else close(body, outside)


def _unify(b: Read, a: Read, q: _Placed, p: _Placed) -> _Match | None:
    """How ``b``, a factor of q, is the read ``a`` of p, or one place of its window."""
    images: dict[It, Index] = {}
    fixed: list[tuple[It, Index]] = []
    narrowed: set[It] = set()
    for i, j in zip(b.index, a.index, strict=True):
        mine = _reduced(i, q.reduced)
        others = _reduced(j, p.reduced)
        if mine is None or others is None:
            return None
        if not mine and len(others) == 1:
            # One place of the window: j = i at it = value.
            ((it, step),) = others
            rest = j - bare(it) * step
            value = (i - rest) * step
            low, high = value.range()
            if abs(step) != 1 or low < 0 or high >= it.extent or (it, value) in fixed:
                return None
            fixed.append((it, value))
            continue
        if len(mine) != len(others):
            return None
        for (own, step), (other, other_step) in zip(mine, others, strict=True):
            if step != other_step:
                return None
            offset = Index(0)
            if own.extent != other.extent:
                # A smaller window inside: own = other - offset.
                gap = _without(i, mine) - _without(j, others)
                if len(mine) != 1 or gap.terms or gap.const % step:
                    return None
                offset = Index(-(gap.const // step))
                narrowed.add(own)
            image = bare(other) + offset
            if images.setdefault(own, image) != image:
                return None
    targets = [image.terms for image in images.values()]
    if len(set(targets)) != len(targets) or len({it for it, _ in fixed}) != len(fixed):
        return None
    if any(t == ((it, 1),) for t in targets for it, _ in fixed):
        return None
    others_of_q = [f for f in q.factors if f is not b]
    if not all(_covered(it, images[it], others_of_q) for it in narrowed):
        return None

    def image_of(it: It) -> Index:
        if it in images:
            return images[it]
        # Reductions of q's own stay inside, out of the way of p's.
        return bare(It(it.slot + _APART, it.extent)) if it in q.reduced else bare(it)

    values = dict(fixed)
    place = substitute(a, lambda it: values.get(it, bare(it)))
    if substitute(b, image_of) != place:
        return None
    return _Match(image_of, tuple(fixed), frozenset(narrowed))


def _reduced(index: Index, reduced: frozenset[It]) -> list[tuple[It, int]] | None:
    """The reduction iterators of an index with their coefficients; None under ``//`` and ``%``."""
    found = [(atom, c) for atom, c in index.terms if isinstance(atom, It) and atom in reduced]
    if len(found) != sum(it in reduced for it in index.iterators()):
        return None
    return sorted(found, key=lambda term: (term[1], term[0].slot))


def _without(index: Index, terms: Sequence[tuple[It, int]]) -> Index:
    for it, step in terms:
        index = index - bare(it) * step
    return index


def _covered(it: It, image: Index, rest: Sequence[Scalar]) -> bool:
    """The smaller window lies in the larger one, and what multiplies it is zero outside of it."""
    shift = image.const
    larger = next(iter(image.iterators())).extent
    if not (-shift >= 0 and -shift + it.extent <= larger):
        return False
    return any(
        isinstance(f, Read)
        and f.fill == 0
        and any(
            index.bare() == it and extent == it.extent
            for index, extent in zip(f.index, f.tensor.shape, strict=True)
        )
        for f in rest
    )
