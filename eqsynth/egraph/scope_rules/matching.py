"""Matches the left side of a rule against a scope, in every order of operands and reductions.

``sum(k, *y)`` matches each reduced iterator as k, with the others as y. In a product ``F * G(k)``,
F matches any factors that don't depend on k, and G the other factors. The work for one scope is
bounded, so that of very many matches only some are found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from eqsynth.calculus.conditions import is_product
from eqsynth.egraph.scope_rules.binding import Binding, NoFit, holds, is_constant
from eqsynth.expansion.ring import as_index
from eqsynth.ir.functions import COMMUTATIVE
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import remembered
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Num,
    Prod,
    Read,
    Scalar,
    dtype_of,
    factors_of,
    iterators,
    product,
    terms_of,
    total,
)
from eqsynth.ir.scopes import reduction_iterators
from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import is_float
from eqsynth.rules.scope_rules.syntax import (
    ANY,
    Apply,
    AtMost,
    Axis,
    Body,
    Equals,
    Has,
    Named,
    Number,
    Place,
    Plus,
    ScopeRule,
    Times,
    Variable,
)

MAX_STEPS = 4000
"""The most comparisons of an operand with a part of a pattern, for one scope."""

# The most operands to distribute among variables, or iterators among groups, in all ways.
MAX_SHARED = 8


class _Enough(Exception):
    """Raised when the bound on comparisons is reached."""


def matches(rule: ScopeRule, scope: Scope) -> Iterator[Binding]:
    """Yield the bindings for which the left side matches the scope and the conditions hold."""
    side = rule.left
    if bool(scope.reduction) != bool(side.reducer):
        return
    if side.reducer not in ("", ANY, scope.reducer):
        return
    matcher = _Matcher(rule, scope)
    try:
        for head, axes in itertools.product(
            _in_order(side.head, scope.traversal), _in_any_order(side.axes, scope)
        ):
            given = Binding({**head.iterators, **axes.iterators}, {**head.groups, **axes.groups})
            for found in matcher.body(side.body, scope.body, given):
                if all(holds(condition, found, matcher.dtype) for condition in rule.conditions):
                    yield found
    except _Enough:
        return


def _in_order(axes: Sequence[Axis], extents: Sequence[int]) -> Iterator[Binding]:
    """Yield bindings of the result's axes, which keep their order."""
    its = [It(slot, extent) for slot, extent in enumerate(extents)]
    groups = sum(axis.group for axis in axes)
    free = len(its) - (len(axes) - groups)
    if free < 0 or (not groups and free):
        return
    for first in range(free + 1) if groups == 2 else (free,):
        lengths, place = iter((first, free - first)), 0
        iterators_: dict[str, It] = {}
        found: dict[str, tuple[It, ...]] = {}
        for axis in axes:
            length = next(lengths) if axis.group else 1
            part = its[place : place + length]
            place += length
            if axis.group:
                found[axis.name] = tuple(part)
            else:
                iterators_[axis.name] = part[0]
        yield Binding(iterators_, found)


def _in_any_order(axes: Sequence[Axis], scope: Scope) -> Iterator[Binding]:
    """Yield bindings of the reduced iterators to names and groups, the last iterators first."""
    its = reduction_iterators(scope)
    names = [axis.name for axis in axes if not axis.group]
    groups = [axis.name for axis in axes if axis.group]
    if len(its) < len(names) or (len(its) > len(names) and not groups):
        return
    for chosen in itertools.permutations(its[::-1], len(names)):
        rest = [it for it in its if it not in chosen]
        for parts in _shared_out(rest, len(groups)):
            yield Binding(dict(zip(names, chosen, strict=True)),
                          dict(zip(groups, parts, strict=True)))  # fmt: skip


def _shared_out(rest: Sequence[It], groups: int) -> Iterator[list[tuple[It, ...]]]:
    if groups < 2:
        yield [tuple(rest)][:groups]
        return
    for size in range(min(len(rest), MAX_SHARED) + 1):
        for first in itertools.combinations(rest, size):
            yield [first, tuple(it for it in rest if it not in first)]


