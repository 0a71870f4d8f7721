"""The command line: catalogue and checker, exit codes, JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eqsynth.cli import app
from eqsynth.rules import load_rules

RULES = load_rules()
UNSOUND = Path(__file__).parent / "rules" / "unsound"


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


def test_list_of_files_prints_theirs_only() -> None:
    found = data("list", UNSOUND / "concat-order.egg")
    assert [(e["name"], e["numerics"], e["status"]) for e in found] == [
        ("concat-order", "bitwise", "validated")
    ]


def test_show_prints_sides_conditions_and_where_it_is_tested() -> None:
    rewrite = data("show", "div-cancel")
    assert rewrite["left"] == "(IDiv (IMul c x) m)" and rewrite["right"].startswith("(IDiv x")
    assert rewrite["conditions"] and rewrite["place"].endswith(f":{RULES['div-cancel'].line}")
    law = data("show", "sum-split")
    assert "sum-split" in law["right"] and law["source"] == "EinNet §4.1"
    assert "tests/test_cli.py" in law["tested"]
    text = run("show", "relu-of-relu")
    for part in ("relu(relu(x)) = relu(x)", "(Relu (Relu x))", "validated", "bitwise", "TASO"):
        assert part in text


def test_a_misspelt_name_gets_the_nearest() -> None:
    assert "relu-of-relu" in run("show", "relu-of-rela", code=2)
    assert "relu-of-relu" in run("check", "rules/simplify.egg", "--name", "relu-of-rela", code=2)


def test_check_passes_on_sound_rules(rules_file: str) -> None:
    found = data("check", rules_file, "--samples", "5", "--processes", "1")
    assert found and all(entry["sound"] and entry["accepted"] >= 5 for entry in found)
    text = run("check", rules_file, "--name", "concat-of-one", "--samples", "5")
    assert "concat-of-one" in text and "1 rules, 0 refused" in text


@pytest.fixture
def rules_file() -> str:
    return str(Path(RULES["concat-of-one"].file))


def test_check_fails_on_a_wrong_rule() -> None:
    file = UNSOUND / "truncating-division.egg"
    (found,) = data("check", file, code=1)
    assert (found["sound"], found["kind"], found["rule"]) == (False, "value", "truncating-division")
    assert found["file"] == str(file) and found["line"] == RULE_LINE
    assert "refused: value" in run("check", file, code=1)


RULE_LINE = 12


def test_what_cannot_be_loaded_is_a_message(tmp_path: Path) -> None:
    run("check", tmp_path, code=2)
    run("check", tmp_path / "missing.egg", code=2)
    broken = tmp_path / "broken.egg"
    broken.write_text('(rewrite (Rely x) x :ruleset simplify :name "broken")', encoding="utf-8")
    assert "Relu" in run("check", broken, code=2)
