"""Parses the text of a rule of scopes, and finds its mistakes with their places.

    rule      = side "=>" side ["if" condition {"," condition}]
    side      = "[" axes "]" "=" [reducer "(" axes ")"] sum
    axes      = [axis {"," axis}]           axis = name | "*" name | name "<" index (on the right)
    sum       = product {("+" | "-") product}
    product   = factor {"*" factor}
    factor    = number | "-" factor | "(" sum ")" | function "(" sum {"," sum} ")"
              | variable ["(" index {"," index} ")"]
              | "[" index "==" index "]" | "[" index "<=" index "]"
              | "[" index "<=" index "<" index "]"                          on the right
              | "{" [reducer "(" axes ")"] sum "}"                          on the right
    index     = integer | name | variable | "#" name | index ("+" | "-" | "*" | "//" | "%") index
    condition = index {("<=" | "<" | "==") index} | index "divides" index
              | ("finite" | "constant" | "float" | "summed") variable
              | ["*"] name "not" "in" variable
              | variable "broadcasts" "over" ["*"] name

A reducer is ``sum``, ``prod``, ``max``, ``min``, or ``reduce``, which is any of them.

Names of iterators and functions begin with a small letter, variables with a capital one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from eqsynth.ir.functions import FUNCTIONS, REDUCERS
from eqsynth.rules.scope_rules.cursor import TextError
from eqsynth.rules.scope_rules.places import Places
from eqsynth.rules.scope_rules.syntax import (
    ANY,
    Absent,
    Apply,
    AtMost,
    Axis,
    Body,
    Broadcasts,
    Compare,
    Condition,
    Divides,
    Equals,
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
    Within,
)

# Bounds on a rule's size: the work of matching grows with each; rules of people are smaller.
MAX_TEXT: Final = 2000
MAX_PARTS: Final = 8
MAX_AXES: Final = 6
MAX_GROUPS: Final = 2

_WORDS: Final = (
    "if", "not", "in", "divides", "finite", "constant", "float", "summed", "broadcasts", "over",
    "reduce",
)  # fmt: skip


def parse(text: str) -> ScopeRule:
    """Parse the text of a rule.

    >>> rule = parse("[*x] = max(*y) -F  =>  [*x] = -{min(*y) F}")
    >>> rule.left.reducer, rule.bodies
    ('max', (('F', ()),))

    Raises:
        TextError: the text isn't a rule of scopes.
    """
    if len(text) > MAX_TEXT:
        raise TextError(f"the text is longer than {MAX_TEXT} characters", MAX_TEXT)
    return _Parser(text).rule()


class _Parser(Places):
    # ---- rules and sides ---------------------------------------------------------

    def rule(self) -> ScopeRule:
        left = self.side()
        self.expect("=>")
        names = self.names
        names.on_left = False
        right = self.side(left)
        conditions: list[Condition] = []
        if self.has("if"):
            self.take()
            names.around = frozenset(names.left)
            conditions += self.condition()
            while self.has(","):
                self.take()
                conditions += self.condition()
        if self.next.kind != "end":
            self.fail("nothing is left to say here", expected="the end, or `if` and conditions")
        self.check_scopes(conditions)
        return ScopeRule(self.text, left, right, tuple(conditions), tuple(names.bodies.items()),
                         tuple(names.indices))  # fmt: skip

    def side(self, left: Side | None = None) -> Side:
        names = self.names
        start = self.expect("[")
        names.around = frozenset()
        head = self.axes("]", reads=left is not None)
        if left is not None and head != left.head:
            self.fail("the sides have two heads", start, expected=self._head(left))
        names.around = frozenset(axis.name for axis in head)
        self.expect("=")
        reducer, axes = self.reduction()
        return Side(head, reducer, axes, self.sum())

    def _head(self, side: Side) -> str:
        return f"[{', '.join('*' * axis.group + axis.name for axis in side.head)}]"

    def reduction(self) -> tuple[str, tuple[Axis, ...]]:
        """Parse a reduction ``sum(k, *y)``, if there is one; ``max(F, G)`` is a function."""
        axis, behind = self.peek(2), self.peek(3)
        small = axis.kind == "name" and axis.text[0].islower() and behind.text != "("
        if not (self.next.text[:1].islower() and self.peek().text == "("):
            return "", ()
        if not (small or axis.text == "*"):
            return "", ()
        reducer = self.take()
        if reducer.text not in (*REDUCERS, ANY):
            self.unknown(reducer, "reducer", (*REDUCERS, ANY))
        self.names.any_reducer |= self.names.on_left and reducer.text == ANY
        if reducer.text == ANY and not self.names.any_reducer:
            self.fail("nothing says which reducer that is", reducer, hint="Name one.")
        self.expect("(")
        axes = self.axes(")", reads=not self.names.on_left)
        if not axes:
            self.fail("nothing is reduced", expected="an iterator or a group")
        self.names.around |= {axis.name for axis in axes}
        return reducer.text, axes

    def axes(self, end: str, reads: bool) -> tuple[Axis, ...]:
        """Parse iterators and groups up to a bracket.

        Args:
            reads: whether the names refer to axes of the left side, or, with an extent, to new
                ones.
        """
        names, found = self.names, list[Axis]()
        while not self.has(end):
            if found:
                self.expect(",")
            group = self.has("*")
            if group:
                self.take()
            token = self.take()
            name = token.text
            if token.kind != "name" or not name[0].islower() or name in (*_WORDS, *REDUCERS):
                self.fail(f"{name or 'nothing'} is no name for an iterator", token,
                          expected="a small letter, letters and digits")  # fmt: skip
            if name in names.around or name in (axis.name for axis in found):
                self.fail(f"{name} is an iterator already", token, hint="Use another name.")
            extent = None
            if reads and not group and self.has("<"):
                self.take()
                if name in names.left:
                    self.fail(f"{name} is an iterator of the left side", token,
                              hint="Leave its extent out, or use another name.")  # fmt: skip
                extent = self.index()
            elif reads and names.left.get(name) != group:
                known = (n for n, is_group in names.left.items() if is_group == group)
                what = f"{'group' if group else 'iterator'} of the left side"
                self.unknown(token, what, known)
            elif not reads:
                names.left[name] = group
            found.append(Axis(name, group, extent))
        if len(found) > MAX_AXES or sum(axis.group for axis in found) > MAX_GROUPS:
            self.fail(f"more than {MAX_AXES} axes, or than {MAX_GROUPS} groups")
        self.take()
        return tuple(found)

    # ---- bodies ------------------------------------------------------------------

    def sum(self) -> Body:
        self.deeper()
        terms = [self.product()]
        while self.has("+", "-"):
            negative = self.take().text == "-"
            term = self.product()
            terms.append(_negated(term) if negative else term)
        self.depth -= 1
        return self.joined(Plus, terms)

    def product(self) -> Body:
        factors = [self.factor()]
        while self.has("*"):
            self.take()
            factors.append(self.factor())
        return self.joined(Times, factors)

    def joined(self, kind: type[Plus] | type[Times], parts: list[Body]) -> Body:
        flat = [p for part in parts for p in (part.parts if isinstance(part, kind) else (part,))]
        if len(flat) > MAX_PARTS:
            self.fail(f"more than {MAX_PARTS} operands")
        return kind(tuple(flat)) if len(flat) > 1 else flat[0]

    def factor(self) -> Body:
        self.deeper()
        token = self.next
        found: Body
        if token.kind == "number":
            self.take()
            if not math.isfinite(float(token.text)):
                self.fail("the number doesn't fit in a double", token)
            found = Number(float(token.text))
        elif self.has("-"):
            self.take()
            found = _negated(self.factor())
        elif self.has("("):
            self.take()
            found = self.sum()
            self.expect(")")
        elif self.has("["):
            found = self.bracket()
        elif self.has("{"):
            found = self.inner()
        elif token.kind == "name":
            found = self.variable() if token.text[0].isupper() else self.apply()
        else:
            self.fail("a factor is missing", expected="F(k), a number, a function, [k == E]")
        self.depth -= 1
        return found

    def apply(self) -> Body:
        token = self.take()
        if token.text in self.names.left and not self.has("("):
            self.fail(f"{token.text} is an iterator, and no factor", token,
                      hint=f"A body that depends on it is F({token.text}).")  # fmt: skip
        function = FUNCTIONS.get(token.text)
        if function is None:
            self.unknown(token, "function", FUNCTIONS)
        self.expect("(")
        args = [self.sum()]
        while self.has(","):
            self.take()
            args.append(self.sum())
        if len(args) != function.arity:
            self.fail(f"{token.text} has {len(args)} arguments", token,
                      expected=f"{function.arity}")  # fmt: skip
        self.expect(")")
        return Apply(token.text, tuple(args))

    def variable(self) -> Body:
        token, names = self.take(), self.names
        args: list[Place] = []
        if self.has("("):
            self.take()
            args.append(self.index())
            while self.has(","):
                self.take()
                args.append(self.index())
            self.expect(")")
        if token.text in names.indices:
            self.fail(f"{token.text} is an index, and no factor", token, hint="Rename it.")
        if names.on_left:
            own = tuple(arg.name for arg in args if isinstance(arg, Named))
            if len(set(own)) != len(args) or not set(own) <= names.left.keys():
                what = "the named iterators that it may depend on, each once"
                self.fail(f"{token.text} has other arguments than iterators", token, expected=what)
            if names.bodies.setdefault(token.text, own) != own:
                what = f"({', '.join(names.bodies[token.text])}) each time"
                self.fail(f"{token.text} has two lists of arguments", token, expected=what)
            self.count(token)
        else:
            self.known(token, names.bodies, "variable for a body")
            if len(args) != len(names.bodies[token.text]):
                self.fail(f"{token.text} has {len(args)} arguments", token,
                          expected=f"{len(names.bodies[token.text])}, as on the left")  # fmt: skip
        return Variable(token.text, tuple(args))

    def bracket(self) -> Body:
        start = self.expect("[")
        first = self.index()
        if self.has("<="):
            self.take()
            value = self.index()
            if self.has("]"):
                self.take()
                return AtMost(first, value)
            self.expect("<")
            within = Within(first, value, self.index())
            if self.names.on_left:
                self.fail("a range can't be matched", start, expected="[k == E] or [0 <= E]")
            self.expect("]")
            return within
        self.expect("==")
        second = self.index()
        self.expect("]")
        return Equals(first, second)

    def inner(self) -> Body:
        start = self.expect("{")
        if self.names.on_left:
            self.fail("a scope inside can't be matched", start,
                      hint="What is read is inlined before, or is a tensor: say F.")  # fmt: skip
        around = self.names.around
        reducer, axes = self.reduction()
        found = Inner(reducer, axes, self.sum())
        self.expect("}")
        self.names.around = around
        return found

    # ---- conditions --------------------------------------------------------------

    def condition(self) -> list[Condition]:
        token = self.next
        if self.has("finite", "constant", "float", "summed"):
            self.take()
            return [Has(token.text, self.known_variable(self.names.bodies))]  # type: ignore[arg-type]
        if self.has("*") or self.peek().text == "not":
            axis = self.axis_of_left()
            self.expect("not")
            self.expect("in")
            names = (*self.names.bodies, *self.names.indices)
            return [Absent(axis, self.known_variable(names))]
        if self.peek().text == "broadcasts":
            name = self.known_variable((*self.names.bodies, *self.names.indices))
            self.take()
            self.expect("over")
            return [Broadcasts(name, self.axis_of_left())]
        first = self.index()
        if self.has("divides"):
            self.take()
            return [Divides(first, self.index())]
        found: list[Condition] = []
        while self.has("<=", "<", "=="):
            sign: Any = self.take().text
            second = self.index()
            found.append(Compare(first, sign, second))
            first = second
        if not found:
            self.fail("no condition", expected="0 <= E < #k, 2 divides #k, k not in E, finite F, "
                      "constant F, float F, summed F, #k == #l")  # fmt: skip
        return found

    def axis_of_left(self) -> str:
        group = self.has("*")
        if group:
            self.take()
        axis = self.take()
        if self.names.left.get(axis.text) != group:
            self.unknown(axis, "iterator or group of the left side", self.names.left)
        return axis.text

    def known_variable(self, names: Iterable[str]) -> str:
        token = self.take()
        if token.text not in names:
            self.unknown(token, "variable of the left side", names)
        return token.text

    # ---- scopes ------------------------------------------------------------------

    def check_scopes(self, conditions: list[Condition]) -> None:
        """Check that each variable on the right side is in the scope of all iterators that it may
        depend on.

        ``sum(k) F(k) * [k == E] => F(E)`` needs the condition ``k not in E``: the right side has no
        k."""
        names, absent = self.names, {c for c in conditions if isinstance(c, Absent)}
        for use in names.uses:
            free = names.left.items()
            if use.name in names.bodies:
                # The named iterators are in its parentheses and are replaced; groups remain free.
                free = {name: True for name, group in free if group}.items()
            for axis, group in free:
                if axis not in use.around and Absent(axis, use.name) not in absent:
                    shown = "*" * group + axis
                    raise TextError(
                        f"{use.name} may depend on {shown}, which means nothing here", use.offset,
                        got=use.name, expected=f"`{shown} not in {use.name}` as a condition",
                        hint=f"Add the condition, or reduce over {shown} here.",
                    )  # fmt: skip


def _negated(body: Body) -> Body:
    if isinstance(body, Number):
        return Number(-body.value)
    return Times((Number(-1.0), *(body.parts if isinstance(body, Times) else (body,))))
