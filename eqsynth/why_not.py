"""The time of each step of a program and of each operator of the original, and from them the reason
why a program isn't faster: the steps that take longer than the operators that they replaced.

    matmul by onednn takes 0.210 ms, 0.180 ms before (Matmul, Add)

Both are measured while the whole program runs: the steps of the compiled program, and the operators
of the original, each run by torch. A step replaced the original's operators between its arguments
and its result. These are known only if arguments and result are values of the original, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import ExtractionError, LoweringError
from eqsynth.explain import planned_values
from eqsynth.extract.candidates import candidates
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.select import Selection
from eqsynth.extract.target import Target
from eqsynth.extract.timing import OperatorTimes
from eqsynth.frontend.captured import Captured
from eqsynth.ir.tensor import ClassRef, Input, Op, Tensor, args_of
from eqsynth.ir.work import bytes_moved, flops
from eqsynth.lower.places import Place, ported
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.step_times import step_times
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lowered import lowered
from eqsynth.report import KernelTime, StepTime

# The number of steps that are reported.
_TOLD = 3


def why_not(
    captured: Captured,
    graph: EGraph,
    plan: Plan,
    compiled: CompiledProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    limit_bytes: float = math.inf,
) -> tuple[StepTime, ...]:
    """The steps that took most over the operators that they replaced, the worst first. If no step
    is known to be slower than those, the steps that took most time.

    Args:
        limit_bytes: the most bytes of a value. If the original has a larger value, its operators
            aren't timed.
    """
    before = _original_times(captured, graph, args, kwargs, limit_bytes, compiled.place)
    found = [
        _told(step, seconds, replaced(graph, step), before)
        for step, seconds in zip(plan.steps, step_times(compiled, args, kwargs), strict=True)
    ]
    worse = [step for step in found if step.excess_s > 0]
    known = sorted(worse, key=lambda step: -step.excess_s)
    return tuple((known or sorted(found, key=lambda step: -step.time_s))[:_TOLD])


def operator_times(
    captured: Captured,
    graph: EGraph,
    plan: Plan,
    compiled: CompiledProgram,
    steps_s: Sequence[float],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    limit_bytes: float = math.inf,
) -> OperatorTimes:
    """The seconds of the original's operators and of the program's steps, by the terms that they
    compute.

    Args:
        steps_s: the seconds of the program's steps (``step_times``).
        limit_bytes: the most bytes of a value. If the original has a larger value, its operators
            aren't timed.
    """
    _, values = planned_values(graph, plan)
    known = list(zip(plan.steps, steps_s, strict=True))
    plain = _plain(captured, graph, limit_bytes, compiled.place)
    before: dict[Tensor, float] = {}
    if plain is not None:
        program, own = plain
        _, originals = planned_values(graph, own)
        pairs = zip(own.steps, step_times(program, args, kwargs), strict=True)
        before = {originals[step.result]: seconds for step, seconds in pairs}
    moving = [(step, s) for step, s in known if step.kernel.implementation != "torch.view"]
    return OperatorTimes(
        before,
        {values[step.result]: seconds for step, seconds in moving},
        {values[step.result]: step.kernel.label for step, _ in moving},
        frozenset(
            term
            for step, _ in moving
            if step.kernel.generated
            for term in _within(values[step.result], {values[arg] for arg in step.args})
        ),
    )


def heaviest(plan: Plan, steps_s: Sequence[float], target: Target) -> tuple[KernelTime, ...]:
    """The kernels of a plan, those that take most time first, and what they achieve.

    Args:
        steps_s: the seconds of the plan's steps in the program (``step_times``).
    """
    times: dict[Kernel, list[float]] = {}
    for step, seconds in zip(plan.steps, steps_s, strict=True):
        if seconds > 0:  # a view takes no time
            times.setdefault(step.kernel, []).append(seconds)
    found = []
    for kernel, own in times.items():
        term, total_s = kernel.term, sum(own)
        achieved = target.achieved(bytes_moved(term), flops(term), term.dtype, total_s / len(own))
        result = str(term.type)
        share = total_s / sum(steps_s)
        found.append(KernelTime(kernel.label, result, len(own), total_s, share, achieved))
    return tuple(sorted(found, key=lambda each: -each.time_s))


def _within(result: Tensor, given: set[Tensor]) -> set[Tensor]:
    """The terms between the given ones and a result."""
    found, stack = set[Tensor](), [*args_of(result)]
    while stack:
        term = stack.pop()
        if term not in given and term not in found and not term.constant:
            found.add(term)
            stack.extend(args_of(term))
    return found


def replaced(graph: EGraph, step: PlanStep) -> dict[ClassRef, Op] | None:
    """The original's operators that a step computes, by their classes. None if they aren't known,
    because the step's result or one of its arguments isn't a value of the original."""
    given = {ref for ref, _ in step.args}
    stack = [ref for ref, _ in (step.result, *step.also)]
    found: dict[ClassRef, Op] = {}
    while stack:
        ref = stack.pop()
        if ref in given or ref in found or ref.constant:
            continue
        members = graph.original.get(ref, ())
        if not members or not isinstance(members[0], Op):
            return None
        found[ref] = members[0]
        stack.extend(arg for arg in args_of(members[0]) if isinstance(arg, ClassRef))
    return found


def _original_times(
    captured: Captured,
    graph: EGraph,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    limit_bytes: float,
    place: Place,
) -> dict[ClassRef, float]:
    """The seconds of each of the original's operators, run by torch, by the operator's class."""
    plain = _plain(captured, graph, limit_bytes, place)
    if plain is None:
        return {}
    program, plan = plain
    times: dict[ClassRef, float] = {}
    for step, seconds in zip(plan.steps, step_times(program, args, kwargs), strict=True):
        ref = step.result[0]
        times[ref] = times.get(ref, 0.0) + seconds
    return times


def _plain(
    captured: Captured, graph: EGraph, limit_bytes: float, place: Place
) -> tuple[CompiledProgram, Plan] | None:
    """A program that runs each of the original's operators by torch, and its plan; None if it can't
    be built."""
    backends = (TorchBackend(ported(captured.opaque, place)),)
    try:
        # With `until=0.0`, candidates are those of the original's operators only.
        found = candidates(graph, backends, until=0.0, limit_bytes=limit_bytes)
        plan = Selection(graph, found).plain(lambda kernel: 1.0)
        return lowered(captured, graph, plan, backends, place=place), plan
    except (ExtractionError, LoweringError):
        return None


def _told(
    step: PlanStep,
    seconds: float,
    operators: Mapping[ClassRef, Op] | None,
    before: Mapping[ClassRef, float],
) -> StepTime:
    """The row of the report for a step. The time of the replaced operators is missing if one of
    them wasn't timed."""
    known = operators is not None and all(ref in before for ref in operators)
    return StepTime(
        what=_name(step.member),
        kernel=step.kernel.label,
        time_s=seconds,
        replaced=tuple(map(_name, (operators or {}).values())),
        replaced_s=sum(before[ref] for ref in operators or ()) if known else None,
    )


def _name(member: Tensor) -> str:
    """The name of an operator, and its place in the user's model."""
    if isinstance(member, Op):
        return f"{member.name} ({member.origin})" if member.origin else member.name
    return "copy" if isinstance(member, ClassRef | Input) else type(member).__name__
