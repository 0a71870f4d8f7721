"""Chosen plans are kept in files: a kept plan comes back equal, is refused when times, engines or
the program have changed, and is never kept if it is wrong or rests on estimates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from eqsynth import kept
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import unsaturated
from eqsynth.extract import chosen
from eqsynth.extract.cost import CostModel, measurement_key
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.plan import Plan
from eqsynth.extract.profile import Profile
from eqsynth.extract.regions import with_engines
from eqsynth.extract.schedule import Rows, Schedule, Tile
from eqsynth.extract.search import Extraction, extract
from eqsynth.extract.timing import Timing
from eqsynth.ir.tensor import Op, Region, Tensor
from eqsynth.lower.backends import engines
from eqsynth.lower.torch_backend import TorchBackend
from tests.extract.test_cost import TARGET
from tests.terms import leaf, op

X, W, V = leaf("x", 4, 8), leaf("w", 8, 8, constant=True), leaf("v", 8, 8, constant=True)
INDUCTOR = engines(["inductor"])
LIMIT_S = 60.0


def program(last: str = "Relu", origin: str = "") -> Tensor:
    """A term with two products, a function between them, a view, and a value that is read twice."""
    hidden = op("Tanh", op("Matmul", X, W))
    turned = op("Permute", op("Add", op("Matmul", hidden, V), hidden), attrs=((1, 0),))
    return Op(last, (turned,), (), origin)


def seconds(value: float) -> Timing:
    return Timing(value, value, value, 5)


@dataclass
class Setting:
    """A search: its e-graph, its costs, and the plans that it chose, without engines (``own``) and
    with engines (``found``)."""

    graph: EGraph
    costs: CostModel
    own: Extraction
    found: Extraction

    @property
    def path(self) -> Path:
        return chosen.path_of(self.graph, self.costs, INDUCTOR)

    def keep(self) -> None:
        self.settle(self.found)

    def settle(self, used: Extraction | None) -> None:
        found = chosen.Chosen(self.own, self.found, self.costs.relied_on(), LIMIT_S)
        chosen.settle(self.path, found, used, True)

    def recall(self, limit_s: float = LIMIT_S) -> chosen.Chosen | None:
        return chosen.recall(self.path, self.graph, self.costs, INDUCTOR, limit_s)


def searched(costs: CostModel, region_s: float, root: Tensor) -> Setting:
    def measure(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing | None]:
        return {k: seconds(region_s if isinstance(k.term, Region) else 1.0) for k in kernels}

    graph = unsaturated((root,), "as it is")
    own = extract(graph, (TorchBackend(),), costs, measure, 60.0)
    return Setting(graph, costs, own, with_engines(graph, own, INDUCTOR, costs, measure, 60.0))


@pytest.fixture
def costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CostModel]:
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    profile = Profile(TARGET.key())
    yield CostModel(TARGET, profile)
    profile.close()


@pytest.mark.parametrize("region_s", [1e-3, 1e3])
def test_what_was_chosen_comes_back(costs: CostModel, region_s: float) -> None:
    setting = searched(costs, region_s, program())
    assert setting.recall() is None
    setting.keep()
    back = setting.recall()
    assert back is not None
    assert back.own.plan == setting.own.plan and back.found.plan == setting.found.plan
    assert (back.found.plan is back.own.plan) is (region_s > 1)
    assert (back.found.rounds, back.found.timed) == (0, 0) and back.found.complete


def test_steps_are_at_the_places_of_the_program_that_asks(costs: CostModel) -> None:
    searched(costs, 1e3, program(origin="one")).keep()
    second = searched(costs, 1e3, program(origin="two"))
    back = second.recall()
    assert back is not None
    assert "two" in {s.member.origin for s in back.own.plan.steps if isinstance(s.member, Op)}


def test_other_times_other_choices(costs: CostModel, tmp_path: Path) -> None:
    setting = searched(costs, 1e3, program())
    setting.keep()
    kernel = setting.own.plan.kernels()[0]
    costs.profile.record(measurement_key(kernel), seconds(2.0), 1e-6)
    assert setting.recall() is None
    costs.profile.record(measurement_key(kernel), seconds(1.0), 1e-6)
    assert setting.recall() is not None
    empty = CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "other.sqlite"))
    assert chosen.recall(setting.path, setting.graph, empty, INDUCTOR, LIMIT_S) is None


def test_what_tuning_has_found_since_is_searched(costs: CostModel) -> None:
    setting = searched(costs, 1e3, program())
    kernel = setting.own.plan.kernels()[-1]
    found: dict[Kernel, Schedule] = {kernel: Rows()}

    def recall(tuned: Mapping[Kernel, Schedule]) -> chosen.Chosen | None:
        where = setting.path, setting.graph, costs, INDUCTOR, LIMIT_S
        return chosen.recall(*where, lambda kernel: tuned.get(kernel))

    setting.keep()
    assert recall({}) is not None
    assert recall(found) is None
    known = chosen.tuned_of(setting.own.plan, lambda kernel: found.get(kernel))
    assert len(known) == 1
    times = setting.costs.relied_on()
    told = chosen.Chosen(setting.own, setting.found, times, LIMIT_S, known)
    chosen.settle(setting.path, told, setting.found, True)
    assert recall(found) is not None
    assert recall({}) is None and recall({kernel: Tile(8, 8)}) is None
    elsewhere = replace(kernel, implementation="tvm")
    assert recall({**found, elsewhere: Rows()}) is not None, "no kernel of this plan"


def test_an_engine_of_another_version_is_measured_again(costs: CostModel) -> None:
    setting = searched(costs, 1e-3, program())
    (step,) = setting.found.plan.steps
    older = replace(step, kernel=replace(step.kernel, schedule="0.1"))
    plan = replace(setting.found.plan, steps=(older,))
    replace(setting, found=replace(setting.found, plan=plan)).keep()
    assert setting.recall() is None


def test_another_search_has_another_file(costs: CostModel) -> None:
    setting = searched(costs, 1e3, program())
    other = replace(TARGET, threads=TARGET.threads + 1)
    newer = Profile(TARGET.key(), versions="torch=9", path=costs.profile.path)
    names = {
        setting.path,
        chosen.path_of(setting.graph, costs, ()),
        chosen.path_of(setting.graph, CostModel(other, costs.profile), INDUCTOR),
        chosen.path_of(setting.graph, CostModel(TARGET, newer), INDUCTOR),
        chosen.path_of(setting.graph, CostModel(TARGET, costs.profile, "flops"), INDUCTOR),
        chosen.path_of(unsaturated((program("Tanh"),), ""), costs, INDUCTOR),
        chosen.path_of(replace(setting.graph, original={}), costs, INDUCTOR),
    }
    newer.close()
    assert len(names) == 7
    same = chosen.path_of(unsaturated((program(origin="elsewhere"),), ""), costs, INDUCTOR)
    assert same == setting.path


def test_what_is_wrong_or_was_estimated_is_not_kept(costs: CostModel) -> None:
    setting = searched(costs, 1e-3, program())
    replace(setting, own=replace(setting.own, estimated=1)).keep()
    assert setting.recall() is None
    setting.keep()
    assert setting.recall() is not None
    setting.settle(None)
    assert setting.recall() is None


def test_what_lost_is_kept_for_a_day(costs: CostModel, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = searched(costs, 1e-3, program())
    setting.keep()
    for _ in range(2):  # the second time a day from the first one on
        before = setting.recall()
        assert before is not None
        chosen.settle(setting.path, before, before.found, False)
    back = setting.recall()
    assert back is not None and back.lost_at is not None and back.lost_at == before.lost_at
    end = back.lost_at + chosen.LOST_FOR_S
    for now in (end, back.lost_at - 1):  # a clock may be set back
        monkeypatch.setattr("time.time", lambda now=now: now)
        assert setting.recall() is None
    chosen.settle(setting.path, back, back.found, True)
    assert setting.recall() is not None


def test_what_was_cut_short_serves_searches_with_no_more_time(costs: CostModel) -> None:
    setting = searched(costs, 1e-3, program())
    cut = {"own": replace(setting.own, ended=False)}, {"found": replace(setting.found, ended=False)}
    for short in cut:
        replace(setting, **short).keep()
        assert setting.recall() is not None and setting.recall(LIMIT_S / 2) is not None
        assert setting.recall(2 * LIMIT_S) is None
    setting.keep()
    assert setting.recall(math.inf) is not None


def test_a_search_that_a_deadline_has_ended_says_so(costs: CostModel) -> None:
    def never(_kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing | None]:
        return {}

    graph = unsaturated((program(),), "as it is")
    own = extract(graph, (TorchBackend(),), costs, never, 60.0)
    assert not own.ended
    whole = searched(costs, 1e-3, program()).own
    assert whole.ended
    assert with_engines(graph, whole, INDUCTOR, costs, never, 60.0).ended  # in the profile by now
    assert not with_engines(graph, whole, INDUCTOR, costs, never, 0.0).ended


def wrong(plan: Plan, other: Plan) -> Iterator[Plan]:
    """Yield plans that don't compute the program, or whose steps are out of order."""
    yield replace(plan, steps=plan.steps[1:])
    yield replace(plan, steps=plan.steps[::-1])
    yield replace(plan, steps=other.steps)
    yield replace(plan, inputs={})
    yield replace(plan, outputs=other.outputs)
    yield replace(plan, steps=(*plan.steps[:-1], other.steps[-1]))
    for n, step in enumerate(plan.steps):
        kernel = replace(step.kernel, term=op("Exp", leaf("0", 4, 8)))
        changed = replace(step, kernel=kernel)
        yield replace(plan, steps=(*plan.steps[:n], changed, *plan.steps[n + 1 :]))
        yield replace(plan, steps=(*plan.steps[:n], 7, *plan.steps[n + 1 :]))  # type: ignore[arg-type]


@pytest.mark.parametrize("region_s", [1e-3, 1e3])
def test_a_plan_of_something_else_is_not_taken(costs: CostModel, region_s: float) -> None:
    setting = searched(costs, region_s, program())
    other = searched(costs, region_s, program("Tanh"))
    changed = wrong(setting.found.plan, other.found.plan)
    plans = [plan for plan in changed if plan != setting.found.plan]
    assert len(plans) > 5
    for plan in plans:
        replace(setting, found=replace(setting.found, plan=plan)).keep()
        assert setting.recall() is None, plan
    kept.keep(setting.path, replace(setting.own, considered=1), chosen.MAX_BYTES)
    assert setting.recall() is None
