"""How a run is put together: rotating parts, two processes, what is made once for both."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

SUITE = """
import os
import pytest
from shared import once

@pytest.mark.rotating
@pytest.mark.parametrize("n", range(20))
def test_in_turn(n): pass

@pytest.mark.rotating(together="pair")
@pytest.mark.parametrize("n", range(3))
def test_in_turn_together(n): pass

@pytest.mark.rotating
@pytest.mark.parametrize("n", range(2))
def test_in_turn_later(n): pass

@pytest.mark.rotating(table="rows")
@pytest.mark.parametrize("n", range(11))
def test_of_a_row(n): pass

@pytest.mark.rotating(parts=64)
@pytest.mark.parametrize("n", range(80))
def test_in_turn_seldom(n): pass

def test_always(): pass

@pytest.mark.parametrize("n", range(6))
def test_once(n):
    def make():
        with open(os.environ["MADE"], "a") as made:
            made.write(f"{os.getpid()} ")
        return {"made": [n % 2]}
    assert once(f"thing-{n % 2}", make) == {"made": [n % 2]} == once(f"thing-{n % 2}", make)

@pytest.mark.parametrize("n", range(6))
def test_own_cache(n):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    own = os.path.join(os.environ["EQSYNTH_TESTS"], "cache" + worker)
    assert os.environ["EQSYNTH_CACHE"] == own
"""

TABLE = """
import pytest

@pytest.mark.rotating
@pytest.mark.parametrize("n", range(3))
def test_before(n): pass

@pytest.mark.rotating(table="rows")
@pytest.mark.parametrize("n", range(11))
def test_also_of_a_row(n): pass
"""

PARTS = """
import sys, pytest
from tests.turns import MOST, PARTS, SELDOM
class Collected:
    def pytest_collection_finish(self, session):
        names.append([item.name for item in session.items if "in_turn" in item.name])
        of_rows.append([item.name for item in session.items if "of_a_row" in item.name])
names, of_rows = [], []
for part in ["all", *map(str, range(MOST))]:
    pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", "--part", part, sys.argv[1]],
                plugins=[Collected()])
