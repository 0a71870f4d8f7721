"""``eqsynth rules verify``: outcomes, exit codes, JSON, and what is said without z3."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eqsynth.cli import app

ROOT = Path(__file__).resolve().parents[2]
RULES, UNSOUND = ROOT / "rules", ROOT / "tests" / "rules" / "unsound"


def run(*args: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(
        app, ["rules", "verify", *map(str, args)], env={"COLUMNS": "200"}
    )
    assert result.exit_code == code, result.output
    return result.output


def data(*args: str | Path, code: int = 0) -> list[dict[str, Any]]:
    pytest.importorskip("z3")
    found: list[dict[str, Any]] = json.loads(run(*args, "--json", code=code))["rules"]
    return found


ODD = """
; tanh(-a) = -tanh(a): functions have no properties to the prover
(rewrite (Tanh (Neg a)) (Neg (Tanh a)) :when ((= "float32" (dtype a)))
         :ruleset simplify :name "odd")
"""


@pytest.mark.rotating
def test_what_is_proved_and_what_is_left_exits_with_0(tmp_path: Path) -> None:
    found = {rule["rule"]: rule for rule in data(RULES / "scalar.egg", RULES / "epilogue.egg")}
    assert found["relu-idempotent"]["outcome"] == "proved"
    assert found["match-epilogue"]["outcome"] == "by law"
    assert len(found) == 10 and "match-epilogue-apply" not in found
    (written,) = data(RULES / "expand.egg", "--name", "expand")
    assert written["outcome"] == "by law" and "tests/expansion/test_expanded.py" in written["why"]
    odd = tmp_path / "odd.egg"
    odd.write_text(ODD)
    (left,) = data(odd)
    assert left["outcome"] == "not proved"


def test_a_rule_that_is_refuted_exits_with_1() -> None:
    (rule,) = data(UNSOUND / "truncating-division.egg", code=1)
    assert (rule["rule"], rule["outcome"]) == ("truncating-division", "refuted")
    text = run(UNSOUND / "truncating-division.egg", code=1)
    assert "1 rules: 1 refuted" in text


def test_one_rule_by_name() -> None:
    (rule,) = data(RULES / "index.egg", "--name", "mod-of-small")
    assert (rule["rule"], rule["outcome"]) == ("mod-of-small", "proved")
    assert "mod-of-small" in run(RULES / "index.egg", "--name", "mod-of-smal", code=2)


@pytest.mark.rotating
def test_without_z3_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['z3'] = None\n"
        f"from eqsynth.cli import app; app(['rules', 'verify', {str(RULES / 'scalar.egg')!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install 'eqsynth[verify]'" in done.stderr
