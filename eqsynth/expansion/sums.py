"""The sums of an expanded form: term by term, and counted in one direction.

sum_k (a[i, k] - m[i]) * c[i]       ->  c[i] * {sum_k a}[i] - n * m[i] * c[i]
sum_k x[n - 1 - k] * w[n - 1 - k]   ->  sum_k x[k] * w[k]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from eqsynth.expansion.polynomial import expand
from eqsynth.expansion.ring import Monomial, Polynomial, as_index, collect, plus, times
from eqsynth.ir.index import Atom, Index, It, Mod
from eqsynth.ir.normal import sort_operands
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Num,
    Read,
    Scalar,
    Value,
    dtype_of,
    indices_of,
    iterators,
    reads,
    rewrite_leaves,
    substitute,
)
from eqsynth.ir.scopes import bare, closed

# ``[k - i + c > 0]`` is rewritten to ``[k - i > 0]`` for c up to this; each place on the way adds a
# term.
MAX_STEPS: Final = 2


class OtherDtype(Exception):
    """A part of a sum would be summed in a dtype other than the sum's, in which it may overflow."""


def reindexed(body: Scalar, it: It) -> Scalar:
    """``reduce_k f(n - 1 - k) = reduce_k f(k)``, ``reduce_k f((k + c) % n) = reduce_k f(k)``.

    Both are bijections of [0, n). Among the body, its rotations and their mirror images, the one
    with the fewest backward strides is returned; of several such, the first by structure.
    """
    ways = _rotations(body, it) or [body]
    mirror = bare(it) * -1 + (it.extent - 1)
    ways += [substitute(one, lambda other: mirror if other == it else bare(other)) for one in ways]
    return min(ways, key=lambda one: (_backward(one, it), sort_operands(one).digest))


def _backward(body: Scalar, it: It) -> int:
    return sum(i.coefficient(it.slot) < 0 for read in reads(body) for i in read.index)


def _rotations(body: Scalar, it: It) -> list[Scalar]:
    """The body over k in the place of ``(k + c) % n``, for each such place, if k occurs only so."""
    places: dict[Atom, Index] = {}
    for index in indices_of(body):
        for atom, _ in index.terms:
            if it not in set(Index(0, ((atom, 1),)).iterators()):
                continue
            value = bare(it) if atom == it else atom.value if isinstance(atom, Mod) else Index(0)
            rest = value - bare(it) * value.coefficient(it.slot)
            if abs(value.coefficient(it.slot)) != 1 or it in set(rest.iterators()):
                return []
            if isinstance(atom, Mod) and atom.divisor != it.extent:
                return []
            places[atom] = value

    def along(place: Index) -> Scalar:
        step = place.coefficient(it.slot)
        moved = (bare(it) - (place - bare(it) * step)) * step

        def image(index: Index) -> Index:
            found = Index(index.const)
            for part, n in index.terms:
                value = Index(0, ((part, 1),))
                if part in places:
                    at = places[part].substitute(
                        lambda other: moved if other == it else bare(other)
                    )
                    value = Index(at.const % it.extent, at.terms) % it.extent
                found = found + value * n
            return found

        def leaf(part: Scalar) -> Scalar:
            if isinstance(part, Read):
                return Read(part.tensor, tuple(map(image, part.index)), part.fill)
            return Value(image(part.index)) if isinstance(part, Value) else part

        return rewrite_leaves(body, leaf)

    return [along(place) for place in places.values()] if set(places) != {it} else []


def summed(body: Scalar, kept: set[It], reduced: Sequence[It]) -> Scalar:
    """``sum_{y,z} (c(x) * f(x, y) * g(x, z) + h) = c * {sum_y f} * {sum_z g} + Y * Z * h``.

    Raises:
        OtherDtype: g is of integers, and f of floats.
    """
    found: dict[Monomial, Fraction] = {}
    everything = reduced
    for monomial, coefficient in _stepped(expand(body), reduced).items():
        monomial, reduced = _selected(monomial, everything)
        outside = tuple(one for one in monomial if iterators(one[0]) <= kept)
        inside = [one for one in monomial if one not in outside]
        idle = math.prod(
            it.extent for it in reduced if not any(it in iterators(atom) for atom, _ in inside)
        )
        term: Polynomial = {outside: coefficient * idle}
        for part in _connected(inside, kept):
            own = [it for it in reduced if any(it in iterators(atom) for atom, _ in part)]
            part, own = _inside(part, kept, own)
            factor = collect({tuple(part): Fraction(1)})
            if dtype_of(factor) != dtype_of(body):
                raise OtherDtype
            part_sum = forward(factor, kept, "sum", own)
            term = times(term, {((part_sum, Fraction(1)),): Fraction(1)})
        found = plus([found, term])
    return collect(found)


def _inside(
    part: list[tuple[Scalar, Fraction]], kept: set[It], reduced: list[It]
) -> tuple[list[tuple[Scalar, Fraction]], list[It]]:
    """``sum_{y,z} f(x, y) * g(y, z) = sum_y f * {sum_z g}``.

    An iterator that occurs in one factor only is summed inside of that factor.
    """
    found: list[tuple[Scalar, Fraction]] = []
    for atom, power in part:
        elsewhere = {it for other, _ in part if other != atom for it in iterators(other)}
        own = [it for it in reduced if it in iterators(atom) and it not in elsewhere]
        if own and len(part) > 1 and power == 1:
            outside = kept | ({*reduced} - {*own})
            atom = forward(atom, outside, "sum", own)
            reduced = [it for it in reduced if it not in own]
        found.append((atom, power))
    return sorted(found, key=lambda one: one[0].digest), reduced


