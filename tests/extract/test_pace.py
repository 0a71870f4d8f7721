"""The pace of the machine, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, cycle

import pytest

from eqsynth.extract import pace
from eqsynth.extract.pace import Pace, usual_s


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


def test_the_usual_time_is_not_that_of_single_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    took = chain([5e-4], cycle([1e-5, 1e-5, 1e-5, 4e-5]))
    monkeypatch.setattr(pace.time, "perf_counter", Clock(took))
    assert usual_s() == pytest.approx(1e-5)
