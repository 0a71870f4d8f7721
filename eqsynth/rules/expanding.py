"""Forms of rule files that expand to several others: ``(define …)`` to a declaration and rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from eqsynth.rules import ask, define
from eqsynth.rules.forms import Form
from eqsynth.rules.scope_rules import expansion
from eqsynth.rules.scope_rules.syntax import ScopeRule
from eqsynth.rules.sorts import Declarations

HEADS: Final = (expansion.HEAD, ask.HEAD, define.HEAD)
# Forms that expand to one form for each row of a table.
TABLES: Final = {
    define.OPERATORS_HEAD: define.declarations,
    define.FUNCTIONS_HEAD: define.functions,
}


@dataclass(frozen=True)
class Expanded:
    """The expansion of a form.

    Attributes:
        numerics, status: the classes that the form states for its rules; empty if it states none.
        forms: the forms that are loaded in its place.
        named: the rule among them that has the form's own name.
    """

    numerics: str
    forms: Sequence[Form]
    named: Form
    scopes: ScopeRule | None = None
    status: str = ""


def expanded(form: Form, known: Declarations) -> Expanded:
    """Expand a form whose head is in ``HEADS``.

    Raises:
        RuleError: the form has a mistake, with the mistake's place in the file.
    """
    if form.head == define.HEAD:
        numerics, forms = define.expand_define(form, known)
        return Expanded(numerics, forms, forms[-1], status="definition")
    if form.head == ask.HEAD:
        numerics, forms = ask.expand_ask(form, known)
        return Expanded(numerics, forms, _first_rule(forms))
    rule = expansion.expand(form)
    return Expanded(rule.numerics, rule.forms, _first_rule(rule.forms), rule.rule)


def _first_rule(forms: Sequence[Form]) -> Form:
    return next(form for form in forms if form.head == "rule")
