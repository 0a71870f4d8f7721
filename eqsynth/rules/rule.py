"""A rule as data: what the catalogue, the scheduler, the engine and `explain` know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eqsynth.rules.scope_rules.syntax import ScopeRule
from eqsynth.rules.tree import Tree, instantiate

Kind = Literal["rewrite", "law-request", "law-apply", "analysis"]


@dataclass(frozen=True)
class Rule:
    """One named rule.

    `rewrite` unites two terms and runs in two phases: a match phase fills `relation` with the
    values of `columns`, an apply phase unites. `law-request` files requests in `relation`,
    Python answers, `law-apply` unites with the answer. `analysis` derives facts about classes.

    A `match_ruleset` or `apply_ruleset` that is empty is a phase that the rule does not have;
    analyses of one ruleset share theirs. `program` is the egglog text of the rule, `body` are the
    facts that its author wrote, `written` what stands in the author's text for each variable that
    the loader named: an expression, or `_`. `actions` are what an analysis sets, and what a request
    or an answer does, over those names. `scopes` is what a rule of scopes says.
    """

    name: str
    kind: Kind
    ruleset: str
    file: str
    line: int
    comment: str
    source: str
    numerics: str
    status: str
    equality: tuple[Tree, Tree] | None
    conditions: tuple[str, ...]
    relation: str
    columns: tuple[tuple[str, str], ...]
    match_ruleset: str
    apply_ruleset: str
    program: tuple[str, ...]
    body: tuple[Tree, ...]
    written: tuple[tuple[str, Tree], ...]
    actions: tuple[Tree, ...] = ()
    scopes: ScopeRule | None = None

    @property
    def law(self) -> str:
        """Name of the computed law that the rule belongs to, or an empty text."""
        if self.kind == "law-request":
            return self.relation.removesuffix("-request")
        if self.kind == "law-apply":
            return self.relation.removesuffix("-answer")
        return ""

    def binding(self, match: Sequence[Any]) -> Mapping[str, Any]:
        """The values of the variables in one row of `relation`."""
        return {name: value for (name, _), value in zip(self.columns, match, strict=True)}

    def instance(self, match: Sequence[Any]) -> tuple[Tree, Tree]:
        """Both sides of the equality that a match stands for, as ground terms."""
        if self.equality is None:
            raise ValueError(f"{self.name} states no equality")
        binding = self.binding(match)
        left, right = self.equality
        return instantiate(left, binding), instantiate(right, binding)
