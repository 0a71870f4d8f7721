"""A sample of a rule, and what samples are drawn from: what the facts say of each variable.

Drawing them is ``patterns.py``'s.
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
"""Extents of the iterators over which loose scalars and indices are built."""

_COMPARISONS: Final = ("<", "<=", ">", ">=", "!=")


@dataclass
class Sample:
    """Terms to be put into an e-graph: tensors, scalars and indices, and facts about scopes.

    Scalars and indices are raw terms of the schema over tensors, since a rule may be about a form
    that the IR never makes, as ``x + 0``.

    Attributes:
        slots: extents of the iterators of the loose ones.
    """

    tensors: list[Tensor] = field(default_factory=list)
    raw: list[tuple[str, Any]] = field(default_factory=list)
    derived: list[Scope] = field(default_factory=list)
    slots: tuple[int, ...] = SLOTS


class Template:
    """What every sample of one rule is built from: its facts, by what they say of a variable."""

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
        # What an attribute is compared with, which is drawn at the boundary: x in `(<= x (+ y 1))`.
        self.compared: list[tuple[Tree, Tree]] = []
        # ("shape", x) -> what the facts say that the shape of x is, and so its dtype.
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
        # From which scopes are drawn; the checker keeps those on which the rule fires.
        self.families: tuple[Family, ...] = ALL_FAMILIES
        # Those that a rule of scopes says by its own left side.
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
        """The row of an operator, of the table or of a rule file.

        Raises:
            Rejected: there is none.
        """
        row = self.defined.get(name) or OPERATORS.get(name)
        if row is None:
            raise Rejected(f"no samples of {name}")
        return row

    def of(self, name: str) -> Template:
        """The template of another rule, which defines an operator that this one is about."""
        if name not in self._others:
            self._others[name] = Template(self.rules[name], self.rules)
        return self._others[name]

    @property
    def has_scopes(self) -> bool:
        """Whether samples are drawn from families of scopes."""
        return any(tree[0] == "Scope" for tree in self.definitions.values())
