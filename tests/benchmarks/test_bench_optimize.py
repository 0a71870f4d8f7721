"""What the benchmark of optimizations tells; never its times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import bench_optimize
from benchmarks.spending import Run, Spent, spending


@pytest.mark.rotating
def test_what_children_spend_counts_also_when_they_have_ended() -> None:
    """A child takes two tenths of a second of CPU, and half a gigabyte, which it writes to."""
    code = "import time; x = b'1' * (1 << 29)\nwhile time.process_time() < 0.2: pass"
    before = os.times()
    with spending(0.01) as spent:
        subprocess.run([sys.executable, "-c", code], check=True)
    after = os.times()
    assert spent.cpu_s >= 0.2
    mine = sum(after[:4]) - sum(before[:4])
    assert spent.cpu_s <= mine + 0.1  # nothing counts twice
    assert spent.wall_s > 0.0 and spent.peak_bytes > 1 << 29


def test_a_workload_that_fails_costs_its_row_and_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked, broken = tmp_path / "result.json", list[str](), {"lstm"}

    def measure(row: bench_optimize.Row, _reduced: bool, _parts: object) -> None:
        asked.append(row.workload)
        if row.workload in broken and row.workload == "chain":
            raise KeyboardInterrupt
        if row.workload in broken:
            raise RuntimeError("no worker")
        row.asked = 7

    monkeypatch.setattr(bench_optimize, "_measure", measure)
    monkeypatch.setattr(
        bench_optimize, "call_overhead",
        lambda: dict.fromkeys(("program_s", "straight_s", "overhead_s_an_operator"), 0.0)
        | {"operators": 0},
    )  # fmt: skip
    arguments = ["--only", "lstm", "chain", "--json", str(path), "--resume"]
    bench_optimize.main(arguments)
    rows = json.loads(path.read_text())["rows"]
    assert [row["error"] for row in rows] == ["RuntimeError: no worker", ""]
    assert [row["asked"] for row in rows] == [0, 7]
    broken.clear()
    bench_optimize.main(arguments)
    assert asked == ["lstm", "chain", "lstm"]
    assert not any(row["error"] for row in json.loads(path.read_text())["rows"])
    broken.add("chain")
    with pytest.raises(KeyboardInterrupt):
        bench_optimize.main([*arguments, "--reduced"])  # at other sizes nothing is known
    assert asked == ["lstm", "chain", "lstm", "lstm", "chain"]
    (row,) = json.loads(path.read_text())["rows"]
    assert row["workload"] == "lstm"


@pytest.mark.slow
def test_every_run_and_its_stages_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    bench_optimize.main(["--only", "chain", "--reduced", "--json", str(path)])
    result = json.loads(path.read_text())
    assert {"machine", "versions", "commit", "overhead"} <= set(result)
    (row,) = result["rows"]
    assert list(row["runs"]) == ["cold", "warm", "other process"]
    stages = ["rules", "capture", "saturate", "extract", "measure", "lower", "check", "race"]
    for run in row["runs"].values():
        assert list(run["stages_s"]) == stages
        assert run["spent"]["cpu_s"] > 0 and run["spent"]["peak_bytes"] > 0
    assert row["runs"]["cold"]["timed"] > row["runs"]["warm"]["timed"]
    assert row["asked"] > 0 and row["inductor"]["cpu_s"] > 0
    text = capsys.readouterr().out
    assert "chain" in text and "Inductor" in text and "call overhead" in text
    for kind in ("rules", "laws"):
        name, spent_s = next(iter(row["saturation"][kind].items()))
        assert f"{name} {spent_s:.2f}" in text


def _row(workload: str, cold_s: float, enodes: int = 100, timed: int = 10) -> dict[str, object]:
    stages = dict.fromkeys(bench_optimize.STAGES, cold_s / 10)
    runs = {
        name: asdict(Run(Spent(wall_s, 2 * wall_s, 1 << 30), stages, enodes, timed, 99, 0.2, 0.1))
        for name, wall_s in (("cold", cold_s), ("warm", 1.0))
    }
    row = asdict(bench_optimize.Row(workload, 1, asked=5, known=7, inductor=Spent(6.5, 8.0, 0)))
    return row | {"runs": runs}


def test_the_table_has_a_line_for_each_run() -> None:
    lines = bench_optimize.table([_row("bert_2", 20.0), _row("gcn", 30.0)]).splitlines()
    titles = lines[0].split()
    assert {*bench_optimize.STAGES, "timed", "Inductor"} <= set(titles) and len(lines) == 5
    cold = dict(zip(titles, lines[3].removeprefix("gcn").split()[1:], strict=False))
    assert cold["saturate"] == "3.0" and cold["all"] == "30.0" and cold["Inductor"] == "6.5"


def test_the_plot_has_a_panel_for_layers_for_enodes_and_for_kernels() -> None:
    rows = [_row("bert_2", 10.0, 50, 8), _row("bert_12", 20.0, 200, 9), _row("gcn", 9.0)]
    root = ElementTree.fromstring(bench_optimize.plot(rows))
    layers, enodes, kernels = (part for part in root if part.tag.endswith("svg"))
    lines = [part for part in layers if part.tag.endswith("polyline")]
    assert len(lines) == 6  # cold, warm, Inductor and three stages, over 2 and 12 layers
    first, last = (tuple(map(float, p.split(","))) for p in lines[0].attrib["points"].split())
    assert first[0] < last[0] and first[1] > last[1]
    for panel, curves in ((enodes, 2), (kernels, 1)):
        assert not any(part.tag.endswith("polyline") for part in panel)
        assert sum(part.tag.endswith("circle") for part in panel) == curves * len(rows)
    tops = [float(panel.attrib["y"]) for panel in (layers, enodes, kernels)]
    assert tops == sorted(set(tops))
    alone = bench_optimize.plot([_row("gcn", 9.0, timed=0)])  # no depths, nothing timed
    assert sum(part.tag.endswith("svg") for part in ElementTree.fromstring(alone)) == 1


@pytest.mark.rotating
def test_no_workload_is_begun_past_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    bench_optimize.main(["--only", "chain", "--limit", "0"])
    assert "chain: not begun within 0 minutes" in capsys.readouterr().out
