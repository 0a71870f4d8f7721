"""What the engine knows of a law: its tactic, and how its requests and answers are handled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eqsynth.egraph.tactics.requests import Law
from eqsynth.egraph.tactics.variants import Variants
from eqsynth.rules.claim import Class
from eqsynth.rules.scope_rules.syntax import ScopeRule


@dataclass(frozen=True)
class Entry:
    """One law of the table ``LAWS``, or of a rule of scopes.

    Attributes:
        tactic: proposes answers to a request.
        numerics: what the answers keep of the digits. A rule that requests the law must not claim
            more. For definitions and views the rule itself states it, and its samples test it.
        about: which term a request is about, and an answer equals: the ``scope`` in the row, the
            e-``class`` as a whole, the ``rows`` of a table that an embedding or a gather picks, or
            the ``weights`` of attention, a softmax.
        means: the answers say what a term computes. Constants are asked for such laws only: a
            constant is computed once, so other ways to compute it aren't worth deriving.
        again: the tactic looks at the members of the e-classes that a scope reads, so the law is
            asked again when one of them gets new members.
        operators: the answers are operators for a scope or a product.
        variants: the limit on the scopes that one e-class takes from the law, where its answers
            compute the same tensor in more or fewer steps; None if there is no limit.
        stated: the rule of scopes that the law stands for; None for the laws of the table.
    """

    tactic: Law
    numerics: Class = "real"
    about: Literal["scope", "class", "rows", "weights"] = "scope"
    means: bool = False
    again: bool = False
    operators: bool = False
    variants: Variants | None = None
    stated: ScopeRule | None = None
