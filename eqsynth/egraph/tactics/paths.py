"""Paths: the steps that a tactic proposes, and the scope to which they lead.

A tactic answers with steps of the calculus (``calculus/deriving.py``). It may look at the scope at
the end of a path to choose among several paths. That scope isn't trusted: the steps are applied
again when the answer is put into the e-graph.
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
        """Return this path extended by ``step``; None if the law of the step refuses it."""
        found = path(self.scope, step)
        return found and Path(found.scope, (*self.steps, step))

    def along(self, tactic: Callable[[Scope], Path | None]) -> Path | None:
        """Return this path extended by the path that ``tactic`` finds from its scope, if any."""
        found = tactic(self.scope)
        return found and Path(found.scope, (*self.steps, *found.steps))


def path(term: Tensor, *steps: Step) -> Path | None:
    """Return the path of ``steps`` from ``term``; None if a law refuses a step, or if the steps end
    in an operator."""
    try:
        end = derive(term, steps)
    except LawError:
        return None
    return Path(end, steps) if isinstance(end, Scope) else None
