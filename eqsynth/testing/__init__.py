"""Checks that other test suites can use too.

The names are imported when they are used: the pytest plugin lives in this package, and must cost
nothing in a run that has no rules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eqsynth.testing.consistency import Consistency, assert_egraph_consistent
    from eqsynth.testing.rule_files import assert_rule_sound
    from eqsynth.testing.soundness import Checked, UnsoundRule

_LAZY = {
    "Checked": "soundness",
    "Consistency": "consistency",
    "UnsoundRule": "soundness",
    "assert_egraph_consistent": "consistency",
    "assert_rule_sound": "rule_files",
}

__all__ = [
    "Checked",
    "Consistency",
    "UnsoundRule",
    "assert_egraph_consistent",
    "assert_rule_sound",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"eqsynth.testing.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'eqsynth.testing' has no attribute {name!r}")
