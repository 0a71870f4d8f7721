"""What was loaded: declarations and rules as data, by name and by class. Loading is `load.py`'s."""

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
    """Everything that was loaded; plain data, so that a worker process can be given it.

    Attributes:
        definitions: the operators that files of users declare, by name, defined or not.
        meanings: the comprehensions by which eqsynth's own files define its operators, by name.
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
        """The rules of a ruleset, in the order of the files.

        Raises:
            RuleError: no such ruleset.
        """
        if ruleset not in self.rulesets:
            raise RuleError(
                f"unknown ruleset {ruleset}", got=ruleset, hint=nearest(ruleset, self.rulesets)
            )
        return tuple(rule for rule in self.rules if rule.ruleset == ruleset)

    def without(self, *names: str) -> RuleSet:
        """The same declarations without some rules: what does a rule do that no other does?

        A law is asked by its request rule; without that it gives no answers.

        Raises:
            RuleError: no such rule.

        >>> from eqsynth.rules import load_rules
        >>> rules = load_rules()
        >>> "factor" in rules.names, "factor" in rules.without("factor").names
        (True, False)
        """
        dropped = {self[name].name for name in names}
        return replace(self, rules=tuple(r for r in self.rules if r.name not in dropped))

    def only(self, names: Iterable[str]) -> RuleSet:
        """The same declarations with these rules alone. Analyses always stay, and of a law all
        rules do: those that request it, and what is done with its answers.

        Args:
            names: of rules and laws.

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
        """The same declarations with the rules of these classes only; analyses always stay.

        Rules of the files ``asked_for`` stay whatever their status: naming a file is asking.
        """
        named = {Path(path).resolve() for path in asked_for}
        classes, accepted = frozenset(numerics), frozenset(statuses)
        rules = tuple(
            rule
            for rule in self.rules
            if rule.kind == "analysis"
            or (
                rule.numerics.split()[0] in classes
                and (rule.status in accepted or Path(rule.file).resolve() in named)
            )
        )
        return replace(self, rules=rules)
