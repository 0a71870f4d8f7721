"""Tuning a plan: the given seconds are spent on the generated kernels that take most of its time.

Not here: tuning one kernel (``kernel_tuning.py``).
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final

from eqsynth.executor import borrowed
from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.plan import Plan
from eqsynth.extract.profile import Profile
from eqsynth.extract.schedule import Schedule
from eqsynth.extract.target import Target
from eqsynth.lower.backends import load_libraries
from eqsynth.lower.kernel_tuning import TunedKernel, tune_kernel
from eqsynth.lower.tuning_records import nearest, records
from eqsynth.lower.tuning_told import best_so_far
from eqsynth.lower.tvm_backend import TvmBackend
from eqsynth.tuning.search import Budget, Search
from eqsynth.tuning.tuners import opevo

SHARE: Final = 0.02
"""A kernel is tuned only if all its steps together take at least this part of the plan's time."""

Watch = Callable[[Kernel, Search[Schedule]], None]

_log = logging.getLogger("eqsynth")


def tuned_kernels(
    plan: Plan,
    target: Target,
    far: int,
    seconds: float,
    tell: Callable[[str], None] = lambda _text: None,
) -> dict[Kernel, TunedKernel]:
    """Tune a plan's heaviest kernels.

    Args:
        far: the number of cache levels that weights are to be out of when a kernel is called
            (``Target.far``).
        tell: called with the best schedule so far whenever schedules were measured.
    """

    def watch(kernel: Kernel, search: Search[Schedule]) -> None:
        tell(best_so_far(kernel, search, target))

    return dict(tune_kernels(heaviest(plan), target, far, seconds, watch))


def heaviest(plan: Plan) -> dict[Kernel, float]:
    """The seconds that each generated kernel worth tuning takes in a plan, the heaviest first."""
    total = Counter[Kernel]()
    for step in plan.steps:
        if step.kernel.backend == TvmBackend.name and not math.isinf(step.cost_s):
            total[step.kernel] += step.cost_s  # type: ignore[assignment]
    return {kernel: s for kernel, s in total.most_common() if s >= SHARE * plan.cost_s}


def tune_kernels(
    weights: Mapping[Kernel, float],
    target: Target,
    far: int,
    seconds: float,
    watch: Watch = lambda _kernel, _search: None,
) -> Iterator[tuple[Kernel, TunedKernel]]:
    """Tune kernels one after the other; each gets a part of the seconds in proportion to its
    weight. Faster schedules are kept in the profile and offered by the backend from now on. A
    search begins with the offered schedules, and with the best schedules of the nearest shapes that
    were tuned.

    Args:
        weights: for each kernel, the seconds that it takes in the plan.
        watch: called with the kernel and its search whenever schedules were measured.

    Yields:
        Each kernel once it is tuned; kernels for which no time is left are skipped.
    """
    left = sum(weights.values())
    with closing(Profile(target.key())) as profile, borrowed(threads=target.threads) as worker:
        worker.run(load_libraries)
        until = time.monotonic() + seconds
        costs = CostModel(target, profile, far=far)
        for kernel, weight_s in weights.items():
            budget = Budget(seconds=(until - time.monotonic()) * weight_s / left)
            left -= weight_s
            if budget.seconds <= 0:
                break
            tuned = tune_kernel(
                kernel, worker, profile, budget, opevo, target.threads, far=far,
                starts=nearest(kernel, records(profile)), watch=partial(watch, kernel),
            )  # fmt: skip
            if tuned.faster and tuned.before is not None and tuned.after is not None:
                costs.record({tuned.default: tuned.before, tuned.kernel: tuned.after})
                _log.info(
                    "%s: %s takes %.4f ms, %s %.4f", kernel.term.type, tuned.kernel.schedule,
                    tuned.after.median_s * 1e3, tuned.default.schedule, tuned.before.median_s * 1e3,
                )  # fmt: skip
            yield kernel, tuned


def with_faster(plan: Plan, faster: Mapping[Kernel, TunedKernel]) -> Plan:
    """The plan with tuned kernels in place of the defaults; they read and write the same
    layouts."""
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
