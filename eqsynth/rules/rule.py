"""A rule as data, for the catalogue, the scheduler, the engine and `explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eqsynth.rules.claim import Claim
from eqsynth.rules.scope_rules.syntax import ScopeRule
from eqsynth.rules.tree import Tree, instantiate

Kind = Literal["rewrite", "law-request", "law-apply", "analysis"]


@dataclass(frozen=True)
class Rule:
    """One named rule.

    The kind `rewrite` unites two terms in two phases: the match phase fills `relation` with the
    values of `columns`, and the apply phase unites. The kind `law-request` adds requests to
    `relation`, which Python answers; `law-apply` unites with an answer. `law` is the name of the
    law that these two request or apply; other rules have none. The kind `analysis` derives facts
    about e-classes.

    An empty `match_ruleset` or `apply_ruleset` means that the rule doesn't have this phase; the
    analyses of one ruleset share theirs. `program` is the egglog text of the rule, and `body` the
    author's facts. `written` maps each variable that the loader introduced to the author's text
    that it replaces: an expression, or `_`. `actions` are the actions of an analysis, a request or
    an answer, over the same variables. `scopes` is the syntax tree of a rule of scopes.
    """

    name: str
    kind: Kind
    ruleset: str
    file: str
    line: int
    comment: str
    source: str
    numerics: Claim
    status: str
    equality: tuple[Tree, Tree] | None
    conditions: tuple[str, ...]
    relation: str
    law: str
    columns: tuple[tuple[str, str], ...]
    match_ruleset: str
    apply_ruleset: str
    program: tuple[str, ...]
    body: tuple[Tree, ...]
    written: tuple[tuple[str, Tree], ...]
    actions: tuple[Tree, ...] = ()
    scopes: ScopeRule | None = None

    def binding(self, match: Sequence[Any]) -> Mapping[str, Any]:
        """Return the values of the variables in one row of `relation`."""
        return {name: value for (name, _), value in zip(self.columns, match, strict=True)}

    def instance(self, match: Sequence[Any]) -> tuple[Tree, Tree]:
        """Return both sides of the equality that a match states, as ground terms."""
        if self.equality is None:
            raise ValueError(f"{self.name} states no equality")
        binding = self.binding(match)
        left, right = self.equality
        return instantiate(left, binding), instantiate(right, binding)
