"""Tuning real kernels: what is measured, kept, offered and refused. No time is asserted."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from eoperator_cases import check_kernels, it, tensor

import eqsynth
from eqsynth import running, searching
from eqsynth.executor import Worker, borrowed
from eqsynth.extract import tuned
from eqsynth.extract.cost import measurement_key
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.measure import measure_cpu_target
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.profile import Profile
from eqsynth.extract.schedule import Flat, Fold, Lanes, Rows, Schedule, Tile
from eqsynth.extract.target import Target
from eqsynth.extract.timing import Timing, time_one
from eqsynth.ir.scalar import Call, Read
from eqsynth.ir.tensor import ClassRef, Scope
from eqsynth.lower import kernel_tuning, tuning_records, tvm_backend
from eqsynth.lower.backends import cpu_backends
from eqsynth.lower.kernel_tuning import (
    ScheduleTimes,
    TunedKernel,
    race,
    space_for,
    time_schedules,
    tune_kernel,
)
from eqsynth.lower.plan_tuning import heaviest, tune_kernels, with_faster
from eqsynth.lower.tvm_backend import TvmBackend, tuned_for
from eqsynth.tuning.search import Budget, Tuned
from eqsynth.tuning.tuners import at_random, opevo

THREADS = torch.get_num_threads()


def transposed(rows: int = 40, columns: int = 48) -> Kernel:
    read = Read(tensor(0, (rows, columns)), (it(1, rows), it(0, columns)))
    scope = Scope((columns, rows), (), read)
    return Kernel(scope, (False,), "tvm", ((0, 1),), (0, 1), Tile(16, 16))


@pytest.fixture(scope="module")
def target() -> Target:
    return measure_cpu_target()


@pytest.fixture
def profile(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Profile]:
    """A profile, and a cache directory, of the test's own."""
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    found = Profile(target.key(), path=tmp_path / "own.sqlite")
    yield found
    found.close()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with borrowed(threads=THREADS) as found:
        yield found


@pytest.mark.rotating
def test_what_is_measured_is_kept(profile: Profile, worker: Worker) -> None:
    kernel = transposed()
    first = ScheduleTimes(kernel, worker, profile, THREADS, far=False)
    schedules: list[Schedule] = [Tile(16, 16), Rows(), Tile(8, 16, across=True)]
    times = first(schedules)
    assert first.measured == 3 and all(t is not None and t > 0 for t in times)
    again = ScheduleTimes(kernel, worker, profile, THREADS, far=False)
    assert again(schedules) == times and again.measured == 0
    assert again([*schedules, Flat(32)])[:3] == times and again.measured == 1
    # Other layouts, and weights out of the cache, are other kernels.
    other = replace(kernel, inputs=((1, 0),))
    assert not ScheduleTimes(other, worker, profile, THREADS, far=False).known
    assert not ScheduleTimes(kernel, worker, profile, THREADS, far=True).known
    # Points of a space say nothing of kernels that are offered without a search.
    assert profile.lookup(measurement_key(kernel)) is None
    assert not profile.family_ratios(measurement_key(kernel).family)


@pytest.mark.rotating(parts=4)
def test_a_search_goes_on_where_it_was(profile: Profile, worker: Worker) -> None:
    kernel = transposed()
    short = tune_kernel(kernel, worker, profile, Budget(trials=4), opevo, THREADS)
    long = tune_kernel(kernel, worker, profile, Budget(trials=6), opevo, THREADS)
    tried = [trial.made for trial in long.found.trials]
    assert tried[:4] == [trial.made for trial in short.found.trials]
    assert [t.time_s for t in long.found.trials[:4]] == [t.time_s for t in short.found.trials]
    space = space_for(kernel)
    assert tried[: len(space.starts)] == [space.made(point) for point in space.starts]
    assert len(set(tried)) == 6 and long.found.stop == "trials"
    check_kernels([replace(kernel, schedule=schedule) for schedule in tried])
    assert long.default.schedule in {space.made(point) for point in space.starts}
    assert long.before is not None and long.after is not None
    assert long.after.median_s <= long.before.median_s


