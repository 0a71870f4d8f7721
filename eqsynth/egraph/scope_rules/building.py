"""Builds the right side of a rule from a match of its left side."""

from __future__ import annotations

from collections.abc import Sequence

from eqsynth.egraph.scope_rules.binding import Binding, NoFit
from eqsynth.egraph.scope_rules.matching import matches
from eqsynth.errors import EqsynthError
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import (
    Call,
    Num,
    Read,
    Scalar,
    dtype_of,
    iterators,
    product,
    substitute,
    total,
)
from eqsynth.ir.scopes import bare, closed, same_scope
from eqsynth.ir.tensor import Op, Scope
from eqsynth.ir.types import is_float
from eqsynth.rules.scope_rules.syntax import (
    ANY,
    Apply,
    AtMost,
    Axis,
    Body,
    Equals,
    Inner,
    Number,
    Plus,
    ScopeRule,
    Times,
    Variable,
    Within,
)

MAX_ANSWERS = 8
"""The most answers of one rule for one scope."""

MAX_EXTENT = 1 << 31


def answers(rule: ScopeRule, scope: Scope) -> list[Scope]:
    """Return the other scopes that a rule states are equal to this one."""
    found: dict[Scope, None] = {}
    for given in matches(rule, scope):
        answer = built(rule, given, scope)
        if answer is not None and answer != scope:
            found[answer] = None
        if len(found) >= (1 if rule.first else MAX_ANSWERS):
            break
    return list(found)


def built(rule: ScopeRule, given: Binding, scope: Scope) -> Scope | None:
    """Return the right side for a match; None if it has no meaning, or another dtype."""
    side = rule.right
    try:
        around = {it for axis in side.head for it in given.its(axis.name)}
        builder = Builder(dict(rule.bodies), scope)
        given, reduced = builder.reduced(side.axes, given)
        body = builder.body(side.body, given, around.union(reduced))
        result = same_scope(scope, body, reduced, builder.reducer(side.reducer))
    except (NoFit, EqsynthError):
        return None
    return result if result.type == scope.type else None


class Builder:
    """Builds the bodies of one rule's sides.

    Args:
        listed: variable -> the iterators in its parentheses on the left side.
        scope: the scope that the left side matches. The right side must have its body's dtype.
    """

    def __init__(self, listed: dict[str, tuple[str, ...]], scope: Scope) -> None:
        self._listed, self._scope = listed, scope
        # A choice between numbers has no dtype of its own.
        self._dtype = dtype_of(scope.body) or scope.dtype
        # The number of slots in use; new iterators get the next ones.
        self._slots = len(scope.extents)

    def reducer(self, name: str) -> str:
        """Return the reducer that a side names."""
        return self._scope.reducer if name == ANY else name or "sum"

    def reduced(self, axes: Sequence[Axis], given: Binding) -> tuple[Binding, list[It]]:
        """Return the binding extended by new iterators, and the iterators to reduce."""
        found: list[It] = []
        known = dict(given.iterators)
        for axis in axes:
            if axis.extent is not None:
                extent = given.number(axis.extent)
                if not 0 <= extent < MAX_EXTENT:
                    raise NoFit
                known[axis.name] = It(self._slots, extent)
                self._slots += 1
            found += given.groups.get(axis.name) or (() if axis.group else (known[axis.name],))
        return Binding(known, given.groups, given.bodies, given.indices), found

    def body(self, body: Body, given: Binding, around: set[It]) -> Scalar:
        """Build a body over the iterators ``around`` it.

        Raises:
            NoFit: it uses other iterators, or has another dtype.
        """
        match body:
            case Number(value=value):
                return Num(value)
            case Variable(name=name, args=args):
                own = [given.iterators[listed] for listed in self._listed[name]]
                places = dict(zip(own, map(given.index, args), strict=True))
                found = substitute(given.bodies[name], lambda it: places.get(it, bare(it)))
                if not iterators(found) <= around:
                    raise NoFit
                return found
            case Equals(left=left, right=right):
                zero = given.index(left) - given.index(right)
                # [i == j] and [j == i] are one term: the first iterator counts upwards.
                upwards = zero if not zero.terms or zero.terms[0][1] > 0 else -zero
                return self._between(upwards, 1, around)
            case AtMost(left=left, right=right):
                above = given.index(right) - given.index(left)
                return self._between(above, above.range()[1] + 1, around)
            case Within(low=low, value=value, high=high):
                least = given.number(low)
                shifted = given.index(value) - least
                return self._between(shifted, given.number(high) - least, around)
            case Apply(fn=fn, args=args):
                return Call(fn, tuple(self.body(arg, given, around) for arg in args))
            case Plus(parts=parts) | Times(parts=parts):
                operands = [self.body(part, given, around) for part in parts]
                bools = self._dtype == "bool"
                if bools or any(dtype_of(p) not in (None, self._dtype) for p in operands):
                    raise NoFit
                return (total if isinstance(body, Plus) else product)(operands)
            case Inner(reducer=reducer, axes=axes, body=inside):
                given, own = self.reduced(axes, given)
                whole = self.body(inside, given, around.union(own))
                return closed(whole, around, self.reducer(reducer), own)

    def _between(self, index: Index, extent: int, around: set[It]) -> Scalar:
        """Return ``[0 <= index < extent]``: a read of a tensor of ones, or its constant value."""
        low, high = index.range()
        if low >= 0 and high < extent:
            return Num(1.0)
        if high < 0 or low >= extent:
            return Num(0.0)
        if not is_float(self._dtype) or not set(index.iterators()) <= around:
            raise NoFit
        return Read(Op("Full", (), ((extent,), 1.0, self._dtype)), (index,))
