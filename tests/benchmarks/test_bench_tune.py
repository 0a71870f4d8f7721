"""The comparison of tuners: what it stores, that a killed run goes on, and its tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm

from benchmarks import bench_tune, tuning_tables
from benchmarks.bench_tune import PAPER, SWEEP, Lines, Recorded, read
from benchmarks.tuning_kernels import KERNELS, kernel_of
from benchmarks.tvm_search import MAIN, program_of, time_program
from eqsynth.extract.schedule import Rows
from eqsynth.ir.scalar import Num, Sum
from eqsynth.ir.tensor import Scope
from eqsynth.lower.kernel_tuning import space_for
from eqsynth.tuning.tuners import TUNERS


def test_kernels_have_spaces() -> None:
    assert set(PAPER) <= KERNELS.keys() and len(SWEEP) == 9
    for name, made in KERNELS.items():
        kernel = kernel_of(made())
        space = space_for(kernel)
        assert kernel.schedule == space.made(space.starts[0]), name
        assert space.size > 2 * len(space.starts), name


@pytest.mark.slow
def test_a_run_that_was_ended_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As if killed after some lines, in the middle of the last."""
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    file = tmp_path / "tune.jsonl"
    arguments = [str(file), "--kernel", "column_sum", "--seeds", "1", "--trials", "20"]
    bench_tune.main([*arguments, "--tuner", "opevo", "random"])
    whole = read(file)
    assert len(whole) == 40 and {row["tuner"] for row in whole} == {"opevo", "random"}
    costs = {(json.dumps(row["schedule"]), row["time_s"], row["cost_s"]) for row in whole}
    assert len(costs) == len({json.dumps(row["schedule"]) for row in whole}) < 40
    # Turns: 16 trials of each, then the rest.
    assert [row["tuner"] for row in whole[::4]] == [*["opevo"] * 4, *["random"] * 4, "opevo",
                                                    "random"]  # fmt: skip
    lines = file.read_text().splitlines(keepends=True)
    cut = "".join(lines[:12]) + lines[12][:20]
    file.write_text(cut)
    bench_tune.main([*arguments, "--tuner", "opevo", "random"])
    again = read(file)
    assert again[:11] == whole[:11] and len(again) == 40
    assert {json.dumps(row["schedule"]) for row in again if row["tuner"] == "random"} == {
        json.dumps(row["schedule"]) for row in whole if row["tuner"] == "random"
    }
    bench_tune.main([*arguments, "--tuner", "opevo", "random"])
    assert read(file) == again
    tuning_tables.main([str(file), "--svg", str(tmp_path / "tune.svg")])
    assert "at 20 trials" in capsys.readouterr().out
    assert (tmp_path / "tune.svg").read_text().startswith("<svg")


def test_a_schedule_is_measured_once(tmp_path: Path) -> None:
    """Another search that asks for it is told the time that was measured, and pays its seconds."""
    one, other, failing = (Rows(tasks=tasks) for tasks in (2, 4, 8))
    asked: list[Rows] = []

    class Times:
        known: dict[Rows, float | None] = {}

        def __call__(self, schedules: list[Rows]) -> list[float | None]:
            asked.extend(schedules)
            return [None if schedule == failing else 0.5 for schedule in schedules]

    lines, facts = Lines(tmp_path / "tune.jsonl"), {"giga": 1.0, "unit": "GB/s", "share": 0.1}

    def search(seed: int, lines: Lines) -> Recorded:
        named = {"kernel": "transpose", "tuner": "random", "seed": seed}
        return Recorded(Times(), lines, named, facts)  # type: ignore[arg-type]

    assert search(0, lines)([one, failing]) == [0.5, None]
    assert search(1, lines)([failing, other, one]) == [None, 0.5, 0.5]
    again = search(2, Lines(lines.path))
    assert again([other, failing]) == [0.5, None] and asked == [one, failing, other]
    assert again.measuring_s == sum(row["cost_s"] for row in read(lines.path)[-2:]) > 0
    assert again([failing, other]) == [None, 0.5] and len(read(lines.path)) == 7


def row(tuner: str, seed: int, time_s: float | None, at: float) -> dict[str, Any]:
    return {"kernel": "k", "tuner": tuner, "seed": seed, "schedule": [], "time_s": time_s,
            "outside_s": at / 4, "measuring_s": at * 3 / 4, "giga": 1.0, "unit": "GFLOP/s",
            "share": 0.1}  # fmt: skip


