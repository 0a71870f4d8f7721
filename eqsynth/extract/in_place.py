"""Choose the plan whose program is the fastest, by times of kernels measured inside the program.

A kernel is first timed alone, with other work before each call (``lower/backends.py``). In a
program it reads what other cores have just written, and its time differs; so the times of kernels
alone don't add up to the program's. So the kernels of a plan are timed once more as steps of the
running program. By these times another plan may be better, which is then built and timed too.

    alone: conv 1.0 + transform 0.1 ms; in place: 1.1 + 0.5    ->    plan of conv 1.0 + unfold 0.2
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.plan import Plan
from eqsynth.extract.prices import Costs
from eqsynth.extract.select import priced

ROUNDS = 4
"""The most plans of one program that are built and timed."""

WORTH = 0.02
"""The least gain, as a part of the program's time, that another plan has to promise to be built."""


@dataclass(frozen=True)
class InPlace:
    """The measured times of a plan's program.

    Attributes:
        total_s: seconds of a call.
        kernels_s: seconds of each kernel as a step of the program; the mean if several steps use
            it.
    """

    total_s: float
    kernels_s: Mapping[Kernel, float]


Run = Callable[[Plan, float], InPlace | None]
"""A function that builds a plan and times its program; it returns None if the program doesn't
build. Its second argument is a deadline by the monotonic clock: after it the program isn't run
again, and times of kernels may be missing."""

CALLS = 10
"""The fewest calls of a program for timing it. If there is no time for so many, the plan isn't
built."""


def fastest(
    plan: Plan,
    costs: CostModel,
    select: Callable[[Costs, Plan], Plan],
    run: Run,
    until: float,
    build_s: Callable[[Plan], float] = lambda _plan: 0.0,
) -> tuple[Plan, float]:
    """Return the plan whose program took least, among ``plan`` and the plans that the times in
    place lead to. Return also its time over the sum of its kernels' times alone (1 if no program
    builds).

    A kernel's time in place over its time alone is divided by the same ratio for the whole plan: a
    slowdown that all kernels share would be shared by the kernels of another plan, too. For a
    kernel that hasn't run in place, the ratio of all that are bound as it is (by memory or by
    arithmetic) counts. (ResNeXt-50: maps of 0.4 to 3 MB took about twice their time alone, and
    convolutions 1.05 times. So a map that a contraction
    computes on the way is worth more than its time alone says.)

    Args:
        costs: costs of kernels alone. Plans with kernels that weren't timed aren't considered.
        select: returns the best plan for given costs; its second argument is a known plan.
        until: the monotonic clock from which on no plan is built.
        build_s: estimates the seconds for building a plan.
    """
    factors, by_bound = dict[Kernel, float](), dict[bool, float]()
    best, best_s, seen = plan, math.inf, set[frozenset[Kernel]]()

    def in_place(kernel: Kernel) -> float:
        factor = factors.get(kernel)
        if factor is None:
            factor = by_bound.get(costs.is_bound_by_arithmetic(kernel), 1.0)
        return costs.timed_only(kernel) * factor

    for _ in range(ROUNDS):
        begin = time.monotonic()
        if begin + build_s(plan) + CALLS * plan.cost_s >= until:
            break
        took = run(plan, until)
        seen.add(frozenset(plan.kernels()))
        if took is None:
            break
        if took.total_s < best_s:
            best, best_s = plan, took.total_s
        factors |= _factors(plan, costs, took)
        by_bound |= _factors_by_bound(plan, costs, took)
        if 2 * time.monotonic() - begin >= until:
            break
        known = priced(best, in_place)
        plan = priced(select(in_place, known), in_place)
        if plan.cost_s > (1 - WORTH) * known.cost_s or frozenset(plan.kernels()) in seen:
            break
    alone_s = sum(costs(step.kernel) for step in best.steps)
    return best, best_s / alone_s if 0 < alone_s < math.inf and best_s < math.inf else 1.0


def _factors(plan: Plan, costs: CostModel, took: InPlace) -> dict[Kernel, float]:
    """For each kernel, its time in place over its time alone, divided by the same ratio of the
    whole plan."""
    alone = _alone(plan, costs, took)
    whole = _ratio(alone, took)
    return {kernel: took.kernels_s[kernel] / own_s / whole for kernel, own_s in alone}


def _factors_by_bound(plan: Plan, costs: CostModel, took: InPlace) -> dict[bool, float]:
    """The same for the kernels that arithmetic bounds, and for those that memory bounds, together.
    What takes next to no time decides nothing."""
    alone = _alone(plan, costs, took)
    whole, total_s = _ratio(alone, took), sum(own_s for _, own_s in alone)
    found = {}
    for bound in (False, True):
        own = [(k, s) for k, s in alone if costs.is_bound_by_arithmetic(k) is bound]
        if sum(own_s for _, own_s in own) > WORTH * total_s:
            found[bound] = _ratio(own, took) / whole
    return found


def _alone(plan: Plan, costs: CostModel, took: InPlace) -> list[tuple[Kernel, float]]:
    """The kernel of each step that was timed in place, and the kernel's time alone."""
    steps = (step.kernel for step in plan.steps if took.kernels_s.get(step.kernel, 0.0) > 0)
    return [(kernel, s) for kernel in steps if 0 < (s := costs(kernel)) < math.inf]


def _ratio(alone: Sequence[tuple[Kernel, float]], took: InPlace) -> float:
    own_s = sum(own_s for _, own_s in alone)
    return sum(took.kernels_s[kernel] for kernel, _ in alone) / own_s if own_s else 1.0
