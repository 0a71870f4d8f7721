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
from eqsynth.ir.scopes import (
    reduction_iterators,
    traversal_iterators,
)
from eqsynth.ir.tensor import Scope

# Reduction iterators that are mixed with others in an index: all subsets of them are tried.
MAX_MIXED = 4
# The taps of the windows for which libraries have fast algorithms (Winograd).
TAPS = 3


def mixed_iterators(scope: Scope) -> set[It]:
    """Iterators that are added to another one in an index, such as ``h``, ``r`` in ``x[h + r]``.

    Iterators that count through an axis together, such as ``x[64*group + channel]``, aren't mixed.
    """
    return {
        it
        for read in reads(scope.body)
        for index in read.index
        if mixes(index, set(index.iterators()))
        for it in index.iterators()
    }


def everything(scope: Scope, reduced: frozenset[It]) -> Close:
    """Return the step that makes the whole body a scope that reduces the iterators ``reduced``."""
    return Close((Part(frozenset(range(len(operands_of(scope.body)))), reduced),))


def sum_split(scope: Scope) -> Iterator[Path]:
    """``L_x sum_{s1,s2} f = L_x sum_{s1} {L_{x,s1} sum_{s2} f}[x, s1]`` [EinNet §4.1].

    The outer sum takes iterators that are mixed with others in an index. The inner sum is then
    closer to a matrix product, each of whose indices is a single iterator.
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

    A window is first extended with zeros to a multiple of 3 taps, then the sum is split: a 5x5
    convolution becomes four 3x3 ones whose results are summed at offsets [EinNet Fig. 6].
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
    """The expression distance of a split to Matmul [EinNet §6.1]; 0 if its inner sum matches.

    It is the number of reduction iterators of the inner sum that are mixed with others in an index.
    """
    (read,) = reads(split.body)
    inner = read.tensor
    assert isinstance(inner, Scope)
    return len(mixed_iterators(inner) & set(reduction_iterators(inner)))


@remembered(maxsize=1 << 14)
def tighten(scope: Scope) -> Path | None:
    """``L_X f = {L_X' f}[x - lo]``, f = 0 on X \\ X' [EinNet §4.1, boundary tightening].

    In a product, f is 0 wherever one factor reads outside its tensor, so each iterator gets the
    strictest of the factors' bounds. Reduction iterators are narrowed in place, because the sum
    loses only zeros. In another reduction the lost values have to be its identity (-inf for a
    maximum); then the body has to be a single read with that fill.
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

    So scopes that differ only in the order of their axes read one e-class.
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