@pytest.mark.slow
def test_what_is_not_built_is_a_failure(profile: Profile, worker: Worker) -> None:
    """A schedule of another nest among others, and a worker that is too slow for any."""
    kernel = transposed()
    times = ScheduleTimes(kernel, worker, profile, THREADS, far=False)
    with pytest.warns(RuntimeWarning, match="left out"):
        found = time_schedules(
            [replace(kernel, schedule=s) for s in (Rows(), Fold(16), Flat(16))], THREADS, False,
            math.inf,
        )  # fmt: skip
    assert [time_s is None for time_s in found] == [False, True, False]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_tuning, "TIMEOUT_S", 1e-3)
        assert times([Rows(), Flat(16)]) == [None, None]
    # It isn't tried again; the next one gets a worker that works.
    assert times([Rows()]) == [None] and times([Flat(32)]) != [None]


def _at_a_pace(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the clock: a call returns its seconds, and after eight turns the machine takes three
    times as long. Returns the list of all turns' seconds."""
    turns: list[float] = []

    def timed(call: Callable[[], float], **_: object) -> Timing:
        turns.append(call() * (1.0 if len(turns) < 8 else 3.0))
        return Timing.of([turns[-1]])

    monkeypatch.setattr(kernel_tuning, "time_one", timed)
    monkeypatch.setattr(kernel_tuning, "wall_s", lambda call, _calls: call())
    return turns


def test_a_schedule_is_timed_at_the_pace_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = _at_a_pace(monkeypatch)
    first, other = (lambda: None, lambda: 1.2), (lambda: None, lambda: 0.9)
    assert kernel_tuning.ratio(other, first, math.inf) == pytest.approx(0.75)
    assert len(turns) == 2 * kernel_tuning.PACED and max(turns) == pytest.approx(3.6)


def test_a_slow_schedule_is_dropped_early(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = _at_a_pace(monkeypatch)
    first, other = (lambda: None, lambda: 1.0), (lambda: None, lambda: 2.5)
    assert kernel_tuning.ratio(other, first, 2.0) == 2.5 and len(turns) == 2


def test_a_far_slower_schedule_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = _at_a_pace(monkeypatch)
    first, other = (lambda: None, lambda: 1.0), (lambda: None, lambda: 4.5)
    assert kernel_tuning.ratio(other, first, 2.0) == 4.5 and not turns


@pytest.mark.parametrize(("seconds", "calls"), [(0.02, 4), (0.001, 1 + 4 * 9)])
def test_a_long_turn_is_one_call(
    monkeypatch: pytest.MonkeyPatch, seconds: float, calls: int
) -> None:
    """Each of the two calls is made once for a start, and then in three turns, or in nine of a
    warm-up and three samples."""
    made: list[int] = []
    monkeypatch.setattr(kernel_tuning, "wall_s", lambda call, _calls: call() or seconds)
    monkeypatch.setattr(kernel_tuning, "PACED_S", 0.0 if calls == 4 else math.inf)
    sides = [(lambda: 1.0, partial(made.append, n)) for n in range(2)]
    real = partial(time_one, clock=lambda call, _calls: call() or seconds)
    monkeypatch.setattr(kernel_tuning, "time_one", real)
    assert kernel_tuning.ratio(sides[0], sides[1]) == 1.0
    assert made.count(0) == made.count(1) == calls


def test_the_first_kernel_sets_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [replace(transposed(), schedule=schedule) for schedule in (Tile(16, 16), Rows())]
    beside: list[float] = []

    def ratio(one: object, other: object, most: float) -> float:
        beside.append(most)
        return 0.5

    monkeypatch.setattr(kernel_tuning, "ratio", ratio)
    one, other = time_schedules(kernels, THREADS, False, 8.0)
    assert one is not None and other == one / 2 and beside == [8.0 / one]
    # A later batch has the first kernel of the search beside it.
    assert time_schedules(kernels, THREADS, False, 8.0, (kernels[0], 16.0)) == [8.0, 8.0]
    assert beside[1:] == [0.5, 0.5]


def test_another_result_loses_the_race() -> None:
    """Of kernels that don't compute the same the first counts."""
    kernel = transposed(48, 48)
    other = replace(kernel.term, body=Call("exp", (kernel.term.body,)))  # type: ignore[type-var]
    found = race([kernel, replace(kernel, schedule=Rows()), replace(kernel, term=other)], 1, False)
    assert [timing is None for timing in found] == [False, False, True]


def test_what_was_found_is_offered(profile: Profile) -> None:
    kernel, backend = transposed(), TvmBackend()

    def offered() -> list[Kernel]:
        found = backend.kernels(kernel.term, (False,))
        return [k for k in found if (k.inputs, k.output) == (kernel.inputs, kernel.output)]

    before = offered()
    assert len(before) == 3
    best = replace(kernel, schedule=Tile(8, 24, across=True))
    tuned.keep(best, tuned_for())
    assert offered() == [*before, best]
    assert tuned.best(replace(kernel, schedule=Rows()), tuned_for()) == best.schedule
    assert tuned.best(kernel, "another machine") is None
    # Once it is no schedule of the nest any more, or offered in any case, it adds nothing.
    for schedule in (Fold(16), Rows()):
        tuned.keep(replace(kernel, schedule=schedule), tuned_for())
        assert offered() == before


@pytest.mark.rotating
@pytest.mark.usefixtures("profile")
def test_the_heaviest_kernels_of_a_plan(target: Target) -> None:
    weights = {transposed(): 3e-5, transposed(48, 48): 1e-5}
    faster = dict(tune_kernels(weights, target, 0, seconds=2.0))
    stored = Profile(target.key())
    assert faster.keys() <= weights.keys()
    for one in faster.values():
        if not one.faster:
            assert one.kernel == one.default
            continue
        assert tuned.best(one.default, tuned_for()) == one.kernel.schedule
        assert stored.lookup(measurement_key(one.kernel)) is not None
    tried = tuning_records.records(stored)
    assert tried and all(len(record.times) >= 3 for record in tried)
    stored.close()


class Sums(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.transpose(1, 2) * 2 + 1).tanh().sum(1)


@pytest.mark.rotating
@pytest.mark.usefixtures("profile")
def test_optimize_tunes_and_stays_right() -> None:
    x = torch.randn(4, 96, 80)
    module = Sums().eval()
    untuned = eqsynth.optimize(module, (x,), time_limit_s=20, engines=())
    found = eqsynth.optimize(module, (x,), time_limit_s=20, tune=1.0, strict=True, engines=())
    torch.testing.assert_close(found(x), module(x), rtol=1e-4, atol=1e-3)
    assert found.report.remembered_plan and "tune" in found.report.stages_s
    again = eqsynth.optimize(module, (x,), time_limit_s=20, engines=())
    assert again.report.remembered_plan and "tune" not in again.report.stages_s
    for before, after in ((untuned, found), (found, again)):
        assert [step.kernel.term for step in after.steps] == [s.kernel.term for s in before.steps]
    assert [step.kernel for step in again.steps] == [step.kernel for step in found.steps]


@pytest.mark.rotating
@pytest.mark.usefixtures("profile")
def test_a_tuned_schedule_is_used_if_the_program_is_faster_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever tuning tells of the kernel alone. The sum reads along memory, so that a loop over
    rows is much slower than partial sums."""
    x, module = torch.randn(4, 96, 800), Sums().eval()

    def fits(kernel: Kernel) -> bool:
        with suppress(ValueError):
            tvm_backend.check_schedule(kernel)
            return True
        return False

    def tuned_to(*schedules: Schedule) -> eqsynth.CompiledProgram:
        def tuned(plan: Plan, *_: object) -> dict[Kernel, TunedKernel]:
            sums = (k for k in heaviest(plan) if isinstance(k.term, Scope) and k.term.reduction)
            kernel = next(sums)
            best = next(filter(fits, (replace(kernel, schedule=s) for s in schedules)))
            before, after = Timing(1.0, 1.0, 1.0, 3), Timing(0.5, 0.5, 0.5, 3)
            search = Tuned[Schedule]((), "trials", 0.0, 0.0)
            return {kernel: TunedKernel(kernel, best, before, after, search)}

        monkeypatch.setattr(running, "tuned_kernels", tuned)
        options: dict[str, Any] = {"time_limit_s": 20, "engines": (), "strict": True}
        return eqsynth.optimize(module, (x,), tune=1.0, **options)

    slow = tuned_to(Rows())
    (one,) = slow.report.tuned
    assert not one.used and "(not faster in the program)" in str(one)
    assert Rows() not in [step.kernel.schedule for step in slow.steps]

    monkeypatch.setenv("EQSYNTH_CACHE", os.environ["EQSYNTH_CACHE"] + "/other")
    own = [backend for backend in cpu_backends() if isinstance(backend, TvmBackend)]
    monkeypatch.setattr(searching, "backends_of", lambda *_: own)
    monkeypatch.setattr(tvm_backend, "offered_schedules", lambda *_: (Rows(),))
    fast = tuned_to(Fold(16), Lanes(16))
    (one,) = fast.report.tuned
    assert one.used and one.found in [str(step.kernel.schedule) for step in fast.steps]
    torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-3)


def plan_of(*kernels: tuple[Kernel, float]) -> Plan:
    """Steps of which each takes so many seconds; what they compute doesn't matter here."""
    steps = []
    for kernel, cost_s in kernels:
        ref = ClassRef(len(steps), kernel.term.type, False, bytes([len(steps)]))
        steps.append(PlanStep(kernel, kernel.term, (), {}, (ref, kernel.output), cost_s))
    return Plan(tuple(steps), {}, (), sum(cost_s for _, cost_s in kernels))


def test_a_plan_with_faster_kernels() -> None:
    first, second = transposed(), transposed(48, 48)
    other = replace(first, implementation="torch", schedule="")
    plan = plan_of((first, 2e-3), (second, 5e-4), (other, 4e-3), (first, 2e-3), (second, 1e-6))
    assert list(heaviest(plan).items()) == [(first, 4e-3), (second, pytest.approx(5.01e-4))]
    small = plan_of((first, 1e-3), (second, 1e-5))
    assert list(heaviest(small)) == [first]
    faster = replace(first, schedule=Tile(8, 8, across=True))
    search = Tuned[Schedule]((), "trials", 0.0, 0.0)
    before, after = Timing(1e-3, 1e-3, 1e-3, 3), Timing(5e-4, 5e-4, 5e-4, 3)
    found = with_faster(plan, {first: TunedKernel(first, faster, before, after, search)})
    assert [step.kernel for step in found.steps] == [faster, second, other, faster, second]
    assert [step.cost_s for step in found.steps] == [1e-3, 5e-4, 4e-3, 1e-3, 1e-6]
    assert math.isclose(found.cost_s, plan.cost_s - 2e-3)
    assert [step.result for step in found.steps] == [step.result for step in plan.steps]


@pytest.mark.parametrize("seconds", [-1.0, math.nan, "soon"])
def test_seconds_that_are_none(seconds: object) -> None:
    with pytest.raises(eqsynth.EqsynthError) as error:
        eqsynth.optimize(Sums(), (torch.ones(1, 2, 2),), tune=seconds)  # type: ignore[arg-type]
    assert error.value.got == repr(seconds)


@pytest.mark.rotating
def test_lanes_is_a_schedule_of_sums_across(profile: Profile, worker: Worker) -> None:
    """A reduction, by another tuner, on a budget of seconds that is used up at once."""
    scope = Scope((64,), (40,), Read(tensor(0, (40, 64)), (it(1, 40), it(0, 64))))
    kernel = Kernel(scope, (False,), "tvm", ((0, 1),), (0,), Lanes(16))
    found = tune_kernel(kernel, worker, profile, Budget(seconds=1e-9), at_random, THREADS)
    assert found.found.stop == "seconds" and found.kernel.schedule in {Lanes(16), Lanes(64)}
