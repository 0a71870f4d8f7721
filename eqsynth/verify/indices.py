"""Prove rules of indices over all integers: rewrites, and the analyses of ranges and divisors.

    (IAdd x (INum 0)) = x   ->   x + 0 = x for each integer x

An index has an integer value at each point of its iterators, so a variable of a rule stands for any
integer. The analyses of ``index.egg`` mean the following; their rules are verified here too::

    low(x) <= x <= high(x);   divides(m, x): m > 1 and m | x;   0 <= (It k n) < n

Weights only steer the search and mean nothing here. The divisors in a matched term are positive,
since no other index can be built; the divisors in a term that a rule makes must be shown positive.

Why this proves a rule for all sizes: all indices of an e-class have the same value at each point.
So a rule holds for all indices if it holds for all values that its facts allow at one point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import z3

from eqsynth.errors import EqsynthError
from eqsynth.rules import Rule, RuleSet
from eqsynth.rules.sorts import infer_sorts
from eqsynth.rules.tree import Tree, Var, instantiate, is_call, render, replace_vars
from eqsynth.testing.firing import alone, fire
from eqsynth.testing.indices import indices_differ
from eqsynth.testing.indices import render as render_index
from eqsynth.testing.templates import Sample
from eqsynth.verify.facts import comparison, integer, name_of
from eqsynth.verify.integers import Integers, value
from eqsynth.verify.verdict import Left, Wrong

MEANT: Final = frozenset({"low", "high", "divides", "divisor"})
"""The functions and relations of indices on which the conditions of equalities rely."""

_HEADS: Final = frozenset({"It", "INum", "IAdd", "IMul", "IDiv", "IMod", "IMin", "IMax"})
# The numbers of a counterexample are sought within these bounds, one bound after the other.
_BOUNDS: Final = (6, 30, 300)
# A counterexample that needs an iterator of a larger extent isn't replayed.
_LONGEST: Final = 4096


class _NotPositive(Exception):
    """Raised for a divisor in a term that a rule makes if it may not be positive; the argument is
    the formula ``divisor <= 0``."""


@dataclass
class _Proof:
    """One rule as formulas over integers.

    Attributes:
        values: the name of a variable, or the text of an iterator -> its integer.
        ranges: the text of ``(low x)`` or ``(high x)`` -> its integer.
    """

    sorts: Mapping[str, str]
    ints: Integers = field(default_factory=Integers)
    values: dict[str, Any] = field(default_factory=dict)
    ranges: dict[str, Any] = field(default_factory=dict)
    # Set while the right side is read. It isn't known to be an index, so its divisors have to be
    # shown positive.
    making: bool = False

    def of(self, tree: Tree) -> Any:
        """The value of a variable, of an index, or of a bound (``low``, ``high``) of an index."""
        if is_call(tree):
            head, *args = tree
            if head in _HEADS:
                return self._index(head, args)
            if head in ("low", "high"):
                return self._bound(head, args[0])
        key = name_of(tree)
        if key not in self.values:
            self.values[key] = self.ints.fresh(key)
        return self.values[key]

    def number(self, tree: Tree) -> Any:
        return integer(tree, self.ints, self.of)

    def _index(self, head: str, args: list[Tree]) -> Any:
        if head == "INum":
            return self.number(args[0])
        if head == "It":
            key = render((head, *args))
            if key not in self.values:
                self.values[key] = i = self.ints.fresh("i")
                self.ints.suppose(i >= 0, i < self.number(args[1]))
            return self.values[key]
        a, b = (self.number(arg) for arg in args)
        if head == "IAdd":
            return a + b
        if head == "IMul":
            return a * b
        if head in ("IMin", "IMax"):
            first = a <= b if head == "IMin" else a >= b
            return z3.If(first, a, b)
        # This comes before ``floor``, whose hypotheses about the quotient imply that b is positive.
        if not self.making:
            self.ints.suppose(b > 0)
        elif not self.ints.ask(b > 0).true:
            raise _NotPositive(b <= 0)
        return self.ints.floor(a, b)[head == "IMod"]

    def _bound(self, head: str, arg: Tree) -> Any:
        key = render((head, arg))
        if key not in self.ranges:
            self.ranges[key] = bound = self.ints.fresh(head)
            x = self.number(arg)
            self.ints.suppose(bound <= x if head == "low" else x <= bound)
        return self.ranges[key]

    def suppose(self, fact: Tree) -> None:
        """Add the meaning of a fact to the hypotheses. Facts about weights, and relations that this
        module doesn't know, add nothing."""
        head, *args = fact
        if _says(fact, "weight"):
            return
        if head == "=":
            if all(_is_integer(arg, self.sorts) for arg in args):
                a, b = (self.number(arg) for arg in args)
                self.ints.suppose(a == b if z3.is_expr(a) or z3.is_expr(b) else z3.BoolVal(a == b))
        elif head in ("divides", "divisor"):
            m = self.number(args[0])
            self.ints.suppose(m > 1)
            if head == "divides":
                self.ints.suppose(self.number(args[1]) == m * self.ints.fresh("k"))
        else:
            said = comparison(fact, self.ints, self.of)
            if said is not None:
                self.ints.suppose(said)


