"""Tuning a plan: seconds are spent on the generated kernels that weigh most in it.

Not here: tuning one kernel (``kernel_tuning.py``).
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import Final

from eqsynth.executor import borrowed
from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.plan import Plan
from eqsynth.extract.profile import Profile
from eqsynth.extract.search import Extraction
from eqsynth.extract.target import Target
from eqsynth.lower.backends import load_libraries
from eqsynth.lower.kernel_tuning import TunedKernel, tune_kernel
from eqsynth.lower.tvm_backend import TvmBackend
from eqsynth.tuning.search import Budget
from eqsynth.tuning.tuners import opevo

SHARE: Final = 0.02
"""Part of a plan's time that a kernel takes at least, in all its steps, to be tuned."""

_log = logging.getLogger("eqsynth")


def tuned_plans(
    own: Extraction, found: Extraction, target: Target, far: int, seconds: float
) -> tuple[Extraction, Extraction]:
    """The plans with faster schedules for their heaviest kernels, if there are any.

    Args:
        own, found: the plan of eqsynth's own kernels, and the one that is used.
        far: the caches that weights are to be out of when a kernel is called (``Target.far``).
    """
    faster = {t.default: t for t in tune_kernels(heaviest(found.plan), target, far, seconds)}
    chosen = replace(found, plan=with_faster(found.plan, faster))
    if own.plan is found.plan:
        return chosen, chosen
    return replace(own, plan=with_faster(own.plan, faster)), chosen


def heaviest(plan: Plan) -> dict[Kernel, float]:
    """Seconds of the generated kernels of a plan that are worth tuning, most first."""
    total = Counter[Kernel]()
    for step in plan.steps:
        if step.kernel.backend == TvmBackend.name and not math.isinf(step.cost_s):
            total[step.kernel] += step.cost_s  # type: ignore[assignment]
    return {kernel: s for kernel, s in total.most_common() if s >= SHARE * plan.cost_s}


def tune_kernels(
    weights: dict[Kernel, float], target: Target, far: int, seconds: float
) -> list[TunedKernel]:
    """Tunes kernels one after the other, each for the part of the seconds that it weighs. What is
    faster stands in the profile from now on, and is offered by the backend.

    Returns:
        Those that have got faster.
    """
    left, faster = sum(weights.values()), list[TunedKernel]()
    with closing(Profile(target.key())) as profile, borrowed(threads=target.threads) as worker:
        worker.run(load_libraries)
        until = time.monotonic() + seconds
        costs = CostModel(target, profile)
        for kernel, weight_s in weights.items():
            budget = Budget(seconds=(until - time.monotonic()) * weight_s / left)
            left -= weight_s
            if budget.seconds <= 0:
                break
            tuned = tune_kernel(kernel, worker, profile, budget, opevo, target.threads, far=far)
            if tuned.before is None or tuned.after is None:
                continue
            if tuned.kernel in (kernel, tuned.default):
                continue
            costs.record({tuned.default: tuned.before, tuned.kernel: tuned.after})
            faster.append(replace(tuned, default=kernel))
            _log.info(
                "%s: %s takes %.4f ms, %s %.4f", kernel.term.type, tuned.kernel.schedule,
                tuned.after.median_s * 1e3, tuned.default.schedule, tuned.before.median_s * 1e3,
            )  # fmt: skip
    return faster


def with_faster(plan: Plan, faster: dict[Kernel, TunedKernel]) -> Plan:
    """The plan with other kernels in the places of some, which take and give the same layouts."""
    steps = []
    for step in plan.steps:
        tuned = faster.get(step.kernel)
        if tuned is None or tuned.before is None or tuned.after is None:
            steps.append(step)
            continue
        cost_s = step.cost_s * tuned.after.median_s / tuned.before.median_s
        steps.append(replace(step, kernel=tuned.kernel, cost_s=cost_s))
    cost_s = plan.cost_s + sum(s.cost_s for s in steps) - sum(s.cost_s for s in plan.steps)
    return replace(plan, steps=tuple(steps), cost_s=cost_s)
