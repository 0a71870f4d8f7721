"""``eqsynth rules generate``: counts, the remainder, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eqsynth.cli import app


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["rules", "generate", *args], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.rotating
def test_what_saturation_does_not_derive_is_the_remainder() -> None:
    asked = ("-n", "1", "--world", "matrices", "--inputs", "2", "--processes", "1")
    (own,) = json.loads(run(*asked, "--json"))["worlds"]
    found: dict[str, Any] = own
    assert found["graphs"] >= found["initial"] > found["renamed"] >= found["common"]
    assert found["subsumed"] == found["asked"] == sum(found["outcomes"].values())
    assert found["outcomes"]["derived"] and "refuted" not in found["outcomes"]
    assert len(found["remainder"]) == found["outcomes"].get("not derived", 0)
    text = run(*asked)
    assert "after common subgraphs" in text
    assert all(one["equality"] in text for one in found["remainder"])


@pytest.mark.rotating
def test_what_is_not_derived_is_written_as_rules_if_it_is_proved(tmp_path: Path) -> None:
    """Without time to search nothing is derived but what is one term; answers that the cache has
    are those of other rules."""
    own, path = tmp_path / "own.egg", tmp_path / "found.egg"
    own.write_text(
        ';; own.egg -- an operator.\n;;\n;; Needs      schema.egg\n\n(ruleset own)\n\n'
        '(define (Thrice a) "(a) [*n] = 3 * a[*n]" :ruleset own)\n', encoding="utf-8"
    )  # fmt: skip
    asked = (str(own), "-n", "1", "--world", "matrices", "--inputs", "1", "--processes", "1",
             "--limit-s", "0", "--write", str(path))  # fmt: skip
    told = json.loads(run(*asked, "--json"))
    open_ = [one["equality"] for one in told["worlds"][0]["remainder"]]
    assert open_ == [one["equality"] for one in told["rules"]] and len(open_) > 3
    rules = [rule for one in told["rules"] for rule in one["rules"]]
    text = path.read_text(encoding="utf-8")
    assert rules and all(rule in text for rule in rules)
    run(*asked[:-1], str(tmp_path / "nowhere" / "found.egg"), code=2)


def test_a_world_that_is_none_exits_with_2() -> None:
    run("-n", "1", "--world", "graphs", code=2)