def verify_index_rule(rules: RuleSet, rule: Rule) -> str:
    """Prove a rewrite of indices; return how it was proved, in words.

    Raises:
        Left: it wasn't proved.
        Wrong: it is false on some numbers.
    """
    assert rule.equality is not None
    proof = _read(rules, rule, rule.equality)
    left, right = rule.equality
    a = proof.number(left)
    proof.making = True
    try:
        b = proof.number(right)
    except _NotPositive as divisor:
        _replay_rewrite(rules, rule, proof, divisor.args[0])
        raise Left(f"{_text(rule, right)}: a divisor may not be positive") from None
    if not proof.ints.ask(a == b).true:
        _replay_rewrite(rules, rule, proof, a != b)
        raise Left(f"{_text(rule, left)} = {_text(rule, right)} for all integers")
    _not_vacuous(proof)
    return "for all integers"


def verify_range_rule(rules: RuleSet, rule: Rule) -> str:
    """Prove the claims of an analysis rule about indices (bounds, divisors); return how, in words.

    Raises:
        Left: a claim wasn't proved.
        Wrong: a claim is false on some numbers.
    """
    proof = _read(rules, rule, rule.actions)
    for action in rule.actions:
        claim = _claim(proof, action)
        if claim is None:
            continue
        if not proof.ints.ask(claim).true:
            _replay_claim(rule, proof, claim, action)
            raise Left(render(action))
    _not_vacuous(proof)
    return "for all integers"


def _read(rules: RuleSet, rule: Rule, sides: tuple[Tree, ...]) -> _Proof:
    facts = [*rule.body, *(("=", Var(name), tree) for name, tree in rule.written
                           if not isinstance(tree, Var))]  # fmt: skip
    said = [("=", *a[1:]) if a[0] == "set" else a for a in sides if is_call(a)]
    trees = (*facts, *said) if rule.equality is None else (*facts, ("=", *sides))
    sorts = {name: min(found) for name, found in infer_sorts(trees, rules.known).items()}
    proof = _Proof(sorts)
    for fact in facts:
        proof.suppose(fact)
    return proof


def _claim(proof: _Proof, action: Tree) -> Any | None:
    if action[0] == "set" and action[1][0] in ("low", "high"):
        x, bound = proof.number(action[1][1]), proof.number(action[2])
        return bound <= x if action[1][0] == "low" else x <= bound
    if action[0] == "divisor":
        return proof.number(action[1]) > 1
    if action[0] == "divides":
        m, x = (proof.number(part) for part in action[1:])
        return z3.And(m > 1, proof.ints.floor(x, m)[1] == 0)
    return None


def _not_vacuous(proof: _Proof) -> None:
    if not proof.ints.consistent().false:
        raise Left("numbers on which its facts hold: none were found")


def _says(tree: Tree, head: str) -> bool:
    return is_call(tree) and (tree[0] == head or any(_says(part, head) for part in tree[1:]))


def _is_integer(tree: Tree, sorts: Mapping[str, str]) -> bool:
    if isinstance(tree, Var):
        return sorts.get(tree.name) in ("i64", "Idx")
    if isinstance(tree, bool):
        return False
    if is_call(tree):
        return tree[0] in _HEADS or tree[0] in ("low", "high", "+", "-", "*", "/", "%", "min",
                                                "max", "abs", "vec-length")  # fmt: skip
    return isinstance(tree, int)


def _text(rule: Rule, tree: Tree) -> str:
    written = dict(rule.written)
    return render(replace_vars(tree, lambda var: written.get(var.name, var)))


# ---- numbers that refute -----------------------------------------------------------


def _models(proof: _Proof, wrong: Any) -> Iterator[Any]:
    """Models of Z3 in which the formula ``wrong`` holds, those with small numbers first."""
    shown = [x for x in (*proof.values.values(), *proof.ranges.values()) if z3.is_expr(x)]
    for bound in _BOUNDS:
        small = [z3.And(x >= -bound, x <= bound) for x in shown]
        answer = proof.ints.ask(z3.Not(wrong), small)
        if answer.false:
            yield answer.model


