"""Tuning one generated kernel: a worker times its schedules, and the profile keeps the times.

A search goes on for minutes, and a shared machine takes twice as long for some seconds in between.
So a schedule is timed in turns with the first schedule of the search, and its time is that many
times what the first one took when it was measured:

    first 0.80 ms; later, in turns, first 1.20 and other 0.90 ms    ->    other 0.60 ms

A build that hangs or crashes costs only that schedule. A schedule whose first runs are far slower
than the best isn't timed further. Only one process of a machine times at once. Not here: spaces
(``spaces.py``), tuners (``tuning/``), how times are kept (``tuning_records.py``).
"""

from __future__ import annotations

import math
import statistics
import time
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
from eqsynth.extract.timing import Timing, alone, time_one, wall_s
from eqsynth.ir.tensor import Region, Scope
from eqsynth.lower import tuning_records
from eqsynth.lower.backends import Between, Call, as_step, built, steady
from eqsynth.lower.loop_nest import is_memory_bound, loop_nest
from eqsynth.lower.machine import this_machine
from eqsynth.lower.other_steps import OtherSteps
from eqsynth.lower.spaces import space_of
from eqsynth.lower.tuning_records import Record
from eqsynth.lower.tvm_backend import TvmBackend, tuned_for
from eqsynth.tuning.search import Budget, Search, Tuned, tune
from eqsynth.tuning.space import Space

FAR: Final = 2.0
"""A schedule whose first runs take more than this many times the best schedule's time isn't timed
further."""

TOGETHER: Final = 8
"""The number of kernels that are compiled together."""

TIMEOUT_S: Final = 60.0
"""The time limit for building and timing that many kernels; after it they are tried one by one."""

BETTER: Final = 0.98
"""A schedule replaces the default if it takes at most this part of the default's time, both timed
side by side."""

FINALISTS: Final = 3
"""The number of schedules that are timed side by side with the default: the fastest of many
measured times is partly luck."""


ROUNDS: Final = 31
"""The number of rounds in which the finalists have a turn each."""

PACED: Final = 9
"""The number of rounds in which a schedule and the first one of the search have a turn each."""

PACED_S: Final = 0.1
"""After three of these rounds no more are begun if they have taken so long."""

ONE_CALL_S: Final = 0.01
"""If both take this long, a turn is one call. With a warm-up and three samples in each turn, a
schedule of 70 ms took two seconds."""

AT_ONCE: Final = 2.0
"""The times of first calls are trusted up to this factor."""


def space_for(kernel: Kernel) -> Space[Schedule]:
    """The space of the schedules that a generated kernel may have on this machine."""
    assert isinstance(kernel.term, Scope | Region)
    nest = loop_nest(kernel.term, kernel.inputs, kernel.output)
    return space_of(nest, this_machine(), is_memory_bound(kernel.term), kernel.constants)


@dataclass(frozen=True)
class TunedKernel:
    """The outcome of tuning one kernel.

    Attributes:
        default: the kernel with the fastest schedule that is offered without a search.
        kernel: the kernel with the fastest schedule; the default if none is faster by more than
            noise.
        before, after: the times of these two, from one run; None if they don't run.
        found: the outcome of the search.
    """

    default: Kernel
    kernel: Kernel
    before: Timing | None
    after: Timing | None
    found: Tuned[Schedule]

    @property
    def faster(self) -> bool:
        """Whether the search found a faster schedule than those that are offered without it."""
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
    """Search the kernel's space, and time the best schedules side by side with the fastest one that
    is offered without a search. A schedule that wins is offered from now on (``extract/tuned.py``).

    Args:
        profile: the profile of this machine with this number of threads.
        far: the number of cache levels that weights are to be out of when the kernel is called
            (``Target.far``).
        starts: schedules to begin with after those that are offered, as far as the space has them.
            If the kernel was tuned before, the search begins with the starts of that time.
        watch: called whenever schedules were measured.
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
    """The seconds of a kernel's schedules: from the profile, or measured and kept there.

    Args:
        starts: the schedules to begin the search with, unless an earlier search of this kernel is
            kept.

    Attributes:
        measured: the number of schedules that were measured now.
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
        """The times that are known so far; None for a schedule that doesn't run."""
        return self.record.times

    def __call__(self, schedules: Sequence[Schedule]) -> list[float | None]:
        new = [schedule for schedule in schedules if schedule not in self.known]
        for start in range(0, len(new), TOGETHER):
            part = new[start : start + TOGETHER]
            with alone():
                self._time(part)
            self.measured += len(part)
            tuning_records.keep(self._profile, self.record)
        return [self.known[schedule] for schedule in schedules]

    def _worth_s(self) -> float:
        """If a schedule's first runs take longer than this, it isn't timed further."""
        times = [time_s for time_s in self.known.values() if time_s is not None]
        return FAR * min(times, default=math.inf)

    def _time(self, schedules: Sequence[Schedule]) -> None:
        """Time schedules together; if the worker fails, one by one."""
        kernels = [replace(self._kernel, schedule=schedule) for schedule in schedules]
        first = self.record.first
        beside = None if first is None else (replace(self._kernel, schedule=first[0]), first[1])
        try:
            times = self._worker.run(
                time_schedules, kernels, self._threads, self._far, self._worth_s(), beside,
                timeout_s=TIMEOUT_S,
            )  # fmt: skip
            self.known.update(zip(schedules, times, strict=True))
        except EqsynthError:
            if len(schedules) == 1:
                self.known[schedules[0]] = None
                return
            for one in schedules:  # one of them made the worker fail
                self._time([one])


