"""What kernels take in their places, and the plan that is the fastest as a program.

A kernel is timed alone, with something else before each call (``lower/backends.py``). In a program
it reads what other cores have just written, and writes where others have read, so that it takes
more or less than that, and times don't add up. The kernels of a plan are therefore timed once more
where they stand; with these times another plan may be the better one, which is built and timed too.

    plan of conv 1.0 + transform 0.1 ms; in place 1.1 + 0.5    ->    plan of conv 1.0 + unfold 0.2
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.plan import Plan
from eqsynth.extract.prices import Costs
from eqsynth.extract.select import priced

ROUNDS = 4
"""Plans of one program that are built and timed at most."""

WORTH = 0.02
"""Part of the program's time that another plan has to promise, to be built and timed."""


@dataclass(frozen=True)
class InPlace:
    """What a plan took as a program.

    Attributes:
        total_s: seconds of a call.
        kernels_s: seconds of each kernel where it stands, the mean of its places.
    """

    total_s: float
    kernels_s: Mapping[Kernel, float]


Run = Callable[[Plan, float], InPlace | None]
"""Builds a plan and runs it; None if it doesn't build. When the monotonic clock says the second
argument, it isn't run again, and what isn't known of its kernels is missing."""

CALLS = 10
"""Calls of a program that timing it takes, at least: none is begun for which there is no time."""


def fastest(
    plan: Plan,
    costs: CostModel,
    select: Callable[[Costs, Plan], Plan],
    run: Run,
    until: float,
    build_s: Callable[[Plan], float] = lambda _plan: 0.0,
) -> tuple[Plan, float]:
    """The plan whose program took least, of this one and those that its kernels' times in place
    lead to; and what that took, over the sum of its kernels' times alone (1 if nothing builds).

    How much more a kernel takes in its place than alone is told against what all of the plan's
    kernels do: what holds for all of them would hold for the kernels of another plan as well.

    Args:
        costs: of kernels alone. No plan is led to of which a kernel wasn't timed.
        select: the best plan for given costs; the second argument is one that is known.
        until: when the monotonic clock says so, no plan is built.
        build_s: about how long building one takes.
    """
    factors: dict[Kernel, float] = {}
    best, best_s, seen = plan, math.inf, set[frozenset[Kernel]]()

    def in_place(kernel: Kernel) -> float:
        return costs.timed_only(kernel) * factors.get(kernel, 1.0)

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
        if 2 * time.monotonic() - begin >= until:
            break
        known = priced(best, in_place)
        plan = priced(select(in_place, known), in_place)
        if plan.cost_s > (1 - WORTH) * known.cost_s or frozenset(plan.kernels()) in seen:
            break
    alone_s = sum(costs(step.kernel) for step in best.steps)
    return best, best_s / alone_s if 0 < alone_s < math.inf and best_s < math.inf else 1.0


def _factors(plan: Plan, costs: CostModel, took: InPlace) -> dict[Kernel, float]:
    """Of each kernel, its time in place over its time alone, over the same of the whole plan."""
    alone = {kernel: costs(kernel) for kernel in plan.kernels()}
    steps = [step.kernel for step in plan.steps if took.kernels_s.get(step.kernel, 0.0) > 0]
    steps = [kernel for kernel in steps if 0 < alone[kernel] < math.inf]
    if not steps:
        return {}
    whole = sum(took.kernels_s[kernel] for kernel in steps) / sum(alone[kernel] for kernel in steps)
    return {kernel: took.kernels_s[kernel] / alone[kernel] / whole for kernel in set(steps)}
