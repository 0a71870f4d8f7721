"""Rules of scopes among the laws: each is asked about the scopes that its requests are filed for.

As the laws of products do, they wait for the normal form (ARCHITECTURE.md): a scope in canonical
form that no derivation made, and a product with everything inlined that can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from eqsynth.calculus.conditions import is_product
from eqsynth.egraph.scope_rules.building import answers
from eqsynth.egraph.tactics.requests import Later, Law, inlinable, underived
from eqsynth.egraph.view import View
from eqsynth.ir.tensor import Tensor
from eqsynth.rules import RuleSet
from eqsynth.rules.scope_rules.syntax import ScopeRule


def laws_of(rules: RuleSet) -> Mapping[str, Law]:
    """The laws that the rules of scopes state, by the names of the rules."""
    return {
        rule.law: partial(_answered, rule.scopes)
        for rule in rules.rules
        if rule.scopes is not None and rule.kind == "law-request"
    }


def _answered(rule: ScopeRule, view: View, row: Sequence[Any]) -> Iterable[Tensor]:
    scope = underived(view, row)
    if is_product(scope) and inlinable(view, scope) is not None:
        raise Later
    return answers(rule, scope)
