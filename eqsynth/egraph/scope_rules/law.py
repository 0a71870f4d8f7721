"""Rules of scopes as laws, which answer requests for scopes.

Like the laws of products, they answer only for scopes in normal form (ARCHITECTURE.md): in
canonical form, not made by a derivation, with numbers in the place of constants, and, if a product,
with everything inlined that can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from eqsynth.calculus.conditions import is_product
from eqsynth.egraph.tactics.entry import Entry
from eqsynth.egraph.tactics.requests import (
    Later,
    Stated,
    inlinable,
    number_of,
    reads_a_sum,
    underived,
    without_constants,
)
from eqsynth.egraph.view import View
from eqsynth.ir.scalar import Num, Read, leaves, tensors
from eqsynth.ir.tensor import ClassRef, Tensor
from eqsynth.rules import RuleSet
from eqsynth.rules.scope_rules.syntax import Apply, Has, ScopeRule


def laws_of(rules: RuleSet) -> Mapping[str, Entry]:
    """The laws of the rules of scopes, by the rules' names.

    A rule of maps says what each element is, so it is asked of constants too: a diagonal matrix of
    weights has to be seen where it is read. Ways to compute a sum aren't worth it for a constant.
    """
    return {
        rule.law: Entry(
            partial(_due, rule.scopes), means=not rule.scopes.left.reducer, stated=rule.scopes
        )
        for rule in rules.rules
        if rule.scopes is not None and rule.kind == "law-request"
    }


def _due(rule: ScopeRule, view: View, row: Sequence[Any]) -> Iterable[Stated]:
    scope = underived(view, row)
    if without_constants(view, scope) is not None:
        raise Later
    if is_product(scope) and inlinable(view, scope) is not None:
        raise Later
    if any(isinstance(c, Has) and c.what == "summed" for c in rule.conditions):
        if not reads_a_sum(view, scope):
            raise Later
    if _chooses_finite(rule) and any(_has_infinity(view, t, set()) for t in tensors(scope.body)):
        return []
    return [Stated()]


def _chooses_finite(rule: ScopeRule) -> bool:
    """Whether the rule makes a product of a choice, ``where(c, F, 0) => [c] * F if finite F``."""
    chooses = isinstance(rule.left.body, Apply) and rule.left.body.fn == "where"
    return chooses and any(isinstance(c, Has) and c.what == "finite" for c in rule.conditions)


def _has_infinity(view: View, tensor: Tensor, seen: set[Tensor]) -> bool:
    """Whether the program puts an infinity into the tensor, or into one that it is computed from.

    ``where(seen, where(seen, s, -inf) - m, 0)`` hides each -inf that the program has written; in a
    product it would be 0 * -inf. Elements are finite otherwise (ARCHITECTURE.md)."""
    if tensor in seen or not isinstance(tensor, ClassRef):
        return False
    seen.add(tensor)
    number = number_of(view, tensor)
    if number is not None and not math.isfinite(number):
        return True
    for scope in view.scopes(tensor):
        for leaf in leaves(scope.body):
            told = leaf.value if isinstance(leaf, Num) else getattr(leaf, "fill", 0.0)
            if not math.isfinite(told) and not scope.reduction:
                return True
            if isinstance(leaf, Read) and _has_infinity(view, leaf.tensor, seen):
                return True
    return False
