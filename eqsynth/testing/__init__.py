"""Checks that other test suites can use too."""

from eqsynth.testing.consistency import Consistency, assert_egraph_consistent

__all__ = ["Consistency", "assert_egraph_consistent"]
