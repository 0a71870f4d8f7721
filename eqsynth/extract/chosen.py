"""Chosen plans in the cache directory: what was chosen for an e-graph isn't searched for again.

A plan is kept under the digest of the e-graph, the target, the engines, the versions of the
libraries and eqsynth's code, together with the times that the choice was made by. It is taken only
where the profile still holds these times, and only if each step computes what the e-graph says; so
a file that is out of date costs a search, and can't make a program wrong. What the check and the
race say of the program is asked each time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from eqsynth import kept
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.remembered import TERMS
from eqsynth.extract import schedule, tuned
from eqsynth.extract.candidates import copy_kernel, fused, literals_of, placeholder, unplaced
from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Backend, Kernel
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.regions import on_engines
from eqsynth.extract.search import Extraction, OnEngine
from eqsynth.ir.scalar import digest_of
from eqsynth.ir.tensor import ClassRef, Input, Region, Tensor

MAX_BYTES: Final = 64 << 20
"""Of more, the files that weren't used for longest go."""

LOST_FOR_S: Final = 24 * 3600.0
"""How long nothing else is searched for where the original was faster than what was chosen: the
kernels may have been timed in a bad hour."""


@dataclass(frozen=True)
class Chosen:
    """The plan of eqsynth's own kernels, and the plan with regions on engines.

    Attributes:
        times: seconds by which was chosen, by the names of the kernels' rows in the profile.
        limit_s: time limit of the search; infinite if it came to its own end, since more time would
            have found nothing else.
        lost_at: when the original was first faster than the program of ``found``, by the clock that
            all processes have (`time.time`); None if it isn't.
    """

    own: Extraction
    found: Extraction
    times: Mapping[str, float]
    limit_s: float
    lost_at: float | None = None

    def ended_by(self, used: Extraction, won: bool) -> Chosen:
        """With what is used, and what became of it in the race against the original. What a
        deadline has cut short serves searches that have no more time."""
        limit_s = math.inf if self.own.ended and self.found.ended else self.limit_s
        now = time.time() if self.lost_at is None else self.lost_at
        return replace(self, found=used, limit_s=limit_s, lost_at=None if won else now)


def path_of(
    graph: EGraph, costs: CostModel, engines: Sequence[Backend], peak_bytes: float = math.inf
) -> Path:
    """The file: equal for searches that know the same programs and kernels, within one bound on
    the memory of a plan."""
    members = [
        digest
        for classes in (graph.classes, graph.original)
        for ref, own in classes.items()
        for digest in (ref.digest, *(m.digest for m in own), b"")
    ]
    rest = (
        costs.target.key(), costs.profile.versions, costs.objective,
        [engine.name for engine in engines], kept.code_of("ir", "extract", "lower"),
        tuned.state(), peak_bytes,
    )  # fmt: skip
    roots = [root.digest for root in graph.roots]
    return kept.directory("plans-4") / digest_of(*members, *roots, *rest).hex()


def recall(
    path: Path, graph: EGraph, costs: CostModel, engines: Sequence[Backend], limit_s: float
) -> Chosen | None:
    """What was chosen; None where nothing was, in less time than this search has, or by times that
    aren't those of now, or where an engine is of another version, or the original was faster for
    `LOST_FOR_S`."""
    chosen = kept.load(path, _CLASSES)
    if not isinstance(chosen, Chosen) or chosen.limit_s < limit_s:
        return None
    if chosen.lost_at is not None and not 0 <= time.time() - chosen.lost_at < LOST_FOR_S:
        return None
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        if costs.profile.lower_quartiles(chosen.times) != chosen.times:
            return None
        plan = _placed(chosen.own.plan, graph)
        own = replace(chosen.own, plan=plan, rounds=0, timed=0)
        if chosen.found.plan is chosen.own.plan:
            return replace(chosen, own=own, found=own)
        plan = _on_engines(chosen.found, own, graph, engines)
        return replace(
            chosen, own=own, found=replace(chosen.found, plan=plan, rounds=0, timed=0)
        )
    return None


