"""Laws of the e-graph whose answers the calculus gives: which of its functions stand behind each.

A rule that requests such a law states no equality of its own. The law's function in ``egraph/laws``
is a tactic, which only proposes arguments, and what it answers is what functions of ``calculus/``
returned. Their equalities are argued in their modules' docstrings; the obligation, that whatever
isn't refused is equal, is tested with arguments at random (``tests/calculus``). That is neither a
proof by Z3 nor a sample of the rule, and is told as what it is: ``by law``.

``tests/verify/test_laws.py`` watches saturations: every answer of a law below has to be the result
of a function that is named beside it. A law that isn't here computes its answers itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

WRITTEN: Final[Mapping[str, tuple[str, ...]]] = {
    "boundary-tighten": ("bound",),
    "distribute": ("split",),
    "expression-fusion": ("inline", "rearrange"),
    "extremum": ("commute",),
    "factor": ("close",),
    "fold-constants": ("close",),
    "fold-terms": ("close",),
    "gather-rows": ("gather",),
    "iterator-merge": ("uncount",),
    "iterator-split": ("reindex",),
    "multiply-out": ("rearrange",),
    "part": ("uninline",),
    "quotient": ("reindex",),
    "read-constants": ("number",),
    "reduction-merge": ("inline", "recount"),
    "reduction-unfold": ("recount",),
    "rfactor": ("reindex",),
    "rows-by-place": ("place",),
    "sum-split": ("close",),
    "term-split": ("split",),
    "traversal-merge": ("inline", "recount"),
    "ungather-rows": ("ungather",),
    "variable-substitution": ("reindex",),
    "view-merge": ("inline",),
}
"""Functions of the calculus by the law that proposes their arguments."""


def behind(law: str) -> str:
    """Where a law's equality is argued; empty for a law that computes its answers itself."""
    names = WRITTEN.get(law, ())
    return ", ".join(f"calculus.{name}" for name in names)
