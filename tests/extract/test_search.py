"""When the search for a plan ends, what the solver is asked, and how much time is reserved for
engines."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eqsynth.extract.candidates import Candidate, candidates
from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.prices import Prices, Way, Worth
from eqsynth.extract.profile import Profile
from eqsynth.extract.regions import reserved_s, timed_soon
from eqsynth.extract.search import HOPE, PATIENCE, Rival, _Search, extract
from eqsynth.extract.select import Selection
from eqsynth.extract.timing import Timing
from eqsynth.ir.tensor import Tensor
from eqsynth.lower.torch_backend import TorchBackend
from tests.extract.test_cost import TARGET, kernel_of, matmul, relu, two_ways


def test_all_choices_are_made_at_once_again_only_after_a_gain(tmp_path: Path) -> None:
    costs = CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "p.sqlite"))
    seconds = Timing(1.0, 1.0, 1.0, 3)
    graph = two_ways()
    found = extract(graph, (TorchBackend(),), costs, lambda ks, _: dict.fromkeys(ks, seconds), 60.0)
    search = _Search(Selection(graph, {}), costs, incumbent=found.plan)
    assert not search._is_idle()  # not asked yet
    search.promised_s = 0.5 * found.plan.cost_s
    assert not search._is_idle()
    search.promised_s = 0.95 * found.plan.cost_s
    assert search._is_idle()
    dearest = max(found.plan.steps, key=lambda step: step.cost_s).kernel
    costs.record({dearest: replace(seconds, q1_s=0.5)})
    assert not search._is_idle() and search._is_idle()
    assert not _Search(Selection(graph, {}), costs)._is_idle()


def test_rounds_that_gain_nothing_for_little_hope_are_few(tmp_path: Path) -> None:
    costs = CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "p.sqlite"))
    seconds = Timing(1.0, 1.0, 1.0, 3)
    graph = two_ways()
    found = extract(graph, (TorchBackend(),), costs, lambda ks, _: dict.fromkeys(ks, seconds), 60.0)

    def search(hoped: float) -> _Search:
        plan = replace(found.plan, cost_s=hoped * found.plan.cost_s)
        return _Search(Selection(graph, {}), costs, plan, incumbent=found.plan)

    little = search(1 - HOPE / 2)
    assert [little._is_tired() for _ in range(PATIENCE + 1)] == [False] * PATIENCE + [True]
    much = search(1 - 2 * HOPE)
    assert not any(much._is_tired() for _ in range(2 * PATIENCE))
    gaining = search(1 - HOPE / 2)
    dearest = max(found.plan.steps, key=lambda step: step.cost_s).kernel
    for n in range(2 * PATIENCE):
        assert not gaining._is_tired()
        costs.record({dearest: replace(seconds, q1_s=0.9**n)})
        gaining.plan = found.plan
    assert not _Search(Selection(graph, {}), costs, found.plan)._is_tired()


def test_the_gap_is_told_where_a_bound_is_known(tmp_path: Path) -> None:
    costs = CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "p.sqlite"))
    times = {"Matmul": 4e-3, "Exp": 2e-3, "Relu": 1e-3}

    def measure(kernels: Sequence[Kernel], _: float) -> dict[Kernel, Timing]:
        seconds = {k: times.get(getattr(k.term, "name", ""), 1e-2) for k in kernels}
        return {kernel: Timing(s, s, s, 3) for kernel, s in seconds.items()}

    found = extract(two_ways(), (TorchBackend(),), costs, measure, 60.0)
    assert found.gap == pytest.approx(0.0, abs=1e-5)
    search = _Search(Selection(two_ways(), candidates(two_ways(), (TorchBackend(),))), costs)
    search.incumbent = found.plan
    dearest = max(found.plan.steps, key=lambda step: step.cost_s).kernel
    # Now the plan costs 5 + 1 ms. The bound is the other plan's cost, 4 + 1 ms.
    costs.record({dearest: Timing(5e-3, 5e-3, 5e-3, 3)})
    assert search.gap(math.inf) == pytest.approx(1 - 5e-3 / 6e-3, abs=1e-4)
    assert search.gap(0.0) is None


@pytest.mark.parametrize(
    ("left_s", "builds_s", "reserved"),
    [
        (100.0, [12.0], 36.0), (100.0, [9.0, 3.0], 36.0), (100.0, [0.0], 10.0),
        (40.0, [30.0], 20.0), (8.0, [1.0], 0.0), (100.0, [], 0.0),
    ],
)
def test_engines_are_left_time_to_compile_what_was_chosen(
    left_s: float, builds_s: Sequence[float], reserved: float
) -> None:
    """An engine that isn't ready with the original isn't left time."""
    assert reserved_s(left_s, builds_s) == reserved


def test_a_slow_program_is_not_timed_before_the_kernels() -> None:
    """Six calls of 5 s would take 30 s of 60, before anything is known of the kernels."""
    quick, slow, failed = (kernel_of(relu(n)) for n in (2, 3, 4))
    kernels = [quick, slow, failed]
    assert timed_soon(kernels, {quick: 0.01, slow: 5.0}, left_s=60.0) == [quick]
    assert timed_soon(kernels, {quick: 0.01, slow: 5.0}, left_s=6000.0) == [quick, slow]
    assert timed_soon(kernels, {quick: 0.01}, left_s=-1.0) == []


def test_a_kernel_is_the_same_after_pickling() -> None:
    kernel = kernel_of(matmul())
    copy = pickle.loads(pickle.dumps(kernel))
    assert copy == kernel and {kernel: 1}[copy] == 1
    assert hash(replace(kernel, schedule="other")) != hash(kernel)


def test_prices_take_the_cheapest_unless_a_time_is_about_as_good() -> None:
    kernels = [kernel_of(relu(n)) for n in (8, 9, 10)]
    cost = dict(zip(kernels, (3.0, 1.0, 2.0), strict=True))
    way = Way(0, (), tuple(Candidate(k.term, k, ()) for k in kernels), (0, 1, 2))

    def chosen(worth: Worth | None) -> Kernel:
        state, choice = Prices(kernels, cost.__getitem__, worth).cheapest(way)
        assert state == 0 and choice.candidate is not None
        assert choice.cost_s == cost[choice.candidate.kernel]
        return choice.candidate.kernel

    assert chosen(None) == kernels[1]
    timed = {kernels[0], kernels[2]}
    assert chosen(Worth(timed.__contains__, 0.5)) == kernels[1]
    assert chosen(Worth(timed.__contains__, 1.5)) == kernels[2]
    assert chosen(Worth(cost.__contains__, 9.0)) == kernels[1]


def test_plans_of_equal_layers_share_their_prices() -> None:
    """Two ways with the same kernels are priced once, and each keeps its own candidates."""
    kernel = kernel_of(relu(8))
    ways = [Way(n, (), (Candidate(kernel.term, kernel, ()),), (0,)) for n in range(2)]
    asked: list[Kernel] = []

    def costs(kernel: Kernel) -> float:
        asked.append(kernel)
        return 1.0

    prices = Prices([kernel], costs, None)
    results = [prices.cheapest(way) for way in ways]
    assert [state for state, _ in results] == [0, 1] and asked == [kernel]
    assert [choice.candidate for _, choice in results] == [way.candidates[0] for way in ways]


class _Scheduled(TorchBackend):
    """The torch backend with two schedules of each kernel."""

    def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        for kernel in super().kernels(term, constants):
            yield from (replace(kernel, schedule=name) for name in "ab")


def test_kernels_in_the_places_of_a_plan_are_timed_before_the_solver_is_asked_again(
    tmp_path: Path,
) -> None:
    costs = CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "p.sqlite"))
    graph = two_ways()
    found = candidates(graph, (_Scheduled(),))
    selection = Selection(graph, found)
    search = _Search(selection, costs)
    assert not search._places_are_open(None)  # there is no plan yet
    plan = selection.best(costs)
    other = {"a": "b", "b": "a"}
    others = [replace(k, schedule=other[str(k.schedule)]) for k in plan.kernels()]
    kernels = {option.kernel for options in found.values() for option in options}
    costs.record(dict.fromkeys(kernels - set(others), None))
    costs.record(dict.fromkeys(plan.kernels(), _seconds(1.0)))
    search.joint = search.incumbent = plan
    assert search._places_are_open(None)
    assert set(search.unknown) == set(others)
    assert [step.result for step in selection.same_ways(plan, costs).steps] == [
        step.result for step in plan.steps
    ]
    costs.record(dict.fromkeys(others[:1], _seconds(0.5)))
    costs.record(dict.fromkeys(others[1:], _seconds(2.0)))
    assert not search._places_are_open(None) and search.joint is None
    assert set(search.incumbent.kernels()) == {others[0], *plan.kernels()[1:]}
    # Kernels that could save less than a hundredth of the plan's cost aren't timed.
    costs.record(dict.fromkeys(others, None))
    search.joint, search.incumbent = plan, replace(plan, steps=plan.steps[:1])
    assert not search._places_are_open(None) and search.joint is None


@pytest.mark.parametrize(("rival_s", "asks"), [(math.inf, True), (0.81, True), (0.79, False)])
def test_the_solver_is_not_asked_where_an_engine_is_far_ahead(
    rival_s: float, asks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan takes 2 s, so an engine that takes less than 0.8 s is far ahead. The plan's kernels
    are timed all the same. How far the plan is from the best one isn't asked of the solver, either.
    """
    costs = CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "p.sqlite"))
    asked, solver = list[str](), {n: getattr(Selection, n) for n in ("best", "least_s")}
    for name in solver:

        def watched(*args: Any, _name: str = name, **named: Any) -> Any:
            asked.append(_name)
            return solver[_name](*args, **named)

        monkeypatch.setattr(Selection, name, watched)
    found = extract(
        two_ways(), (TorchBackend(),), costs, lambda ks, _: dict.fromkeys(ks, _seconds(1.0)), 60.0,
        rival=lambda: Rival(rival_s),
    )  # fmt: skip
    assert found.plan.cost_s == 2.0 and found.complete and found.ended
    assert {*asked} == ({"best", "least_s"} if asks else set())
    assert (found.gap is None) is not asks