Turns = tuple[Between, Call]
"""A call that runs before each sample, and the call that is timed."""


def time_schedules(
    kernels: Sequence[Kernel],
    threads: int,
    far: int,
    worth_s: float,
    first: tuple[Kernel, float] | None = None,
) -> list[float | None]:
    """The seconds of kernels that are built together; None for a kernel that fails. A task of the
    worker.

    Args:
        worth_s: if a kernel's first turn says that it takes longer, it gets no further turns.
        first: the kernel that was timed first, and its seconds; the others' seconds are at its
            pace. If it is None, the first of ``kernels`` that runs takes its place.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    others, times = OtherSteps.of(threads, far), list[float | None]()
    beside: tuple[Turns, float] | None = None
    with torch.no_grad():
        asked = kernels if first is None else [first[0], *kernels]
        for number, (run, given) in enumerate(built(TvmBackend(), asked, {})):
            turns: Turns | None = None
            if run is not None:
                turns = partial(others.run, given), as_step(run, given)
            if first is not None and number == 0:
                beside = None if turns is None else (turns, first[1])
            elif turns is None:
                times.append(None)
            elif beside is None:
                paced = partial(others.paced().run, given)
                beside = turns, steady(turns[1], math.inf, paced).q1_s
                times.append(beside[1])
            else:
                times.append(beside[1] * ratio(turns, beside[0], worth_s / beside[1]))
    return times


def ratio(one: Turns, other: Turns, most: float = math.inf) -> float:
    """How many times as long as the other call a call takes, by turns. If the first call or the
    first turn says that it is more than ``most``, there are no further turns."""
    first_s, paced_s = (wall_s(call, 1) for _, call in (one, other))
    if first_s > AT_ONCE * most * paced_s:
        return first_s / paced_s
    turn = _call if min(first_s, paced_s) >= ONE_CALL_S else _turn
    ratios: list[float] = []
    end = time.monotonic() + PACED_S
    while len(ratios) < PACED and (len(ratios) < 3 or time.monotonic() < end):
        ratios.append(turn(one).median_s / turn(other).median_s)
        if ratios[0] > most:
            break
    return statistics.median(ratios)


def _turn(turns: Turns) -> Timing:
    """The time of a call in one turn of three samples."""
    between, call = turns
    return time_one(call, min_time_s=0.0, blocks=3, warmup=1, between=between)


def _call(turns: Turns) -> Timing:
    """The time of one call, without a call before it."""
    between, call = turns
    return time_one(call, min_time_s=0.0, blocks=1, warmup=0, between=between)


def race(kernels: Sequence[Kernel], threads: int, far: int) -> list[Timing | None]:
    """Time kernels of one term against each other, in turns; a task of the worker. None for a
    kernel that fails, or whose result isn't that of the first kernel."""
    torch.set_num_threads(threads)
    others, calls = OtherSteps.of(threads, far), dict[int, Turns]()
    expected: torch.Tensor | None = None
    with torch.no_grad():
        for n, kernel in enumerate(kernels):
            torch.manual_seed(0)  # all on the same data
            ((run, given),) = built(TvmBackend(), [kernel], {})
            if run is None:
                continue
            result = run(*given)
            expected = result if expected is None else expected
            if alike(result, expected):
                calls[n] = partial(others.run, given), as_step(run, given)
        times = _in_turns(calls)
    return [times.get(n) for n in range(len(kernels))]


def alike(result: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether the results of two schedules agree up to rounding."""
    one, other = result.double(), expected.double()
    scale = float(other.nan_to_num(0.0, 0.0, 0.0).abs().max()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)


def _in_turns(calls: Mapping[int, Turns], rounds: int = ROUNDS) -> dict[int, Timing]:
    """The times of calls. In each round each call has one turn."""
    samples: dict[int, list[float]] = {n: [] for n in calls}
    for _ in range(rounds):
        for n, turns in calls.items():
            samples[n].append(_turn(turns).median_s)
    return {n: Timing.of(seconds) for n, seconds in samples.items()}