def _replay_rewrite(rules: RuleSet, rule: Rule, proof: _Proof, wrong: Any) -> None:
    """Fire the rule in an e-graph on indices that have the values of a model.

    Raises:
        Wrong: the rule unites two indices that have different values or ranges.
    """
    assert rule.equality is not None
    for model in _models(proof, wrong):
        bound, slots = dict[str, Any](), list[int]()
        for name, sort in proof.sorts.items():
            if sort == "i64" and name in proof.values:
                bound[name] = value(model, proof.values[name])
            elif sort == "Idx":
                bound[name] = _index_of(name, proof, model, slots)
        if any(extent > _LONGEST for extent in slots):
            continue
        definitions = {fact[1].name: fact[2] for fact in rule.body
                       if fact[0] == "=" and isinstance(fact[1], Var) and is_call(fact[2])
                       and fact[2][0] in _HEADS}  # fmt: skip
        terms = [*definitions.values()] or [rule.equality[0]]
        try:
            raw = [("Idx", instantiate(term, bound)) for term in terms]
            pairs = fire(alone(rules, rule), rule, [Sample(raw=raw, slots=tuple(slots) or (1,))])
        except (EqsynthError, KeyError):
            continue
        for pair in pairs:
            if pair.problem is None and pair.sort == "Idx":
                found = indices_differ(pair.left, pair.right)
                if found is not None:
                    raise Wrong(
                        f"{render_index(pair.left)} = {render_index(pair.right)}: {found.what}"
                        + (f", {found.left} and {found.right}" if found.kind == "value" else "")
                    )


def _index_of(name: str, proof: _Proof, model: Any, slots: list[int]) -> Any:
    """An index that has the value and the bounds which a model gives the variable ``name``.

    A variable with bounds 2 and 5 becomes ``(IAdd (It k 4) (INum 2))``; the extent 4 is added to
    ``slots``.
    """
    if name not in proof.values:
        return ("INum", 0)
    at = value(model, proof.values[name])
    low, high = (
        value(model, bound) if (bound := proof.ranges.get(f"({head} {name})")) is not None else at
        for head in ("low", "high")
    )
    if low == high:
        return ("INum", at)
    slots.append(high - low + 1)
    return ("IAdd", ("It", len(slots) - 1, high - low + 1), ("INum", low))


def _replay_claim(rule: Rule, proof: _Proof, claim: Any, action: Tree) -> None:
    """Evaluate the facts and the claim of an analysis on the numbers of a model, in Python.

    Raises:
        Wrong: the facts hold on these numbers and the claim doesn't.
    """
    for model in _models(proof, z3.Not(claim)):
        point = {name: value(model, x) for name, x in (*proof.values.items(),
                                                       *proof.ranges.items())}  # fmt: skip
        try:
            facts = [_holds(fact, point) for fact in rule.body if not _says(fact, "weight")]
            if all(facts) and not _holds(action, point):
                shown = ", ".join(f"{name} = {n}" for name, n in point.items())
                raise Wrong(f"{render(action)} is false at {shown}")
        except (KeyError, ZeroDivisionError):
            continue


def _holds(fact: Tree, point: Mapping[str, int]) -> bool:
    """Whether a fact or a claim is true at a point, which gives the values of the variables and of
    their bounds."""
    head, *args = fact
    if head == "set":
        x, bound = _at(args[0][1], point), _at(args[1], point)
        return bound <= x if args[0][0] == "low" else x <= bound
    a = [_at(arg, point) for arg in args]
    if head == "=":
        return a[0] == a[1]
    if head == "divides":
        return a[0] > 1 and a[1] % a[0] == 0
    if head == "divisor":
        return a[0] > 1
    return {"<": a[0] < a[-1], "<=": a[0] <= a[-1], ">": a[0] > a[-1], ">=": a[0] >= a[-1],
            "!=": a[0] != a[-1]}[head]  # fmt: skip


def _at(tree: Tree, point: Mapping[str, int]) -> int:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, Var) or tree[0] in ("It", "low", "high"):
        return point[name_of(tree)]
    head, *args = tree
    if head == "INum":
        return _at(args[0], point)
    a, b = (_at(arg, point) for arg in args)
    if head in ("IAdd", "+"):
        return a + b
    if head in ("IMul", "*"):
        return a * b
    if head == "-":
        return a - b
    if head in ("IMin", "min"):
        return min(a, b)
    if head in ("IMax", "max"):
        return max(a, b)
    if head in ("IDiv", "IMod"):
        return a // b if head == "IDiv" else a % b
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return {"/": quotient, "%": a - b * quotient}[head]
