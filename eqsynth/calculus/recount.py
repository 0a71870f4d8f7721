"""Recounting: a reduction counts through the same values by other iterators.

    R_k f(k)  =  R_{q,r} f(d*q + r)        d*q + r takes each value of k, and each once

A maximum or minimum may meet a value twice. A sum of products may run further than k, where one
factor is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from eqsynth.calculus import checking
from eqsynth.calculus.conditions import is_product, leaves_with
from eqsynth.calculus.scopes import reduction_iterators, same_scope
from eqsynth.ir.index import Index, It
from eqsynth.ir.indices import least_form, substituted
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import Read, factors_of
from eqsynth.ir.tensor import Scope

_require = partial(checking.require, law="recount")

_IDEMPOTENT = ("max", "min")


@dataclass(frozen=True)
class Count:
    """An iterator of a reduction, its value, and the new iterators that the value is of."""

    old: It
    value: Index
    new: tuple[It, ...]


@dataclass(frozen=True)
class Recount:
    """The iterators that go; new ones have slots beyond those of the scope."""

    counts: tuple[Count, ...]


@dataclass(frozen=True)
class Uncount:
    """The scope with fewer iterators, and how it is recounted into the one that is given."""

    other: Scope
    counts: tuple[Count, ...]


def recount(scope: Scope, given: Recount) -> Scope:
    """``R_k f(k) = R_{q,r} f(d*q + r)``.

    Raises:
        LawError: ``iterators``: the arguments don't fit; ``values``: the new iterators don't count
            through all values, or through one twice; ``beyond``: they count further, and nothing
            says that the body is zero there.
    """
    old = [count.old for count in given.counts]
    new = [it for count in given.counts for it in count.new]
    reduced = reduction_iterators(scope)
    fits = len(set(old)) == len(old) and set(old) <= set(reduced)
    fits = fits and len({it.slot for it in new}) == len(new)
    _require(fits and all(it.slot >= len(scope.extents) and it.extent > 0 for it in new),
             condition="iterators", what="no new iterators for some of the reduction")  # fmt: skip
    for count in given.counts:
        _check(scope, count)
    body = substituted(scope.body, {count.old: count.value for count in given.counts})
    return same_scope(scope, body, [*(it for it in reduced if it not in old), *new])


def uncount(scope: Scope, given: Uncount) -> Scope:
    """``R_{q,r} f(d*q + r) = R_k f(k)``: the scope whose recount is the one that is given.

    Raises:
        LawError: ``inverse``: it isn't; or what ``recount`` says.
    """
    back = recount(given.other, Recount(given.counts))
    _require(back.type == scope.type and least_form(back) == least_form(scope),
             condition="inverse", what="recounted, it is another scope")  # fmt: skip
    return canonical(given.other)


def _check(scope: Scope, count: Count) -> None:
    used = set(count.value.iterators())
    fits = count.value.is_affine and used == {it for it in count.new if it.extent > 1}
    _require(fits, condition="iterators", what="the value isn't of the new iterators")
    span, once = 1, True
    for it, step in sorted(count.value.terms, key=lambda term: abs(term[1])):
        assert isinstance(it, It)
        _require(abs(step) <= span, condition="values", what="some values are left out")
        once = once and abs(step) == span
        span += abs(step) * (it.extent - 1)
    low, high = count.value.range()
    every = low <= 0 and high >= count.old.extent - 1
    _require(every and (once or scope.reducer in _IDEMPOTENT), condition="values",
             what="some values are left out, or counted twice")  # fmt: skip
    vanishes = is_product(scope) and any(
        isinstance(factor, Read) and factor.fill == 0 and leaves_with(factor, count.old)
        for factor in factors_of(scope.body)
    )
    within = low == 0 and high == count.old.extent - 1
    _require(within or vanishes, condition="beyond", what="more than zero beyond the last value")
