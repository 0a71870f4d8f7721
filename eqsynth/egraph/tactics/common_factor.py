"""The common factor of a sum of contractions: ``sum_k a b + sum_k a c = sum_k a (b + c)``.

The factor may be read through windows of different sizes: the smaller window is then extended with
zeros to the larger one. So a 3x3 and a 1x1 convolution of one image, and the image itself, are one
3x3 convolution, whose weight is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from eqsynth.calculus.same import Same
from eqsynth.egraph.tactics.ordering import is_constant
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
    closed,
    read_all,
    same_scope,
    scope_over,
    traversal_iterators,
)
from eqsynth.ir.tensor import Op, Scope, Tensor

# Slots from here on are used by no scope, so moved iterators can't clash with its own.
_APART = 1000


@dataclass(frozen=True)
class _Placed:
    """A term of the sum as a product of factors.

    Attributes:
        factors: over the iterators of the surrounding scope and the iterators ``reduced``.
        reduced: the reduction iterators of the product itself.
        meaning: the tensor that the term reads, with the scope that was inlined for it, if any.
    """

    factors: tuple[Scalar, ...]
    reduced: frozenset[It]
    meaning: tuple[tuple[Tensor, Scope], ...] = ()


@dataclass(frozen=True)
class _Match:
    """How a read ``b`` is made equal to a read ``a`` of the same tensor.

    Attributes:
        image: the index that replaces each reduction iterator of ``b``.
        fixed: iterators of ``a`` that take one value only: ``b`` reads one place of a's window.
        narrowed: iterators of ``b`` whose window is smaller than that of ``a``.
    """

    image: Callable[[It], Index]
    fixed: tuple[tuple[It, Index], ...]
    narrowed: frozenset[It]


def common_factor(
    scope: Scope,
    flats: Callable[[Read], Sequence[Scope]],
    is_factor: Callable[[Read], bool] = lambda _read: True,
) -> Iterator[Same]:
    """``{sum_k a b}[x] + {sum_k a c}[x] = sum_k a * (b + c)``, from a sum of reads.

    All terms that share a factor are joined at once; joining pairs would give every subset of them.
    If the windows differ, b and c have to be constant: a larger window of data would be more work.

    Args:
        flats: the flat scopes of the e-class that a read reads.
        is_factor: whether a read may be the common factor.
    """
    terms = terms_of(scope.body)
    if scope.reduction or len(terms) < 2:
        return
    traversal = traversal_iterators(scope)
    placed = [list(_in_place(term, flats)) for term in terms]
    for i in range(len(terms)):
        for p in placed[i]:
            for a in p.factors:
                if not isinstance(a, Read) or not is_factor(a):
                    continue
                found = {
                    j: part
                    for j in range(len(terms))
                    if j != i and (part := _first_part(scope, p, a, placed[j]))
                }
                # Each group is joined once: from its first term, or from one with a larger window.
                if not found or not (i < min(found) or any(part.larger for part in found.values())):
                    continue
                joined = _join(scope, p, a, [part.rest for part in found.values()])
                if joined is None:
                    continue
                others = [t for n, t in enumerate(terms) if n != i and n not in found]
                if others:
                    joined = same_scope(scope, total([read_all(joined, traversal), *others]))
                meanings = (*p.meaning, *(m for part in found.values() for m in part.meaning))
                yield Same(joined, tuple(dict.fromkeys(meanings)))


def _in_place(term: Scalar, flats: Callable[[Read], Sequence[Scope]]) -> Iterator[_Placed]:
    """A term ``number * read`` that is in range: by each flat scope, and as it is."""
    factors = factors_of(term)
    numbers = [f for f in factors if isinstance(f, Num)]
    others = [f for f in factors if not isinstance(f, Num)]
    # The factors are compared by identity, so a read must not occur twice (a square).
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
        yield _Placed(factors_of(body), reduced, ((read.tensor, flat),))
    yield _Placed((*numbers, read), frozenset())


@dataclass(frozen=True)
class _Part:
    """Another term that has the common factor.

    Attributes:
        rest: the product of its other factors.
        larger: whether the factor's window is larger than that of this term.
        meaning: as in :class:`_Placed`.
    """

    rest: Scalar
    larger: bool
    meaning: tuple[tuple[Tensor, Scope], ...]


def _outside(scope: Scope, p: _Placed, a: Read) -> tuple[set[It], set[It]]:
    """The reduction iterators of p that ``a`` uses; and these together with the traversal."""
    shared = {it for it in iterators(a) if it in p.reduced}
    return shared, shared | set(traversal_iterators(scope))


def _first_part(scope: Scope, p: _Placed, a: Read, placed: Sequence[_Placed]) -> _Part | None:
    """The product that multiplies ``a``, a factor of p, in another term; None if it lacks ``a``.

    ``placed`` are the forms of that term.
    """
    for q in placed:
        for b in q.factors:
            if isinstance(b, Read) and b.tensor == a.tensor and b.fill == a.fill:
                part = _part(scope, p, a, q, b)
                if part is None or isinstance(part.rest, Num):
                    continue
                # Carried out here, since most terms share no factor.
                left = _rest(p.factors, a, _outside(scope, p, a)[1])
                if isinstance(left, Num):
                    continue
                if not part.larger or (is_constant(left) and is_constant(part.rest)):
                    return part
    return None


def _part(scope: Scope, p: _Placed, a: Read, q: _Placed, b: Read) -> _Part | None:
    match = _unify(b, a, q, p)
    if match is None:
        return None
    ones = [
        Read(Op("Full", (), ((1,), 1.0, a.tensor.dtype)), (bare(it) - value,))
        for it, value in match.fixed
    ]
    moved = [substitute(f, match.image) for f in q.factors if f is not b]
    rest = _rest([*moved, *ones, a], a, _outside(scope, p, a)[1])
    return _Part(rest, bool(match.fixed or match.narrowed), q.meaning)


def _join(scope: Scope, p: _Placed, a: Read, rests: Sequence[Scalar]) -> Scope | None:
    """The scope of ``a`` times the sum of its rest in p and of ``rests``, those of other terms."""
    shared, outside = _outside(scope, p, a)
    parts = [_rest(p.factors, a, outside), *rests]
    inner = closed(total(parts), set[It]().union(*map(iterators, parts)))
    joined = scope_over(
        traversal_iterators(scope),
        sorted(shared, key=lambda i: i.slot),
        product([a, inner]),
    )
    return joined if joined.type == scope.type else None


def _rest(factors: Sequence[Scalar], a: Scalar, outside: set[It]) -> Scalar:
    """The product of the other factors, as a scope if it has reduction iterators of its own."""
    rest = [f for f in factors if f is not a]
    if not rest:
        return Num(1)
    body = product(rest)
    return body if iterators(body) <= outside else closed(body, outside)


def _unify(b: Read, a: Read, q: _Placed, p: _Placed) -> _Match | None:
    """How ``b``, a factor of q, becomes the read ``a`` of p, or one place of its window."""
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
    """Whether the smaller window lies in the larger one, and a factor in ``rest`` is zero outside
    of it."""
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
