"""Contraction algebra on flat scopes: ``L sum . f1 * f2 * … * fn``.

    factor           sum_{k,l} a b c      ->  sum_k a * {sum_l b c}
    fold_constants   sum a * w * s        ->  sum a * {w * s}          w, s constant
    distribute       sum_y a * {b + c}    ->  {sum_y a b} + {sum_y a c}

Factoring and folding make scopes of some of the factors (``calculus/close.py``); distributing
inlines, rearranges and splits. Not here: to which scopes they are applied, which is the normal form
(ARCHITECTURE.md; ``algebra.py``), and the common factor of a sum (``common_factor.py``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from eqsynth.calculus.close import Close, Part
from eqsynth.calculus.conditions import is_product
from eqsynth.calculus.inline import Inline
from eqsynth.calculus.rearrange import Rearrange
from eqsynth.calculus.same import Same
from eqsynth.egraph.scope_rules.matching import zeros_outside
from eqsynth.egraph.tactics.moving import termwise
from eqsynth.egraph.tactics.ordering import (
    FEWER,
    in_best_order,
    is_constant,
    is_one_sided,
    points,
    work,
)
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.egraph.tactics.splitting import read_terms
from eqsynth.ir.index import It
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
    reduction_iterators,
    traversal_iterators,
)
from eqsynth.ir.tensor import Scope, Tensor

# Binary splits of n factors number 2**(n-1); beyond this the scope is left as it is.
MAX_FACTORS = 10
# In a product of up to so many factors any shared iterator connects two factors; in a product of
# more factors only a shared reduction iterator does.
MAX_SHARING = 8
# A product may take so many times as much work as another order of its factors: by the same factor
# libraries are faster than loops, about.
MOST_WORK = 8
# So deep, sums of constants within sums are looked into.
MAX_DEPTH = 3
# More work than any product has.
_NEVER = 1 << 62


def factor(scope: Scope) -> Iterator[Path]:
    """``sum_{k,l} a b c = sum_k a * {sum_l b c}``, for every split into two connected parts.

    Two factors are connected by a shared iterator (by a shared reduction iterator, if there are
    more than ``MAX_SHARING`` factors), or if both are constant: a product of weights is computed
    once. A part that isn't connected, an outer product, is allowed if it is no larger than the
    largest factor. A part that has several factors, or reduces an iterator of its own, becomes a
    scope over the iterators that the rest still needs. A split is left out if the product of its
    two parts alone takes ``MOST_WORK`` times as much work as all of the best order.
    """
    factors = factors_of(scope.body)
    if not is_product(scope) or not 2 <= len(factors) <= MAX_FACTORS or _foldable(scope):
        return
    reduced = set(reduction_iterators(scope))
    most = MOST_WORK * in_best_order(scope, diagonals=False)
    for sides in _splits(scope, factors):
        used = [{it for n in side for it in iterators(factors[n])} for side in sides]
        own = [frozenset(a - b) & reduced for a, b in zip(used, reversed(used), strict=True)]
        if points(set.union(*used).difference(*own)) > most:
            continue
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
    return points({it for f in part for it in iterators(f)})


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
    constants = [f for f in factors_of(scope.body) if is_constant(f)]
    for w in constants:
        small = [f for f in constants if f is not w and iterators(f) <= iterators(w)]
        if small and isinstance(w, Read):
            # A read beyond the end of w, or of elements of w that repeat, makes a larger product.
            # Of the end of a running sum, 2 * ones[i - k], it would make a matrix.
            large = points(iterators(w)) > w.tensor.type.size
            ends = bool(scope.reduction) and is_one_sided(w)
            if not large or (all(isinstance(f, Num) for f in small) and not ends):
                return [w, *small]
    return None


def _linked(f: Scalar, g: Scalar, reduced: set[It]) -> bool:
    if isinstance(f, Num) or isinstance(g, Num):
        return is_constant(f) and is_constant(g)
    shared = iterators(f) & iterators(g)
    return bool(shared & reduced) or (bool(shared) and is_constant(f) and is_constant(g))


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
    sums: Callable[[Read], Iterable[Scope]] = lambda _read: (),
    number: Callable[[Tensor], float | None] = lambda _tensor: None,
) -> Path | None:
    """``sum_y a * {b + c}[p] = {sum_y a * b[p]} + {sum_y a * c[p]}``, if that is less work.

    A part is less work than the whole if it is zero outside of a smaller box (a piece of a
    concatenation) or except on a diagonal (``diag(d) @ x``), uses fewer iterators (a broadcast), is
    constant (a bias through a weight), reads picked rows of a constant or a smaller table (a node
    at each of its edges), or is a product of three and more tensors that another order computes
    with at most one in ``FEWER`` of the points of the whole: in ``(b @ c + d @ e) @ x``,
    ``b @ (c @ x)``. So it is if that order saves as much of what makes the term:
    ``(a @ a + a) @ x`` needs no ``a @ a``, but ``a @ (a @ x)``. One part may be as much work as the
    whole: apart from the others, it may be optimized further. If two were allowed, every linear map
    would be tried inside every sum.

    A sum of constants is computed once, so it is distributed only if that leaves out most zeros:
    ``x @ block_diag(a, b, c)`` is three products, with a third of the work together, and a
    tridiagonal matrix is three products with vectors. Diagonals don't count where one term may take
    another away: of ``(1 - I) * x`` the element that isn't there may be larger than all others.

    Args:
        read: a factor of the product.
        inner: the sum that ``read`` reads.
        opened: returns scopes that are equal to a product, with reads of other products inlined.
        sums: the sums that a constant read of the product reads.
        number: the number that all elements of a tensor are; None if they aren't one number.
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
    times = factors.count(read)
    factors = [factor for factor in factors if factor != read]
    moved = [substitute(term, lambda it: read.index[it.slot]) for term in terms]
    if not read.in_range() and (times > 1 or not padded(moved) or moved != read_terms(read, inner)):
        return None
    parts = [product([*factors, *each]) for each in _powers(moved, times)]
    # x[i] - x[i] is 0 before a product, and a rounding after it.
    adds = not any(isinstance(f, Num) and f.value < 0 for t in terms for f in factors_of(t))
    once = times == 1 and all(f.tensor != read.tensor for f in factors if isinstance(f, Read))
    if not adds and not once and not read.tensor.constant:
        # With c = x - mean(x), sum_k c[k, i] c[k, j] is a covariance. Multiplied out it is
        # sum_k x[k, i] x[k, j] - n m[i] m[j]: a small difference of large numbers.
        return None
    linear = adds and once
    whole, ordered = math.prod(scope.extents), in_best_order(scope)

    def apart(part: Scalar) -> Iterator[list[Scalar]]:
        """The ways to write a product of constant sums as its terms."""
        for factor in factors_of(part):
            if isinstance(factor, Read):
                found = (_each_term(part, factor, other) for other in sums(factor))
                yield from filter(None, found)

    def written_out(term: Scope, depth: int = MAX_DEPTH) -> list[Scope]:
        """The terms of a term of the sum, with products and sums that it reads inlined: a product
        may be a contraction, so each has a reduction of its own."""
        term = [term, *opened(term)][-1]
        for each in apart(term.body) if depth else ():
            parts = (replace(term, body=part) for part in each)
            return [one for part in parts for one in written_out(part, depth - 1)]
        return [term]

    alone = (Scope(inner.traversal, (), term) for term in terms)
    diagonals = not _may_cancel([one for term in alone for one in written_out(term)], number)

    def open_(part: Scalar) -> Iterable[Scope]:
        return opened(Scope(scope.traversal, scope.reduction, part))

    def least(ways: Iterable[Scope]) -> int:
        return min((in_best_order(way, diagonals) for way in ways), default=_NEVER)

    def made(term: Scalar) -> int:
        """The work of a contraction in the sum, which isn't needed if the sum is distributed."""
        products = opened(Scope(inner.traversal, (), term))
        return min((in_best_order(other) for other in products if other.reduction), default=0)

    def is_less(part: Scalar, term: Scalar) -> bool:
        if work(part, diagonals) < whole or is_constant(part) or (adds and of_rows(part)):
            return True
        best = FEWER * least(open_(part))
        return best <= ordered or (linear and best < _NEVER and best <= made(term))

    def cost(part: Scalar, depth: int) -> int:
        """The work of a part with a constant, which may be a view of zeros around a smaller piece,
        or a sum, too."""
        alone = Scope(scope.traversal, scope.reduction, part)
        ways = [alone, *open_(part)]
        found = min(least(ways), *(work(way.body, diagonals) for way in ways))
        for each in apart(part) if depth and diagonals else ():
            found = min(found, sum(cost(one, depth - 1) for one in each))
        return found

    if read.tensor.constant:
        if FEWER * sum(cost(part, MAX_DEPTH) for part in parts) > ordered:
            return None
    elif times > 1:
        if not adds or not all(FEWER * cost(part, 0) <= ordered for part in parts):
            return None
    elif sum(not is_less(part, term) for part, term in zip(parts, terms, strict=True)) > 1:
        return None
    if not read.in_range():
        termed = termwise(Scope(scope.traversal, scope.reduction, total(parts))).other
        return path(scope, Same(termed, ((read.tensor, inner),)))
    found: Path | None = Path(scope)
    for _ in range(times):
        found = found and found.then(Inline(read, inner))
    found = found and found.then(Rearrange(total(parts)))
    return found and found.then(termwise(found.scope))


