"""Reduce a rule to the parts in which its sides differ, after its operators are unfolded.

    attention(q, t, v, 1/c)  ->  matmul(softmax(mul(matmul(q, t), full(1/c))), v)

An operator that a rule file defines by a term is replaced by that term, which has the same meaning
at all ranks and in all dtypes. Operators that both sides share at their roots are then removed
(congruence): of ``f(a, b) = f(a, c)``, ``b = c`` is left. What is left to prove is a set of rules
with fewer operators; it is empty if both sides are the same term. Variables that a fact determines
are substituted; the other facts stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from eqsynth.rules import Rule, RuleSet
from eqsynth.rules.definitions import Comprehension
from eqsynth.rules.tree import Tree, Var, is_call, replace_vars, variables
from eqsynth.verify.verdict import Left


def differences(rules: RuleSet, rule: Rule, *, whole: bool = False) -> list[Rule]:
    """The rules that remain to be proved for a rewrite of tensors: one for each part in which its
    sides differ. If no operator was unfolded, this is the rule itself.

    Args:
        whole: keep the operators that both sides share at their roots, since equal wholes may have
            different parts: ``min(h, max(x, l)) = min(max(x, l), h)``.

    Raises:
        Left: an operator's definition has several cases, or conditions.
    """
    assert rule.equality is not None
    facts = [*rule.body, *(("=", Var(name), tree) for name, tree in rule.written)]
    known = Known(facts)
    sides = [_written(rules, known.closed(side)) for side in rule.equality]
    if sides == [known.replaced(side) for side in rule.equality]:
        return [rule]
    pairs = [(sides[0], sides[1])] if whole else list(_apart(rules, *sides))
    # Facts that a term exists may be about terms that aren't in the part. They are left out, which
    # supposes less.
    left = [known.closed(fact) for fact in facts if not _names_a_term(rules, fact)]
    rest = tuple(fact for fact in left if not (fact[0] == "=" and fact[1] == fact[2]))
    return [
        replace(rule, equality=pair, body=(("=", Var("root"), pair[0]), *rest), written=())
        for pair in dict.fromkeys(pairs)
    ]


class Known:
    """The variables that facts determine, each with its term over the other variables."""

    def __init__(self, facts: Sequence[Tree]) -> None:
        self._known: dict[str, Tree] = {}
        cells: dict[str, dict[int, Tree]] = {}
        lengths: dict[str, int] = {}
        for fact in facts:
            if fact[0] != "=":
                continue
            for one, two in (fact[1:], fact[:0:-1]):
                if isinstance(one, Var):
                    self._say(one.name, two)
                    break
                if is_call(one) and isinstance(one[1], Var):
                    if one[0] == "vec-length" and isinstance(two, int):
                        lengths[one[1].name] = two
                    elif one[0] == "vec-get" and isinstance(one[2], int):
                        cells.setdefault(one[1].name, {})[one[2]] = two
        for name, length in lengths.items():
            own = cells.get(name, {})
            if length == 0:
                self._say(name, ("vec-empty",))
            elif own.keys() >= {*range(length)}:
                self._say(name, ("vec-of", *(own[n] for n in range(length))))

    def _say(self, name: str, tree: Tree) -> None:
        """Record that a variable is a term, unless it has a term already or occurs in the term."""
        if name not in self._known and name not in variables(self.replaced(tree)):
            self._known[name] = tree

    def closed(self, tree: Tree) -> Tree:
        return _meant(self.replaced(tree))

    def replaced(self, tree: Tree) -> Tree:
        return replace_vars(tree, lambda var: (
            self.replaced(self._known[var.name]) if var.name in self._known else var))  # fmt: skip


def _meant(tree: Tree) -> Tree:
    """Replace each scope whose body is a number and that reduces nothing by a full tensor of that
    number: ``L_x 0.5 -> full(0.5)``. This is what such a scope means."""
    if not is_call(tree) or tree[0] == "dtype":
        return tree
    match tree:
        case ("Scope", shape, ("vec-empty",), _, ("Num", number)):
            return ("Full", shape, number, ("dtype", tree))
    return (tree[0], *map(_meant, tree[1:]))


def _written(rules: RuleSet, tree: Tree) -> Tree:
    """Unfold, in a term, the operators that rule files define by terms.

    Raises:
        Left: an operator's definition has several cases, or conditions.
    """
    if not is_call(tree):
        return tree
    head, *parts = (tree[0], *(_written(rules, part) for part in tree[1:]))
    definition = rules.definitions.get(head)
    if definition is None or not definition.cases:
        return (head, *parts)
    case = definition.cases[0]
    if isinstance(case.value, Comprehension) or not all(isinstance(a, Var) for a in case.arguments):
        return (head, *parts)
    if len(definition.cases) > 1 or any(not _binds(fact) for fact in case.facts):
        raise Left(f"which of the cases {head} is")
    given: Mapping[str, Tree] = {
        arg.name: part for arg, part in zip(case.arguments, parts, strict=True)
    }
    own = Known(case.facts)
    value: Any = replace_vars(own.closed(case.value), lambda var: given[var.name])
    return _written(rules, value)


def _binds(fact: Tree) -> bool:
    return bool(fact[0] == "=" and isinstance(fact[1], Var) and is_call(fact[2]))


def _names_a_term(rules: RuleSet, fact: Tree) -> bool:
    return any(is_call(side) and rules.known.is_constructor(side[0]) for side in fact[1:])


def _apart(rules: RuleSet, a: Tree, b: Tree) -> Iterator[tuple[Tree, Tree]]:
    """The pairs of smallest subterms (tensors) in which two terms differ."""
    if a == b:
        return
    if is_call(a) and is_call(b) and a[0] == b[0] and len(a) == len(b):
        signature = rules.known.signatures.get(a[0])
        if signature is not None and signature.output == "Tensor":
            both = list(zip(a[1:], b[1:], signature.inputs, strict=True))
            if all(x == y for x, y, sort in both if sort != "Tensor"):
                for x, y, _ in both:
                    yield from _apart(rules, x, y)
                return
    yield a, b
