"""The examples of docs/testing.md run as they stand, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import eqsynth.testing

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


@pytest.mark.rotating
def test_the_examples_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 11
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/testing.md, block {number + 1}", "exec"), names)


def test_the_names_are_there() -> None:
    named = set(re.findall(r"\b(assert_\w+)\b", TEXT))
    assert named and named <= set(eqsynth.testing.__all__)
