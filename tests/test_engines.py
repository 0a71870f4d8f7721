"""``optimize`` with engines: chosen by measured times, checked, saved, given up where wrong."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import eqsynth
from eqsynth import running
from eqsynth.errors import EqsynthError, LoweringError
from eqsynth.extract import regions
from eqsynth.extract.plan import Plan
from eqsynth.extract.timing import Timing
from eqsynth.lower.backends import engines
from eqsynth.lower.engines import inductor
from eqsynth.race import Race


class Net(torch.nn.Module):
    def __init__(self, width: int = 40) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(24, width), torch.nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.nn.functional.gelu(self.first(x))
        return self.second(h), h.mean(1)


NET, X = Net().eval(), torch.randn(5, 24)


def optimized(
    net: torch.nn.Module = NET, x: torch.Tensor = X, **options: Any
) -> eqsynth.CompiledProgram:
    return eqsynth.optimize(net, (x,), time_limit_s=300.0, objective="time", **options)


class Positions(torch.nn.Module):
    """Rows at positions that are counted from a mask, by a ``cumsum`` that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.linear = torch.nn.Embedding(12, 16), torch.nn.Linear(16, 8)

    def forward(self, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.nn.functional.gelu(self.linear(self.table(mask.cumsum(1) * mask + 1)))
        return h, h.mean(1)


POSITIONS, MASK = Positions().eval(), torch.tensor([[1, 1, 1, 0], [0, 1, 0, 1]])


# The cache directory that these tests share takes ten seconds to make.
TOGETHER = pytest.mark.rotating(together="inductor")


@pytest.fixture(scope="module")
def fast_inductor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory whose profile says that regions take no time on Inductor, so that it is
    chosen on any machine."""
    directory = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQSYNTH_CACHE", str(directory))
        optimized(engines=["inductor"])
    _set_times(directory, 1e-9)
    return directory


def _set_times(directory: Path, seconds: float, engine: str = "inductor") -> None:
    """What regions take on an engine, in the profile."""
    (path,) = directory.rglob("*.sqlite")
    with sqlite3.connect(path) as profile:
        profile.execute(
            "UPDATE times SET median_s = ?, q1_s = ?, q3_s = ? WHERE family LIKE ?",
            ((seconds,) * 3 + (f"{engine}%",)),
        )


@TOGETHER
def test_the_fastest_runs(fast_inductor: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQSYNTH_CACHE", str(fast_inductor))
    monkeypatch.setattr("eqsynth.race.Race.won", True)
    program = optimized(engines=["inductor"])
    assert program.report.backend == "inductor" and not program.report.engine_refused
    for mine, wanted in zip(program(X), NET(X), strict=True):
        torch.testing.assert_close(mine, wanted)
    # Times decide which terms the engine gets, so it has a proof or needs none.
    told = program.explain()
    assert "Linear" not in str(told) and (told.rules or "no operator was changed" in str(told))
    assert "Region" in repr(program)


@TOGETHER
def test_engines_that_are_slower_in_the_program_give_way(
    fast_inductor: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The profile promises that a region takes no time; the programs, timed in turns, tell."""
    cache = shutil.copytree(fast_inductor, tmp_path / "cache")
    monkeypatch.setenv("EQSYNTH_CACHE", str(cache))
    for chosen in list(cache.rglob("plans-*")):  # by other tests
        shutil.rmtree(chosen)
    slow, fast = (Timing(s, s, s, 9) for s in (2.0, 1.0))
    races = iter([Race(fast, slow), Race(slow, fast), Race(slow, fast)])
    monkeypatch.setattr(running, "race", lambda *_, **__: next(races))
    for remembered in (False, True):
        program = optimized(engines=["inductor"], strict=True)
        assert program.report.backend != "inductor" and program.original is None
        assert program.report.remembered_plan == remembered
        assert program.explain()
        for mine, wanted in zip(program(X), NET(X), strict=True):
            torch.testing.assert_close(mine, wanted)
    assert next(races, None) is None


@TOGETHER
@pytest.mark.parametrize("wins", [True, False])
def test_an_engine_that_may_be_the_fastest_is_raced_with_the_whole_program(
    wins: bool, fast_inductor: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By its times the engine is slower than own kernels; the programs, timed in turns, tell."""
    cache = shutil.copytree(fast_inductor, tmp_path / "cache")
    monkeypatch.setenv("EQSYNTH_CACHE", str(cache))
    _set_times(cache, 1.0)
    for chosen in list(cache.rglob("plans-*")):
        shutil.rmtree(chosen)
    monkeypatch.setattr(regions, "RIVAL", float("inf"))
    slow, fast = (Timing(s, s, s, 9) for s in (2.0, 1.0))
    beside = Race(slow, fast) if wins else Race(fast, slow)
    races = iter([beside, Race(slow, fast), Race(slow, fast)])
    monkeypatch.setattr(running, "race", lambda *_, **__: next(races))
    for remembered in (False, True):
        program = optimized(engines=["inductor"], strict=True)
        assert (program.report.backend == "inductor") == wins and program.original is None
        assert program.report.remembered_plan == remembered
        assert program.explain()
        for mine, wanted in zip(program(X), NET(X), strict=True):
            torch.testing.assert_close(mine, wanted)
    assert next(races, None) is None


def test_no_plan_is_built_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan that is chosen was built already, to time its kernels in their places. The net is no
    other test's, so nothing of it is remembered; what is known of the machine is."""
    monkeypatch.setattr("eqsynth.race.Race.won", True)
    built: list[Plan] = []

    def lowered(captured: Any, graph: Any, plan: Plan, *rest: Any, **named: Any) -> Any:
        built.append(plan)
        return real(captured, graph, plan, *rest, **named)

    real = running.lowered
    monkeypatch.setattr(running, "lowered", lowered)
    optimized(Net(width=36).eval(), engines=())
    assert built
    for n, plan in enumerate(built):
        assert not any(plan.runs_as(other) for other in built[:n])


@TOGETHER
def test_it_is_saved(fast_inductor: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EQSYNTH_CACHE", str(fast_inductor))
    monkeypatch.setattr("eqsynth.race.Race.won", True)
    path = tmp_path / "net.eqsynth"
    eqsynth.save(optimized(engines=["inductor"]), path)
    for mine, wanted in zip(eqsynth.load(path)(X), NET(X), strict=True):
        torch.testing.assert_close(mine, wanted)
    # Compiled again by the version that is there; where there is none, an error says so.
    monkeypatch.setattr(inductor.Inductor, "version", lambda _: "another")
    eqsynth.load(path)
    monkeypatch.setattr(inductor.Inductor, "version", lambda _: None)
    with pytest.raises(LoweringError) as caught:
        eqsynth.load(path)
    assert caught.value.got == "no inductor" and "damaged" not in caught.value.what


@pytest.mark.rotating
@pytest.mark.parametrize(("net", "x"), [(NET, X), (POSITIONS, MASK)], ids=["net", "positions"])
@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_other_engines(
    name: str,
    net: torch.nn.Module,
    x: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Measured, chosen where it is fastest, checked, saved, loaded and written as ONNX."""
    if not engines([name]):
        pytest.skip(f"{name} isn't installed")
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    optimized(net, x, engines=[name])
    _set_times(tmp_path, 1e-9, name)
    monkeypatch.setattr("eqsynth.race.Race.won", True)
    program = optimized(net, x, engines=[name], strict=True)
    assert program.report.backend == name and not program.report.engine_refused
    assert program.report.shares == {name: pytest.approx(1.0)}
    path = tmp_path / "net.eqsynth"
    eqsynth.save(program, path)
    for made in (program, eqsynth.load(path)):
        for mine, wanted in zip(made(x), net(x), strict=True):
            torch.testing.assert_close(mine, wanted)
    program.to_onnx(tmp_path / "net.onnx")


def _wrong(*_args: Any) -> Callable[..., Any]:
    return lambda x: [torch.zeros(5, 8), torch.zeros(5)]


def _raises(*_args: Any) -> Callable[..., Any]:
    raise RuntimeError("a compiler's fault")


@TOGETHER
@pytest.mark.parametrize("fault", [_wrong, _raises])
def test_an_engine_at_fault_costs_its_part_only(
    fault: Callable[..., Any], fast_inductor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQSYNTH_CACHE", str(fast_inductor))
    monkeypatch.setattr("eqsynth.race.Race.won", True)
    monkeypatch.setattr(inductor, "_compiled", fault)
    program = optimized(engines=["inductor"], strict=True)
    assert program.report.engine_refused and program.report.backend != "inductor"
    assert not program.report.reason and program.original is None
    for mine, wanted in zip(program(X), NET(X), strict=True):
        torch.testing.assert_close(mine, wanted)


def test_an_unknown_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EqsynthError) as caught:
        optimized(engines=["warp"])
    assert caught.value.got == "'warp'" and "inductor" in caught.value.expected
    monkeypatch.setenv("EQSYNTH_ENGINES", "inductor, warp")
    with pytest.raises(EqsynthError) as caught:
        optimized()
    assert caught.value.where == "EQSYNTH_ENGINES"


@pytest.mark.rotating
def test_a_program_that_was_built_to_be_weighed_explains_itself() -> None:
    """Where engines may run parts, the plan of own kernels is built before the choice: what
    explains it has to know the e-graph by then."""

    class Folded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(12, 96), torch.nn.Linear(96, 12)

        def forward(self, x: torch.Tensor) -> Any:
            return self.down(self.up(x))

    program = eqsynth.optimize(
        Folded().eval(), (torch.randn(5, 12),), objective="flops", engines=("inductor",)
    )
    assert program.original is None and program.explain().steps
