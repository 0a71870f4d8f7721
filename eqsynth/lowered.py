"""A plan of a captured program as a CompiledProgram: with its constants, and how they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eqsynth.egraph.graph import EGraph
from eqsynth.extract.kernel import Backend
from eqsynth.extract.plan import Plan
from eqsynth.frontend.captured import Captured
from eqsynth.lower.assemble import assemble
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.weights import Watch


def lowered(
    captured: Captured,
    graph: EGraph,
    plan: Plan,
    backends: Sequence[Backend],
    *,
    limit_bytes: float = float("inf"),
    own: bool = True,
    module: torch.nn.Module | None = None,
    **rest: Any,
) -> CompiledProgram:
    """
    Args:
        limit_bytes: of the constants.
        own: the program owns its constants; else weights of ``module`` that are used as they stand
            are shared with it.
        rest: arguments of CompiledProgram.

    Raises:
        LoweringError: a kernel doesn't build, or the constants are larger than the limit.
    """
    weights = captured.weights
    parts = assemble(
        captured.program, graph, plan, weights, backends, limit_bytes, captured.opaque, own
    )
    recipe = captured.recipe(parts.terms)
    return CompiledProgram(
        parts.parameters,
        parts.steps,
        parts.outputs,
        captured,
        parts.constants,
        recipe=recipe,
        backends=backends,
        watch=None if own else Watch.of(module, recipe, weights),
        **rest,
    )
