"""Chosen plans in the cache directory, so that a plan is searched only once for an e-graph.

A plan is stored under the digest of the e-graph, the target, the engines, the versions of the
libraries and eqsynth's code, together with the measured times by which it was chosen. It is used
again only if the profile still has these times, if tuning hasn't found other schedules for its
kernels since, and if each step computes its class of the present e-graph. So a file that is out of
date costs a search, and can't make a program wrong. The check and the race are run each time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from eqsynth import kept
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.remembered import TERMS
from eqsynth.extract import schedule
from eqsynth.extract.candidates import fused, is_copy, literals_of, placeholder, unplaced
from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Backend, Kernel
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.regions import on_engines
from eqsynth.extract.row_chains import RowChains
from eqsynth.extract.schedule import Schedule
from eqsynth.extract.search import Extraction, OnEngine
from eqsynth.ir.scalar import digest_of
from eqsynth.ir.tensor import ClassRef, Input, Region, Tensor

MAX_BYTES: Final = 64 << 20
"""The most bytes of all files. If there are more, the least recently used files are deleted."""

Tuned = Callable[[Kernel], Schedule | None]

LOST_FOR_S: Final = 24 * 3600.0
"""Seconds for which nothing is searched after a chosen program has lost the race against the
original. Then the search runs again, since the kernels may have been timed while the machine was
busy."""


@dataclass(frozen=True)
class Chosen:
    """The plan of eqsynth's own kernels, and the plan with regions on engines.

    Attributes:
        times: the times in seconds by which the plans were chosen, by the kernels' rows in the
            profile.
        limit_s: the time limit of the search. Infinite if the search ended before the limit, since
            a longer one would find the same.
        tuned: the schedules that tuning had found for kernels of ``own``, by the kernels' numbers.
        lost_at: when the program of ``found`` first lost the race against the original, by
            `time.time`, which all processes share; None if it won.
    """

    own: Extraction
    found: Extraction
    times: Mapping[str, float]
    limit_s: float
    tuned: Mapping[int, Schedule] = field(default_factory=dict)
    lost_at: float | None = None

    def ended_by(self, used: Extraction, won: bool) -> Chosen:
        """Return this choice with the plan that is used, and the outcome of its race against the
        original. If a deadline cut the search short, the choice only serves searches with no longer
        limit."""
        limit_s = math.inf if self.own.ended and self.found.ended else self.limit_s
        now = time.time() if self.lost_at is None else self.lost_at
        used = replace(used, rival=None)
        return replace(self, found=used, limit_s=limit_s, lost_at=None if won else now)


def path_of(
    graph: EGraph, costs: CostModel, engines: Sequence[Backend], peak_bytes: float = math.inf
) -> Path:
    """Return the path of the file for an e-graph. It is the same for searches that know the same
    programs and kernels, and have the same bound on memory."""
    members = [
        digest
        for classes in (graph.classes, graph.original)
        for ref, own in classes.items()
        for digest in (ref.digest, *(m.digest for m in own), b"")
    ]
    rest = (
        costs.target.key(), costs.profile.versions, costs.objective,
        [engine.name for engine in engines], kept.code_of("ir", "extract", "lower"),
        peak_bytes,
    )  # fmt: skip
    roots = [root.digest for root in graph.roots]
    return kept.directory("plans-4") / digest_of(*members, *roots, *rest).hex()


def recall(
    path: Path,
    graph: EGraph,
    costs: CostModel,
    engines: Sequence[Backend],
    limit_s: float,
    tuned: Tuned = lambda _kernel: None,
) -> Chosen | None:
    """Return the stored choice for an e-graph. Return None if there is none, if it was made with
    less time than this search has, if measured times have changed since, if tuning has found other
    schedules for its kernels, if an engine has another version, or if the original beat it and
    `LOST_FOR_S` seconds have passed.

    Args:
        tuned: returns the schedule that tuning has found for a kernel.
    """
    chosen = kept.load(path, _CLASSES)
    if not isinstance(chosen, Chosen) or chosen.limit_s < limit_s:
        return None
    if chosen.lost_at is not None and not 0 <= time.time() - chosen.lost_at < LOST_FOR_S:
        return None
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        if costs.profile.lower_quartiles(chosen.times) != chosen.times:
            return None
        if tuned_of(chosen.own.plan, tuned) != chosen.tuned:
            return None
        plan = _placed(chosen.own.plan, graph)
        own = replace(chosen.own, plan=plan, rounds=0, timed=0)
        if chosen.found.plan is chosen.own.plan:
            return replace(chosen, own=own, found=own)
        plan = _on_engines(chosen.found, own, graph, engines)
        return replace(chosen, own=own, found=replace(chosen.found, plan=plan, rounds=0, timed=0))
    return None


def tuned_of(plan: Plan, tuned: Tuned) -> dict[int, Schedule]:
    """The schedules that tuning has found for kernels of a plan, by the kernels' numbers."""
    return {n: found for n, k in enumerate(plan.kernels()) if (found := tuned(k)) is not None}


