"""Contraction algebra on flat scopes: ``L sum . f1 * f2 * … * fn``.

Factoring over connected subsets of the factors, and folding: what is worth closing
(``calculus/close.py``); and distributing, which inlines, rearranges and splits. Which nodes they
are asked for is the normal form (ARCHITECTURE.md), decided in ``algebra.py``. The common factor of
a sum is ``common_factor.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from eqsynth.calculus.close import Close, Part
from eqsynth.calculus.conditions import is_product, support
from eqsynth.calculus.inline import Inline
from eqsynth.calculus.rearrange import Rearrange
from eqsynth.calculus.scopes import (
    reduction_iterators,
    traversal_iterators,
)
from eqsynth.egraph.tactics.moving import termwise
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.ir.index import It
from eqsynth.ir.scalar import (
    Num,
    Read,
    Scalar,
    Sum,
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
# Up to so many factors any shared iterator connects two; of more, a shared reduction only.
MAX_SHARING = 8


def factor(scope: Scope) -> Iterator[Path]:
    """``sum_{k,l} a b c = sum_k a * {sum_l b c}``, for every split into two connected parts.

    Factors are connected by a shared iterator, or by being constant both: what depends on weights
    only is computed once. Of many factors only those count that share a reduction. An outer
    product is a part where it is no larger than what is read. Each part that reduces something of
    its own, or has several factors, becomes a scope over the iterators that it still needs.
    """
    factors = factors_of(scope.body)
    if not is_product(scope) or not 2 <= len(factors) <= MAX_FACTORS or _foldable(scope):
        return
    reduced = set(reduction_iterators(scope))
    for sides in _splits(scope, factors):
        used = [{it for n in side for it in iterators(factors[n])} & reduced for side in sides]
        own = [frozenset(a - b) for a, b in zip(used, reversed(used), strict=True)]
        parts = [Part(side, its) for side, its in zip(sides, own, strict=True)]
        parts = [part for part in parts if len(part.operands) > 1 or part.reduced]
        result = path(scope, Close(tuple(parts))) if parts else None
        if result is not None and result.scope != scope:
            yield result


def _splits(scope: Scope, factors: Sequence[Scalar]) -> Iterator[list[frozenset[int]]]:
    """The factors, by position, in two parts, each of which is worth a scope of its own."""
    shared = set(reduction_iterators(scope))
    if len(factors) <= MAX_SHARING:
        shared |= set(traversal_iterators(scope))
    links = [[_linked(f, g, shared) for g in factors] for f in factors]
    largest = max(_box([f]) for f in factors)
    everything = (1 << len(factors)) - 1
    for first in range(1, everything, 2):
        sides = (first, everything & ~first)
        parts = [frozenset(i for i in range(len(factors)) if side >> i & 1) for side in sides]
        good = [
            _connected(side, links) or _box([factors[i] for i in part]) <= largest
            for side, part in zip(sides, parts, strict=True)
        ]
        if all(good) or not _joined(*sides, links):
            yield parts


def _box(part: Sequence[Scalar]) -> int:
    """Points over which a product is taken."""
    return math.prod(it.extent for it in {it for f in part for it in iterators(f)})


def fold_constants(scope: Scope) -> Path | None:
    """``sum a * w * s = sum a * {w * s}``, w and s constant, s over iterators of w only.

    The product is no larger than w and computed once, so this never loses; it comes before
    factoring.
    """
    found = _foldable(scope) if is_product(scope) else None
    if found is None:
        return None
    factors = factors_of(scope.body)
    inside = frozenset(n for n, factor in enumerate(factors) if factor in found)
    if len(inside) == len(factors) or len(inside) != len(found):
        return None
    return path(scope, Close((Part(inside),)))


def _foldable(scope: Scope) -> list[Scalar] | None:
    """A constant factor and the constant factors over iterators of it alone, if any."""
    constants = [f for f in factors_of(scope.body) if _constant(f)]
    for w in constants:
        small = [f for f in constants if f is not w and iterators(f) <= iterators(w)]
        if small and isinstance(w, Read):
            return [w, *small]
    return None


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


def distribute(scope: Scope, read: Read, inner: Scope) -> Path | None:
    """``sum_y a * {b + c}[p] = {sum_y a * b[p]} + {sum_y a * c[p]}``, where each part is less work.

    ``inner`` is a sum that ``read``, a factor of the product that is always in range, is equal to.
    A part is less work than the whole if it vanishes outside of a smaller box (a piece of a
    concatenation), uses fewer iterators (a broadcast), or is constant (a bias through a weight).
    One part may be as much work as the whole: it is the chain that the others stood in the way of.
    With two, every linear map would be tried inside every sum.
    """
    factors, terms = list(factors_of(scope.body)), terms_of(inner.body)
    if not is_product(scope) or not scope.reduction or read not in factors or not read.in_range():
        return None
    if inner.reduction or len(terms) < 2 or not all(_is_monomial(term) for term in terms):
        return None
    factors.remove(read)
    moved = [substitute(term, lambda it: read.index[it.slot]) for term in terms]
    parts = [product([*factors, term]) for term in moved]
    whole = math.prod(scope.extents)
    if sum(_work(part) >= whole and not _is_constant(part) for part in parts) > 1:
        return None
    inlined = path(scope, Inline(read, inner))
    opened = inlined and inlined.then(Rearrange(_multiplied(inlined.scope.body)))
    return opened and opened.then(termwise(opened.scope))


def _multiplied(body: Scalar) -> Scalar:
    """``a * (b + c)`` as ``a * b + a * c``."""
    factors = factors_of(body)
    at = next((n for n, factor in enumerate(factors) if isinstance(factor, Sum)), None)
    if at is None:
        return body
    rest = [*factors[:at], *factors[at + 1 :]]
    return total([product([*rest, term]) for term in terms_of(factors[at])])


def _is_monomial(term: Scalar) -> bool:
    return all(isinstance(factor, Read | Num) for factor in factors_of(term))


def _is_constant(body: Scalar) -> bool:
    return all(map(_constant, factors_of(body)))


def _work(body: Scalar) -> int:
    """Points at which a product isn't zero by its reads alone: the smallest box around them."""
    bounds = [support(body, it) for it in iterators(body)]
    return math.prod(max(high - low, 0) for low, high in bounds)
