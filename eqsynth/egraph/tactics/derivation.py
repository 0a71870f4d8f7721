"""EinNet's intra-expression derivations: summation splitting, boundaries, the order of axes.

Each function is one law of Table 1 (papers: EinNet §4.1) on one scope; it yields scopes that are
equal to the one given. Traversal merging stands in ``merging.py``, changes of variables in
``substitution.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from eqsynth.calculus.close import Close, Part, operands_of
from eqsynth.calculus.conditions import is_product, neutral_outside, support
from eqsynth.calculus.scopes import (
    reduction_iterators,
    traversal_iterators,
)
from eqsynth.egraph.tactics.moving import bounded
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.egraph.tactics.substitution import mixes, reduction_split
from eqsynth.ir.index import It
from eqsynth.ir.normal import remembered
from eqsynth.ir.scalar import (
    Read,
    iterators,
    reads,
)
from eqsynth.ir.tensor import Scope

# Reduction iterators that are mixed with others in an index: all subsets of them are tried.
MAX_MIXED = 4
# The taps of the windows for which libraries have fast algorithms (Winograd).
TAPS = 3


def mixed_iterators(scope: Scope) -> set[It]:
    """Iterators that share an index with another one, as ``h`` and ``r`` in ``x[h + r]``.

    Iterators that count through an axis, as group and channel, aren't mixed.
    """
    return {
        it
        for read in reads(scope.body)
        for index in read.index
        if mixes(index, set(index.iterators()))
        for it in index.iterators()
    }


def everything(scope: Scope, reduced: frozenset[It]) -> Close:
    """The whole body, with these iterators reduced inside."""
    return Close((Part(frozenset(range(len(operands_of(scope.body)))), reduced),))


def sum_split(scope: Scope) -> Iterator[Path]:
    """``L_x sum_{s1,s2} f = L_x sum_{s1} {L_{x,s1} sum_{s2} f}[x, s1]`` [EinNet §4.1].

    The outer sum takes iterators that are mixed with others in an index: summing over what is left
    is nearer to a matrix product, whose indices are bare.
    """
    if not is_product(scope) or scope.reducer != "sum":
        return
    reduced = reduction_iterators(scope)
    mixed = sorted(set(reduced) & mixed_iterators(scope), key=lambda it: it.slot)[:MAX_MIXED]
    for size in range(1, len(mixed) + 1):
        for outer in itertools.combinations(mixed, size):
            if len(outer) == len(reduced):
                continue
            inside = frozenset((set(reduced) & iterators(scope.body)) - {*outer})
            split = path(scope, everything(scope, inside))
            if split is not None:
                yield split


def window_split(scope: Scope) -> Iterator[Path]:
    """``sum_k f(k) = sum_q {L_{x,q} sum_r f(3*q + r)}[x, q]`` for each window of more than 3 taps.

    Kernels are relaxed to multiples of 3 where their weights end, then the sum is split: a 5x5
    convolution is four 3x3 ones whose results are summed at offsets [EinNet Fig. 6].
    """
    apart, steps = Path(scope), list[int]()
    while True:
        mixed = set(reduction_iterators(apart.scope)) & mixed_iterators(apart.scope)
        large = [it for it in sorted(mixed, key=lambda it: it.slot) if TAPS < it.extent <= TAPS**2]
        split = apart.along(partial(reduction_split, it=large[0], divisor=TAPS)) if large else None
        if split is None:
            break
        steps.append(-(-large[0].extent // TAPS))
        apart = split
    for part in sum_split(apart.scope) if steps else ():
        if sorted(part.scope.reduction) == sorted(steps):
            yield Path(part.scope, (*apart.steps, *part.steps))


def distance(split: Scope) -> int:
    """Iterators of a split's inner sum that no column of the matrix product takes as they are.

    The expression distance of EinNet §6.1 to Matmul: mixed indices over what is still summed.
    """
    (read,) = reads(split.body)
    inner = read.tensor
    assert isinstance(inner, Scope)
    return len(mixed_iterators(inner) & set(reduction_iterators(inner)))


@remembered(maxsize=1 << 14)
def tighten(scope: Scope) -> Path | None:
    """``L_X f = {L_X' f}[x - lo]``, f = 0 on X \\ X' [EinNet §4.1, boundary tightening].

    Only in a product is a part that reads outside zero; the strictest boundary of all factors is
    taken. Reduction iterators are narrowed in place: what they lose is zero in the sum. Of another
    reduction the identity (-inf of a maximum) is what changes nothing, in a read alone.
    """
    outside = neutral_outside(scope)
    if outside is None:
        return None
    bounds = {it: support(scope.body, it, outside) for it in iterators(scope.body)}
    narrow = {it: b for it, b in bounds.items() if b != (0, it.extent) and b[0] < b[1]}
    if not narrow:
        return None

    if any(it.extent == 1 and it.slot < len(scope.traversal) for it in narrow):
        return None
    return path(scope, bounded(scope, narrow, outside))


@remembered(maxsize=1 << 14)
def traversal_order(scope: Scope) -> Path | None:
    """``L_x f = {L_p(x) f}[p(x)]`` with p(x) the canonical order of the axes.

    So scopes that differ in the order of their axes only meet in one class.
    """
    traversal = traversal_iterators(scope)
    if len(traversal) < 2 or not scope.reduction:
        return None
    ordered = path(scope, everything(scope, frozenset(reduction_iterators(scope))))
    read = ordered.scope.body if ordered is not None else None
    axes = len([it for it in traversal if it.extent != 1])
    if not isinstance(read, Read) or len(read.index) != axes:
        return None
    if tuple(index.bare() for index in read.index) == tuple(traversal):
        return None
    return ordered
