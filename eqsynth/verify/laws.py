"""Laws of the e-graph whose answers the calculus gives: which of its functions stand behind each.

A rule that requests such a law states no equality of its own. The law's function is a tactic
(``egraph/tactics``), which says steps of the calculus; whoever unites applies them
(``egraph/answers.py``), so that no term of a tactic's own gets into an e-graph. The functions'
equalities are argued in their modules' docstrings; the obligation, that whatever isn't refused is
equal, is tested with arguments at random (``tests/calculus``), and with tactics that say steps at
random (``tests/egraph/test_hostile_tactics.py``). That is neither a proof by Z3 nor a sample of the
rule, and is told as what it is: ``by law``.

``tests/verify/test_laws.py`` watches saturations: each step of a law below has to be of a function
that is named beside it.

Two laws compute their answers themselves (``COMPUTED`` of ``egraph/tactics/table.py``): the forms
in which proofs meet. Their proof is written where they are computed (``ARGUED``), with a test of
random arguments as its obligation, and is told as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

WRITTEN: Final[Mapping[str, tuple[str, ...]]] = {
    "boundary-tighten": ("same",),
    "canonical-form": ("derive",),
    "common-factor": ("same",),
    "correlate": ("match",),
    "correlate-losing": ("match",),
    "definition": ("define",),
    "derived-constants": ("number",),
    "derived-form": ("derive",),
    "distribute": ("inline", "rearrange", "same"),
    "expression-fusion": ("inline",),
    "expression-split": ("same",),
    "extremum": ("commute", "inline", "inside"),
    "factor": ("close",),
    "fold-constants": ("close",),
    "fold-terms": ("close", "inline"),
    "gather-rows": ("gather",),
    "identity-view": ("whole",),
    "invariants": ("same",),
    "iterator-merge": ("uncount",),
    "iterator-split": ("same",),
    "like-terms": ("rearrange",),
    "match-conv-transpose2d": ("match",),
    "match-conv2d": ("match",),
    "match-epilogue": ("match",),
    "match-g2bmm": ("match",),
    "match-gbmm": ("match",),
    "match-matmul": ("match",),
    "match-view": ("match",),
    "merge-conv2ds": ("match",),
    "merge-matmuls": ("match",),
    "multiply-out": ("inline", "rearrange"),
    "operand-split": ("inline", "least", "same"),
    "part": ("same",),
    "phase-select": ("recount",),
    "quotient": ("same",),
    "reach": ("reach",),
    "read-constants": ("number",),
    "reduction": ("define",),
    "reduction-merge": ("inline",),
    "reduction-unfold": ("recount",),
    "restrict": ("restrict",),
    "rfactor": ("recount", "same"),
    "rows-by-place": ("place",),
    "stack": ("match",),
    "sum-split": ("close",),
    "tap-merge": ("same",),
    "term-split": ("inline", "same"),
    "traversal-merge": ("inline",),
    "traversal-order": ("close",),
    "ungather-rows": ("ungather",),
    "variable-substitution": ("same",),
    "view": ("define",),
    "view-merge": ("inline",),
    "window-split": ("close", "recount"),
}
"""Functions of the calculus by the law that proposes their arguments."""


_EXPANSION: Final = ("eqsynth/egraph/tactics/expansion.py", "tests/egraph/test_expansion.py")

ARGUED: Final[Mapping[str, tuple[str, str]]] = {
    "expand": _EXPANSION, "expand-cancels": _EXPANSION, "expand-points": _EXPANSION,
}  # fmt: skip
"""Of laws that compute their answers: the file whose docstring proves them, and the test of it."""


def behind(law: str) -> str:
    """Where a law's equality is argued; empty if it isn't."""
    if law in ARGUED:
        proof, test = ARGUED[law]
        return f"the proof that {proof} begins with (tested: {test})"
    return ", ".join(f"calculus.{name}" for name in WRITTEN.get(law, ()))
