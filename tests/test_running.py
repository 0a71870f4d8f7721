"""How the time limit of one optimization is shared out; never how long anything takes."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eqsynth import FaultWarning, running
from eqsynth.extract.kernel import Kernel
from eqsynth.lower.kernel_tuning import TunedKernel
from eqsynth.progress import Progress
from eqsynth.report import Report
from eqsynth.running import Run
from eqsynth.serving import WorkerError
from eqsynth.settings import Settings

NOW = 1000.0
_PARTS = "captured", "original", "rules", "report", "bar", "measurer"


def _run(began: float, limit_s: float, monkeypatch: pytest.MonkeyPatch, **given: Any) -> Run:
    """One that was captured now, of an ``optimize`` that was called then."""
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: NOW))
    settings = Settings("cpu", (), "time", limit_s, 1, 1, "real", given.pop("check", True), True)
    parts = (given.get(name) for name in _PARTS)
    return Run(settings, *map(cast, [Any] * len(_PARTS), parts), began)


@pytest.mark.parametrize(("spent_s", "left_s"), [(0.0, 10.0), (3.0, 7.0), (5.0, 5.0), (60.0, 5.0)])
def test_capturing_counts_up_to_half_of_the_limit(
    spent_s: float, left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _run(NOW - spent_s, 10.0, monkeypatch)._end == NOW + left_s


@pytest.mark.parametrize(
    ("limit_s", "call_s", "check", "kept_s"),
    [
        (20.0, 0.01, True, 0.3 + 1.3 + 68 * 0.01),
        (20.0, 0.01, False, 0.3 + 1.3 + 8 * 0.01),
        (20.0, 0.2, False, 2.3),  # a tenth of the limit is left for the race at most
        (20.0, 9.0, True, 5.0),  # a quarter, and the check of a slow module comes on top
        (1.0, 0.01, True, 0.25),
        (float("inf"), 0.01, True, 0.0),
    ],
)
def test_time_is_kept_for_the_check_and_the_race(
    limit_s: float, call_s: float, check: bool, kept_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = iter([2 * call_s])  # the first of several calls is left out
    place = SimpleNamespace(clock=lambda _call, _times: next(first, call_s))
    original = SimpleNamespace(place=place, call=None, args=(), kwargs={}, module=None)
    given = {"check": check, "captured": SimpleNamespace(buffers=()), "original": original}
    run = _run(NOW, limit_s, monkeypatch, **given)
    assert run._closing_s() == pytest.approx(kept_s)


@pytest.mark.parametrize(("left_s", "race_s"), [(100.0, 2.3), (3.0, 1.5), (0.1, 0.3), (-9.0, 0.3)])
def test_a_race_takes_half_of_what_is_left(
    left_s: float, race_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run(NOW, 20.0, monkeypatch)
    run.begin = NOW + left_s - 20.0
    assert run._race_s() == pytest.approx(race_s)


@pytest.mark.parametrize(
    ("error", "told"),
    [(AssertionError("no block"), FaultWarning), (WorkerError("it died", reason="killed"), None)],
    ids=["fault", "worker"],
)
def test_an_error_in_tuning_costs_the_tuning_only(
    error: Exception, told: type[Warning] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the time that it took is on top of the limit."""

    def tuned_kernels(*_: object) -> dict[Kernel, TunedKernel]:
        clock.monotonic = lambda: NOW + 30.0
        raise error

    report, found = Report(), cast(Any, SimpleNamespace(plan=None))
    original = SimpleNamespace(target=None)
    given = {"report": report, "bar": Progress(False), "original": original}
    run = _run(NOW, 10.0, monkeypatch, measurer=SimpleNamespace(far=0), **given)
    clock = cast(Any, running.time)
    monkeypatch.setattr(running, "tuned_kernels", tuned_kernels)
    with nullcontext() if told is None else pytest.warns(told, match="the untuned program is used"):
        assert run._tuned(cast(Any, None), found, found) == (found, found)
    assert run._end == NOW + 40.0 and str(error) in report.tuning_refused
    run.strict = True
    with nullcontext() if told is None else pytest.raises(type(error)):
        run._tuned(cast(Any, None), found, found)
