"""The examples in eqsynth's docstrings run, and print what they say."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def rooms() -> dict[str, list[str]]:
    """The modules with examples, by the package of eqsynth that they belong to."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "eqsynth").rglob("*.py")):
        if ">>> " in file.read_text(encoding="utf-8"):
            parts = file.relative_to(ROOT).with_suffix("").parts
            found.setdefault(parts[1] if len(parts) > 2 else "top", []).append(".".join(parts))
    return found


ROOMS = rooms()


# Whole searches are among the examples of these.
DEAR = {"testing", "top"}


@pytest.mark.parametrize(
    "room",
    [pytest.param(room, marks=[pytest.mark.rotating] * (room in DEAR)) for room in ROOMS],
)
def test_the_examples_of_docstrings_run(room: str) -> None:
    failed = [name for name in ROOMS[room] if doctest.testmod(import_module(name)).failed]
    assert not failed  # what each printed stands in the captured output


def test_examples_are_found() -> None:
    assert {"calculus", "extract", "frontend", "ir", "lower", "testing", "top"} <= set(ROOMS)
