"""The pytest plugin, in pytest runs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_every_rule_of_a_folder_is_a_test(tmp_path: Path) -> None:
    (tmp_path / "mine.egg").write_text(SOUND, encoding="utf-8")
    (tmp_path / "notes.egg").write_text("(this is no rule file", encoding="utf-8")
    done = pytest_in(tmp_path, ".", "-v", "--rule-samples", "5")
    assert done.returncode == 0, done.stdout
    assert "mine.egg::neg-three-times PASSED" in done.stdout
    assert "mine.egg::relu-three-times PASSED" in done.stdout and "3 passed" in done.stdout


def test_what_the_linter_finds_fails_a_test_of_its_own(tmp_path: Path) -> None:
    text = SOUND.replace(";; relu(relu(relu(x))) = relu(x)\n", "")
    (tmp_path / "mine.egg").write_text(text, encoding="utf-8")
    done = pytest_in(tmp_path, ".", "-v", "--rule-samples", "5")
    assert done.returncode == 1 and "mine.egg::lint FAILED" in done.stdout, done.stdout
    assert "relu-three-times has no mathematics" in done.stdout and "2 passed" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_wrong_rule_fails_with_its_counterexample(tmp_path: Path) -> None:
    wrong = (UNSOUND / "concat-order.egg").read_text(encoding="utf-8")
    (tmp_path / "concat-order.egg").write_text(wrong, encoding="utf-8")
    done = pytest_in(tmp_path, "concat-order.egg")
    assert done.returncode == 1
    for part in ("concat-order is refused (value)", "left side", "right side", "left is"):
        assert part in done.stdout
    assert "Traceback" not in done.stdout


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
