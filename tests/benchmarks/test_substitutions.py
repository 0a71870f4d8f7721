"""What ``benchmarks.substitutions`` tells of a model, never its times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import substitutions
from benchmarks.substitutions import MODELS, PUBLISHED_S, line


def test_the_published_stand_beside_models_that_are_there() -> None:
    assert PUBLISHED_S.keys() <= MODELS.keys() and len(MODELS) == 9
    module, (x,) = MODELS["bert_tensat"].reduced()
    assert module(x).shape == x.shape


def test_a_line_tells_rules_and_seconds() -> None:
    row = {
        "model": "nasrnn_tensat", "enodes": 9, "segments": 2, "distinct": 1,
        "rules": ["merge-matmuls"], "plain": 3,
        "fired": 1234, "saturate_s": 1.5, "extract_s": 2.5, "measure_s": 2.0, "stop": "saturated",
        "before_ms": 4.0, "after_ms": 2.0, "tensat_s": 0.5, "taso_s": 177.0,
    }  # fmt: skip
    text = line(row)
    assert "merge-matmuls; and 3 definitions" in text and "TENSAT 0.5 s, TASO 177.0 s" in text
    assert "none; and" in line({**row, "rules": []})


@pytest.mark.slow
def test_a_model_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    substitutions.main(["--reduced", "--limit", "20", "--model", "bert_1", "--json", str(path)])
    (row,) = json.loads(path.read_text())["rows"]
    assert row["model"] == "bert_1" and row["fired"] > 0 and row["saturate_s"] > 0
    assert "bert_1" in capsys.readouterr().out
