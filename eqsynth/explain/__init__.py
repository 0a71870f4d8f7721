"""Explanations: why an optimized program is equal to the original.

``explanation.py`` has the derivation, as steps and as lemmas. ``changes.py`` finds the regions of
the program that the derivation changed, ``told.py`` writes them as text, ``page.py`` as HTML. Not
here: how a derivation is found in the log of the e-graph (``egraph/explanation.py``).
"""

from eqsynth.explain.explanation import (
    Explanation,
    Lemma,
    Link,
    NoExplanation,
    RewriteStep,
    explain_plan,
    planned_terms,
    planned_values,
)
from eqsynth.explain.page import Page

__all__ = [
    "Page",
    "Explanation", "Lemma", "Link", "NoExplanation", "RewriteStep", "explain_plan",
    "planned_terms", "planned_values",
]  # fmt: skip
