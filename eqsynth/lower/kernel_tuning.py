"""Tuning generated kernels: their schedules' times, measured in a worker and kept in the profile.

A build that hangs or crashes costs itself. A schedule whose first run is far behind the best isn't
timed further. No two processes time at once on one machine. Not here: spaces (``spaces.py``),
tuners (``tuning/``), what is kept (``tuning_records.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch

from eqsynth.errors import EqsynthError
from eqsynth.executor import Worker
from eqsynth.extract import tuned
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.profile import Profile
from eqsynth.extract.schedule import Schedule
from eqsynth.extract.timing import Timing, alone, time_one
from eqsynth.ir.tensor import Region, Scope
from eqsynth.lower import tuning_records
from eqsynth.lower.backends import Call, built, steady
from eqsynth.lower.loop_nest import loop_nest
from eqsynth.lower.other_steps import OtherSteps
from eqsynth.lower.schedules import this_machine
from eqsynth.lower.spaces import space_of
from eqsynth.lower.tuning_records import Record
from eqsynth.lower.tvm_backend import TvmBackend, is_memory_bound, tuned_for
from eqsynth.tuning.search import Budget, Search, Tuned, tune
from eqsynth.tuning.space import Space

FAR: Final = 2.0
"""Times the best that the first runs of a schedule may take, or it isn't timed further."""

TOGETHER: Final = 8
"""Kernels that are compiled at a time."""

TIMEOUT_S: Final = 60.0
"""What building and timing so many kernels may take; then they are tried one by one."""

BETTER: Final = 0.98
"""Part of the default's time that a schedule takes at most, side by side, to be kept."""

FINALISTS: Final = 3
"""Schedules that are held against the default side by side: the least of many times is lucky."""


ROUNDS: Final = 31
"""In which they have a turn each."""


def space_for(kernel: Kernel) -> Space[Schedule]:
    """The schedules that a generated kernel may have on this machine."""
    assert isinstance(kernel.term, Scope | Region)
    nest = loop_nest(kernel.term, kernel.inputs, kernel.output)
    return space_of(nest, this_machine(), is_memory_bound(kernel.term))


@dataclass(frozen=True)
class TunedKernel:
    """What tuning one kernel has come to.

    Attributes:
        default: with the fastest schedule that is offered without a search.
        kernel: with the fastest schedule; the default where none is faster by more than noise.
        before, after: of these two, in one run; None if they don't run.
    """

    default: Kernel
    kernel: Kernel
    before: Timing | None
    after: Timing | None
    found: Tuned[Schedule]

    @property
    def faster(self) -> bool:
        """Whether something was found that isn't offered without a search."""
        return self.kernel != self.default and self.before is not None and self.after is not None


def tune_kernel(
    kernel: Kernel,
    worker: Worker,
    profile: Profile,
    budget: Budget,
    tuner: Callable[[Search[Schedule]], None],
    threads: int,
    seed: int = 0,
    far: int = 0,
    starts: Sequence[Schedule] = (),
    watch: Callable[[Search[Schedule]], None] = lambda _search: None,
) -> TunedKernel:
    """Searches the kernel's space and holds the best against the fastest schedule that is offered
    without a search. What is faster is offered from now on (``extract/tuned.py``).

    Args:
        profile: whose target is this machine with so many threads.
        far: the caches that weights are to be out of when a kernel is called (``Target.far``).
        starts: schedules to begin with after those that are offered, where the space has them. A
            kernel that was tuned before begins with the same as then.
        watch: is called whenever something was measured.
    """
    measured = ScheduleTimes(kernel, worker, profile, threads, far, tuple(starts))
    space = space_for(kernel)
    begin = filter(None, map(space.place, measured.record.starts))
    further = replace(space, starts=tuple(dict.fromkeys((*space.starts, *begin))))
    found = tune(further, measured, budget, tuner, seed, watch)
    times = {t.made: t.time_s for t in found.trials if t.time_s is not None}
    fastest = sorted(times, key=lambda schedule: times[schedule])
    offered = {space.made(point) for point in space.starts}
    default = replace(kernel, schedule=next((s for s in fastest if s in offered), kernel.schedule))
    rest = [replace(kernel, schedule=s) for s in fastest if s != default.schedule]
    finalists = [default, *rest[:FINALISTS]]
    try:
        with alone():
            sides = worker.run(race, finalists, threads, far, timeout_s=TIMEOUT_S)
    except EqsynthError:
        sides = []
    if not sides or sides[0] is None:
        return TunedKernel(default, default, None, None, found)
    raced = {k: side for k, side in zip(finalists, sides, strict=True) if side is not None}
    best = min(raced, key=lambda kernel: raced[kernel].median_s)
    if raced[best].median_s > BETTER * sides[0].median_s:
        best = default
    else:
        tuned.keep(best, tuned_for())
    return TunedKernel(default, best, sides[0], raced[best], found)


