"""Chosen plans in the cache directory: what was chosen for an e-graph isn't searched for again.

A plan is kept under the digest of the e-graph, the target, the engines, the versions of the
libraries and eqsynth's code, together with the times that the choice was made by. It is taken only
where the profile still holds these times, and only if each step computes what the e-graph says; so
a file that is out of date costs a search, and can't make a program wrong. What the check and the
race say of the program is asked each time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from eqsynth import kept
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.remembered import TERMS
from eqsynth.extract import schedule, tuned
from eqsynth.extract.candidates import copy_kernel, literals_of, placeholder
from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Backend, Kernel
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.search import Extraction, OnEngine
from eqsynth.ir.scalar import digest_of
from eqsynth.ir.tensor import ClassRef, Input, Region, Tensor, over, topological

MAX_BYTES: Final = 64 << 20
"""Of more, the files that weren't used for longest go."""


@dataclass(frozen=True)
class Chosen:
    """The plan of eqsynth's own kernels, and the plan with regions on engines.

    Attributes:
        times: seconds by which was chosen, by the names of the kernels' rows in the profile.
        limit_s: time limit of the search; infinite if it came to its own end, since more time would
            have found nothing else.
    """

    own: Extraction
    found: Extraction
    times: Mapping[str, float]
    limit_s: float


def path_of(graph: EGraph, costs: CostModel, engines: Sequence[Backend]) -> Path:
    """The file: equal for searches that know the same programs and kernels."""
    members = [
        digest
        for classes in (graph.classes, graph.original)
        for ref, own in classes.items()
        for digest in (ref.digest, *(m.digest for m in own), b"")
    ]
    rest = (
        costs.target.key(), costs.profile.versions, costs.objective,
        [engine.name for engine in engines], kept.code_of("ir", "extract", "lower"),
        tuned.state(),
    )  # fmt: skip
    roots = [root.digest for root in graph.roots]
    return kept.directory("plans-2") / digest_of(*members, *roots, *rest).hex()


def recall(
    path: Path, graph: EGraph, costs: CostModel, engines: Sequence[Backend], limit_s: float
) -> Chosen | None:
    """What was chosen; None where nothing was, in less time than this search has, or by times that
    aren't those of now, or where an engine is of another version."""
    chosen = kept.load(path, _CLASSES)
    if not isinstance(chosen, Chosen) or chosen.limit_s < limit_s:
        return None
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        if costs.profile.lower_quartiles(chosen.times) != chosen.times:
            return None
        own = _recalled(chosen.own, graph, engines)
        if chosen.found.plan is chosen.own.plan:
            return replace(chosen, own=own, found=own)
        return replace(chosen, own=own, found=_recalled(chosen.found, graph, engines))
    return None


def settle(
    path: Path,
    own: Extraction,
    found: Extraction,
    times: Mapping[str, float],
    limit_s: float,
    used: Extraction | None,
) -> None:
    """Keeps what is used, if it was chosen by times. What a deadline has cut short serves searches
    that have no more time. Where the original is used, what was chosen is forgotten: what was
    measured in a bad hour isn't believed for ever.

    Args:
        limit_s: time limit of the search.
        used: ``found``, or ``own`` where its program won against that of ``found``; None where both
            lost against the original.
    """
    if used is None:
        kept.forget(path)
    elif own.complete and found.complete:
        limit_s = math.inf if own.ended and found.ended else limit_s
        kept.keep(path, Chosen(own, used, dict(times), limit_s), MAX_BYTES)


def _recalled(found: Extraction, graph: EGraph, engines: Sequence[Backend]) -> Extraction:
    """
    Raises:
        ValueError: the plan isn't one of this e-graph.
    """
    return replace(found, plan=_placed(found.plan, graph, engines), rounds=0, timed=0)


def _placed(plan: Plan, graph: EGraph, engines: Sequence[Backend]) -> Plan:
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
        steps.append(_step(step, places, literals, engines))
        at_hand |= {step.result, *step.also}
    if not at_hand.issuperset(s for s in plan.outputs if not s[0].constant):
        raise ValueError("an output isn't computed")
    return replace(plan, steps=tuple(steps))


def _step(
    step: PlanStep,
    places: Mapping[Tensor, tuple[ClassRef, Tensor]],
    literals: Mapping[ClassRef, Tensor],
    engines: Sequence[Backend],
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
        leaves = dict(zip(_inputs(member), args, strict=True))
        terms: dict[Tensor, ClassRef] = {**leaves}
        for term in topological(member.outputs):
            if term not in terms:
                terms[term] = places[over(term, terms)][0]
        placed = Region(member.outputs, tuple(_inputs(member)))
        # A schedule's kernel is made of its term; an engine's has to be of the version of now.
        if isinstance(step.kernel.schedule, schedule.Schedule):
            right = step.kernel.term == placed
        else:
            right = any(step.kernel in e.kernels(placed, step.kernel.constants) for e in engines)
        right = right and [terms[o] for o in member.outputs] == results
    else:
        ref, member = places[member]
        term, own = placeholder(member, literals)
        right = step.kernel.term == term and list(own) == args and results == [ref]
    if not right:
        raise ValueError(f"{step.kernel.implementation} doesn't compute its class")
    return replace(step, member=member)


def _inputs(region: Region) -> list[Tensor]:
    return [Input(str(n), arg.type) for n, arg in enumerate(region.args)]


_CLASSES: Final = {
    **kept.classes(Chosen, Extraction, OnEngine, Plan, PlanStep, Kernel, *TERMS),
    **schedule.CLASSES,
}
