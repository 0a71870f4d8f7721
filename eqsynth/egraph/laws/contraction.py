"""Contraction algebra on flat scopes: ``L sum . f1 * f2 * … * fn``.

Factoring over connected subsets of the factors, hoisting, and the common factor of a sum. All
are laws of sums and products over any iteration space; which nodes they are asked for is the
normal form (ARCHITECTURE.md), decided in ``table.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from eqsynth.egraph.laws.closing import (
    close,
    read_all,
    reduction_iterators,
    same_scope,
    scope_over,
    traversal_iterators,
)
from eqsynth.egraph.laws.derivation import support
from eqsynth.egraph.laws.merging import is_product
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
from eqsynth.ir.tensor import Scope

# Binary splits of n factors number 2**(n-1); beyond this the scope is left as it is.
MAX_FACTORS = 10
# Slots from here on are out of the way of every scope's own.
_APART = 1000


def factor(scope: Scope) -> Iterator[Scope]:
    """``sum_{k,l} a b c = sum_k a * {sum_l b c}``, for every split into two connected parts.

    Factors are connected by a shared reduction iterator, or by being constant both: what depends
    on weights only is computed once. Each part that reduces something of its own, or has several
    factors, becomes a scope over the iterators that it still needs.
    """
    factors = factors_of(scope.body)
    if not is_product(scope) or not 2 <= len(factors) <= MAX_FACTORS or _foldable(scope):
        return
    reduced = set(reduction_iterators(scope))
    links = [[_linked(f, g, reduced) for g in factors] for f in factors]
    everything = (1 << len(factors)) - 1
    for first in range(1, everything, 2):
        rest = everything & ~first
        if not _connected(first, links):
            continue
        if not _connected(rest, links) and _joined(first, rest, links):
            continue
        parts = [[f for i, f in enumerate(factors) if side >> i & 1] for side in (first, rest)]
        used = [{it for f in part for it in iterators(f)} for part in parts]
        sides = [
            _side(part, own, other | set(traversal_iterators(scope)))
            for part, own, other in zip(parts, used, reversed(used), strict=True)
        ]
        if all(isinstance(f, Scalar) for f in sides) and product(sides) != scope.body:
            result = same_scope(scope, product(sides))
            if result != scope:
                yield result


def fold_constants(scope: Scope) -> Scope | None:
    """``sum a * w * s = sum a * {w * s}``, w and s constant, s over iterators of w only.

    The product is no larger than w and computed once, so this never loses; it comes before
    factoring.
    """
    found = _foldable(scope) if is_product(scope) else None
    if found is None:
        return None
    rest = [f for f in factors_of(scope.body) if f not in found]
    if not rest or len(rest) + len(found) != len(factors_of(scope.body)):
        return None
    outside = {it for f in found for it in iterators(f)}
    return same_scope(scope, product([*rest, close(product(found), outside)]))


def _foldable(scope: Scope) -> list[Scalar] | None:
    """A constant factor and the constant factors over iterators of it alone, if any."""
    constants = [f for f in factors_of(scope.body) if _constant(f)]
    for w in constants:
        small = [f for f in constants if f is not w and iterators(f) <= iterators(w)]
        if small and isinstance(w, Read):
            return [w, *small]
    return None


def _side(part: Sequence[Scalar], used: set[It], outside: set[It]) -> Scalar:
    if len(part) == 1 and used <= outside:
        return part[0]
    return close(product(part), outside)


def _constant(f: Scalar) -> bool:
    return isinstance(f, Num) or (isinstance(f, Read) and f.tensor.constant)


def _linked(f: Scalar, g: Scalar, reduced: set[It]) -> bool:
    if isinstance(f, Num) or isinstance(g, Num):
        return _constant(f) and _constant(g)
    shared = iterators(f) & iterators(g)
    return bool(shared & reduced) or (bool(shared) and _constant(f) and _constant(g))


def _connected(side: int, links: Sequence[Sequence[bool]]) -> bool:
    members = [i for i in range(len(links)) if side >> i & 1]
    reached, stack = {members[0]}, [members[0]]
    while stack:
        at = stack.pop()
        for other in members:
            if other not in reached and links[at][other]:
                reached.add(other)
                stack.append(other)
    return len(reached) == len(members)


def _joined(first: int, rest: int, links: Sequence[Sequence[bool]]) -> bool:
    n = range(len(links))
    return any(links[i][j] for i in n if first >> i & 1 for j in n if rest >> j & 1)


def distribute(scope: Scope, read: Read, inner: Scope) -> Scope | None:
    """``sum_y a * {b + c}[p] = {sum_y a * b[p]} + {sum_y a * c[p]}``, where each part is less work.

    ``inner`` is a sum that ``read``, a factor of the product that is always in range, is equal to.
    A part is less work than the whole if it vanishes outside of a smaller box (a piece of a
    concatenation), or uses fewer iterators (a broadcast). With one part as large as the whole
    (a bias is added) nothing is gained, and every linear map would be tried inside every sum.
    """
    factors, terms = list(factors_of(scope.body)), terms_of(inner.body)
    if not is_product(scope) or not scope.reduction or read not in factors or not read.in_range():
        return None
    if inner.reduction or len(terms) < 2 or not all(_is_monomial(term) for term in terms):
        return None
    factors.remove(read)
    parts = []
    for term in terms:
        moved = substitute(term, lambda it: read.index[it.slot])
        used = iterators(product([*factors, moved]))
        idle = math.prod(it.extent for it in reduction_iterators(scope) if it not in used)
        parts.append(product([Num(idle), *factors, moved]))
    if max(map(_work, parts)) >= math.prod(scope.extents):
        return None
    traversal = traversal_iterators(scope)
    result = same_scope(scope, total([close(part, set(traversal)) for part in parts]), [])
    return result if result.dtype == scope.dtype else None


def _is_monomial(term: Scalar) -> bool:
    return all(isinstance(factor, Read | Num) for factor in factors_of(term))


def _work(body: Scalar) -> int:
    """Points at which a product isn't zero by its reads alone: the smallest box around them."""
    bounds = [support(body, it) for it in iterators(body)]
    return math.prod(max(high - low, 0) for low, high in bounds)


