"""Checks of rules, e-graphs and optimized programs, for eqsynth's tests and other test suites.

``docs/testing.md`` shows how they are used. The names below are imported on first use: the pytest
plugin is in this package, and a pytest run without rule files must not pay for imports.
``eqsynth.testing.strategies`` needs hypothesis.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eqsynth.testing.consistency import Consistency, assert_egraph_consistent
    from eqsynth.testing.equivalence import assert_equivalent
    from eqsynth.testing.module_case import Argument, ModuleCase
    from eqsynth.testing.optimized import assert_optimize_sound
    from eqsynth.testing.rule_files import assert_rule_sound
    from eqsynth.testing.search import Search, assert_search_sound
    from eqsynth.testing.soundness import Checked, UnsoundRule

_LAZY = {
    "Argument": "module_case",
    "Checked": "soundness",
    "Consistency": "consistency",
    "ModuleCase": "module_case",
    "Search": "search",
    "UnsoundRule": "soundness",
    "assert_egraph_consistent": "consistency",
    "assert_equivalent": "equivalence",
    "assert_optimize_sound": "optimized",
    "assert_rule_sound": "rule_files",
    "assert_search_sound": "search",
}

__all__ = [
    "Argument",
    "Checked",
    "Consistency",
    "ModuleCase",
    "Search",
    "UnsoundRule",
    "assert_egraph_consistent",
    "assert_equivalent",
    "assert_optimize_sound",
    "assert_rule_sound",
    "assert_search_sound",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"eqsynth.testing.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'eqsynth.testing' has no attribute {name!r}")