class ScheduleTimes:
    """Seconds of schedules of a kernel: from the profile, or measured and kept there.

    Args:
        starts: what the search begins with, unless one has begun before.

    Attributes:
        measured: how many were measured, and not known before.
    """

    def __init__(
        self,
        kernel: Kernel,
        worker: Worker,
        profile: Profile,
        threads: int,
        far: int,
        starts: tuple[Schedule, ...] = (),
    ) -> None:
        self._kernel, self._worker, self._profile = kernel, worker, profile
        self._threads, self._far = threads, far
        kept = tuning_records.load(profile, kernel, far)
        self.record = Record(kernel, far, starts) if kept is None else kept
        self.measured = 0

    @property
    def known(self) -> dict[Schedule, float | None]:
        return self.record.times

    def __call__(self, schedules: Sequence[Schedule]) -> list[float | None]:
        new = [schedule for schedule in schedules if schedule not in self.known]
        for start in range(0, len(new), TOGETHER):
            part = new[start : start + TOGETHER]
            with alone():
                self.known.update(self._timed(part, self._worth_s()))
            self.measured += len(part)
            tuning_records.keep(self._profile, self.record)
        return [self.known[schedule] for schedule in schedules]

    def _worth_s(self) -> float:
        """Schedules that take longer at first aren't timed further."""
        times = [time_s for time_s in self.known.values() if time_s is not None]
        return FAR * min(times, default=math.inf)

    def _timed(self, schedules: Sequence[Schedule], worth_s: float) -> dict[Schedule, float | None]:
        kernels = [replace(self._kernel, schedule=schedule) for schedule in schedules]
        try:
            times = self._worker.run(
                time_schedules, kernels, self._threads, self._far, worth_s, timeout_s=TIMEOUT_S
            )
            return dict(zip(schedules, times, strict=True))
        except EqsynthError:
            if len(schedules) == 1:
                return {schedules[0]: None}
        # One of them is to blame.
        return {s: t for one in schedules for s, t in self._timed([one], worth_s).items()}


def time_schedules(
    kernels: Sequence[Kernel], threads: int, far: int, worth_s: float
) -> list[float | None]:
    """Seconds of kernels that are built together; a task of the worker. None for one that fails.

    Args:
        worth_s: of one whose first runs take longer, these are its time.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    others, times = OtherSteps.of(threads, far), list[float | None]()
    with torch.no_grad():
        for run, given in built(TvmBackend(), kernels, {}):
            if run is None:
                times.append(None)
                continue
            call, between = partial(run, *given), partial(others.run, given)
            first = time_one(call, min_time_s=0.0, blocks=2, warmup=1, between=between)
            if first.q1_s > worth_s:
                times.append(first.q1_s)
            else:
                times.append(steady(call, math.inf, between).q1_s)
    return times


def race(kernels: Sequence[Kernel], threads: int, far: int) -> list[Timing | None]:
    """Kernels of one term against each other, in turns; a task of the worker. None for one that
    fails, or that computes something else than the first."""
    torch.set_num_threads(threads)
    others, calls = OtherSteps.of(threads, far), dict[int, tuple[Call, Call]]()
    expected: torch.Tensor | None = None
    with torch.no_grad():
        for n, kernel in enumerate(kernels):
            torch.manual_seed(0)  # all on the same data
            ((run, given),) = built(TvmBackend(), [kernel], {})
            if run is None:
                continue
            result = run(*given)
            expected = result if expected is None else expected
            if _alike(result, expected):
                calls[n] = partial(others.run, given), partial(run, *given)
        times = _in_turns(calls)
    return [times.get(n) for n in range(len(kernels))]


def _alike(result: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two schedules computed the same, but for rounding."""
    one, other = result.double(), expected.double()
    scale = float(other.nan_to_num(0.0, 0.0, 0.0).abs().max()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)


def _in_turns(calls: Mapping[int, tuple[Call, Call]], rounds: int = ROUNDS) -> dict[int, Timing]:
    """Times of calls, before each of which something else runs; in a round each has one turn."""
    samples: dict[int, list[float]] = {n: [] for n in calls}
    for _ in range(rounds):
        for n, (between, call) in calls.items():
            timing = time_one(call, min_time_s=0.0, blocks=3, warmup=1, between=between)
            samples[n].append(timing.median_s)
    return {n: Timing.of(seconds) for n, seconds in samples.items()}
