"""What the benchmark of deadlines prints and writes; never its times."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import bench_deadlines, curve
from benchmarks.bench_deadlines import CURVE, CURVE_LIMITS, WHOLE, gains, is_slower, shown
from benchmarks.workloads import WORKLOADS


def _row(before_s: float, after_s: float, limit_s: float = 1.0) -> dict[str, object]:
    timings = {
        f"{which}_s": {"median_s": s, "q1_s": 0.9 * s, "q3_s": 1.1 * s}
        for which, s in (("before", before_s), ("after", after_s))
    }
    return {
        "program": "net", "limit_s": limit_s, "search_s": 1.0, "total_s": 2.0, "kernels_timed": 3,
        "stop": "", "stages_s": {}, "backend": "tvm", **timings,
    }  # fmt: skip


def test_twenty_limits_on_four_programs() -> None:
    assert set(CURVE) <= set(WORKLOADS)
    assert len(WHOLE) == 4 and len(CURVE_LIMITS) == 20
    assert (CURVE_LIMITS[0], CURVE_LIMITS[-1]) == (0.5, 120.0)
    assert list(CURVE_LIMITS) == sorted(set(CURVE_LIMITS))


def test_a_slower_program_is_told() -> None:
    rows = [_row(1.0, 1.0), _row(1.0, 1.1), _row(1.0, 2.0, 5.0)]
    assert [is_slower(row) for row in rows] == [False, False, True]
    assert ["SLOWER" in shown(row) for row in rows] == [False, False, True]
    assert gains(rows) == {"net": [(1.0, 1.0), (1.0, 1 / 1.1), (5.0, 0.5)]}


def test_curves_are_drawn() -> None:
    text = curve.svg("a < b", "s", "times", {"one & two": [(0.5, 1.0), (120.0, 2.0)]})
    root = ElementTree.fromstring(text)
    (line,) = (part for part in root if part.tag.endswith("polyline"))
    first, last = (tuple(map(float, p.split(","))) for p in line.attrib["points"].split())
    assert first[0] < last[0] and first[1] > last[1]  # later is to the right, faster is higher
    assert "one & two" in {part.text for part in root}
    with pytest.raises(ValueError):
        curve.svg("", "", "", {"nothing": []})


@pytest.mark.slow
def test_a_run_writes_its_rows_and_the_plot(tmp_path: Path) -> None:
    table, plot = tmp_path / "rows.json", tmp_path / "plot.svg"
    asked = ["--program", "transformer_layer", "--limit", "0.01", "--limit", "0.5"]
    bench_deadlines.main([*asked, "--plot", str(plot), "--json", str(table)])
    rows = json.loads(table.read_text())["rows"]
    assert [row["limit_s"] for row in rows] == [0.01, 0.5]
    assert all(row["before_s"]["median_s"] > 0 for row in rows)
    ElementTree.fromstring(plot.read_text())


def test_a_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[str, float]] = []

    def apart(name: str, limit_s: float, timed: bool) -> dict[str, object]:
        measured.append((name, limit_s))
        return {"program": name, "limit_s": limit_s, "search_s": 0.0, "total_s": 0.0,
                "kernels_timed": 0, "stop": "", "stages_s": {}}  # fmt: skip

    monkeypatch.setattr(bench_deadlines, "apart", apart)
    asked = ["--program", "resnet18", "--json", str(tmp_path / "rows.json"), "--limit", "1"]
    bench_deadlines.main(asked)
    bench_deadlines.main([*asked, "--limit", "2", "--resume"])
    assert measured == [("resnet18", 1.0), ("resnet18", 2.0)]
    assert len(json.loads((tmp_path / "rows.json").read_text())["rows"]) == 2
