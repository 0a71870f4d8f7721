"""Checks that other test suites can use too."""

from eqsynth.testing.consistency import Consistency, assert_egraph_consistent
from eqsynth.testing.rule_files import assert_rule_sound
from eqsynth.testing.soundness import Checked, UnsoundRule

__all__ = [
    "Checked",
    "Consistency",
    "UnsoundRule",
    "assert_egraph_consistent",
    "assert_rule_sound",
]