def test_tables_compare_at_what_all_searches_have_had() -> None:
    rows = [
        row("a", 0, 0.5, 1.0), row("a", 0, 0.25, 2.0), row("a", 0, 0.01, 9.0),
        row("a", 1, None, 2.0), row("a", 1, 0.5, 3.0),
        row("b", 0, 0.1, 4.0), row("b", 0, 0.2, 5.0), row("b", 1, 0.1, 1.0), row("b", 1, 0.1, 4.0),
        # A seed that the other tuner hasn't begun is left out.
        row("b", 2, 0.001, 1.0),
    ]  # fmt: skip
    (searches,) = tuning_tables.by_kernel(rows).values()
    head, first, second = tuning_tables.table(searches)
    assert head == ("tuner", "GFLOP/s at 2 trials", "at 3.0 s", "trials to 2 %", "outside")
    assert first == ("a", "3.00 ± 1.00", "3.00 ± 1.00", "3 (1/2)", "25.0%")
    assert second == ("b", "10.00 ± 0.00", "5.00 ± 5.00", "- (0/2)", "25.0%")
    told = tuning_tables.text(rows)
    assert told.startswith("**k**, 2 seeds\n\n| tuner |") and told.count("\n") == 6
    assert tuning_tables.text([]) == "nothing was measured\n"
    plot = tuning_tables.picture(rows)
    assert plot.count("<polyline") == 8 and "trials" in plot and "seconds" in plot


def test_seeds_of_tvm_are_its_own() -> None:
    rows = [row("a", 0, 0.5, 1.0), row("a", 1, 0.5, 1.0), row("tvm", 2, 0.25, 1.0)]
    races = [{"kernel": "k", "raced": [[["rows", {}], 2e-6, True], [["fold", {"width": 16}], 1e-6,
                                                                    False]]}]  # fmt: skip
    told = tuning_tables.text(rows, tuning_tables.raced(races))
    assert "| a | 2.00 ± 0.00 | 2.00 ± 0.00 | - (0/2) |" in told
    assert "| tvm | 4.00 ± 0.00 | 4.00 ± 0.00 | 1 (1/1) |" in told
    assert "In turns: `fold16` 1.0 us, offered `rows` 2.0 us: 2.00" in told


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("bmm3", marks=pytest.mark.rotating),
        pytest.param("g2bmm", marks=pytest.mark.rotating),
        "softmax_sum",
        "winograd_tiles",
    ],
)
def test_tvm_gets_the_same_program(name: str) -> None:
    """A function for TVM computes what the kernel computes, and one that doesn't isn't timed."""
    kernel = kernel_of(KERNELS[name]())
    program = tvm.ir.save_json(tvm.IRModule({MAIN: program_of(kernel.term)}))
    time_s = time_program(program, (kernel, 1.0), 1, 0)
    assert time_s is not None and time_s > 0
    assert isinstance(kernel.term, Scope)
    body = Sum((kernel.term.body, Num(1.0)))
    other = tvm.IRModule({MAIN: program_of(replace(kernel.term, body=body))})
    assert time_program(tvm.ir.save_json(other), (kernel, 1.0), 1, 0) is None


@pytest.mark.slow
def test_tvm_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xgboost", reason="the extra peers isn't installed")
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    file = tmp_path / "tune.jsonl"
    arguments = [str(file), "--kernel", "row_mean", "--seeds", "1", "--trials", "16"]
    bench_tune.main([*arguments, "--tuner", "random", "tvm"])
    rows = [row for row in read(file) if row["tuner"] == "tvm"]
    assert len(rows) >= 16 and any(row["time_s"] for row in rows)
    assert all(row["schedule"] is None and row["cost_s"] > 0 for row in rows)
    (race,) = read(file, "raced")
    assert {is_offered for _, _, is_offered in race["raced"]} == {True, False}
    bench_tune.main([*arguments, "--tuner", "random", "tvm"])
    assert [row for row in read(file) if row["tuner"] == "tvm"] == rows


def test_every_tuner_is_compared() -> None:
    assert {"opevo", "random", "g-bfs", "n-a2c", "coordinates"} == TUNERS.keys()
