"""Contraction algebra on flat scopes: ``L sum . f1 * f2 * … * fn``.

    factor           sum_{k,l} a b c      ->  sum_k a * {sum_l b c}
    fold_constants   sum a * w * s        ->  sum a * {w * s}          w, s constant
    distribute       sum_y a * {b + c}    ->  {sum_y a b} + {sum_y a c}

Factoring and folding make scopes of some of the factors (``calculus/close.py``); distributing
inlines, rearranges and splits. Not here: to which scopes they are applied, which is the normal form
(ARCHITECTURE.md; ``algebra.py``), and the common factor of a sum (``common_factor.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from eqsynth.calculus.close import Close, Part
from eqsynth.calculus.conditions import is_product, support
from eqsynth.calculus.inline import Inline
from eqsynth.calculus.rearrange import Rearrange
from eqsynth.calculus.same import Same
from eqsynth.egraph.tactics.moving import termwise
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.egraph.tactics.splitting import read_terms
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
from eqsynth.ir.scopes import (
    reduction_iterators,
    traversal_iterators,
)
from eqsynth.ir.tensor import Scope

# Binary splits of n factors number 2**(n-1); beyond this the scope is left as it is.
MAX_FACTORS = 10
# In a product of up to so many factors any shared iterator connects two factors; in a product of
# more factors only a shared reduction iterator does.
MAX_SHARING = 8
# All orders of a product of up to so many factors are compared (3**6 splits).
MAX_ORDERED = 6
# Another order has to save this factor. With less, a bias beside an activation counts as a saving:
# (x + bias) * h(x), contracted with weights, has one factor less in the term of the bias.
FEWER = 2


def factor(scope: Scope) -> Iterator[Path]:
    """``sum_{k,l} a b c = sum_k a * {sum_l b c}``, for every split into two connected parts.

    Two factors are connected by a shared iterator (by a shared reduction iterator, if there are
    more than ``MAX_SHARING`` factors), or if both are constant: a product of weights is computed
    once. A part that isn't connected, an outer product, is allowed if it is no larger than the
    largest factor. A part that has several factors, or reduces an iterator of its own, becomes a
    scope over the iterators that the rest still needs.
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
    """The number of points over which the product of the factors in ``part`` is taken."""
    return _points({it for f in part for it in iterators(f)})


def fold_constants(scope: Scope) -> Path | None:
    """``sum a * w * s = sum a * {w * s}``, w and s constant, s over iterators of w only.

    The product is no larger than w and is computed once, so folding never costs time. It is done
    before factoring.
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
    """A constant factor, and the constant factors that have no iterators besides its own; None if
    there are none."""
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


def distribute(
    scope: Scope,
    read: Read,
    inner: Scope,
    opened: Callable[[Scope], Iterable[Scope]],
    of_rows: Callable[[Scalar], bool] = lambda _part: False,
    padded: Callable[[Sequence[Scalar]], bool] = lambda _terms: False,
) -> Path | None:
    """``sum_y a * {b + c}[p] = {sum_y a * b[p]} + {sum_y a * c[p]}``, if that is less work.

    A part is less work than the whole if it is zero outside of a smaller box (a piece of a
    concatenation), uses fewer iterators (a broadcast), is constant (a bias through a weight), reads
    picked rows of a constant or a smaller table (a node at each of its edges), or is a product of
    three and more tensors that another order computes with at most one in ``FEWER`` of the points
    of the whole: in ``(b @ c + d @ e) @ x``, ``b @ (c @ x)``. One part may be as much work as the
    whole: apart from the others, it may be optimized further. If two were allowed, every linear map
    would be tried inside every sum.

    A sum of constants is computed once, so it is distributed only if that leaves out most zeros:
    ``x @ block_diag(a, b, c)`` is three products, with a third of the work together.

    Args:
        read: a factor of the product.
        inner: the sum that ``read`` reads.
        opened: returns scopes that are equal to a product, with reads of other products inlined.
        padded: whether terms are worth taking apart where ``read`` goes outside of the sum, which
            all terms are zero outside of: each becomes a window with padding.
        of_rows: whether a product reads picked rows of a table and is worth computing for the rows
            of the table.
    """
    factors, terms = list(factors_of(scope.body)), terms_of(inner.body)
    if not is_product(scope) or not scope.reduction or read not in factors:
        return None
    if inner.reduction or len(terms) < 2 or not all(_is_monomial(term) for term in terms):
        return None
    factors.remove(read)
    moved = [substitute(term, lambda it: read.index[it.slot]) for term in terms]
    if not read.in_range() and not (moved == read_terms(read, inner) and padded(moved)):
        return None
    parts = [product([*factors, term]) for term in moved]
    whole, ordered = math.prod(scope.extents), in_best_order(scope)
    # x[i] - x[i] is 0 before a product, and a rounding after it.
    adds = not any(isinstance(f, Num) and f.value < 0 for t in terms for f in factors_of(t))

    def open_(part: Scalar) -> Iterable[Scope]:
        return opened(Scope(scope.traversal, scope.reduction, part))

    def is_less(part: Scalar) -> bool:
        if _work(part) < whole or _is_constant(part) or (adds and of_rows(part)):
            return True
        return any(FEWER * in_best_order(other) <= ordered for other in open_(part))

    if read.tensor.constant:
        # A piece may be a view of zeros around a smaller piece.
        works = [min(map(_work, [part, *(o.body for o in open_(part))])) for part in parts]
        if FEWER * sum(works) > whole:
            return None
    elif sum(not is_less(part) for part in parts) > 1:
        return None
    if not read.in_range():
        apart = termwise(Scope(scope.traversal, scope.reduction, total(parts))).other
        return path(scope, Same(apart, ((read.tensor, inner),)))
    inlined = path(scope, Inline(read, inner))
    split = inlined and inlined.then(Rearrange(_multiplied(inlined.scope.body)))
    return split and split.then(termwise(split.scope))


def in_best_order(scope: Scope) -> int:
    """The number of points of a product's contractions of two factors each, in the best order.

        sum_{j,r} b[i, r] * c[r, j] * x[j, d]    of 9 x 2 x 9 by 1    ->    18 + 18

    A factor that alone has an iterator of the reduction is summed over it first. A product of more
    than ``MAX_ORDERED`` factors counts as one contraction of all. Numbers don't count as factors.
    """
    used = [iterators(factor) for factor in factors_of(scope.body) if not isinstance(factor, Num)]
    if not 2 < len(used) <= MAX_ORDERED:
        return math.prod(scope.extents)
    reduced, everything = set(reduction_iterators(scope)), (1 << len(used)) - 1
    its = [
        {it for n, own in enumerate(used) if side >> n & 1 for it in own}
        for side in range(everything + 1)
    ]
    # What a side leaves to the rest: all of its iterators that aren't summed within it.
    left = [own - (reduced - its[everything & ~side]) for side, own in enumerate(its)]
    best = [0] * (everything + 1)
    for side in range(1, everything + 1):
        parts = [(one, side & ~one) for one in range(1, side) if one & side == one]
        if parts:
            best[side] = min(best[a] + best[b] + _points(left[a] | left[b]) for a, b in parts)
        elif left[side] != its[side]:
            best[side] = _points(its[side])
    return best[everything]


def _points(its: Collection[It]) -> int:
    return math.prod(it.extent for it in its)


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
    """The number of points in the smallest box outside of which a product is zero by its reads."""
    bounds = [support(body, it) for it in iterators(body)]
    return math.prod(max(high - low, 0) for low, high in bounds)
