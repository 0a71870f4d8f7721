"""What the benchmark of optimizations tells; never its times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import bench_optimize
from benchmarks.spending import spending


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
    arguments = ["--workload", "lstm", "chain", "--json", str(path), "--resume"]
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
    bench_optimize.main(["--workload", "chain", "--reduced", "--json", str(path)])
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
