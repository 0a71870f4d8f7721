"""Rules proved for all sizes, or refuted with numbers: ``eqsynth rules verify``.

What a rule says is true, or isn't, of all indices, extents and ranks that its facts allow. Here it
is a formula, and Z3 decides it; where it finds numbers that make the rule false, the rule is fired
on them in an e-graph and judged by the interpreter before anybody is told. What is neither proved
nor refuted is *not proved*, with what is left to show.

z3 is imported in this room only, and when a rule is verified (``pip install eqsynth[verify]``).
Not here: samples and their judging (``testing/``), on which "not proved" says nothing.
"""

from __future__ import annotations

from eqsynth.verify.verdict import OUTCOMES, Outcome, Verdict
from eqsynth.verify.verifying import LIMIT_S, to_verify, verify_rule, verify_rules

__all__ = [
    "LIMIT_S", "OUTCOMES", "Outcome", "Verdict", "to_verify", "verify_rule", "verify_rules",
]  # fmt: skip
