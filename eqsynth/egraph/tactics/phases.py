"""Phases: where an index strides, only the taps of one phase of a window are in range.

A transposed convolution reads its image at u // s where s divides u = i + p - k, and a kernel that
was spread over a larger one has zeros in between. Both are sums over the taps k = s*q + phase
alone: a substitution of variables whose boundaries are tightened (papers: EinNet §4.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from eqsynth.calculus.conditions import is_product
from eqsynth.calculus.recount import Count, Recount
from eqsynth.calculus.scopes import bare, reduction_iterators, traversal_iterators
from eqsynth.egraph.tactics.paths import Path
from eqsynth.ir.index import Index, It, Mod
from eqsynth.ir.indices import least
from eqsynth.ir.normal import remembered
from eqsynth.ir.scalar import Read, factors_of, indices_of
from eqsynth.ir.tensor import Scope


@remembered(maxsize=1 << 14)
def phase_select(scope: Scope) -> Path | None:
    """``sum_k f((r - k) // s, k) = sum_q f(r // s - q, s*q + r % s)``, f = 0 unless s | r - k.

    And ``sum_k f(s*k + r) = sum_q f(s*q + r % s)``, where r is less than a step in all its values.
    Every reduction with such an index is changed: it has fewer taps then, or strides forward where
    it strode backward only. So there is an end.
    """
    if not is_product(scope):
        return None
    selected: Path | None = None
    while (following := _select_one(selected or Path(scope))) is not None:
        selected = following
    return selected


def _select_one(selected: Path) -> Path | None:
    scope = selected.scope
    traversal = set(traversal_iterators(scope))
    for it in reduction_iterators(scope):
        for factor in factors_of(scope.body):
            if not isinstance(factor, Read) or factor.fill != 0:
                continue
            for index, size in zip(factor.index, factor.tensor.shape, strict=True):
                for taps, step, shift in (*_divided(index, it, size), *_strided(index, it, size)):
                    if taps == it.extent and step < 0 and _strides_forward(scope, it):
                        continue
                    if not set(shift.iterators()) <= traversal:
                        continue
                    q = It(len(scope.extents), taps)
                    k = bare(q) * step + least(shift)
                    found = selected.then(Recount((Count(it, k, (q,)),)))
                    if found is not None:
                        return found
    return None


def _strides_forward(scope: Scope, it: It) -> bool:
    """In some index: turned round, it would stride backward there."""
    return any(index.coefficient(it.slot) > 1 for index in indices_of(scope.body))


def _divided(index: Index, it: It, size: int) -> Iterator[tuple[int, int, Index]]:
    """``k = s*q + phase`` where the index is outside unless s divides some e*k + rest; if s and e
    share a divisor, it divides the rest too, or no k is inside."""
    for atom, c in index.terms:
        if not isinstance(atom, Mod):
            continue
        s, e = atom.divisor, atom.value.coefficient(it.slot)
        rest = atom.value - bare(it) * e
        low, high = (index - Index(0, ((atom, c),))).range()
        outside = high + max(c, c * (s - 1)) < 0 or low + min(c, c * (s - 1)) >= size
        shared = math.gcd(e, s)
        s, e, rest = s // shared, e // shared, rest // shared
        if outside and s > 1 and it not in set(rest.iterators()):
            phase = rest * -pow(e, -1, s)
            least = Index(phase.const % s, tuple((a, x % s) for a, x in phase.terms if x % s))
            yield -(-it.extent // s), s, least % s


def _strided(index: Index, it: It, size: int) -> Iterator[tuple[int, int, Index]]:
    """``k = q - rest // s`` where the index is s*k + rest, or ``rest // s - q``: -s*k + rest."""
    c = index.coefficient(it.slot)
    s, rest = abs(c), index - bare(it) * c
    taps = -(-size // s) if s else 0
    low, high = rest.range()
    if s < 2 or high - low >= s or it in set(rest.iterators()):
        return
    if taps < it.extent or (c < 0 and taps == it.extent):
        yield (taps, 1, -(rest // s)) if c > 0 else (taps, -1, rest // s)