class _Matcher:
    """Matches one rule against one scope."""

    def __init__(self, rule: ScopeRule, scope: Scope) -> None:
        self.listed = dict(rule.bodies)
        self.constant = {
            c.variable for c in rule.conditions if isinstance(c, Has) and c.what == "constant"
        }
        self.dtype = dtype_of(scope.body) or scope.dtype
        self.steps = 0

    def body(self, pattern: Body, scalar: Scalar, given: Binding) -> Iterator[Binding]:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise _Enough
        match pattern:
            case Variable(name=name):
                known = given.bodies.get(name)
                if known == scalar:
                    yield given
                elif known is None and self._may_stand_for(name, scalar, given):
                    yield given.with_body(name, scalar)
            case Number(value=value):
                if isinstance(scalar, Num) and scalar.value == value:
                    yield given
            case Apply(fn=fn, args=args) if isinstance(scalar, Call) and scalar.fn == fn:
                orders = [args, args[::-1]] if fn in COMMUTATIVE else [args]
                for order in orders:
                    yield from self._each(order, scalar.args, given)
            case Plus(parts=parts) | Times(parts=parts):
                operands = (terms_of if isinstance(pattern, Plus) else factors_of)(scalar)
                if self._computes_in_its_dtype(operands):
                    yield from self._all(type(pattern), self._in_order(parts), operands, given)
            case Equals():
                for found, rest in self._equal(pattern, scalar, given):
                    if not rest:
                        yield found
            case AtMost():
                yield from _ordered(pattern, scalar, given)

    def _may_stand_for(self, name: str, scalar: Scalar, given: Binding) -> bool:
        """Whether the scalar uses no named iterators except those in the variable's parentheses,
        and is constant if the variable has to be."""
        if name in self.constant and not is_constant(scalar):
            return False
        own = {given.iterators[listed] for listed in self.listed[name]}
        return not iterators(scalar) & ({*given.iterators.values()} - own)

    def _computes_in_its_dtype(self, operands: Sequence[Scalar]) -> bool:
        """Whether the operands are computed in the same dtype when they are grouped differently.

        uint8 arithmetic wraps around, but not as a part of a sum of floats. A comparison of indices
        is 0 or 1 in every dtype. Bools aren't computed with.
        """
        return self.dtype != "bool" and all(
            dtype_of(part) in (None, self.dtype) or _comparison(part) is not None
            for part in operands
        )

    def _in_order(self, parts: Iterable[Body]) -> list[Body]:
        """Sort the variables last, since they match the remaining operands, and of these the
        constant ones first: in ``(F + C) * D`` with constant C, C is all constant terms."""

        def place(part: Body) -> int:
            return isinstance(part, Variable) and (1 if part.name in self.constant else 2)

        return sorted(parts, key=place)

    def _each(
        self, patterns: Sequence[Body], scalars: Sequence[Scalar], given: Binding
    ) -> Iterator[Binding]:
        if not patterns:
            yield given
            return
        for found in self.body(patterns[0], scalars[0], given):
            yield from self._each(patterns[1:], scalars[1:], found)

    def _all(
        self, kind: type[Plus] | type[Times], patterns: Sequence[Body],
        operands: Sequence[Scalar], given: Binding,
    ) -> Iterator[Binding]:  # fmt: skip
        """Yield bindings in which every operand is matched by one pattern, and every pattern
        matches at least one operand."""
        if not patterns:
            if not operands:
                yield given
            return
        first, others = patterns[0], patterns[1:]
        if isinstance(first, Variable):
            for chosen, rest in self._shares(first.name, kind, operands, not others, given):
                whole = (total if kind is Plus else product)(chosen)
                for found in self.body(first, whole, given):
                    yield from self._all(kind, others, rest, found)
            return
        for n, operand in enumerate(operands):
            if operand in operands[:n]:
                continue
            rest = [*operands[:n], *operands[n + 1 :]]
            if isinstance(first, Equals):
                for found, more in self._equal(first, operand, given):
                    yield from self._all(kind, others, [*rest, *more], found)
            else:
                for found in self.body(first, operand, given):
                    yield from self._all(kind, others, rest, found)

    def _shares(
        self, name: str, kind: type[Plus] | type[Times], operands: Sequence[Scalar], last: bool,
        given: Binding,
    ) -> Iterator[tuple[list[Scalar], list[Scalar]]]:  # fmt: skip
        """Yield (operands for a variable, other operands), largest share first, never empty."""
        known = given.bodies.get(name)
        if known is not None:
            rest = list(operands)
            for part in (terms_of if kind is Plus else factors_of)(known):
                if part not in rest:
                    return
                rest.remove(part)
            yield list((terms_of if kind is Plus else factors_of)(known)), rest
            return
        if last:
            if operands:
                yield list(operands), []
            return
        able = [n for n, part in enumerate(operands) if self._may_stand_for(name, part, given)]
        for size in range(min(len(able), MAX_SHARED), 0, -1):
            for chosen in itertools.combinations(able, size):
                self.steps += 1
                yield (
                    [operands[n] for n in chosen],
                    [part for n, part in enumerate(operands) if n not in chosen],
                )

    # ---- [k == E] ----------------------------------------------------------------

    def _equal(
        self, pattern: Equals, scalar: Scalar, given: Binding
    ) -> Iterator[tuple[Binding, list[Scalar]]]:
        """Match ``[u == 0]`` among the factors as ``[k == k - u]``; yield the bindings and the rest
        of the factor.

        u may have either sign, and may be divided by a common factor of its coefficients.
        """
        for found, rest in zeros_outside(scalar):
            for u in (found, -found):
                self.steps += 1
                try:
                    yield from ((b, rest) for b in _solved(pattern, u, given))
                except NoFit:
                    continue


