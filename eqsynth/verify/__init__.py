"""Prove a rule for all sizes, or refute it with numbers: ``eqsynth rules verify``.

A rule claims an equality for all indices, extents and ranks that its facts allow. This package
writes the claim as a formula and asks Z3. A rule that isn't proved is tested on numbers: an index
rule on the numbers that Z3 finds, a rule of tensors or scalars on samples of ``testing/``. The rule
is *refuted* only if its sides differ when they are evaluated on these numbers. A rule that is
neither proved nor refuted is *not proved*, and the verdict says what is left to show.

z3 is an optional dependency (``pip install eqsynth[verify]``): only this package imports it, and
only when a rule is verified. Not here: drawing samples and evaluating rules on them (``testing/``);
a rule may pass all samples and still be "not proved".
"""

from __future__ import annotations

from eqsynth.verify.verdict import OUTCOMES, Outcome, Verdict
from eqsynth.verify.verifying import LIMIT_S, to_verify, verify_rule, verify_rules, z3_version

__all__ = [
    "LIMIT_S", "OUTCOMES", "Outcome", "Verdict", "to_verify", "verify_rule", "verify_rules",
    "z3_version",
]  # fmt: skip
