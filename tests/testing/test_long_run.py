"""The long run: a batch depends on its number, the journal goes on, a failure is told."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import pytest

from benchmarks import long_run, random_programs
from benchmarks.long_run import Journal, run, summary
from eqsynth.ir.tensor import Op, Tensor, topological


@pytest.mark.slow
def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first = Journal(path)
    run(30, 1, first, show=False)
    assert first.distinct() >= 30 and "failures: 0" in summary(first)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"number": 7, "programs": ["cut sh')
    second = Journal(path)
    assert second.batches == first.batches
    run(20, 1, second, show=False)
    assert second.batches == first.batches, "nothing was left to do"
    path.write_text("another version\n" + path.read_text(encoding="utf-8").split("\n", 1)[1])
    assert Journal(path).distinct() == 0


def test_a_batch_depends_on_its_number_only() -> None:
    def drawn(number: int) -> list[Tensor]:
        found: list[Tensor] = []
        random_programs.programs(number, found.append)
        return found

    assert drawn(3) == drawn(3) != drawn(4)


def test_a_failure_is_shrunk_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: whatever has a matrix product is wrong."""

    def failure(group: Any, number: int, batch: Any = None) -> str:
        terms = list(topological(list(group)))
        wrong = any(isinstance(term, Op) and term.name == "Matmul" for term in terms)
        return "planted" if wrong else ""

    monkeypatch.setattr(random_programs, "_failure", failure)
    journal, number = Journal(tmp_path / "journal.jsonl"), 0
    while not (batch := random_programs.run_batch(number))["failures"]:
        number += 1
    journal.add(long_run.Batch(**batch))
    told = batch["failures"][0]
    assert told["error"] == "planted" and "planted" in summary(journal)
    term = pickle.loads(base64.b64decode(told["pickle"]))
    assert term.name == "Matmul" and len(list(topological([term]))) <= 3