def test_engines_are_asked_for_their_time_once_the_kernels_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then they may still be compiling the original."""
    costs, order = CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "p.sqlite")), list[str]()

    def listed(*args: Any, **named: Any) -> Any:
        order.append("listed")
        return candidates(*args, **named)

    def rival() -> Rival:
        order.append("asked")
        return Rival()

    monkeypatch.setattr("eqsynth.extract.search.candidates", listed)
    extract(
        two_ways(), (TorchBackend(),), costs, lambda ks, _: dict.fromkeys(ks, _seconds(1.0)), 60.0,
        rival=rival,
    )  # fmt: skip
    assert order == ["listed", "asked"]


def _seconds(value: float) -> Timing:
    return Timing(value, value, value, 3)


def test_the_operators_of_the_original_are_timed_before_better_plans_are(tmp_path: Path) -> None:
    """The first round measures the original's operators, so that at any later deadline there is a
    plan with measured times."""
    costs = CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "p.sqlite"))
    graph = two_ways()
    (product,) = (r for r, members in graph.classes.items() if matmul_of(members))
    original = {r: (members[0],) for r, members in graph.classes.items()}
    graph = replace(graph, original=original)
    asked: list[list[str]] = []

    def measure(kernels: Sequence[Kernel], _: float) -> dict[Kernel, Timing]:
        asked.append(sorted(getattr(k.term, "name", "") for k in kernels))
        # The deadline comes in the second round.
        return {k: Timing(1e-3, 1e-3, 1e-3, 3) for k in kernels} if len(asked) == 1 else {}

    found = extract(graph, (TorchBackend(),), costs, measure, 60.0)
    assert asked[0] == ["Matmul", "Relu"] and "Exp" in asked[1]
    assert found.complete and not found.ended and not found.estimated
    assert matmul_of([step.member for step in found.plan.steps if step.result[0] == product])


@pytest.mark.parametrize(("each_s", "rounds"), [(0.0, 3), (30.0, 2)])
def test_a_third_round_of_the_originals_operators_has_to_fit(
    each_s: float, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each operator has nine kernels that look better until they are timed."""
    graph = two_ways()
    graph = replace(graph, original={r: (m[0],) for r, m in graph.classes.items()})
    clock, asked = [1000.0], list[set[str]]()
    monkeypatch.setattr("eqsynth.extract.search.time.monotonic", lambda: clock[0])

    class Backends(TorchBackend):
        def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
            for kernel in super().kernels(term, constants):
                yield from (replace(kernel, schedule=str(n)) for n in range(9))

    def measure(kernels: Sequence[Kernel], _: float) -> dict[Kernel, Timing]:
        clock[0] += each_s
        asked.append({getattr(kernel.term, "name", "") for kernel in kernels})
        return {kernel: _seconds(1.0 + 0.1 * len(asked)) for kernel in kernels}

    costs = CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "p.sqlite"))
    extract(graph, (Backends(),), costs, measure, 150.0)
    assert ["Exp" in names for names in asked].index(True) == rounds


def matmul_of(members: Sequence[object]) -> bool:
    return any(getattr(member, "name", "") == "Matmul" for member in members)
