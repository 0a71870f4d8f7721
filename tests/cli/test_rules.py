"""The command line: catalogue and checker, exit codes, JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eqsynth.cli import app
from eqsynth.rules import load_rules
from eqsynth.rules.catalogue import entry

ROOT = Path(__file__).resolve().parents[2]
RULES = load_rules()
UNSOUND = ROOT / "tests" / "rules" / "unsound"


def run(*args: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["rules", *map(str, args)], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


def data(*args: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["rules", *map(str, args), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_list_prints_every_rule() -> None:
    found = data("list")
    assert [entry["name"] for entry in found] == list(RULES.names)
    assert all(entry["kind"] in ("rewrite", "law", "analysis") for entry in found)
    text = run("list")
    assert "reshape-of-reshape" in text and f"{len(RULES.rules)} rules" in text


def test_a_part_of_the_rules_is_checked() -> None:
    found = data("check", ROOT / "rules" / "simplify.egg", "--samples", "2", "--part", "2/8")
    names = [rule.name for rule in RULES.rules if rule.file.endswith("simplify.egg")]
    assert [rule["rule"] for rule in found["rules"]] == names[1::8]
    for rule in found["rules"]:
        assert not rule["timed_out"] and f"{rule['accepted']} samples" in rule["known"]
    run("check", ROOT / "rules" / "simplify.egg", "--part", "9/8", code=2)


@pytest.mark.rotating
def test_what_is_piped_is_whole() -> None:
    """Without a terminal nothing is cut: names, classes, statements."""
    result = CliRunner().invoke(app, ["rules", "list"], env={"COLUMNS": "40"})
    lines = result.output.splitlines()
    assert len(lines) == len(RULES.rules) + 2
    for rule, line in zip(RULES.rules, lines[1:], strict=False):
        assert {rule.name, rule.ruleset, rule.status} <= set(line.split())
        assert str(rule.numerics) in line and entry(RULES, rule.name).statement in line
    shown = run("check", UNSOUND / "softmax-overflows.egg", code=1).splitlines()
    assert shown[-2].split()[:3] == ["softmax-overflows", "refused:", "numerics"]


def test_list_of_files_prints_theirs_only() -> None:
    found = data("list", UNSOUND / "concat-order.egg")
    assert [(e["name"], e["numerics"], e["status"]) for e in found] == [
        ("concat-order", "bitwise", "validated")
    ]


def test_show_prints_sides_conditions_and_where_it_is_tested() -> None:
    rewrite = data("show", "div-cancel")
    assert rewrite["left"] == "(IDiv (IMul c x) m)"
    assert rewrite["conditions"] and rewrite["place"].endswith(f":{RULES['div-cancel'].line}")
    # What the author wrote, not the names that the loader gives to it.
    assert rewrite["right"] == "(IDiv x (/ m c))"
    assert data("show", "mul-of-mul")["right"] == "(IMul (* c d) x)"
    assert data("show", "max-with-zero")["right"] == '(Call "relu" (vec-of (vec-get v 0)))'
    law = data("show", "sum-split")
    assert "sum-split" in law["right"] and law["source"] == "EinNet §4.1"
    assert "tests/cli/test_rules.py" in law["tested"]
    text = run("show", "relu-of-relu")
    for part in ("relu(relu(x)) = relu(x)", "(Relu (Relu x))", "validated", "bitwise", "TASO"):
        assert part in text


def test_a_misspelt_name_gets_the_nearest() -> None:
    assert "relu-of-relu" in run("show", "relu-of-rela", code=2)
    assert "relu-of-relu" in run("check", "rules/simplify.egg", "--name", "relu-of-rela", code=2)


def test_check_passes_on_sound_rules(rules_file: str) -> None:
    """Of a file with three rules: the files with many are checked rule by rule, in turns."""
    few = ROOT / "rules" / "merge.egg"
    checked = data("check", few, "--samples", "5", "--processes", "1")
    assert checked["findings"] == [] and not checked["interrupted"]
    found = checked["rules"]
    assert [entry["rule"] for entry in found] == [
        rule.name for rule in RULES.rules
        if rule.file == str(few) and rule.kind in ("rewrite", "law-request")
    ]  # fmt: skip
    assert len(found) > 1 and all(entry["sound"] and entry["accepted"] >= 5 for entry in found)
    text = run("check", rules_file, "--name", "concat-of-one", "--samples", "5")
    assert "concat-of-one" in text and "1 rules, 0 refused" in text


@pytest.fixture
def rules_file() -> str:
    return str(Path(RULES["concat-of-one"].file))


@pytest.mark.rotating
def test_check_fails_on_a_wrong_rule() -> None:
    file = UNSOUND / "truncating-division.egg"
    (found,) = data("check", file, code=1)["rules"]
    assert (found["sound"], found["kind"], found["rule"]) == (False, "value", "truncating-division")
    assert found["file"] == str(file) and found["line"] == RULE_LINE
    assert "refused: value" in run("check", file, code=1)


RULE_LINE = 12


LAX = """\
;; lax.egg -- a rule without mathematics.
;;
;; Rulesets   lax   leaves fewer operators; saturates
;; Needs      schema.egg
;; Numerics   bitwise
;; Status     validated

(ruleset lax)

(rewrite (Relu (Relu (Relu x))) (Relu x) :ruleset lax :name "lax")
"""


def test_check_fails_on_what_the_linter_finds(tmp_path: Path) -> None:
    """A sound rule of a user's folder that breaks the law of rule writing."""
    (tmp_path / "lax.egg").write_text(LAX, encoding="utf-8")
    checked = data("check", tmp_path, "--samples", "5", code=1)
    assert [entry["sound"] for entry in checked["rules"]] == [True]
    (finding,) = checked["findings"]
    assert finding["file"] == str(tmp_path / "lax.egg") and finding["line"] == 10
    assert "mathematics" in finding["what"] and finding["hint"]
    text = run("check", tmp_path, "--samples", "5", code=1)
    assert "lax.egg:10:1" in text and "1 rules, 0 refused" in text


@pytest.mark.rotating
def test_an_interrupt_ends_it_with_what_was_found() -> None:
    """Ctrl-C: no traceback, of no process, and what is known so far. So many samples would take
    days: it is in the middle of them whenever the interrupt comes."""
    command = [sys.executable, "-m", "eqsynth", "rules", "check", "rules", "--json"]
    process = subprocess.Popen(
        [*command, "--processes", "2", "--samples", "1000000"], cwd=ROOT, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # What a shell runs in the background ignores Ctrl-C, and so would all that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    # The resource tracker and a worker; the second starts only if the first is busy by then.
    while process.poll() is None and len(children.read_text().split()) < 2:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=3600)
    assert process.returncode == 130 and "Traceback" not in err, err
    assert not out or json.loads(out)["interrupted"]


def test_what_cannot_be_loaded_is_a_message(tmp_path: Path) -> None:
    run("check", tmp_path, code=2)
    run("check", tmp_path / "missing.egg", code=2)
    broken = tmp_path / "broken.egg"
    broken.write_text('(rewrite (Rely x) x :ruleset simplify :name "broken")', encoding="utf-8")
    for command in ("list", "check"):
        shown = run(command, broken, code=2)
        assert "Relu" in shown and "broken.egg:1:" in shown and "Traceback" not in shown
    broken.write_bytes(b"\xff\xfe\x00")
    assert "broken.egg" in run("check", broken, code=2)
