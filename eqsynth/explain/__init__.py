"""Why a result is equal to the original: the derivation (``explanation.py``), the regions of the
program that it changed (``changes.py``), and these as text (``told.py``)."""

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
