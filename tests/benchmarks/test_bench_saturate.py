"""What the benchmark of saturation prints and writes; never its times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_saturate


@pytest.mark.rotating
def test_stages_requests_and_what_is_remembered_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    path = tmp_path / "result.json"
    bench_saturate.main(["--net", "chain", "--layers", "2", "--json", str(path)])
    result = json.loads(path.read_text())
    assert {"machine", "versions", "commit"} <= set(result)
    names = [run["name"] for run in result["runs"]]
    assert names == ["chain", "2 layers", "2 layers, cut"]
    assert result["runs"][2]["enodes"] < result["runs"][1]["enodes"]
    for run in result["runs"]:
        assert run["stop"] == "saturated" and run["enodes"] > run["segments"] > 0
        assert 0 < run["vain"] < run["asked"] and run["steps"] > 100
        assert run["total_s"] == pytest.approx(run["engine_s"] + run["laws_s"] + run["rest_s"])
        assert min(run["engine_s"], run["laws_s"], run["rest_s"]) >= 0
        assert run["engine_s"] == pytest.approx(sum(run["rules"].values()))
        assert {"traversal-merge", "definition"} <= set(run["laws"])
        assert {"insert", "analyse"} <= set(run["rules"])
    text = capsys.readouterr().out
    assert "chain" in text and "in vain" in text and "remembered" in text
