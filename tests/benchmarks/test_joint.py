"""What ``benchmarks.joint`` compares: which plans, and that each is what it says; never times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import joint
from benchmarks.joint import Narrowed, is_in_order
from eqsynth.ir.tensor import Input, Op
from eqsynth.ir.types import TensorType
from eqsynth.lower.backends import cpu_backends


def test_a_narrowed_backend_offers_less() -> None:
    a, b = (Input(name, TensorType((8, 8), "float32")) for name in "ab")
    term = Op("Matmul", (a, b))
    every = [k for backend in cpu_backends() for k in backend.kernels(term, (False, False))]
    ordered = [
        kernel
        for backend in cpu_backends()
        for kernel in Narrowed(backend, in_order=True).kernels(term, (False, False))
    ]
    assert 0 < len(ordered) < len(every) and all(map(is_in_order, ordered))
    none = (Narrowed(backend, terms=frozenset()) for backend in cpu_backends())
    assert not [k for backend in none for k in backend.kernels(term, (False, False))]


@pytest.mark.slow
def test_a_model_has_four_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    joint.main(["--model", "bert64", "--reduced", "--limit", "10", "--json", str(path)])
    rows = {row["strategy"]: row for row in json.loads(path.read_text())["rows"]}
    assert [*rows] == [
        "eager", "as written", "substitutions", "layouts", "in sequence", "joint",
    ]  # fmt: skip
    # The search goes from the operators as they are to fewer kernels.
    assert rows["joint"]["steps"] <= rows["as written"]["steps"]
    assert all(row["program_ms"] > 0 for row in rows.values())
    assert "in sequence" in capsys.readouterr().out
