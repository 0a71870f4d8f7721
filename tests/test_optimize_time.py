"""Workloads at reduced size through ``optimize`` as a user calls it: for time, with kernels that
are measured. (``test_pipeline.py`` asks for the fewest operations, and measures nothing.)"""

from __future__ import annotations

import warnings
from datetime import timedelta
from functools import partial

import pytest
import torch
from torch.utils._pytree import tree_leaves

from benchmarks.workloads import WORKLOADS
from eqsynth import pipeline
from eqsynth.errors import EquivalenceWarning
from eqsynth.extract.disturbance import Usage
from eqsynth.extract.timing import Timing
from eqsynth.lower.measurer import Measurer
from eqsynth.pipeline import optimize
from eqsynth.race import Race
from eqsynth.report import Report

# More than about ten seconds each.
SLOW = {"resnet18", "resnet50", "resnext50", "vgg16", "nasnet_a", "infogan", "dcgan", "bert128",
        "bert64", "gcn", "fsrcnn", "nasrnn", "lstm", "csrnet"}  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in WORKLOADS]
)
def test_a_workload_keeps_its_values(name: str) -> None:
    module, inputs = WORKLOADS[name].reduced()
    with warnings.catch_warnings():
        # A result that differs would be the original again, which agrees.
        warnings.simplefilter("error", EquivalenceWarning)
        program = optimize(module, inputs, time_limit_s=60)
    assert program.report.enodes >= program.report.eclasses > 0
    with torch.no_grad():
        got, expected = tree_leaves(program(*inputs)), tree_leaves(module(*inputs))
    for y, z in zip(got, expected, strict=True):
        scale = float(z.abs().max())
        assert scale > 1e-6  # else any tolerance would do
        torch.testing.assert_close(y, z, rtol=0, atol=2e-5 * scale)


@pytest.mark.rotating(parts=4)
def test_the_measuring_worker_loads_during_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not while the target's peaks are measured, which needs quiet."""
    called: list[str] = []

    def told(place: object, name: str) -> None:
        plain = getattr(place, name)

        def call(*args: object, **kwargs: object) -> object:
            called.append(name)
            return plain(*args, **kwargs)

        monkeypatch.setattr(place, name, call)

    told(pipeline, "target_here")
    told(Measurer, "prepare")
    told(pipeline, "_captured")
    module, inputs = torch.nn.Linear(5, 13).eval(), (torch.randn(2, 5),)
    optimize(module, inputs, engines=(), time_limit_s=60)
    assert called[:3] == ["target_here", "prepare", "_captured"]
    called.clear()
    optimize(module, inputs, objective="flops", time_limit_s=60)
    assert called == ["target_here", "_captured"]  # nothing is measured


def test_where_the_original_wins_nothing_is_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = (Timing(s, s, s, 9) for s in (2.0, 1.0))
    races = iter([Race(fast, slow), Race(fast, slow), Race(slow, fast)])
    monkeypatch.setattr("eqsynth.running.race", lambda *_, **__: next(races))
    module, inputs = torch.nn.Linear(5, 11).eval(), (torch.randn(2, 5),)
    run = partial(optimize, module, inputs, engines=(), time_limit_s=60)
    first = run().report
    assert first.backend == "original" and first.complete and not first.remembered_plan
    again = run().report
    assert again.backend == "original" and again.remembered_plan and again.rounds == 0
    assert "nothing was searched" in again.reason and "searched" not in first.reason
    # A program that has become faster than the original is used.
    won = run().report
    assert won.remembered_plan and won.backend != "original" and not won.reason


@pytest.mark.rotating
def test_disturbed_times_are_measured_again_when_the_machine_is_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, inputs = torch.nn.Linear(6, 13).eval(), (torch.randn(2, 6),)
    run = partial(optimize, module, inputs, engines=(), time_limit_s=60)

    def report(disturbed: bool, quiet: bool) -> Report:
        def answer(threads: int) -> bool:
            return quiet and threads == torch.get_num_threads()

        monkeypatch.setattr(Usage, "disturbed", lambda *_: disturbed)
        monkeypatch.setattr("eqsynth.searching.is_quiet", answer)
        return run().report

    first = report(disturbed=True, quiet=False)
    assert first.kernels_disturbed == first.kernels_timed > 0
    assert any("busy" in text for text in first.warnings)
    # Not at once, and not while the machine is busy.
    assert report(disturbed=False, quiet=True).remembered_plan
    monkeypatch.setattr("eqsynth.extract.profile.RETRY_AFTER", timedelta(0))
    assert report(disturbed=False, quiet=False).remembered_plan
    again = report(disturbed=False, quiet=True)
    assert not again.remembered_plan and again.kernels_timed and not again.kernels_disturbed
    assert report(disturbed=False, quiet=True).remembered_plan
