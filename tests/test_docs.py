"""Pages of docs/: what is generated is up to date, and code runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import eqsynth
from eqsynth import errors
from eqsynth.cli import rule_reference
from eqsynth.cli.error_reference import reference
from eqsynth.rules import load_rules

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_error_reference_is_up_to_date() -> None:
    """Made by `eqsynth errors > docs/errors.md`."""
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    assert text == reference()
    named = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    assert {"EqsynthError", "EquivalenceError", "CompileWarning"} <= set(named)
    assert all(getattr(errors, name).__doc__ for name in named)


def test_the_rule_reference_is_up_to_date() -> None:
    """Made by `eqsynth rules reference > docs/rules.md`."""
    rules = load_rules()
    text = (DOCS / "rules.md").read_text(encoding="utf-8")
    assert text == rule_reference.reference(rules)
    named = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert len(set(named)) == len(named)
    told = {*named, *(f"{name}-apply" for name in named)}
    assert {rule.name for rule in rules.rules if rule.kind != "analysis"} <= told
    operators, _, rules_of_files = text.partition("## Operators")[2].partition("\n## ")
    for part, columns in ((operators, 4), (rules_of_files, 5)):
        rows = [line for line in part.splitlines() if line.startswith("| `")]
        assert rows
        assert all(len(re.findall(r"(?<!\\)\|", row)) == columns + 1 for row in rows)


@pytest.mark.rotating
@pytest.mark.parametrize(
    "page", [pytest.param("how-it-works.md", marks=pytest.mark.slow), "coming-from.md"]
)
def test_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block runs after the one before it, and prints what stands under it."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|text)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, Any] = {}
    for number, (language, block) in enumerate(blocks):
        if language == "text":
            said = capsys.readouterr().out.split()
            for line in block.splitlines():
                # Every word of it in its order; times and numbers of e-nodes aren't shown.
                assert " ".join(line.split()) in " ".join(said), line
        else:
            capsys.readouterr()
            exec(compile(block, f"{page}, block {number + 1}", "exec"), names)


def test_names_that_the_pages_use_are_public() -> None:
    for page in DOCS.glob("*.md"):
        used = set(re.findall(r"\beqsynth\.([A-Za-z_]+)\(", page.read_text(encoding="utf-8")))
        assert used <= set(eqsynth.__all__), page