def settle(path: Path, chosen: Chosen, used: Extraction | None, won: bool) -> None:
    """Keeps what is used, if it was chosen by times, also where the original is faster: the next
    search races the same program, and no other.

    Args:
        used: ``found``, or ``own`` where its program won against that of ``found``; None where an
            engine was wrong, of which nothing is kept.
        won: against the original.
    """
    if used is None:
        kept.forget(path)
    elif chosen.own.complete and chosen.found.complete:
        kept.keep(path, chosen.ended_by(used, won), MAX_BYTES)


def _on_engines(
    found: Extraction, own: Extraction, graph: EGraph, engines: Sequence[Backend]
) -> Plan:
    """The plan with regions on engines: the spans of eqsynth's own plan that ran there are handed
    to the engines again, and what comes out has to be what was kept.

    Raises:
        ValueError: it isn't; an engine may be of another version.
    """
    made = on_engines(graph, own, found.regions, engines)
    kept_plan = found.plan
    if made is None or not made.plan.runs_as(kept_plan) or made.plan.inputs != kept_plan.inputs:
        raise ValueError("regions of another program, or on other engines")
    steps = zip(made.plan.steps, kept_plan.steps, strict=True)
    timed = tuple(replace(step, cost_s=before.cost_s) for step, before in steps)
    return replace(made.plan, steps=timed, cost_s=kept_plan.cost_s)


def _placed(plan: Plan, graph: EGraph) -> Plan:
    """The plan over the e-graph's own members, which know their place in the user's model.

    Raises:
        ValueError: a step computes something else than its class, or from what isn't there.
    """
    places = {member: (ref, member) for ref, own in graph.classes.items() for member in own}
    given = {(places[Input(name, s[0].type)][0], s[1]) for name, s in plan.inputs.items()}
    if given != set(plan.inputs.values()) or [s[0] for s in plan.outputs] != list(graph.roots):
        raise ValueError("inputs or outputs of another program")
    at_hand, steps, literals = given, [], literals_of(graph)
    for step in plan.steps:
        if not at_hand.issuperset(step.args):
            raise ValueError("a step reads what isn't computed yet")
        if not all(ref in graph.classes and ref.constant for ref in step.constants.values()):
            raise ValueError("a constant is none of the program's")
        steps.append(_step(step, graph, places, literals))
        at_hand |= {step.result, *step.also}
    if not at_hand.issuperset(s for s in plan.outputs if not s[0].constant):
        raise ValueError("an output isn't computed")
    return replace(plan, steps=tuple(steps))


def _step(
    step: PlanStep,
    graph: EGraph,
    places: Mapping[Tensor, tuple[ClassRef, Tensor]],
    literals: Mapping[ClassRef, Tensor],
) -> PlanStep:
    """
    Raises:
        ValueError, KeyError: the step computes something else than its class.
    """
    member, results = step.member, [ref for ref, _ in (step.result, *step.also)]
    given = iter([ref for ref, _ in step.args])
    args = [
        step.constants[n] if n in step.constants else next(given)
        for n in range(len(step.kernel.constants))
    ]
    if isinstance(member, ClassRef):
        copied = copy_kernel(member.type, step.args[0][1], step.result[1])
        right = step.kernel == copied and args == results == [member]
    elif isinstance(member, Region):
        # Found as it was when the plan was made: what a literal is in stands in several classes.
        (ref,) = results
        own = (region for m in graph.classes[ref] for region in fused(graph, ref, m, literals))
        right = member in own and args == list(member.args)
        right = right and step.kernel.term == unplaced(member)
    else:
        ref, member = places[member]
        term, refs = placeholder(member, literals)
        right = step.kernel.term == term and list(refs) == args and results == [ref]
    if not right:
        raise ValueError(f"{step.kernel.implementation} doesn't compute its class")
    return replace(step, member=member)


_CLASSES: Final = {
    **kept.classes(Chosen, Extraction, OnEngine, Plan, PlanStep, Kernel, *TERMS),
    **schedule.CLASSES,
}
