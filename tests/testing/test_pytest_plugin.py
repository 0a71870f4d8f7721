"""The pytest plugin, in pytest runs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import once

UNSOUND = Path(__file__).resolve().parents[1] / "rules" / "unsound"
SOUND = """\
;; mine.egg -- rules of a user.
;;
;; Rulesets   mine   leaves fewer operators; saturates
;; Needs      schema.egg
;; Numerics   bitwise
;; Status     validated

(ruleset mine)

;; -(-(-x)) = -x
(rewrite (Neg (Neg (Neg x))) (Neg x) :ruleset mine :name "neg-three-times")

;; relu(relu(relu(x))) = relu(x)
(rewrite (Relu (Relu (Relu x))) (Relu x) :ruleset mine :name "relu-three-times")
"""


def pytest_in(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    # The plugin by name, whether or not it is installed with its entry point.
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    env["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    plugin = ("-p", "eqsynth.testing.pytest_plugin", "-p", "no:cacheprovider")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "--rootdir", str(directory), *args],
        cwd=directory, env=env, capture_output=True, text=True, timeout=3600, check=False,
    )  # fmt: skip


# The run that these tests read takes five seconds.
TOGETHER = pytest.mark.rotating(together="folder")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """What a run over a folder of rule files prints."""
    return once("plugin-over-a-folder", lambda: checked(tmp_path))


def checked(directory: Path) -> str:
    bare = SOUND.replace(";; relu(relu(relu(x))) = relu(x)\n", "").replace("mine", "bare")
    texts = {
        "mine.egg": SOUND,
        "bare.egg": bare.replace("-three-times", "-thrice"),
        "notes.egg": "(this is no rule file",
        "concat-order.egg": (UNSOUND / "concat-order.egg").read_text(encoding="utf-8"),
    }
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    done = pytest_in(directory, ".", "-v", "--rule-samples", "30")
    assert done.returncode == 1 and "Traceback" not in done.stdout, done.stdout
    return done.stdout


@TOGETHER
def test_every_rule_of_a_folder_is_a_test(folder: str) -> None:
    for item in ("lint", "neg-three-times", "relu-three-times"):
        assert f"mine.egg::{item} PASSED" in folder
    assert "notes.egg" not in folder and "2 failed" in folder


@TOGETHER
def test_what_the_linter_finds_fails_a_test_of_its_own(folder: str) -> None:
    assert "bare.egg::lint FAILED" in folder, folder
    assert "relu-thrice has no mathematics" in folder
    assert "bare.egg::relu-thrice PASSED" in folder and "bare.egg::neg-thrice PASSED" in folder


@TOGETHER
def test_a_wrong_rule_fails_with_its_counterexample(folder: str) -> None:
    for part in ("concat-order is refused (value)", "left side", "right side", "left is"):
        assert part in folder, folder


@pytest.mark.rotating
def test_a_file_that_cannot_be_loaded_is_an_error_of_collection(tmp_path: Path) -> None:
    (tmp_path / "broken.egg").write_text(SOUND.replace("(Neg x) :", "(Nex x) :"), encoding="utf-8")
    done = pytest_in(tmp_path, ".")
    assert done.returncode == 2 and "unknown operator Nex" in done.stdout
    assert "Did you mean Neg?" in done.stdout


def test_other_runs_import_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "test_light.py").write_text(
        "import sys\ndef test_it():\n"
        "    assert not {'torch', 'tvm', 'egglog', 'numpy', 'hypothesis'} & set(sys.modules)\n",
        encoding="utf-8",
    )
    (tmp_path / "other.egg").write_text("(ruleset of-somebody-else)", encoding="utf-8")
    done = pytest_in(tmp_path, ".")
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


def test_our_own_wrong_rules_are_no_tests_of_ours() -> None:
    root = Path(__file__).resolve().parents[2]
    done = pytest_in(root, "tests/rules/unsound", "--collect-only", "-q")
    assert "concat-order.egg" not in done.stdout
