"""Plans are built and run as whole programs, and the fastest one is taken. The tests state what
each kernel takes alone and what it takes in its place in the program."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eqsynth.extract.cost import CostModel
from eqsynth.extract.in_place import InPlace, fastest
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.profile import Profile
from eqsynth.extract.schedule import Lanes
from eqsynth.extract.search import QUICK, Extraction, extract
from eqsynth.extract.select import Selection
from eqsynth.extract.timing import Timing
from eqsynth.lower.torch_backend import TorchBackend
from tests.extract.egraphs import ref
from tests.extract.test_cost import TARGET, kernel_of, matmul, relu, two_ways

ALONE = {"Exp": 2e-3, "Matmul": 2.2e-3, "Relu": 1e-3}
"""The time of each kernel by itself. By the sum of these, the plan with Exp is the fastest: 3.0 ms
against 3.2 ms with Matmul."""


class Places:
    """Stands for running a plan: each kernel takes the stated time in its place in the program.
    ``ran`` lists the operators of the plans that were run."""

    pause_s = 0.0

    def __init__(self, **times: float) -> None:
        self.times, self.ran = times, list[list[str]]()

    def __call__(self, plan: Plan, until: float) -> InPlace | None:
        time.sleep(self.pause_s)
        self.ran.append([name_of(kernel) for kernel in plan.kernels()])
        times = {kernel: self.times[name_of(kernel)] for kernel in plan.kernels()}
        return InPlace(sum(times.values()), times)


def name_of(kernel: Kernel) -> str:
    return str(getattr(kernel.term, "name", ""))


def extracted(
    tmp_path: Path,
    run: Places | None,
    deadline_s: float = 60.0,
) -> tuple[list[str], Extraction]:
    def measure(kernels: Sequence[Kernel], _: float) -> dict[Kernel, Timing]:
        seconds = {kernel: ALONE.get(name_of(kernel), 1.0) for kernel in kernels}
        return {kernel: Timing(s, s, s, 3) for kernel, s in seconds.items()}

    costs = CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "p.sqlite"))
    found = extract(two_ways(), (TorchBackend(),), costs, measure, deadline_s, run=run)
    return [name_of(kernel) for kernel in found.plan.kernels()], found


def test_a_plan_whose_kernel_takes_more_in_its_place_gives_way(tmp_path: Path) -> None:
    places = Places(Exp=6e-3, Matmul=3e-3, Relu=1e-3)
    kernels, found = extracted(tmp_path, places)
    assert places.ran == [["Exp", "Relu"], ["Matmul", "Relu"]]
    assert kernels == ["Matmul", "Relu"]
    # A plan's cost is the sum of its kernels' times alone; ``together`` is how many times that sum
    # the program takes.
    assert found.plan.cost_s == pytest.approx(3.2e-3)
    assert found.together == pytest.approx(4 / 3.2)
    assert extracted(tmp_path, None)[0] == ["Exp", "Relu"]


def test_by_times_in_place_the_solver_does_a_part_of_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none where it has saved nothing: each of the two terms is read once, so greedy plans are
    best."""
    places, shares, best = Places(Exp=6e-3, Matmul=3e-3, Relu=1e-3), list[float](), Selection.best
    saved = 0.5

    def watched(self: Selection, *args: Any, **named: Any) -> Plan:
        if places.ran:
            shares.append(named["share"])
        plan = best(self, *args, **named)
        self.gains[-1] += saved
        return plan

    monkeypatch.setattr(Selection, "best", watched)
    kernels, _found = extracted(tmp_path / "saved", places)
    assert shares and {*shares} == {QUICK} and kernels == ["Matmul", "Relu"]
    saved = 0.0
    shares.clear()
    places.ran.clear()
    kernels, _found = extracted(tmp_path / "not", places)
    assert not shares and kernels == ["Matmul", "Relu"]


def test_a_plan_that_was_promised_more_and_is_slower_is_left(tmp_path: Path) -> None:
    places = Places(Exp=6e-3, Matmul=9e-3, Relu=1e-3)
    kernels, found = extracted(tmp_path, places)
    assert places.ran == [["Exp", "Relu"], ["Matmul", "Relu"]]
    assert kernels == ["Exp", "Relu"] and found.together == pytest.approx(7 / 3)


def test_what_all_kernels_take_more_is_held_against_none(tmp_path: Path) -> None:
    places = Places(Exp=4e-3, Matmul=0.0, Relu=2e-3)
    kernels, found = extracted(tmp_path, places)
    assert places.ran == [["Exp", "Relu"]]
    assert kernels == ["Exp", "Relu"] and found.together == pytest.approx(2.0)