def _each_term(part: Scalar, read: Read, inner: Scope) -> list[Scalar]:
    """``a * {b + c}[p]`` as ``a * b[p]`` and ``a * c[p]``; empty if the sum isn't one of products
    or is read beyond its end."""
    terms = terms_of(inner.body)
    if len(terms) < 2 or not read.in_range() or not all(map(_is_monomial, terms)):
        return []
    others = list(factors_of(part))
    others.remove(read)
    return [product([*others, substitute(t, lambda it: read.index[it.slot])]) for t in terms]


def _may_cancel(terms: Sequence[Scope], number: Callable[[Tensor], float | None]) -> bool:
    """Whether a term may take away another one exactly: ``1 - one[i - k]`` is 0 at k = i.

    Two terms of opposite signs do so if both are numbers of about one size, or both are tensors,
    which may be computed from the same data; unless they are zero except on different diagonals
    of the result.
    """
    sizes = [_size(term, number) for term in terms]
    deltas = [
        [u for f in factors_of(term.body) for u, _ in zeros_outside(f)
         if not any(it in reduction_iterators(term) for it, _ in u.terms)]
        for term in terms
    ]  # fmt: skip
    for (m, (a, known)), (n, (b, too)) in itertools.combinations(enumerate(sizes), 2):
        pairs = itertools.product(deltas[m], deltas[n])
        apart = any(not d.terms and d.const for u, v in pairs for d in (u - v, u + v))
        alike = known == too and (not known or FEWER * min(abs(a), abs(b)) > max(abs(a), abs(b)))
        if a * b < 0 and alike and not apart:
            return True
    return False


def _size(term: Scope, number: Callable[[Tensor], float | None]) -> tuple[float, bool]:
    """The product of the numbers of a term, and whether each element of the term is that number."""
    known = [f.value if isinstance(f, Num) else number(f.tensor) if isinstance(f, Read) else None
             for f in factors_of(term.body)]  # fmt: skip
    size = math.prod(value for value in known if value is not None)
    return size, None not in known and not term.reduction


def _powers(terms: Sequence[Scalar], times: int) -> Iterator[list[Scalar]]:
    """The terms of a power of a sum: of ``(b + c)^2``, ``b b``, ``2 b c`` and ``c c``."""
    for picked in itertools.combinations_with_replacement(range(len(terms)), times):
        ways = math.factorial(times)
        for n in set(picked):
            ways //= math.factorial(picked.count(n))
        yield [*([Num(float(ways))] if ways > 1 else []), *(terms[n] for n in picked)]


def _is_monomial(term: Scalar) -> bool:
    return all(isinstance(factor, Read | Num) for factor in factors_of(term))
