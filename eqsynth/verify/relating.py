"""Relate the iteration spaces of two sums, to show that sums over different iterators are equal.

    sum_{k<n} [k == e] f(k)              =  [0 <= e < n] f(e)                        ``pinned``
    sum_{k<n} [low <= k < low + m] f(k)  =  sum_{j<m} [0 <= low + j < n] f(low + j)  ``narrowed``
    sum_{k<n} [s divides k - low] f(k)   =  sum_{j<m} [0 <= low + s*j < n] f(low + s*j)  ``thinned``

Each is a bijection between the points at which the conditions of both sides hold: ``pinned`` of a
single point, ``narrowed`` by a shift, ``thinned`` by a shift and a step s, where the conditions
keep ``(k - low) // s`` below m. Candidates for ``e`` and ``low`` are the values of k at which a
condition turns from true to false; for steps, the divisors of ``k - low`` in the conditions. Z3
then has to show that the conditions hold at no other k.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import z3

from eqsynth.verify.integers import Integers, number
from eqsynth.verify.polynomials import Term
from eqsynth.verify.values import Names, bounds, renamed, substituted

# The most candidates for the value of an iterator.
_MOST_PLACES = 8


def pinned(term: Term, ints: Integers, given: Sequence[Any]) -> Term:
    """Substitute the iterators whose value the conditions determine: [k == e] f(k) -> f(e)."""
    for k, extent in term.iterators:
        for place in (z3.IntVal(0), *_turns(term, k)):
            if _follows(term, k == place, ints, given):
                inside = (number(place) >= 0, number(place) < extent)
                return pinned(replaced(term, k, place, None, inside), ints, given)
    return term


def narrowed(a: Term, b: Term, ints: Integers, given: Sequence[Any]) -> Term:
    """Replace iterators of ``b`` by iterators of smaller extents that ``a`` has, if the conditions
    of ``b`` allow it."""
    for wanted in [e for _, e in a.iterators if not _has(b, e, ints, given)]:
        for k, extent in [(k, e) for k, e in b.iterators if not _has(a, e, ints, given)]:
            if not ints.holds(number(wanted) <= extent, given):
                continue
            for least in (z3.IntVal(0), *_turns(b, k)):
                if _follows(b, z3.And(k >= least, k < least + wanted), ints, given):
                    j = z3.FreshInt("k")
                    place = z3.simplify(least + j)
                    inside = (place >= 0, place < extent)
                    return narrowed(a, replaced(b, k, place, (j, wanted), inside), ints, given)
    return b


def thinned(a: Term, b: Term, ints: Integers, given: Sequence[Any]) -> Term:
    """Replace iterators of ``b`` by iterators of extents that ``a`` has, if the conditions of ``b``
    allow only multiples of a step."""
    for wanted in [e for _, e in a.iterators if not _has(b, e, ints, given)]:
        for k, extent in [(k, e) for k, e in b.iterators if not _has(a, e, ints, given)]:
            for moved, step in _steps(b, k):
                quotient, rest = moved / step, moved % step
                kept = z3.And(rest == 0, quotient >= 0, quotient < wanted)
                if ints.holds(step >= 1, given) and _follows(b, kept, ints, given):
                    j = z3.FreshInt("k")
                    place = z3.simplify(k - moved) + step * j
                    # The quotient is j by name, so that Z3 needn't find it again.
                    names = [(quotient, j), (rest, z3.IntVal(0)), (k, place)]
                    inside = tuple(renamed(bound, names) for bound in (k >= 0, k < extent))
                    return thinned(a, _renamed(b, k, names, (j, wanted), inside), ints, given)
    return b


def _steps(term: Term, k: Any) -> list[tuple[Any, Any]]:
    """The pairs (k - low, s) of which a condition takes the rest ``(k - low) % s``."""
    found: dict[str, tuple[Any, Any]] = {}
    waiting = list(term.conditions)
    while waiting and len(found) < _MOST_PLACES:
        part = waiting.pop(0)
        waiting += part.children()
        if z3.is_mod(part):
            moved, step = part.children()
            away = z3.simplify(moved - k)
            if not _contains(away, k) and not _contains(step, k):
                found.setdefault(part.sexpr(), (moved, step))
    return list(found.values())


def _contains(x: Any, k: Any) -> bool:
    return bool(x.eq(k)) or any(_contains(part, k) for part in x.children())


def _has(term: Term, extent: Any, ints: Integers, given: Sequence[Any]) -> bool:
    return any(ints.holds(number(e) == extent, given) for _, e in term.iterators)


def _follows(term: Term, goal: Any, ints: Integers, given: Sequence[Any]) -> bool:
    return ints.holds(goal, (*given, *bounds(term.iterators), *term.conditions))


def replaced(term: Term, k: Any, place: Any, by: Any, inside: tuple[Any, ...]) -> Term:
    """A term with an iterator ``k`` replaced by ``place``, and by the iterator in it, ``by``, if
    there is one. ``inside`` are conditions that it gets."""
    return _renamed(term, k, [(k, place)], by, inside)


def _renamed(term: Term, k: Any, names: Names, by: Any, inside: tuple[Any, ...]) -> Term:
    """A term in which ``names`` are substituted; the iterator ``by`` takes the place of k."""
    iterators = [(i, renamed(e, names)) for i, e in term.iterators if not i.eq(k)]
    return Term(
        term.factor,
        tuple([*iterators, *([by] if by else [])]),
        (*(renamed(c, names) for c in term.conditions), *inside),
        tuple(substituted(atom, names) for atom in term.atoms),
    )


def _turns(term: Term, k: Any) -> list[Any]:
    """Values of the iterator ``k`` at which a condition changes: for ``k - e < 0``, these are e,
    e + 1 and e - 1."""
    found: dict[str, Any] = {}
    waiting = list(term.conditions)
    while waiting and len(found) < _MOST_PLACES:
        part = waiting.pop(0)
        if not z3.is_arith(part.arg(0)) if part.num_args() else True:
            waiting += part.children()
            continue
        at = [z3.substitute(part.arg(0) - part.arg(1), (k, z3.IntVal(n))) for n in range(3)]
        steps = [z3.simplify(at[n + 1] - at[n], som=True) for n in range(2)]
        if all(z3.is_int_value(s) for s in steps) and steps[0].eq(steps[1]):
            slope = steps[0].as_long()
            if abs(slope) == 1:
                root = at[0] * -slope
                for place in (root, root + 1, root - 1):
                    place = z3.simplify(place, som=True)
                    found.setdefault(place.sexpr(), place)
    return list(found.values())