def test_kernels_that_have_not_run_are_judged_by_those_that_are_bound_as_they_are(
    tmp_path: Path,
) -> None:
    """In place the program takes twice the sum: the product takes its time alone, the map three
    times its own."""
    costs = CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "p.sqlite"))
    product, map_ = kernel_of(matmul()), kernel_of(relu(1000))
    others = kernel_of(matmul(99)), kernel_of(relu(999))
    costs.record({kernel: Timing(1.0, 1.0, 1.0, 3) for kernel in (product, map_, *others)})
    steps = [
        PlanStep(k, k.term, (), {}, (ref(n), (0, 1)), 1.0) for n, k in enumerate((product, map_))
    ]
    told: list[float] = []

    def select(now: Callable[[Kernel], float], known: Plan) -> Plan:
        told.extend(map(now, (product, map_, *others)))
        return known

    took = InPlace(4.0, {product: 1.0, map_: 3.0})
    fastest(Plan(tuple(steps), {}, (), 2.0), costs, select, lambda *_: took, math.inf)
    assert told == [0.5, 1.5, 0.5, 1.5]


def test_a_plan_that_does_not_build_is_taken_as_it_is(tmp_path: Path) -> None:
    class Broken(Places):
        def __call__(self, plan: Plan, until: float) -> InPlace | None:
            super().__call__(plan, until)
            return None

    places = Broken(Exp=6e-3, Matmul=3e-3, Relu=1e-3)
    kernels, found = extracted(tmp_path, places)
    assert len(places.ran) == 1
    assert kernels == ["Exp", "Relu"] and found.together == 1.0


def test_no_further_plan_is_built_at_the_deadline(tmp_path: Path) -> None:
    places = Places(Exp=6e-3, Matmul=3e-3, Relu=1e-3)
    places.pause_s = 1.0
    assert extracted(tmp_path, places, 1.0)[0] == ["Exp", "Relu"]
    assert len(places.ran) == 1


def test_no_plan_is_built_that_there_is_no_time_to_run(tmp_path: Path) -> None:
    """A call of the plan is estimated to take 3 ms, several calls are needed, and the deadline is
    now."""
    places = Places(Exp=6e-3, Matmul=3e-3, Relu=1e-3)
    kernels, found = extracted(tmp_path, places, 0.0)
    assert not places.ran and found.together == 1.0


def test_other_plans_are_built_too_and_the_fastest_is_taken(tmp_path: Path) -> None:
    costs = CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "p.sqlite"))
    kernels = [kernel_of(relu(1000 + n)) for n in range(3)]
    costs.record({kernel: Timing(1.0, 1.0, 1.0, 3) for kernel in kernels})
    plans = [
        Plan((PlanStep(k, k.term, (), {}, (ref(n), (0, 1)), 1.0),), {}, (), 1.0)
        for n, k in enumerate(kernels)
    ]
    took = dict(zip(kernels, (3.0, 1.0, 2.0), strict=True))
    ran: list[Plan] = []

    def run(plan: Plan, _until: float) -> InPlace:
        ran.append(plan)
        (kernel,) = plan.kernels()
        return InPlace(took[kernel], {kernel: took[kernel]})

    found, together = fastest(
        plans[0], costs, lambda _, known: known, run, math.inf, others=plans[1:]
    )
    assert ran == plans and found is plans[1] and together == pytest.approx(1.0)


def test_generated_kernels_that_have_not_run_are_judged_by_those_of_their_schedule(
    tmp_path: Path,
) -> None:
    """In place the program takes 1.5 times the sum of its kernels alone: half of it by ``Rows``,
    which take their time alone, half by ``Lanes``, which take twice theirs. All are bound by
    memory."""
    costs = CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "p.sqlite"))
    sizes = (1000, 999)
    rows, other_rows = (kernel_of(relu(n), "tvm") for n in sizes)
    lanes, other_lanes = (replace(kernel_of(relu(n), "tvm"), schedule=Lanes(16)) for n in sizes)
    alike = (rows, other_rows, lanes, other_lanes)
    costs.record({kernel: Timing(1.0, 1.0, 1.0, 3) for kernel in alike})
    steps = [PlanStep(k, k.term, (), {}, (ref(n), (0, 1)), 1.0)
             for n, k in enumerate((rows, lanes))]  # fmt: skip
    told: list[float] = []

    def select(now: Callable[[Kernel], float], known: Plan) -> Plan:
        told.extend(map(now, (other_rows, other_lanes)))
        return known

    plan = Plan(tuple(steps), {}, (), 2.0)
    fastest(plan, costs, select, lambda *_: InPlace(3.0, {rows: 1.0, lanes: 2.0}), math.inf)
    assert told == pytest.approx([1 / 1.5, 2 / 1.5])


def test_a_search_builds_the_plan_in_few_forms_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which plan that is, ``test_forms.py`` tests; here it is the other order of steps."""

    def other(known: Plan, *_: object) -> Plan:
        return replace(known, steps=known.steps[::-1])

    places = Places(Exp=4e-3, Matmul=0.0, Relu=2e-3)
    monkeypatch.setattr("eqsynth.extract.search.in_few_forms", other)
    extracted(tmp_path, places)
    assert places.ran == [["Exp", "Relu"], ["Relu", "Exp"]]