whole, *days = ([name for name in day if "seldom" not in name] for day in names)
seldom, *daily = ([name for name in day if "seldom" in name] for day in names)
assert len(seldom) == 80 and sorted(sum(daily[:64], [])) == sorted(seldom)
assert {len(day) for day in daily} == {1, 2}, daily
assert daily[:64] == daily[64:]
assert len(whole) == 25, whole
def turns(chosen, parts):
    found = [[name for name in day if chosen(name)] for day in days]
    assert found[:parts] * (MOST // parts) == found, found
    assert sorted(sum(found[:parts], [])) == sorted(filter(chosen, whole)) != [], found
    return found[:parts]
# A family of twenty rows is there in each turn, one of three or two in fewer turns.
often = turns(lambda name: name.startswith("test_in_turn["), PARTS)
assert {len(part) for part in often} == {1, 2}, often
rare = turns(lambda name: not name.startswith("test_in_turn["), SELDOM)
together = [len([name for name in part if "together" in name]) for part in rare]
assert sorted(together) == [0] * (SELDOM - 1) + [3], rare
# Two files, one table: each part has the same rows of both.
own = of_rows[1 : SELDOM + 1]
alike = [[name.replace("test_also_of", "test_of") for name in part] for part in own]
assert sorted(sum(alike, [])) == sorted(of_rows[0][:11] * 2) != [], of_rows
assert all(sorted(part) == sorted(2 * [*set(part)]) for part in alike), alike
"""


LEAVING = """
import sys
from threading import Thread

from eqsynth.executor import Worker, borrow, give_back

def test_kept(): give_back(borrow())

def test_late():
    def late():
        worker.run(sum, [])
        give_back(worker)
    worker = borrow()
    Thread(target=late).start()

def test_ended():
    with Worker(): pass
"""

LEAKING = """
import conftest
from test_leaving import *

def test_leaks():
    conftest.LEAVE_S = 0.0
    Worker()
"""

NEXT = """
from test_leaving import *
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    for name in ("conftest.py", "shared.py", "tests/turns.py"):
        shutil.copy(TESTS / Path(name).name, tmp_path / name)
    (tmp_path / "test_suite.py").write_text(SUITE, encoding="utf-8")
    (tmp_path / "test_table.py").write_text(TABLE, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = rotating: in turn\n")
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"MADE": str(folder / "made"), "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.rotating
def test_each_rotating_test_is_in_one_of_the_parts(suite: Path) -> None:
    done = run(suite, "-c", PARTS, str(suite))
    assert done.returncode == 0, done.stdout + done.stderr


# What a user does, from end to end, and the test that shows it in every part.
DAILY = {
    "a proof": "test_prove.py::test_equal_programs_are_proved",
    "compiled": "test_compile_backend.py::test_a_model_is_optimized_and_weights_stay_the_models",
    "in the background": "test_background.py::test_calls_go_on_while_a_program_takes_its_place",
    "engines": "test_engines.py::test_no_plan_is_built_twice",
    "a GPU": "test_on_gpu.py::test_a_wrong_kernel_gives_the_original_back",
    "from ONNX": "frontend/onnx/test_optimize.py::test_a_net_from_a_file",
    "to ONNX": "lower/test_onnx_program.py::test_a_net",
    "to torch.export": "lower/test_exported.py::test_a_program_that_is_loaded",
    "saved and loaded": "lower/test_bundle.py::test_buffers_keep_counting",
    "the command line": "cli/test_programs.py::test_an_exported_program_is_a_model",
    "rules are checked": "cli/test_rules.py::test_check_passes_on_sound_rules",
    "a wrong rule": "test_checking.py::test_a_wrong_rule_is_named_by_its_file_and_line",
    "an explanation": "explain/test_explanation.py::test_the_chain_starts_at_the_original",
    "a second search": "egraph/test_remembered.py::test_the_second_optimize_does_not_saturate",
    "workers end": "test_dying_workers.py::test_saturation_workers_that_are_killed_each_time",
    "the README": "test_readme.py::test_the_examples_run",
}


def seldom_run(test: str) -> bool:
    """Whether a test of a file is slow, takes turns or isn't there."""
    file, _, name = test.partition("::")
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    found = [part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name == name]
    assert not any("pytestmark" in ast.unparse(part).split(" =")[0] for part in tree.body), file
    marks = [ast.unparse(mark).lower() for part in found for mark in part.decorator_list]
    seldom = "slow", "rotating", "turns", "together"
    return not found or any(word in mark for mark in marks for word in seldom)


def test_each_part_shows_every_kind_of_use() -> None:
    assert not [kind for kind, test in DAILY.items() if seldom_run(test)]
    assert seldom_run("test_engines.py::test_the_fastest_runs")
    assert seldom_run("test_engines.py::test_nothing")


def test_no_test_that_rotates_takes_its_part_by_the_turn_alone() -> None:
    """Of 160 parts, one that runs every 32nd turn would meet five. It counts its own turns."""
    wrong = [
        f"{path.name}::{part.name}"
        for path in TESTS.rglob("test_*.py")
        if "turn_of_now()" in (text := path.read_text(encoding="utf-8")) and path != Path(__file__)
        for part in ast.parse(text).body
        if isinstance(part, ast.FunctionDef)
        and "turn_of_now()" in (body := ast.unparse(part)) and "turns.SELDOM" not in body
        and any("rotating" in ast.unparse(mark) for mark in part.decorator_list)
    ]  # fmt: skip
    assert not wrong


@pytest.mark.rotating
def test_two_processes_run_the_same_part_and_share_what_is_made_once(suite: Path) -> None:
    done = run(suite, "-m", "pytest", "-q", "-n", "2", "--part", "now", "--cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    # Two things, made by whoever came first; twice only where both came at once.
    assert 2 <= len((suite / "made").read_text().split()) <= 4
    assert "rotating tests: part" in done.stdout and "test_suite.py" in done.stdout
    part = done.stdout.partition("rotating tests: part ")[2].split()[0]
    again = run(suite, "-m", "pytest", "-q", "--collect-only", "--part", part)
    ran = int(done.stdout.partition(" passed")[0].split()[-1])
    assert ran in range(15, 24) and f"{ran}/143 tests collected" in again.stdout, again.stdout


@pytest.mark.rotating
def test_a_worker_that_is_left_behind_is_told_where_it_was_left(suite: Path) -> None:
    """In a second module of three, of which the others keep, end and give back late."""
    for name, text in (("leaving", LEAVING), ("leaving_more", LEAKING), ("next", NEXT)):
        (suite / f"test_{name}.py").write_text(text, encoding="utf-8")
    files = [f"test_{name}.py" for name in ("leaving", "leaving_more", "next")]
    done = run(suite, "-m", "pytest", "-q", *files)
    told = [line for line in done.stdout.splitlines() if line.startswith(("ERROR", "FAILED"))]
    assert len(told) == 1 and "test_leaving_more.py::" in told[0], done.stdout + done.stderr
    assert "10 passed, 1 error" in done.stdout, done.stdout
