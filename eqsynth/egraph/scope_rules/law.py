"""Rules of scopes as laws, which answer requests for scopes.

Like the laws of products, they answer only for scopes in normal form (ARCHITECTURE.md): in
canonical form, not made by a derivation, and, if a product, with everything inlined that can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from eqsynth.calculus.conditions import is_product
from eqsynth.egraph.scope_rules.building import answers
from eqsynth.egraph.tactics.entry import Entry
from eqsynth.egraph.tactics.requests import Later, inlinable, underived
from eqsynth.egraph.view import View
from eqsynth.ir.tensor import Tensor
from eqsynth.rules import RuleSet
from eqsynth.rules.scope_rules.syntax import ScopeRule


def laws_of(rules: RuleSet) -> Mapping[str, Entry]:
    """The laws of the rules of scopes, by the rules' names."""
    return {
        rule.law: Entry(partial(_answered, rule.scopes), computed=True)
        for rule in rules.rules
        if rule.scopes is not None and rule.kind == "law-request"
    }


def _answered(rule: ScopeRule, view: View, row: Sequence[Any]) -> Iterable[Tensor]:
    scope = underived(view, row)
    if is_product(scope) and inlinable(view, scope) is not None:
        raise Later
    return answers(rule, scope)
