"""How much work a product of several factors is, in the best order of its contractions.

    sum_{j,r} b[i, r] * c[r, j] * x[j, d]   ->   sum_r b[i, r] * {sum_j c[r, j] * x[j, d]}

Tactics ask this before they propose what pays off in another order only. Not here: the orders
themselves, which factoring proposes (``contraction.factor``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from eqsynth.calculus.conditions import support
from eqsynth.egraph.scope_rules.matching import zeros_outside
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Num, Read, Scalar, factors_of, iterators
from eqsynth.ir.scopes import bare, reduction_iterators
from eqsynth.ir.tensor import Scope

# All orders of a product of up to so many factors are compared (3**6 splits).
MAX_ORDERED = 6
# Another order has to save this factor. With less, a bias beside an activation counts as a saving:
# (x + bias) * h(x), contracted with weights, has one factor less in the term of the bias.
FEWER = 2


def in_best_order(scope: Scope, diagonals: bool = True) -> int:
    """The number of points of a product's contractions of two factors each, in the best order.

        sum_{j,r} b[i, r] * c[r, j] * x[j, d]    of 9 x 2 x 9 by 1    ->    18 + 18

    A factor that alone has an iterator of the reduction is summed over it first. A product of more
    than ``MAX_ORDERED`` factors counts as one contraction of all. Numbers don't count as factors,
    and what is computed of constants alone counts nothing, unless all factors are constant. With
    ``diagonals``, a sum over k of ``one[k - i] * x[k]`` is ``x[i]``. A sum over k of
    ``ones[i - k] * x[k]`` runs through the places of x once (``prefix.py``).
    """
    factors = [factor for factor in factors_of(scope.body) if not isinstance(factor, Num)]
    used = [iterators(factor) for factor in factors]
    for it, place in _deltas(scope) if diagonals else ():
        used = [(own - {it}) | place if it in own else own for own in used]
    running = _running(scope, factors)
    if not (1 if running else 2) < len(used) <= MAX_ORDERED:
        return min(math.prod(scope.extents), points(set[It]().union(*used)))
    reduced, everything = set(reduction_iterators(scope)), (1 << len(used)) - 1
    constants = sum(1 << n for n, factor in enumerate(factors) if is_constant(factor))
    its = [
        {it for n, own in enumerate(used) if side >> n & 1 for it in own}
        for side in range(everything + 1)
    ]
    # What a side leaves to the rest: all of its iterators that aren't summed within it.
    left = [own - (reduced - its[everything & ~side]) for side, own in enumerate(its)]

    def joined(a: int, b: int) -> int:
        for ones, other in ((a, b), (b, a)):
            it = running.get(ones)
            if it in left[other] - left[ones | other] and not (its[ones] - {it}) & left[other]:
                return points(left[other])
        return points(left[a] | left[b])

    best = [0] * (everything + 1)
    for side in range(1, everything + 1):
        parts = [(one, side & ~one) for one in range(1, side) if one & side == one]
        if not side & ~constants and constants != everything:
            best[side] = 0
        elif parts:
            best[side] = min(best[a] + best[b] + joined(a, b) for a, b in parts)
        elif left[side] != its[side]:
            best[side] = points(its[side])
    return best[everything]


def _running(scope: Scope, factors: Sequence[Scalar]) -> dict[int, It]:
    """Return the factors that end a sum at a place, as bits, and the iterator that is summed:
    ``ones[i - k]`` of ``sum_k ones[i - k] * x[k]``. Any constant vector may be one of ones."""
    found: dict[int, It] = {}
    for n, factor in enumerate(factors):
        if isinstance(factor, Read) and factor.tensor.constant and is_one_sided(factor):
            over = [it for it in reduction_iterators(scope) if it in iterators(factor)]
            if len(over) == 1:
                found[1 << n] = over[0]
    return found


def is_one_sided(read: Read) -> bool:
    """Whether the read has one index, which may be below the tensor, and is never beyond it."""
    if len(read.index) != 1 or read.fill != 0:
        return False
    low, high = read.index[0].range()
    return low < 0 <= high < read.tensor.shape[0]


def _deltas(scope: Scope) -> Iterator[tuple[It, set[It]]]:
    """Yield the reduced iterators that have one value, where a factor isn't zero, and what that
    value depends on: of ``sum_k one[k - i] * x[k]`` the iterator k, and i."""
    gone: set[It] = set()
    for factor in factors_of(scope.body):
        for u, _ in zeros_outside(factor):
            for it in reversed(reduction_iterators(scope)):
                step = u.coefficient(it.slot)
                place = {*(u - bare(it) * step).iterators()}
                if abs(step) == 1 and it not in gone and not place & {*gone, it}:
                    gone.add(it)
                    yield it, place
                    break


def points(its: Collection[It]) -> int:
    """The number of points that the iterators go through together."""
    return math.prod(it.extent for it in its)


def work(body: Scalar, diagonals: bool = True) -> int:
    """The number of points in the smallest box outside of which a product is zero by its reads.

    With ``diagonals``, of the points where two indices have to be equal, ``one[i % 4 - k % 4]``,
    one in as many counts as either of them has values."""
    bounds = [support(body, it) for it in iterators(body)]
    found = math.prod(max(high - low, 0) for low, high in bounds)
    for factor in factors_of(body) if diagonals else ():
        for u, _ in zeros_outside(factor):
            ranges = (Index(0, ((atom, 1),)).range() for atom, step in u.terms if abs(step) == 1)
            found //= min((high - low + 1 for low, high in ranges), default=1)
    return found


def is_constant(body: Scalar) -> bool:
    """Whether each factor of a product is a number or reads a constant tensor."""
    return all(
        isinstance(f, Num) or (isinstance(f, Read) and f.tensor.constant)
        for f in factors_of(body)
    )
