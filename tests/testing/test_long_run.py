"""The long run: a batch depends on its number, the journal goes on, a failure is told."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path

import pytest

from benchmarks import long_run, random_modules, random_programs
from benchmarks.long_run import Journal, run, summary
from eqsynth.egraph.schedule import PROVE_PHASES
from eqsynth.errors import EquivalenceError
from eqsynth.ir.tensor import topological
from eqsynth.rules import DEFAULT_FILES, load_rules
from eqsynth.testing import Argument, ModuleCase, assert_search_sound


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


@pytest.mark.rotating
def test_a_batch_depends_on_its_number_only() -> None:
    drawn = random_programs.PROGRAMS.of
    assert drawn(3) == drawn(3) != drawn(4)


WRONG = """\
;; Status validated
;; a @ b = a @ (-b), wrong
(rewrite (Matmul a b) (Matmul a (Neg b)) :ruleset simplify :name "wrong")
"""


@pytest.mark.slow
def test_a_failure_is_shrunk_and_told(tmp_path: Path) -> None:
    """The planted fault: a wrong rule of matrix products, beside eqsynth's own."""
    file = tmp_path / "wrong.egg"
    file.write_text(WRONG, encoding="utf-8")
    extra = (str(file),)
    journal, number = Journal(tmp_path / "journal.jsonl", extra=extra), 0
    while not (batch := random_programs.run_batch(number, extra))["failures"]:
        number += 1
    journal.add(long_run.Batch(**batch))
    told = batch["failures"][0]
    assert "EquivalenceError" in told["error"] and told["error"] in summary(journal)
    term = pickle.loads(base64.b64decode(told["pickle"]))
    assert len(list(topological([term]))) <= 4
    assert_search_sound([term], phases=PROVE_PHASES)
    with pytest.raises(EquivalenceError):
        rules = load_rules([*DEFAULT_FILES, file])
        assert_search_sound([term], phases=PROVE_PHASES, rules=rules)
    assert Journal(journal.path).distinct() == 0, "a journal belongs to its rules"


@pytest.mark.rotating
def test_a_module_that_fails_is_shrunk_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: whatever returns several results is wrong."""

    def failure(case: ModuleCase, *_rest: object) -> str:
        return "planted" if ", " in case.forward[-1] else ""

    monkeypatch.setattr(random_modules, "_failure", failure)
    journal, number = Journal(tmp_path / "journal.jsonl"), 0
    while not (batch := random_modules.run_modules(number))["failures"]:
        number += 1
    assert batch == random_modules.run_modules(number) | {"seconds": batch["seconds"]}
    journal.add(long_run.Batch(**batch))
    assert "planted" in summary(journal, "modules")
    told = batch["failures"][0]["program"]
    case = eval(told, {"ModuleCase": ModuleCase, "Argument": Argument})
    assert failure(case) and len(case.forward) <= 3, told


@pytest.mark.slow
def test_modules_go_through_optimize() -> None:
    batch = random_modules.run_modules(1)
    assert not batch["failures"] and len(batch["operators"]) == len(batch["programs"]) > 4
    assert sum(batch["stops"].values()) == len(batch["programs"]) and batch["fired"]
