"""Lower a plan of a captured program to a CompiledProgram: its kernels, its constants, and the
recipe by which the constants are computed again when weights change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import LoweringError
from eqsynth.extract.constants import constant_terms
from eqsynth.extract.kernel import Backend, Kernel
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.frontend.captured import Captured
from eqsynth.garbage import collecting_seldom
from eqsynth.lower.assemble import assemble
from eqsynth.lower.places import Place
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.weights import Recipe, Watch


def lowered(
    captured: Captured,
    graph: EGraph,
    plan: Plan,
    backends: Sequence[Backend],
    *,
    limit_bytes: float = float("inf"),
    own: bool = True,
    module: torch.nn.Module | None = None,
    place: Place | None = None,
    **rest: Any,
) -> CompiledProgram:
    """Return the compiled program of a plan.

    Args:
        limit_bytes: the most bytes that the constants may take.
        own: whether the program has copies of all constants. Else it shares weights that it uses
            unchanged with ``module``.
        place: the device that the program runs on; None for the CPU.
        rest: further arguments of CompiledProgram.

    Raises:
        LoweringError: a kernel doesn't build, or the constants are larger than the limit.
    """
    weights, place = captured.weights, place or Place()
    with collecting_seldom():
        parts = assemble(
            captured.program, graph, plan, weights, backends, limit_bytes, captured.opaque, own,
            place.home, captured.memories,
        )  # fmt: skip
    recipe = captured.recipe(parts.terms)
    return CompiledProgram(
        parts.parameters,
        parts.steps,
        parts.outputs,
        captured,
        parts.constants,
        recipe=recipe,
        backends=backends,
        place=place,
        watch=None if own else Watch.of(module, recipe, weights),
        **rest,
    )


def mutations_of(captured: Captured) -> Mapping[int, torch.Tensor]:
    """The buffers that a call changes, by the number of the output that is copied into them.

    Raises:
        LoweringError: the program changes an input of the user in place.
    """
    users = len(captured.program.inputs) - len(captured.buffers)
    if any(place < users for place in captured.mutations.values()):
        raise LoweringError(
            what="the program changes one of its inputs in place",
            hint="return the new value instead; the original program is used",
        )
    return {output: captured.buffers[place - users] for output, place in captured.mutations.items()}


SMALL_BYTES: Final = 1 << 16
"""Constants of up to this size (scalars, masks, scales and shifts) have their true values while
kernels are timed."""


def small_constants(
    captured: Captured, graph: EGraph, steps: Sequence[PlanStep], most_bytes: int = SMALL_BYTES
) -> dict[Kernel, dict[int, torch.Tensor]]:
    """The values of the small constants that steps read: kernel -> argument's number -> value."""
    refs = dict.fromkeys(
        ref for step in steps for ref in step.constants.values() if ref.type.nbytes <= most_bytes
    )
    found = {f"constant{n}": term for n, term in enumerate(constant_terms(graph, [*refs]).values())}
    made = Recipe(found, opaque=captured.opaque).constants(captured.weights, own=False)
    values = dict(zip(refs, made.values(), strict=True))
    return {
        step.kernel: {n: values[ref] for n, ref in step.constants.items() if ref in values}
        for step in steps
    }
