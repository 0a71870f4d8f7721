"""The functions of the calculus that compute the answers of each law, for the outcome ``by law``.

    like-terms  ->  calculus.rearrange

A rule that requests a law states no equality itself. The law is a tactic (``egraph/tactics``) that
only proposes steps of the calculus. ``egraph/answers.py`` applies these steps and unites the
results, so no term that a tactic builds itself gets into an e-graph. Why each function of the
calculus keeps the meaning of a term is argued in the docstring of its module. That each result
which a function doesn't refuse is equal is tested with random arguments (``tests/calculus``) and
with tactics that propose random steps (``tests/egraph/test_hostile_tactics.py``). This is neither a
proof by Z3 nor a sample of the rule, so it has its own outcome: ``by law``.

``tests/verify/test_laws.py`` watches saturations and checks that each step of a law calls a
function that is listed for that law below.

Some laws propose arguments of the one function of ``expansion/``, which puts terms into forms in
which two proofs meet. ``ARGUED`` names the file with its proof, and the test of that proof with
random arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

WRITTEN: Final[Mapping[str, tuple[str, ...]]] = {
    "boundary-tighten": ("same",),
    "broadcast-beyond": ("inline",),
    "canonical-form": ("derive",),
    "clamp": ("cover",),
    "common-factor": ("inline", "same"),
    "correlate": ("match",),
    "correlate-losing": ("match",),
    "definition": ("define",),
    "derived-constants": ("number",),
    "derived-form": ("derive",),
    "divided": ("inline", "rearrange"),
    "distribute": ("inline", "rearrange", "same"),
    "expression-fusion": ("inline", "rearrange"),
    "expression-split": ("same",),
    "extremum": ("commute", "inline", "inside"),
    "factor": ("close",),
    "fold-constants": ("close",),
    "fold-terms": ("close", "inline"),
    "gather-rows": ("define",),
    "hide": ("hide",),
    "gather-along": ("define",),
    "identity-view": ("match",),
    "invariants": ("same",),
    "iterator-merge": ("match",),
    "iterator-split": ("same",),
    "like-terms": ("rearrange",),
    "match-conv-transpose2d": ("match",),
    "match-conv2d": ("match",),
    "match-cumsum": ("match", "number", "recount"),
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
    "shared-places": ("recount",),
    "quotient": ("same",),
    "reach": ("reach",),
    "read-constants": ("number",),
    "reduction": ("define",),
    "reduction-merge": ("inline",),
    "reduction-unfold": ("recount",),
    "restrict": ("restrict",),
    "rfactor": ("recount", "same"),
    "rows-by-place": ("define",),
    "stack": ("match",),
    "sum-split": ("close",),
    "tap-merge": ("same",),
    "term-split": ("inline", "same"),
    "traversal-merge": ("inline",),
    "traversal-order": ("close",),
    "ungather-rows": ("match",),
    "unclip": ("unclip",),
    "variable-substitution": ("same",),
    "view": ("define",),
    "view-merge": ("inline",),
    "window-split": ("close", "recount"),
}
"""Law -> the functions of the calculus to which the law proposes arguments."""


_EXPANSION: Final = ("eqsynth/expansion/expanded.py", "tests/expansion/test_expanded.py")

ARGUED: Final[Mapping[str, tuple[str, str]]] = {
    "expand": _EXPANSION, "expand-cancels": _EXPANSION, "expand-points": _EXPANSION,
}  # fmt: skip
"""Law of expanded forms -> the file whose docstring has its proof, and the test."""


def behind(law: str) -> str:
    """The text that names the functions or the file in which the equality of a law's answers is
    argued; empty for an unknown law."""
    if law in ARGUED:
        proof, test = ARGUED[law]
        return f"the proof that {proof} begins with (tested: {test})"
    return ", ".join(f"calculus.{name}" for name in WRITTEN.get(law, ()))
