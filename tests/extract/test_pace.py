"""The pace of the machine, by a clock that the test moves."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from itertools import chain, cycle
from pathlib import Path

import pytest

from eqsynth.extract import pace
from eqsynth.extract.pace import Pace, machine_pace, usual_s
from eqsynth.extract.store import profile_path


class Clock:
    """``time.perf_counter``: each piece of work takes the next of some seconds."""

    def __init__(self, took: Iterable[float]) -> None:
        self._took, self._now, self._reads = iter(took), 0.0, 0

    def __call__(self) -> float:
        self._reads += 1
        if self._reads % 2 == 0:
            self._now += next(self._took)
        return self._now


def test_what_the_work_takes_beyond_its_usual_time_is_a_slowdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace.time, "perf_counter", Clock([1e-5, 1.3e-5, 0.9e-5]))
    found = Pace(1e-5)
    assert [found.slowdown() for _ in range(3)] == pytest.approx([1.0, 1.3, 0.9])


@pytest.mark.parametrize("stored", ["0.25", "0", "nan", "a second"])
def test_what_is_usual_is_measured_once_for_a_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stored: str
) -> None:
    """Another process reads it from the profile; what can't be a time is measured again."""
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))

    def slowdown(work_s: float) -> float:
        pace._kept_usual_s.cache_clear()
        monkeypatch.setattr(pace.time, "perf_counter", Clock(cycle([work_s])))
        return machine_pace().slowdown()

    assert slowdown(1e-5) == pytest.approx(1.0)
    assert slowdown(3e-5) == pytest.approx(3.0)
    with sqlite3.connect(profile_path()) as db:
        db.execute("UPDATE documents SET body = ?", (stored,))
    assert slowdown(0.5) == pytest.approx(2.0 if stored == "0.25" else 1.0)
    pace._kept_usual_s.cache_clear()


def test_the_usual_time_is_not_that_of_single_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    took = chain([5e-4], cycle([1e-5, 1e-5, 1e-5, 4e-5]))
    monkeypatch.setattr(pace.time, "perf_counter", Clock(took))
    assert usual_s() == pytest.approx(1e-5)


def test_the_work_is_in_the_caches_when_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ran before has pushed it out."""
    monkeypatch.setattr(pace.time, "perf_counter", Clock([1e-5]))
    found = Pace(1e-5)
    found.slowdown()
    assert float(found._work[0]) == pace.WARM + 1 > 2
