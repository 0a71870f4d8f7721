"""Phases: for each output only every s-th tap of a window counts; sums over these taps alone.

    sum_k x[(i - k) / s] * w[k], zero unless s | i - k   ->   sum_q x[i // s - q] * w[s*q + i % s]

Such sums are transposed convolutions (stride s), and convolutions whose kernel was spread out with
zeros between its taps. The taps that count are k = s*q + phase: a substitution of variables whose
boundaries are tightened (papers: EinNet §4.1).

The other way round, some taps may read one place, as in a convolution of an image that was enlarged
by repeating its pixels. Their weights are added first:

    sum_k x[(i + k) // s] * w[k]   ->   sum_t x[i // s + t] * {sum_m w[s*t + m - p]}[t, p = i % s]

or in a convolution of a convolution without padding, 3 by 3 taps that read 5 places:

    sum_{k,l} x[i + k + l] * w[k] * v[l]   ->   sum_u x[i + u] * {sum_l w[u - l] * v[l]}[u]
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from eqsynth.calculus.conditions import is_product
from eqsynth.calculus.recount import Count, Recount
from eqsynth.egraph.tactics.ordering import is_constant
from eqsynth.egraph.tactics.paths import Path
from eqsynth.ir.index import FloorDiv, Index, It, Mod, atom_key
from eqsynth.ir.indices import least
from eqsynth.ir.normal import remembered
from eqsynth.ir.scalar import Read, factors_of, indices_of
from eqsynth.ir.scopes import bare, reduction_iterators, traversal_iterators
from eqsynth.ir.tensor import Scope


@remembered(maxsize=1 << 14)
def phase_select(scope: Scope) -> Path | None:
    """``sum_k f((r - k) // s, k) = sum_q f(r // s - q, s*q + r % s)``, f = 0 unless s | r - k.

    And ``sum_k f(s*k + r) = sum_q f(s*q + r % s)``, where r varies by less than s, or is in range
    for few k alone. Every reduction with such an index is changed. This ends, because each change
    leaves fewer taps, or turns an iterator that only strode backward into one that strides forward.
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
                ways = (*_divided(index, it, size), *_strided(index, it, size),
                        *_met(index, it, size))  # fmt: skip
                for taps, step, shift in ways:
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


@remembered(maxsize=1 << 14)
def shared_places(scope: Scope) -> Path | None:
    """``sum_k f((i + k) // s) g(k) = sum_{t,m} f(i // s + t) g(s*t + m - i % s)``, g = 0 outside of
    the values of k: at most s taps m, those that read one place t, meet in an inner sum.

    And ``sum_{k,l} f(k + l) g(k, l) = sum_{u,l} f(u) g(u - l, l)``, g constant. Every reduction
    with such an index is changed, where places are fewer than taps.
    """
    if not is_product(scope):
        return None
    shared: Path | None = None
    while (following := _share_one(shared or Path(scope))) is not None:
        shared = following
    return shared


def _share_one(shared: Path) -> Path | None:
    scope = shared.scope
    recounts = (r for it in reduction_iterators(scope)
                for r in (*_by_places(scope, it), *_by_sums(scope, it)))  # fmt: skip
    return next(filter(None, map(shared.then, recounts)), None)


def _by_places(scope: Scope, it: It) -> Iterator[Recount]:
    """The steps of :func:`shared_places` for one reduction iterator."""
    atoms = {atom for index in indices_of(scope.body) for atom, _ in index.terms
             if isinstance(atom, FloorDiv) and atom.value.coefficient(it.slot) == 1}  # fmt: skip
    for atom in sorted(atoms, key=atom_key):
        s, rest = atom.divisor, atom.value - bare(it)
        places = -(-(it.extent + s - 1) // s)
        if places < it.extent and {*rest.iterators()} <= {*traversal_iterators(scope)}:
            place, tap = It(len(scope.extents), places), It(len(scope.extents) + 1, s)
            tapped = bare(place) * s + bare(tap) - least(rest % s)
            yield Recount((Count(it, tapped, (place, tap)),))


def _by_sums(scope: Scope, it: It) -> Iterator[Recount]:
    """``sum_{k,l} f(k + l) g(k, l) = sum_{u,l} f(u) g(u - l, l)``, g constant and f not, where u
    takes fewer values than k and l have pairs. The sum may be ``k + 2*l``, and may have more terms.
    """
    reduced = reduction_iterators(scope)
    data = [f for f in factors_of(scope.body) if not is_constant(f)]
    parts = {_reduced(index, reduced) for f in data for index in indices_of(f)}
    met = [part for part in parts if part.coefficient(it.slot)]
    if len(met) != 1 or not met[0].is_affine:
        return
    c = met[0].coefficient(it.slot)
    others = [other for other in met[0].iterators() if other != it]
    alone = all({*others}.isdisjoint(part.iterators()) for part in parts - {*met})
    if not alone or any(step % c for _, step in met[0].terms):
        return
    place = Index(0, tuple((atom, step // c) for atom, step in met[0].terms))
    low, high = place.range()
    if high - low + 1 < it.extent * math.prod(other.extent for other in others):
        u = It(len(scope.extents), high - low + 1)
        yield Recount((Count(it, bare(u) + low - (place - bare(it)), (u,)),))


def _reduced(index: Index, reduced: Collection[It]) -> Index:
    """The terms of an index that depend on reduction iterators."""
    terms = ((term, {*Index(0, (term,)).iterators()}) for term in index.terms)
    return Index(0, tuple(term for term, its in terms if not its.isdisjoint(reduced)))


def _strides_forward(scope: Scope, it: It) -> bool:
    """Whether some index has a coefficient of ``it`` above 1; turned, it would stride backward."""
    return any(index.coefficient(it.slot) > 1 for index in indices_of(scope.body))


def _divided(index: Index, it: It, size: int) -> Iterator[tuple[int, int, Index]]:
    """Taps ``k = s*q + phase`` if the index is out of range unless s divides ``e*k + rest``.

    Yields the number of taps, the step s and the phase. A common divisor of s and e is divided out
    of all three: unless it divides ``rest`` too, no k is in range.
    """
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
    """Taps ``k = q - rest // s`` of an index ``s*k + rest``; ``rest // s - q`` of ``-s*k + rest``.

    Yields the number of taps, the step (1 or -1) and the phase.
    """
    c = index.coefficient(it.slot)
    s, rest = abs(c), index - bare(it) * c
    taps = -(-size // s) if s else 0
    low, high = rest.range()
    if s < 2 or high - low >= s or it in set(rest.iterators()):
        return
    if taps < it.extent or (c < 0 and taps == it.extent):
        yield (taps, 1, -(rest // s)) if c > 0 else (taps, -1, rest // s)


def _met(index: Index, it: It, size: int) -> Iterator[tuple[int, int, Index]]:
    """The only k for which ``s*k + rest`` can be in range: of the rows of a stack, the row itself.

    ``rest`` is ``s*m + r``, m an affine index. In ``6*i + j + 7*k - 21`` of 3 elements, i < 4 and
    j < 6, that is ``7*(k + i - 3) + (j - i)``, and k is ``3 - i``: stacked shifts of one row are a
    Toeplitz matrix. Yields the number of taps (fewer than k has values), the step 1 and the phase.
    """
    c = index.coefficient(it.slot)
    s, rest = abs(c), index - bare(it) * c
    if s < 2 or not rest.is_affine:
        return
    terms = ((atom, round(x / s)) for atom, x in rest.terms)
    m = Index(round(rest.const / s), tuple((atom, x) for atom, x in terms if x))
    low, high = (rest - m * s).range()
    # s*t + r is in range for some r only if t is in [first, last].
    first, last = -(high // s), (size - 1 - low) // s
    if first <= last < first + it.extent - 1:
        # c*k + rest is s*(k + m) + r, or -s*(k - m) + r, in which t is m - k.
        yield (last - first + 1, 1, first - m) if c > 0 else (last - first + 1, 1, m - last)
