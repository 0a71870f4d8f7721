"""Prove rewrites of scalars (the bodies of scopes) for all values and dtypes.

    (Call "relu" (vec-of (Call "relu" (vec-of x)))) = (Call "relu" (vec-of x))   ->   proved

A variable of a rule stands for any value of any dtype, and a list of operands has as many elements
as its function has arguments. Both sides have to be the same (``comparing.py``), and have to have
the same dtype for each assignment of dtypes. A comparison of two indices is 1 or 0 in every dtype
to which it is converted. A call with several operands may convert them to a common dtype; so in a
rule with several scalar variables, both sides must have the same calls with several operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import z3

from eqsynth.errors import EqsynthError
from eqsynth.ir import scalar as ir
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.index import Index
from eqsynth.ir.tensor import Input, Op
from eqsynth.ir.types import DTYPES, TensorType
from eqsynth.rules import Rule, RuleSet
from eqsynth.rules.sorts import infer_sorts
from eqsynth.rules.tree import Tree, Var, is_call, render
from eqsynth.verify.comparing import Comparison
from eqsynth.verify.integers import Integers
from eqsynth.verify.values import Call, Guard, Number, Read, Value
from eqsynth.verify.verdict import Left

# The most variables for which all assignments of dtypes are tried.
_MOST_LEAVES: Final = 4


def verify_scalar_rule(rules: RuleSet, rule: Rule) -> str:
    """Prove a rewrite of scalars; return how it was proved, in words.

    Raises:
        Left: what is left to show.
    """
    assert rule.equality is not None
    proof = _Scalars(rules, rule)
    left, right = (proof.closed(side) for side in rule.equality)
    proof.same_dtypes(left, right)
    both = [{render(call) for call in _joins(side)} for side in (left, right)]
    leaves = {name for side in (left, right) for name in _leaves(side, proof.sorts)}
    if len(leaves) > 1 and both[0] != both[1]:
        raise Left("the sides are equal where dtypes are mixed")
    a, b = (_unconverted(proof.value(side)) for side in (left, right))
    if not Comparison(proof.ints, bitwise=rule.numerics.kind == "bitwise").same(a, b):
        raise Left("the sides are the same for all values")
    return "for all values and dtypes"


def _unconverted(value: Value) -> Value:
    """Remove the conversion of a side that is the number 0 or 1, or a guard of such numbers. Both
    sides have the same dtype, so the conversion makes no difference between them."""
    if isinstance(value, Guard):
        return Guard(value.condition, _unconverted(value.inside), _unconverted(value.outside))
    if isinstance(value, Call) and value.name.startswith("to:"):
        number = value.args[0]
        if isinstance(number, Number) and number.value in (0.0, 1.0):
            return number
    return value


def _joins(tree: Tree) -> Iterator[Tree]:
    """The calls in a tree that have several operands."""
    if is_call(tree):
        if tree[0] == "Call" and is_call(tree[2]) and len(tree[2]) > 2:
            yield tree
        for part in tree[1:]:
            yield from _joins(part)


def _leaves(tree: Tree, sorts: dict[str, str]) -> Iterator[str]:
    if isinstance(tree, Var) and sorts.get(tree.name) == "Scalar":
        yield tree.name
    elif is_call(tree):
        for part in tree[1:]:
            yield from _leaves(part, sorts)


class _Scalars:
    """One rule of scalars: its variables, and the translation of its terms to values.

    Attributes:
        lengths: variable of a list of operands -> its length.
        known: variable -> the term that it stands for, by the rule's facts.
        indices: variable of an index -> its integer.
    """

    def __init__(self, rules: RuleSet, rule: Rule) -> None:
        assert rule.equality is not None
        written = [("=", Var(n), tree) for n, tree in rule.written if not isinstance(tree, Var)]
        facts = (*rule.body, *written)
        trees = (*facts, ("=", *rule.equality))
        self.sorts = {n: min(s) for n, s in infer_sorts(trees, rules.known).items()}
        self.ints = Integers()
        self.lengths: dict[str, int] = {}
        self.known: dict[str, Tree] = {}
        self.indices: dict[str, Any] = {}
        for tree in trees:
            self._measure(tree)
        for name, length in self.lengths.items():
            cells = [Var(f"{name}.{n}") for n in range(length)]
            self.sorts |= {cell.name: "Scalar" for cell in cells}
            self.known[name] = ("vec-of", *cells)
        for fact in facts:
            if fact[0] == "=":
                self._unify(*(self.closed(side) for side in fact[1:]))

    def _measure(self, tree: Tree) -> None:
        if not is_call(tree):
            return
        if tree[0] == "Call" and isinstance(tree[2], Var):
            function = FUNCTIONS.get(tree[1]) if isinstance(tree[1], str) else None
            if function is None or self.lengths.get(tree[2].name, function.arity) != function.arity:
                raise Left("functions that the rule doesn't name")
            self.lengths[tree[2].name] = function.arity
        for part in tree[1:]:
            self._measure(part)

    def closed(self, tree: Tree) -> Tree:
        """Substitute the known variables in a term, and evaluate ``vec-get`` and ``vec-length``."""
        if isinstance(tree, Var):
            found = self.known.get(tree.name)
            return tree if found is None else self.closed(found)
        if not is_call(tree):
            return tree
        head, *parts = (tree[0], *map(self.closed, tree[1:]))
        if head == "vec-get" and is_call(parts[0]) and isinstance(parts[1], int):
            if parts[0][0] == "vec-of":
                if not 0 <= parts[1] < len(parts[0]) - 1:
                    raise Left("terms on which its facts hold: there are none")
                return parts[0][parts[1] + 1]
        if head == "vec-length" and is_call(parts[0]) and parts[0][0] == "vec-of":
            return len(parts[0]) - 1
        return (head, *parts)

    def _unify(self, a: Tree, b: Tree) -> None:
        """Suppose that two terms are equal by unifying them: variables get known. If the heads of
        the terms differ, nothing is supposed."""
        a, b = self.closed(a), self.closed(b)
        if isinstance(b, Var) and not isinstance(a, Var):
            a, b = b, a
        if isinstance(a, Var):
            if not (isinstance(b, Var) and a.name == b.name):
                if any(isinstance(v, Var) and v.name == a.name for v in _parts(b)):
                    raise Left(f"what {a.name} is")
                self.known[a.name] = b
        elif is_call(a) and is_call(b):
            if a[0] == b[0] and len(a) == len(b):
                for x, y in zip(a[1:], b[1:], strict=True):
                    self._unify(x, y)
        elif not is_call(a) and not is_call(b) and a != b:
            raise Left("terms on which its facts hold: there are none")

    # ---- values -------------------------------------------------------------------------

    def value(self, tree: Tree) -> Value:
        """Translate a scalar term to a value."""
        match tree:
            case Var(name=name) if self.sorts.get(name) == "Scalar":
                return Read(name, (), ())
            case ("Num", n):
                return Number(n.name if isinstance(n, Var) else n)
            case ("Value", index):
                return Call("value", (Read("integer", (self.index(index),), (), True),))
            case ("Convert", dtype, arg):
                return self._converted(dtype, self.value(arg))
            case ("Call", str() as fn, ("vec-of", *parts)):
                args = tuple(self.value(part) for part in parts)
                if fn == "eq" and all(isinstance(a, Call) and a.name == "value" for a in args):
                    i, j = (self.index(part[1]) for part in parts)
                    return Guard(i == j, *(Call("to:bool", (Number(v),)) for v in (1.0, 0.0)))
                return Call(fn, args)
            case ("Read", ("Full", shape, float() as n, str() as dtype), ("vec-of", *at), fill):
                extents = shape[1:]
                if all(isinstance(e, int) for e in extents) and isinstance(fill, float):
                    indices = [self.index(i) for i in at]
                    inside = z3.And(
                        *(z3.And(i >= 0, i < e) for i, e in zip(indices, extents, strict=True)),
                        True,
                    )
                    # The conversions keep the dtype of the numbers, which counts where functions
                    # compute with them.
                    one, other = (Call(f"to:{dtype}", (Number(v),)) for v in (n, fill))
                    return Guard(inside, one, other)
        raise Left(f"what {render(tree)} is")

    def _converted(self, dtype: Tree, value: Value) -> Value:
        if isinstance(value, Guard):
            return Guard(value.condition, self._converted(dtype, value.inside),
                         self._converted(dtype, value.outside))  # fmt: skip
        if isinstance(value, Call) and value.name.startswith("to:"):
            inner = value.args[0]
            # The value is 0 or 1 in every dtype, so an earlier conversion can be dropped.
            boolean = isinstance(inner, Call) and inner.name in FUNCTIONS and (
                FUNCTIONS[inner.name].result == "bool")  # fmt: skip
            if boolean or (isinstance(inner, Number) and inner.value in (0.0, 1.0)):
                value = inner
        return Call(f"to:{dtype if isinstance(dtype, str) else render(dtype)}", (value,))

    def index(self, tree: Tree) -> Any:
        """Translate a term of an index to an integer of Z3."""
        match tree:
            case Var(name=name):
                if name not in self.indices:
                    self.indices[name] = self.ints.fresh(name)
                return self.indices[name]
            case ("INum", int() as n):
                return z3.IntVal(n)
            case ("IAdd", a, b):
                return self.index(a) + self.index(b)
            case ("IMul", int() as c, a):
                return c * self.index(a)
        raise Left(f"what {render(tree)} is")

    # ---- dtypes -------------------------------------------------------------------------

    def same_dtypes(self, left: Tree, right: Tree) -> None:
        """Check that both sides have the same dtype, for each assignment of dtypes to variables.

        Raises:
            Left: for some assignment the dtypes of the sides differ, or the right side has none.
        """
        names = sorted(
            {
                v.name
                for side in (left, right)
                for v in _parts(side)
                if isinstance(v, Var) and self.sorts.get(v.name) in ("Scalar", "String")
            }
        )
        if len(names) > _MOST_LEAVES:
            raise Left("more dtypes than are looked at")
        matched = False
        for dtypes in product(DTYPES, repeat=len(names)):
            given = dict(zip(names, dtypes, strict=True))
            try:
                one = ir.dtype_of(self._term(left, given))
            except EqsynthError:
                continue
            matched = True
            try:
                two = ir.dtype_of(self._term(right, given))
            except EqsynthError as error:
                raise Left(f"the right side is typed where the left side is {one}: {error}"
                           ) from None  # fmt: skip
            if one != two:
                raise Left(f"the sides have one dtype: {one} and {two}")
        if not matched:
            raise Left("dtypes for which it matches: none were found")

    def _term(self, tree: Tree, given: dict[str, str]) -> ir.Scalar:
        match tree:
            case Var(name=name) if self.sorts.get(name) == "Scalar":
                return ir.Read(Input(name, TensorType((), given[name])), ())
            case ("Num", n):
                # 0.5 stands for any number that the rule only names: combined with an integer, a
                # number that isn't whole gives a float.
                return ir.Num(0.5 if isinstance(n, Var) else n)
            case ("Value", _):
                return ir.Value(Index.iterator(0, 4))
            case ("Convert", dtype, arg):
                to = given[dtype.name] if isinstance(dtype, Var) else dtype
                return ir.Cast(to, self._term(arg, given))
            case ("Call", str() as fn, ("vec-of", *parts)):
                return ir.Call(fn, tuple(self._term(part, given) for part in parts))
            case ("Read", ("Full", shape, float() as n, str() as dtype), ("vec-of", *at), fill):
                full = Op("Full", (), (tuple(shape[1:]), n, dtype))
                return ir.Read(full, (Index(0),) * len(at), fill)
        raise Left(f"what {render(tree)} is")


def _parts(tree: Tree) -> Iterator[Tree]:
    yield tree
    if is_call(tree):
        for part in tree[1:]:
            yield from _parts(part)