def _solved(pattern: Equals, u: Index, given: Binding) -> Iterator[Binding]:
    place: Place = pattern.right
    if isinstance(place, Named) and place.name not in {*given.indices, *given.iterators}:
        value = given.index(pattern.left) - u
        # With u = k - E, the value k - u is E; with u = E - k it would depend on k.
        yield given.with_index(place.name, value)
    elif given.index(pattern.left) - given.index(place) == u:
        yield given


def _ordered(pattern: AtMost, scalar: Scalar, given: Binding) -> Iterator[Binding]:
    """Match an order of two indices, ``0 <= u``, as ``[a <= a + u]``; also as a number, to which
    it was converted."""
    order = scalar.arg if isinstance(scalar, Cast) else scalar
    u, place = not_negative(order), pattern.right
    if u is None:
        return
    try:
        if isinstance(place, Named) and place.name not in {*given.indices, *given.iterators}:
            yield given.with_index(place.name, given.index(pattern.left) + u)
        elif given.index(place) - given.index(pattern.left) == u:
            yield given
    except NoFit:
        return


def zeros_outside(factor: Scalar) -> Iterator[tuple[Index, list[Scalar]]]:
    """Yield the indices u for which a factor is ``[u == 0] * rest``, and the rest.

    The factor is a comparison of two indices, also as a number to which it was converted, or a read
    along an axis of one element with zeros outside, as a matrix with ones on a diagonal:
    ``t[k - e, ..] = [k - e == 0] * t[0, ..]``.
    """
    u = _comparison(factor.arg if isinstance(factor, Cast) else factor)
    if u is not None and u.terms:
        yield _least(u), []
    if not isinstance(factor, Read) or factor.fill != 0:
        return
    for axis, (index, extent) in enumerate(zip(factor.index, factor.tensor.shape, strict=True)):
        if extent == 1 and index.terms:
            at = (*factor.index[:axis], Index(0), *factor.index[axis + 1 :])
            yield _least(index), [replace(factor, index=at)]


def is_delta(body: Scalar) -> bool:
    """Whether the body is a comparison of two indices, ``i == j + 1``."""
    return _comparison(body) is not None


def _comparison(factor: Scalar) -> Index | None:
    """Return u if the factor is ``u == 0``, a comparison of two indices; otherwise None."""
    if not isinstance(factor, Call) or factor.fn != "eq":
        return None
    sides = [as_index(arg) for arg in factor.args]
    return None if sides[0] is None or sides[1] is None else sides[0] - sides[1]


def not_negative(condition: Scalar) -> Index | None:
    """Return u if the scalar is an order of two indices, which is ``0 <= u``; otherwise None.

    >>> from eqsynth.ir.scalar import Value
    >>> i, k = (Index.iterator(slot, 4) for slot in range(2))
    >>> str(not_negative(Call("lt", (Value(k), Value(i)))))
    'i0 - i1 - 1'
    """
    if not isinstance(condition, Call) or condition.fn not in ("le", "lt", "ge", "gt"):
        return None
    first, second = (as_index(arg) for arg in condition.args)
    if first is None or second is None:
        return None
    above = second - first if condition.fn in ("le", "lt") else first - second
    return above - (condition.fn in ("lt", "gt"))


def _least(u: Index) -> Index:
    """Return u divided by the common factor of its coefficients."""
    shared = math.gcd(u.const, *(c for _, c in u.terms))
    return Index(u.const // shared, tuple((atom, c // shared) for atom, c in u.terms))


@remembered(maxsize=1 << 14)
def is_selected(scope: Scope) -> bool:
    """Whether a factor of a sum of products is zero except at one value of a reduced iterator."""
    if not is_product(scope) or not is_float(scope.dtype) or not isinstance(scope.body, Prod):
        return False
    reduced = set(reduction_iterators(scope))
    return any(
        it in reduced and abs(step) == 1 and it not in (u - Index(0, ((it, step),))).iterators()
        for factor in factors_of(scope.body)
        for u, _ in zeros_outside(factor)
        for it, step in u.terms
        if isinstance(it, It)
    )
