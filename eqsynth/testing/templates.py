"""Templates of samples: the facts of a rule, sorted by the variable that they are about.

Not here: drawing samples from a template (``patterns.py``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from eqsynth.egraph.defined import operators_of
from eqsynth.ir.operators import OPERATORS, Operator
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.rules import Rule, RuleSet, Tree, Var
from eqsynth.rules.sorts import infer_sorts
from eqsynth.testing.choices import Rejected
from eqsynth.testing.families import ALL_FAMILIES, Family
from eqsynth.testing.literals import literals_of
from eqsynth.testing.scope_rule_samples import families_of

SLOTS: Final = (4, 6, 3)
"""The extents of the iterators of scalars and indices that aren't part of a scope."""

_COMPARISONS: Final = ("<", "<=", ">", ">=", "!=")


@dataclass
class Sample:
    """Terms that are put into an e-graph, on which a rule may match.

    Attributes:
        tensors: terms of the IR.
        raw: scalars and indices that stand alone, with their sort. They are raw terms, since a rule
            may match a form that the IR never has, such as ``x + 0``.
        derived: the scopes that are marked as made by a derivation.
        slots: the extents of the iterators of ``raw``.
    """

    tensors: list[Tensor] = field(default_factory=list)
    raw: list[tuple[str, Any]] = field(default_factory=list)
    derived: list[Scope] = field(default_factory=list)
    slots: tuple[int, ...] = SLOTS


class Template:
    """The facts of a rule, sorted for building samples.

    Attributes:
        definitions: variable -> the term that a fact equates it with: ``(= e (Relu x))``.
        hints: variable -> other values that facts equate it with: ``(= n (+ k 1))``.
        elements: vector -> position -> the value of the element there.
        lengths: vector -> its length.
        compared: pairs of compared values; a sample may put one at the boundary of the other.
        types: ("shape" or "dtype", variable) -> values that facts give for it.
        relations: the names of the relations among the facts.
        constants: the variables that must be constant.
        families: the families of scopes that samples are drawn from.
        own_families: the families that match the left side of a rule of scopes.
        true, asked: how often each condition held on a sample, and was evaluated.
    """

    def __init__(self, rule: Rule, rules: RuleSet) -> None:
        self.rule = rule
        self.known = known = rules.known
        self.rules = rules
        self.defined = operators_of(rules.definitions)
        self.literals = literals_of(rule, rules.definitions)
        self.sorts = {n: min(s) for n, s in infer_sorts(rule.body, known).items() if len(s) == 1}
        self.definitions: dict[str, Tree] = {}
        self.hints: dict[str, list[Tree]] = {}
        self.elements: dict[str, dict[int, Tree]] = {}
        self.lengths: dict[str, int] = {}
        self.compared: list[tuple[Tree, Tree]] = []
        self.types: dict[tuple[str, str], list[Tree]] = {}
        self.relations: set[str] = set()
        self.constants: set[str] = set()
        for fact in rule.body:
            if fact[0] == "=":
                self._equal(fact[1], fact[2])
                self._equal(fact[2], fact[1])
            elif fact[0] in _COMPARISONS:
                self.compared += [(fact[1], fact[2]), (fact[2], fact[1])]
            elif fact[0] in known.signatures:
                self.relations.add(fact[0])
                if fact[0] == "constant" and isinstance(fact[1], Var):
                    self.constants.add(fact[1].name)
        self.families: tuple[Family, ...] = ALL_FAMILIES
        self.own_families = families_of(rule.scopes) if rule.scopes else ()
        self._others: dict[str, Template] = {}
        self.true: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()

    def _equal(self, side: Tree, other: Tree) -> None:
        if isinstance(side, Var):
            if isinstance(other, tuple) and self.known.is_constructor(other[0]):
                self.definitions.setdefault(side.name, other)
            else:
                self.hints.setdefault(side.name, []).append(other)
        elif isinstance(side, tuple) and len(side) > 1 and isinstance(side[1], Var):
            if side[0] == "vec-get" and isinstance(side[2], int):
                self.elements.setdefault(side[1].name, {})[side[2]] = other
            elif side[0] in ("shape", "dtype"):
                self.types.setdefault((side[0], side[1].name), []).append(other)
            elif side[0] == "vec-length" and isinstance(other, int):
                self.lengths[side[1].name] = other

    def row(self, name: str) -> Operator:
        """The row of an operator, from the IR's table or from a rule file.

        Raises:
            Rejected: there is none.
        """
        row = self.defined.get(name) or OPERATORS.get(name)
        if row is None:
            raise Rejected(f"no samples of {name}")
        return row

    def of(self, name: str) -> Template:
        """The template of another rule, which defines an operator that occurs in this one."""
        if name not in self._others:
            self._others[name] = Template(self.rules[name], self.rules)
        return self._others[name]

    @property
    def has_scopes(self) -> bool:
        """Whether samples are drawn from families of scopes."""
        return any(tree[0] == "Scope" for tree in self.definitions.values())
