"""Shape distance: the least number of Syno's primitives that turn one shape into another.

It guides the search for chains of views (``egraph/tactics/view_chains.py``).

**Definition** (Syno §7.1, Appendix A). The least number of the following moves from the extents of
a result, as a multiset, to the extents of the tensor that the result reads:

* ``Merge``: an extent becomes two, ``n -> n/b, b`` (neither is 1);
* ``Split``: two extents become one, ``g, b -> g*b``;
* a 1-to-many primitive: one or more extents are eliminated in one step. ``Expand`` and ``Unfold``
  eliminate one extent, a contraction with a weight as many as the weight has.

Other primitives can't shorten the way: ``Shift`` keeps the shape, and ``Stride`` needs an
``Unfold``, which suffices without it. Permutations cost nothing, and extents of 1 don't count.

An extent is an integer or a monomial. Variables are **primary** (large, the extents of inputs:
never in a denominator) or **coefficients** (small, parameters of primitives: in a denominator
only beside a primary variable, as in ``H/s``).

**Computation.** Moves connect extents to reshape groups; a group of ``|O|`` extents of the result
and ``|I|`` of the tensor takes ``|O| - 1`` Splits and ``|I| + |E| - 1`` Merges, where ``E`` is one
extent to eliminate if the two products differ, else none [Appendix A, Theorem A.4]. All groups
share one elimination. The distance is the least sum over all groupings. (§7.1's own formula counts
-1 for an extent that is only eliminated, and so says 2 of the paper's example, which takes 3.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache

from eqsynth.ir.extent import Monomial

Extent = int | Monomial

_NONE: frozenset[str] = frozenset()
_ONE = Monomial(1)


def shape_distance(
    result: Iterable[Extent], tensor: Iterable[Extent], primary: Iterable[str] = _NONE
) -> float:
    """Return the least number of primitives from a result's shape to the shape of the tensor it
    reads.

    Args:
        primary: the variables that are primary; all others are coefficients.

    Returns:
        An integer, or infinity if no sequence of moves exists.

    Raises:
        ValueError: a monomial isn't an extent, such as ``k/s`` of two coefficients.

    >>> c, h, w, k, s = (Monomial.variable(name) for name in ("C", "H", "W", "k", "s"))
    >>> shape_distance([c, h / s, s * w, k], [c, h, w], primary="CHW")
    3
    >>> shape_distance((4, 6), (24,)), shape_distance((4, 3), (4,)), shape_distance((4,), (8,))
    (1, 1, inf)

    Source: Syno §7.1, Appendix A.
    """
    return _memo(_in_order(result), _in_order(tensor), frozenset(primary))


def _in_order(shape: Iterable[Extent]) -> tuple[Extent, ...]:
    """Return the extents; if all are integers, without ones and sorted, as the order is free."""
    extents = tuple(shape)
    numbers = [e for e in extents if isinstance(e, int)]
    return tuple(sorted(n for n in numbers if n != 1)) if len(numbers) == len(extents) else extents


def _extents(shape: Iterable[Extent], primary: frozenset[str]) -> tuple[Monomial, ...]:
    dims = [e if isinstance(e, Monomial) else Monomial(e) for e in shape]
    for extent in dims:
        if not is_extent(extent, primary):
            raise ValueError(
                f"{extent} is no extent: only coefficients may be divided by, and only beside "
                f"one of the primary variables {sorted(primary)}"
            )
    return tuple(sorted((e for e in dims if e != _ONE), key=str))


@lru_cache(maxsize=1 << 16)
def _memo(outer: tuple[Extent, ...], inner: tuple[Extent, ...], primary: frozenset[str]) -> float:
    result, tensor = _extents(outer, primary), _extents(inner, primary)
    if any(e.coefficient == 0 for e in (*result, *tensor)):
        return 0 if Counter(result) == Counter(tensor) else math.inf
    # An extent that occurs on both sides is a group by itself: in any grouping, the extents grouped
    # with the two can form a group without them, which takes no more steps.
    left, right = Counter(result), Counter(tensor)
    own, wanted = (left - right).elements(), (right - left).elements()
    return _grouped(tuple(own), tuple(wanted), primary)


def _grouped(
    own: tuple[Monomial, ...], wanted: tuple[Monomial, ...], primary: frozenset[str]
) -> float:
    """Return the least number of steps over all groupings of ``own`` and ``wanted``, which share no
    extent.

    Counted from one step for each extent, a group whose products are equal saves two steps, and a
    group with an extent to eliminate saves one. Extents in no group are eliminated.
    """
    everything = (1 << len(own)) - 1
    products = [_product(own, mask) for mask in range(everything + 1)]

    @cache
    def saved(left: int, free: int, eliminates: bool) -> float:
        """Return the most steps that can be saved by grouping the wanted extents of ``left`` with
        own extents of ``free`` (both are bit masks)."""
        if not left:
            return free.bit_count() - (eliminates or free > 0)
        first = left & -left
        best = -math.inf
        for part in _submasks(left ^ first):
            product = _product(wanted, part | first)
            for group in _submasks(free):
                if group:
                    rest = _quotient(products[group], product, primary)
                    if rest is not None:
                        gain = 2 if rest == _ONE else 1
                        more = saved(left ^ part ^ first, free ^ group, eliminates or rest != _ONE)
                        best = max(best, gain + more)
        return best

    most = saved((1 << len(wanted)) - 1, everything, False)
    return math.inf if most == -math.inf else int(len(own) + len(wanted) - most)


def _submasks(mask: int) -> Iterator[int]:
    part = mask
    while True:
        yield part
        if not part:
            return
        part = (part - 1) & mask


def _product(extents: tuple[Monomial, ...], mask: int) -> Monomial:
    result = _ONE
    for n, extent in enumerate(extents):
        if mask >> n & 1:
            result = result * extent
    return result


def _quotient(top: Monomial, below: Monomial, primary: frozenset[str]) -> Monomial | None:
    """Return ``top / below`` if it is an extent; otherwise None."""
    if top.coefficient % below.coefficient:
        return None
    quotient = top / below
    return quotient if is_extent(quotient, primary) else None


def is_extent(monomial: Monomial, primary: frozenset[str]) -> bool:
    """Whether the monomial may be an extent: it isn't negative, no primary variable is in the
    denominator, and a coefficient is there only if a primary variable is in the numerator."""
    large = any(name in primary for name, _ in monomial.powers)
    powers = all(p > 0 or (large and name not in primary) for name, p in monomial.powers)
    return powers and monomial.coefficient >= 0
