"""The examples of README.md run as they stand, one after the other, for a small model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import eqsynth

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the examples start from, and what they leave to the next."""
    torch.manual_seed(0)
    return {
        "model": torch.nn.Linear(4, 4),
        "x": torch.randn(2, 4),
        "directory": tmp_path_factory.mktemp("readme"),
    }


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_runs(
    number: int, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(names["directory"])
    exec(compile(BLOCKS[number], f"README.md, Python block {number + 1}", "exec"), names)
    if number == 0:
        torch.testing.assert_close(names["y"], names["model"](names["x"]))
    if "A = " in BLOCKS[number] or "load" in BLOCKS[number]:
        result = names["program"](torch.randn(64, 512))
        assert result.shape == (64, 32) and (result >= 0).all()
    if "proof" in BLOCKS[number]:
        assert names["proof"].stop == "proved"


def test_names_that_the_readme_uses_are_public() -> None:
    used = set(re.findall(r"\beqsynth\.([a-z_]+)\b", "\n".join(BLOCKS)))
    assert used >= {"optimize", "prove_equal"} and used <= set(eqsynth.__all__)


def test_files_that_the_readme_names_exist() -> None:
    named = set(re.findall(r"`((?:\w+/)*\w+\.(?:md|txt))`", README))
    assert "rules/README.md" in named
    assert [name for name in named if not (ROOT / name).is_file()] == []
