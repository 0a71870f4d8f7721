"""Rules of scopes as laws, which answer requests for scopes.

Like the laws of products, they answer only for scopes in normal form (ARCHITECTURE.md): in
canonical form, not made by a derivation, with numbers in the place of constants, and, if a product,
with everything inlined that can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eqsynth.calculus.conditions import is_product
from eqsynth.egraph.tactics.entry import Entry
from eqsynth.egraph.tactics.requests import Later, Stated, inlinable, underived, without_constants
from eqsynth.egraph.view import View
from eqsynth.rules import RuleSet


def laws_of(rules: RuleSet) -> Mapping[str, Entry]:
    """The laws of the rules of scopes, by the rules' names."""
    return {
        rule.law: Entry(_due, means=rule.scopes.constants, stated=rule.scopes)
        for rule in rules.rules
        if rule.scopes is not None and rule.kind == "law-request"
    }


def _due(view: View, row: Sequence[Any]) -> Iterable[Stated]:
    scope = underived(view, row)
    if without_constants(view, scope) is not None:
        raise Later
    if is_product(scope) and inlinable(view, scope) is not None:
        raise Later
    return [Stated()]