def settle(path: Path, chosen: Chosen, used: Extraction | None, won: bool) -> None:
    """Store the plans and which of them is used, if all their kernels were timed. This is done also
    if the original was faster: the next search then races the same program and doesn't search for
    another.

    Args:
        used: ``found``, or ``own`` if its program was faster than that of ``found``. None if an
            engine was wrong: then the stored choice is deleted.
        won: whether the program was faster than the original.
    """
    if used is None:
        kept.forget(path)
    elif chosen.own.complete and chosen.found.complete:
        kept.keep(path, chosen.ended_by(used, won), MAX_BYTES)


def _on_engines(
    found: Extraction, own: Extraction, graph: EGraph, engines: Sequence[Backend]
) -> Plan:
    """Return the plan with regions on engines. The same spans of eqsynth's own plan are handed to
    the engines again, and have to give the stored plan.

    Raises:
        ValueError: they give another plan; an engine may have another version.
    """
    made = on_engines(graph, own, found.regions, engines)
    kept_plan = found.plan
    if made is None or not made.plan.runs_as(kept_plan) or made.plan.inputs != kept_plan.inputs:
        raise ValueError("regions of another program, or on other engines")
    steps = zip(made.plan.steps, kept_plan.steps, strict=True)
    timed = tuple(replace(step, cost_s=before.cost_s) for step, before in steps)
    return replace(made.plan, steps=timed, cost_s=kept_plan.cost_s)


def _placed(plan: Plan, graph: EGraph) -> Plan:
    """Return the plan over the members of this e-graph, which know their places in the user's
    model.

    Raises:
        ValueError: a step doesn't compute its class, or reads a value that isn't computed before.
    """
    places = {member: (ref, member) for ref, own in graph.classes.items() for member in own}
    given = {(places[Input(name, s[0].type)][0], s[1]) for name, s in plan.inputs.items()}
    if given != set(plan.inputs.values()) or [s[0] for s in plan.outputs] != list(graph.roots):
        raise ValueError("inputs or outputs of another program")
    at_hand, steps, literals = given, [], literals_of(graph)
    chains = RowChains(graph)
    for step in plan.steps:
        if not at_hand.issuperset(step.args):
            raise ValueError("a step reads what isn't computed yet")
        if not all(ref in graph.classes and ref.constant for ref in step.constants.values()):
            raise ValueError("a constant is none of the program's")
        steps.append(_step(step, graph, places, literals, chains))
        at_hand |= {step.result, *step.also}
    if not at_hand.issuperset(s for s in plan.outputs if not s[0].constant):
        raise ValueError("an output isn't computed")
    return replace(plan, steps=tuple(steps))


def _step(
    step: PlanStep,
    graph: EGraph,
    places: Mapping[Tensor, tuple[ClassRef, Tensor]],
    literals: Mapping[ClassRef, Tensor],
    chains: RowChains,
) -> PlanStep:
    """Return a step over the e-graph's own member.

    Raises:
        ValueError, KeyError: the step doesn't compute its class.
    """
    member, results = step.member, [ref for ref, _ in (step.result, *step.also)]
    given = iter([ref for ref, _ in step.args])
    args = [
        step.constants[n] if n in step.constants else next(given)
        for n in range(len(step.kernel.constants))
    ]
    if isinstance(member, ClassRef):
        right = is_copy(step.kernel, member.type, step.args[0][1], step.result[1])
        right = right and args == results == [member]
    elif isinstance(member, Region):
        # Compared with the regions that extraction makes of the class. A region can't be looked up
        # among the members: a term with a literal may stand in several classes.
        (ref,) = results
        right = member in fused(graph, ref, literals, chains)
        right = right and args == list(member.args)
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
