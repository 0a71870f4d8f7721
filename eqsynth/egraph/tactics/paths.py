"""Paths: the steps that a tactic proposes, and where they lead.

A tactic says what it found as steps of the calculus (``calculus/deriving.py``). Where they lead it
may look at, to choose among them; who puts answers into the e-graph applies the steps again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eqsynth.calculus.deriving import Step, derive
from eqsynth.errors import LawError
from eqsynth.ir.tensor import Scope, Tensor


@dataclass(frozen=True)
class Path:
    """Steps of the calculus, and the scope to which they lead."""

    scope: Scope
    steps: tuple[Step, ...] = ()

    def then(self, step: Step) -> Path | None:
        """One step further; None if its law refuses."""
        found = path(self.scope, step)
        return found and Path(found.scope, (*self.steps, step))

    def along(self, tactic: Callable[[Scope], Path | None]) -> Path | None:
        """As far as a tactic goes from here."""
        found = tactic(self.scope)
        return found and Path(found.scope, (*self.steps, *found.steps))


def path(term: Tensor, *steps: Step) -> Path | None:
    """The way through these steps; None if a law refuses one of them."""
    try:
        end = derive(term, steps)
    except LawError:
        return None
    return Path(end, steps) if isinstance(end, Scope) else None
