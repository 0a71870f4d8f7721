"""A `RuleSet`: the loaded declarations and rules, selected by name and by class.

Not here: loading (`load.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from eqsynth.errors import RuleError
from eqsynth.rules.definitions import Case, Definition
from eqsynth.rules.forms import nearest
from eqsynth.rules.rule import Rule
from eqsynth.rules.sorts import Declarations


@dataclass(frozen=True)
class RuleSet:
    """The loaded declarations and rules; plain data, which can be sent to a worker process.

    Attributes:
        definitions: name -> the operator that a user's file declares, with a definition or without.
        meanings: built-in operator -> the comprehensions that define it.
    """

    declarations: tuple[str, ...]
    known: Declarations
    rulesets: tuple[str, ...]
    rules: tuple[Rule, ...]
    definitions: Mapping[str, Definition] = field(default_factory=dict)
    meanings: Mapping[str, tuple[Case, ...]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Rule:
        for rule in self.rules:
            if rule.name == name:
                return rule
        raise RuleError(f"there is no rule {name}", got=name, hint=nearest(name, self.names))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(rule.name for rule in self.rules)

    def of(self, ruleset: str) -> tuple[Rule, ...]:
        """Return the rules of a ruleset, in the order of the files.

        Raises:
            RuleError: there is no such ruleset.
        """
        if ruleset not in self.rulesets:
            raise RuleError(
                f"unknown ruleset {ruleset}", got=ruleset, hint=nearest(ruleset, self.rulesets)
            )
        return tuple(rule for rule in self.rules if rule.ruleset == ruleset)

    def without(self, *names: str) -> RuleSet:
        """Return the same declarations without the named rules, to see what a rule contributes.

        A law without its request rule gives no answers.

        Raises:
            RuleError: there is no such rule.

        >>> from eqsynth.rules import load_rules
        >>> rules = load_rules()
        >>> "factor" in rules.names, "factor" in rules.without("factor").names
        (True, False)
        """
        dropped = {self[name].name for name in names}
        return replace(self, rules=tuple(r for r in self.rules if r.name not in dropped))

    def only(self, names: Iterable[str]) -> RuleSet:
        """Return the same declarations with the named rules only. Analyses always stay. For a law,
        the rules that request it and the rules that apply its answers stay.

        Args:
            names: names of rules and laws.

        >>> from eqsynth.rules import load_rules
        >>> kept = load_rules().only(["factor"])
        >>> [rule.name for rule in kept.rules if rule.kind != "analysis"]
        ['factor', 'factor-apply']
        """
        asked = frozenset(names)
        laws = {rule.law for rule in self.rules if rule.law and {rule.name, rule.law} & asked}
        rules = tuple(
            rule
            for rule in self.rules
            if rule.kind == "analysis" or rule.name in asked or rule.law in laws
        )
        return replace(self, rules=rules)

    def select(
        self,
        *,
        numerics: Iterable[str] = ("bitwise", "real"),
        statuses: Iterable[str] = ("definition", "proved", "validated"),
        asked_for: Iterable[str | Path] = (),
    ) -> RuleSet:
        """Return the same declarations with the rules of these classes only; analyses always stay.

        Rules of the files ``asked_for`` stay with any status, since the user has named the files.
        """
        named = {Path(path).resolve() for path in asked_for}
        classes, accepted = frozenset(numerics), frozenset(statuses)
        rules = tuple(
            rule
            for rule in self.rules
            if rule.kind == "analysis"
            or (
                rule.numerics.kind in classes
                and (rule.status in accepted or Path(rule.file).resolve() in named)
            )
        )
        return replace(self, rules=rules)
