"""``eqsynth rules generate``: counts, the remainder, exit codes."""

from __future__ import annotations

import json
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


def test_a_world_that_is_none_exits_with_2() -> None:
    run("-n", "1", "--world", "graphs", code=2)
