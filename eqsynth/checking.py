"""The check as a stage of ``optimize``: the compiled program against the original, whom a
difference is blamed on, and how the user is told.

Not here: what is compared on what (``lower/check.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eqsynth.errors import EquivalenceError, EquivalenceWarning
from eqsynth.frontend.captured import Captured
from eqsynth.lower.check import check_equivalence
from eqsynth.report import Report
from eqsynth.rules import RuleSet

_ATTACH: Final = (
    "please report it, with this text, the module, its example inputs, the rule files, and "
    "print(program.report)"
)


@dataclass(frozen=True)
class Stage:
    """What the check needs of an optimization.

    Attributes:
        own: the rule files that the user gave.
    """

    captured: Captured
    rules: RuleSet
    own: tuple[str | Path, ...]
    report: Report

    def hold(
        self, program: Callable[..., Any], original: Callable[..., Any], args: Sequence[Any]
    ) -> None:
        """Compares the two; the report gets the figures.

        Raises:
            EquivalenceError: they differ by more than rounding explains.
        """
        try:
            found = check_equivalence(program, original, args, self.captured.buffers)
        except EquivalenceError as error:
            error.rules = self._suspects()
            error.hint = self._hint(error)
            raise
        self.report.error_rel = found.error_rel

    def _suspects(self) -> tuple[str, ...]:
        """Names of rules that may be unsound: the user's, by file and line, before all others."""
        files, fired = set(map(str, self.own)), self.report.rules_fired
        mine = [r for r in self.rules.rules if r.file in files]
        # Only rewrites are counted when they fire.
        yours = [r for r in mine if r.name in fired or r.kind != "rewrite"]
        names = {r.name for r in mine}
        others = (name for name in fired if name not in names)
        return (*(f"{r.name} ({r.file}:{r.line})" for r in yours), *others)

    def _hint(self, error: EquivalenceError) -> str:
        files = tuple(map(str, self.own))
        yours = [name for name in error.rules if any(f"({file}:" in name for file in files)]
        if yours:
            return f"one of your rules is unsound: {', '.join(yours)}"
        return f"this is a fault in eqsynth: {_ATTACH}"


def warn(error: EquivalenceError) -> None:
    """Tells the caller of ``optimize`` that the original came back, and why."""
    text = f"the original program is used: {error}"
    warnings.warn(text, EquivalenceWarning, stacklevel=3)
