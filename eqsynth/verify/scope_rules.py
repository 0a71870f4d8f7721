"""Prove rules of scopes for all extents and ranks.

    [*x] = sum(k, *y) F(k) * [k == E]  =>  [*x] = sum(*y) F(E) * [0 <= E < #k]

A group of axes (``*x``) is treated as a single axis, whose iterator counts the group's points in
row-major order. A variable for a body (``F``) becomes the element of an unknown tensor. Its index
is made of the iterators on which ``F`` may depend: those of all groups, and the arguments in
parentheses. A variable for an index (``E``) becomes an unknown function of iterators to integers.
So both sides become values, which ``comparing.py`` compares. The rule's conditions are supposed for
all values of the iterators in them; gates that say when a rule is worth applying
(``broadcasts over``) aren't supposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import z3
from z3 import z3util

from eqsynth.rules import Rule
from eqsynth.rules.scope_rules.syntax import (
    Absent,
    Apply,
    Arithmetic,
    AtMost,
    Axis,
    Body,
    Compare,
    Divides,
    Equals,
    Extent,
    Has,
    Inner,
    Named,
    Number,
    Place,
    Plus,
    ScopeRule,
    Side,
    Times,
    Variable,
    Whole,
    Within,
    subterms,
)
from eqsynth.verify import values
from eqsynth.verify.comparing import Comparison
from eqsynth.verify.integers import Integers, number
from eqsynth.verify.values import Guard, Read, Reduce, Value
from eqsynth.verify.verdict import Left


def verify_scope_rule(rule: Rule) -> str:
    """Prove a rule of scopes; return how it was proved, in words.

    Raises:
        Left: what is left to show.
    """
    assert rule.scopes is not None
    said = rule.scopes
    if [(a.name, a.group) for a in said.left.head] != [(a.name, a.group) for a in said.right.head]:
        raise Left("both sides have the same axes")
    names = _Names(said)
    try:
        left, right = names.side(said.left), names.side(said.right)
    except KeyError as name:
        raise Left(f"what {name} is, where it isn't around") from None
    if names.ints.consistent().true:
        raise Left("extents on which its conditions hold: none were found")
    same = Comparison(names.ints).same(left, right)
    if rule.numerics.kind == "bitwise" and (not same or _sums(said)):
        # A scope doesn't fix the order of its sum: that depends on all extents of the scope. An
        # inner scope has other extents, since `{sum(*y) F}` is computed at fewer points than the
        # scope around it.
        raise Left("the sides are the same to the last bit")
    if same:
        return "for all extents, ranks and dtypes"
    floats = {c.variable for c in said.conditions if isinstance(c, Has) and c.what == "float"}
    if not floats >= {name for name, _ in said.bodies}:
        raise Left("the sides are equal where integers wrap")
    if not Comparison(names.ints, bitwise=False).equal(left, right):
        raise Left("the sides are equal over the reals")
    return "for all extents and ranks"


def _sums(said: ScopeRule) -> bool:
    """Whether a reduction in the rule rounds: each does except maximum and minimum."""
    inner = (part for side in (said.left, said.right) for part in subterms(side.body))
    reducers = {said.left.reducer, said.right.reducer,
                *(part.reducer for part in inner if isinstance(part, Inner))}  # fmt: skip
    return not reducers <= {"", "max", "min"}


_At = Mapping[str, Any]
"""Name -> iterator, for the iterators around a body."""


class _Names:
    """The meaning of the names in a rule, and the translation of its sides to values."""

    def __init__(self, said: ScopeRule) -> None:
        self.ints = Integers()
        self._said = said
        self._extents: dict[str, Any] = {}
        self._groups = [a.name for a in (*said.left.head, *said.left.axes) if a.group]
        self._named = [a.name for a in (*said.left.head, *said.left.axes) if not a.group]
        for name in (*self._groups, *self._named):
            self._extents[name] = self.ints.fresh(f"#{name}")
            self.ints.suppose(self._extents[name] >= 0)
        self._finite = {c.variable for c in said.conditions
                        if isinstance(c, Has) and c.what == "finite"}  # fmt: skip
        self._absent = {(c.axis, c.variable) for c in said.conditions if isinstance(c, Absent)}
        self._suppose()

    def _suppose(self) -> None:
        """Suppose each condition, for all values of the iterators in it."""
        at = {name: z3.Int(f"any!{name}") for name in (*self._groups, *self._named)}
        for condition in self._said.conditions:
            match condition:
                case Compare(left=left, sign=sign, right=right):
                    a, b = number(self._place(left, at)), number(self._place(right, at))
                    holds = a <= b if sign == "<=" else a < b if sign == "<" else a == b
                case Divides(divisor=divisor, value=value):
                    by, of = (number(self._place(p, at)) for p in (divisor, value))
                    self.ints.suppose(by > 0)
                    holds = of % by == 0
                case _:
                    continue
            used = [n for n, i in at.items() if any(i.eq(v) for v in z3util.get_vars(holds))]
            inside = values.bounds([(at[name], self._extents[name]) for name in used])
            if used:
                holds = z3.ForAll([at[n] for n in used], z3.Implies(z3.And(*inside), holds))
            self.ints.suppose(holds)

    def side(self, side: Side) -> Value:
        """The element of a side at the iterators of its head; both sides share these iterators."""
        around = {axis.name: z3.Int(f"at!{axis.name}") for axis in side.head}
        for name, place in around.items():
            self.ints.suppose(place >= 0, place < self._extents[name])
        return self._reduced(side.reducer, side.axes, side.body, around)

    def _reduced(self, reducer: str, axes: tuple[Axis, ...], body: Body, around: _At) -> Value:
        own = {axis.name: z3.FreshInt(axis.name) for axis in axes}
        for axis in axes:
            if axis.extent is not None:
                self._extents[axis.name] = number(self._place(axis.extent, around))
                self.ints.suppose(self._extents[axis.name] >= 0)
        found = self._body(body, {**around, **own})
        if not axes:
            return found
        iterators = tuple((own[axis.name], self._extents[axis.name]) for axis in axes)
        return Reduce(reducer or "sum", iterators, found)

    def _body(self, body: Body, at: _At) -> Value:
        match body:
            case Number(value=value):
                return values.Number(float(value))
            case Variable(name=name, args=args):
                groups = [g for g in self._groups if (g, name) not in self._absent]
                place = (*(at[group] for group in groups), *(self._place(a, at) for a in args))
                read = Read(name, place, place)
                return read if name in self._finite else values.Call("any", (read,))
            case Equals() | AtMost():
                return self._truth(self._condition(body, at))
            case Within(low=low, value=value, high=high):
                least, there, most = (self._place(part, at) for part in (low, value, high))
                return self._truth(z3.And(there >= least, there < most))
            case Apply(fn="where", args=(Equals() | AtMost() as asked, chosen, other)):
                condition = self._condition(asked, at)
                return Guard(condition, self._body(chosen, at), self._body(other, at))
            case Apply(fn=fn, args=args):
                return values.Call(fn, tuple(self._body(arg, at) for arg in args))
            case Plus(parts=parts) | Times(parts=parts):
                first, *rest = (self._body(part, at) for part in parts)
                for part in rest:
                    first = values.Call("add" if isinstance(body, Plus) else "mul", (first, part))
                return first
            case Inner(reducer=reducer, axes=axes, body=inside):
                return self._reduced(reducer, axes, inside, at)

    def _condition(self, asked: Equals | AtMost, at: _At) -> Any:
        left, right = (number(self._place(place, at)) for place in (asked.left, asked.right))
        return left == right if isinstance(asked, Equals) else left <= right

    @staticmethod
    def _truth(condition: Any) -> Value:
        return Guard(condition, values.Number(1.0), values.Number(0.0))

    def _place(self, place: Place, at: _At) -> Any:
        """The integer that an index expression stands for.

        Raises:
            KeyError: an iterator in it isn't among those around it.
        """
        match place:
            case Whole(value=value):
                return z3.IntVal(value)
            case Extent(name=name):
                return self._extents[name]
            case Named(name=name) if name in self._said.indices:
                around = [n for n in (*self._groups, *self._named) if (n, name) not in self._absent]
                function = z3.Function(name, *[z3.IntSort()] * (len(around) + 1))
                return function(*(at[n] for n in around))
            case Named(name=name):
                return at[name]
            case Arithmetic(sign=sign, left=left, right=right):
                a, b = number(self._place(left, at)), number(self._place(right, at))
                if sign in ("//", "%"):
                    # Z3's own quotient, which floors; iterators in it are substituted with the rest
                    # of the term. The engine divides by positive numbers only: with another
                    # divisor the rule gives no answer.
                    self.ints.suppose(b > 0)
                    return a / b if sign == "//" else a % b
                return a + b if sign == "+" else a - b if sign == "-" else a * b