def forward(body: Scalar, kept: set[It], reducer: str, reduced: Sequence[It]) -> Scalar:
    """``{L_j reduce_k f(n - 1 - j, k)}[j] = {L_j reduce_k f(j, k)}[n - 1 - j]``.

    The scope around ``body`` is made so that it strides forward along its traversal at least as
    often as backward.
    """
    turned = set()
    for it in kept & iterators(body):
        steps = [index.coefficient(it.slot) for read in reads(body) for index in read.index]
        if sum(step < 0 for step in steps) > sum(step > 0 for step in steps):
            turned.add(it)

    def mirrored(it: It) -> Index:
        return bare(it) * -1 + (it.extent - 1) if it in turned else bare(it)

    return substitute(closed(substitute(body, mirrored), kept, reducer, reduced), mirrored)


def _stepped(polynomial: Polynomial, reduced: Sequence[It]) -> Polynomial:
    """Write ``[k - i + 1 > 0]`` as ``[k - i > 0] + [k = i]``, for k in ``reduced``.

    So sums up to i and sums up to i - 1 are the same sum, and one element more.
    """
    for monomial, coefficient in polynomial.items():
        for atom, power in monomial:
            match atom:
                case Cast(arg=Call(fn="gt", args=(Value(index=index), Num(value=0.0)))):
                    steps = [index.coefficient(it.slot) for it in reduced]
                    if not 0 < abs(index.const) <= MAX_STEPS or not {1, -1} & {*steps}:
                        continue
                    place, far = index - index.const, index.const
                    met = range(1 - far, 1) if far > 0 else range(1, 1 - far)
                    sign = Fraction(1 if far > 0 else -1)
                    held = {Call("gt", (Value(place), Num(0.0))): Fraction(1)}
                    held |= {Call("eq", (Value(place - n), Num(0.0))): sign for n in met}
                    to = atom.dtype
                    image: Polynomial = {((Cast(to, c), power),): n for c, n in held.items()}
                    rest = tuple(one for one in monomial if one[0] != atom)
                    others = {m: c for m, c in polynomial.items() if m != monomial}
                    return _stepped(plus([others, times({rest: coefficient}, image)]), reduced)
    return polynomial


def _selected(monomial: Monomial, reduced: Sequence[It]) -> tuple[Monomial, Sequence[It]]:
    """``sum_k t[k - e] * f(k) = sum_u t[u] * f(u + e)``, t zero outside of its n elements, u < n,
    and each u + e a value of k; ``sum_k [k = e] * f(k) = f(e)``, e a value of k."""
    for (atom, power), it in itertools.product(monomial, reduced):
        for index, size in _places(atom) if power > 0 else ():
            sign = index.coefficient(it.slot)
            rest = index - bare(it) * sign
            place = (Index.iterator(it.slot, size) - rest) * sign
            low, high = place.range()
            if abs(sign) != 1 or it in set(rest.iterators()) or low < 0 or high >= it.extent:
                continue
            found: Polynomial = {(): Fraction(1)}
            for part, n in monomial:
                if part != atom or isinstance(atom, Read):
                    found = times(found, {((placed(part, it, place), n),): Fraction(1)})
            others = [other for other in reduced if other != it]
            new = [It(it.slot, size)] if size > 1 else []
            return _selected(next(iter(found)), [*others, *new])
    return monomial, reduced


def _places(atom: Scalar) -> Iterator[tuple[Index, int]]:
    """Pairs of an index and an extent: the atom is zero where the index isn't in [0, extent)."""
    match atom:
        case Read(tensor=tensor, index=indices, fill=0.0):
            for index, size in zip(indices, tensor.shape, strict=True):
                low, high = index.range()
                if low < 0 or high >= size:
                    yield index, size
        case Cast(arg=Call(fn="eq", args=(a, b))):
            first, second = as_index(a), as_index(b)
            if first is not None and second is not None:
                yield first - second, 1


def placed(body: Scalar, it: It, place: Index) -> Scalar:
    """Return the body with ``it`` replaced by the index ``place``."""
    return substitute(body, lambda other: place if other == it else bare(other))


def _connected(
    atoms: Sequence[tuple[Scalar, Fraction]], kept: set[It]
) -> list[list[tuple[Scalar, Fraction]]]:
    """The factors in groups that share an iterator that is summed, directly or by way of others."""
    groups: list[tuple[set[It], list[tuple[Scalar, Fraction]]]] = []
    for atom in atoms:
        own = iterators(atom[0]) - kept
        meeting = [group for group in groups if own & group[0]]
        groups = [group for group in groups if group not in meeting]
        joined = own.union(*(its for its, _ in meeting))
        groups.append((joined, [*itertools.chain(*(g for _, g in meeting)), atom]))
    return [sorted(group, key=lambda one: one[0].digest) for _, group in groups]