def hoist(scope: Scope) -> Scope | None:
    """``L_{i,j} sum_k f(j, k) = L_{i,j} {L_j sum_k f(j, k)}[j]``: computed once, then broadcast."""
    if not scope.reduction:
        return None
    used = iterators(scope.body)
    traversal = traversal_iterators(scope)
    if all(it in used or it.extent <= 1 for it in traversal):
        return None
    inner = close(scope.body, set(traversal), scope.reducer, reduction_iterators(scope))
    return same_scope(scope, inner) if inner.tensor.dtype == scope.dtype else None


@dataclass(frozen=True)
class _Placed:
    """A product over the iterators of the scope around and reduction iterators of its own."""

    factors: tuple[Scalar, ...]
    reduced: frozenset[It]


def common_factor(scope: Scope, flats: Callable[[Read], Sequence[Scope]]) -> Iterator[Scope]:
    """``{sum_k a b}[x] + {sum_k a c}[x] = sum_k a * (b + c)``, from a sum of reads.

    ``flats`` gives the flat scopes of what a read reads. Two terms are joined at a time: they
    must share a factor over all of their reduction iterators but those of the other factors alone.
    """
    terms = terms_of(scope.body)
    if scope.reduction or len(terms) < 2:
        return
    for i, left in enumerate(terms):
        for j in range(i + 1, len(terms)):
            for p in _in_place(left, flats):
                for q in _in_place(terms[j], flats):
                    for joined in _join(scope, p, q):
                        others = [t for n, t in enumerate(terms) if n not in (i, j)]
                        traversal = traversal_iterators(scope)
                        read = read_all(joined, traversal)
                        if not others:
                            yield joined
                        else:
                            yield same_scope(scope, total([read, *others]))


def _in_place(term: Scalar, flats: Callable[[Read], Sequence[Scope]]) -> Iterator[_Placed]:
    """The flat scopes of a term ``number * read`` whose read is in range, as they are."""
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


def _join(scope: Scope, p: _Placed, q: _Placed) -> Iterator[Scope]:
    traversal = traversal_iterators(scope)
    for a in p.factors:
        if not isinstance(a, Read):
            continue
        for b in q.factors:
            if not isinstance(b, Read) or b.tensor != a.tensor or b.fill != a.fill:
                continue
            rename = _unify(b, a, q.reduced, p.reduced)
            if rename is None:
                continue
            shared = {it for it in iterators(a) if it in p.reduced}
            outside = set(traversal) | shared
            left = _rest(p.factors, a, outside)
            moved = [substitute(f, rename) for f in q.factors if f is not b]
            right = _rest([*moved, a], a, outside)
            if left is None or right is None:
                continue
            used = sorted(iterators(left) | iterators(right), key=lambda it: it.slot)
            inner = close(total([left, right]), set(used))
            if isinstance(left, Num) or isinstance(right, Num):
                continue
            yield scope_over(traversal, sorted(shared, key=lambda i: i.slot), product([a, inner]))


def _rest(factors: Sequence[Scalar], a: Scalar, outside: set[It]) -> Scalar | None:
    """What multiplies ``a``, with its own reductions carried out inside."""
    rest = [f for f in factors if f is not a]
    if not rest:
        return Num(1)
    body = product(rest)
    return body if iterators(body) <= outside else close(body, outside)


def _unify(
    b: Read, a: Read, own: frozenset[It], other: frozenset[It]
) -> Callable[[It], Index] | None:
    """A renaming of ``b``'s reduction iterators under which it is the read ``a``."""
    names: dict[It, It] = {}
    for i, j in zip(b.index, a.index, strict=True):
        left, right = i.bare(), j.bare()
        if left in own and right in other and left is not None and right is not None:
            if left.extent != right.extent or names.setdefault(left, right) != right:
                return None
        elif i != j:
            return None
    renamed = {it for it in iterators(b) if it in own}
    if len(set(names.values())) != len(names) or renamed != set(names):
        return None
    fresh = {it: It(it.slot + _APART, it.extent) for it in own}

    def image(it: It) -> Index:
        target = names.get(it, fresh.get(it, it))
        return Index(0, ((target, 1),))

    # An index that isn't bare may look the same and still be over other iterators.
    return image if substitute(b, image) == a else None
