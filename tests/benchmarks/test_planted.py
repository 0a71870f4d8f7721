"""Faults that the suite must see can still be planted; whether they are seen, the script tells."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.planted import FAULTS, ROOT, Fault


def stale(fault: Fault) -> bool:
    """Whether a fault's place or one of its tests isn't there any more."""
    path = ROOT / fault.file
    there = path.exists() and path.read_text(encoding="utf-8").count(fault.right) == 1
    return not there or not all((ROOT / test.split("::")[0]).exists() for test in fault.tests)


def test_each_fault_can_be_planted() -> None:
    assert not [fault.name for fault in FAULTS if stale(fault)]
    assert stale(replace(FAULTS[0], right="no such text"))
    assert stale(replace(FAULTS[0], tests=("tests/test_nothing.py",)))
