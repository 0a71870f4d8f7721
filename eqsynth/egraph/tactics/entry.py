"""What the engine knows of a law: its tactic, and how its requests and answers are handled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eqsynth.egraph.tactics.requests import Law


@dataclass(frozen=True)
class Entry:
    """One law of the table ``LAWS``.

    Attributes:
        tactic: proposes answers to a request.
        numerics: what the answers keep of the digits. A rule that requests the law must not claim
            more. For definitions and views the rule itself states it, and its samples test it.
        about: which term a request is about, and an answer equals: the ``scope`` in the row, the
            e-``class`` as a whole, or the ``rows`` of a table that an embedding gathers.
        means: the answers say what a term computes. Constants are asked for such laws only: a
            constant is computed once, so other ways to compute it aren't worth deriving.
        again: the tactic looks at the members of the e-classes that a scope reads, so the law is
            asked again when one of them gets new members.
        operators: the answers are operators for a scope or a product.
        computed: the law still computes its answers itself, and its terms are put into the e-graph
            unchecked. All others answer with steps of the calculus, which ``answers.py`` applies.
    """

    tactic: Law
    numerics: str = "real"
    about: Literal["scope", "class", "rows"] = "scope"
    means: bool = False
    again: bool = False
    operators: bool = False
    computed: bool = False
