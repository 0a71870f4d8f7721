"""What the report says: the truth, and nothing of what was never found out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eqsynth.extract.timing import OperatorTimes, Timing
from eqsynth.ir.tensor import Input
from eqsynth.ir.types import TensorType
from eqsynth.report import Report, StepTime

SLOW, FAST = Timing(3e-3, 2.9e-3, 3.1e-3, 9), Timing(1e-3, 0.9e-3, 1.1e-3, 9)


def searched() -> Report:
    return Report(
        segments=2, distinct_segments=1, enodes=10, eclasses=8, stop="saturated",
        flops_before=80, flops_after=40, bytes_before=100, bytes_after=50, peak_memory_bytes=9,
        rules_fired={"factor": 900, "mine": 3, "fold": 40}, kernels_considered=7, kernels_timed=5,
    )  # fmt: skip


def test_the_original_that_is_kept_has_its_own_quartiles() -> None:
    report = searched()
    report.timed(FAST, SLOW, kept=True)
    assert report.time_before_s == report.time_after_s == 1e-3 and report.speedup == 1.0
    assert report.quartiles_s["after"] == report.quartiles_s["before"] == (0.9e-3, 1.1e-3)
    assert report.candidate_time_s == 3e-3
    assert report.quartiles_s["candidate"] == (2.9e-3, 3.1e-3)
    rows = dict(report.rows())
    assert rows["time after"] == rows["time before"] and rows["best found"].startswith("3.000 ms")
    report.timed(SLOW, FAST, kept=False)
    assert report.candidate_time_s == report.time_after_s and report.speedup == 3.0
    assert "best found" not in dict(report.rows())


def test_the_original_that_is_kept_holds_nothing_for_itself() -> None:
    report = replace(searched(), parameters=5, constant_bytes=20, error_rel=1e-5)
    report.original_is_kept(parameters=12)
    assert (report.parameters, report.constant_bytes, report.error_rel) == (12, 0, 0.0)
    assert report.flops_after == report.flops_before and report.bytes_after == report.bytes_before
    assert {"constants", "peak memory", "relative error"}.isdisjoint(dict(report.rows()))


def test_what_was_never_found_out_has_no_row() -> None:
    refused = Report(stop="capture", reason="torch.export refuses the module")
    assert [name for name, _ in refused.rows()] == ["optimized in", "stopped", "runs on"]
    assert "0.000 ms" not in str(refused) and refused.reason in str(refused)
    assert "time before" not in dict(searched().rows())  # a search without a race


def test_timings_that_scatter_are_warned_of() -> None:
    report = searched()
    report.timed(FAST, SLOW, kept=True)
    assert report.warnings == ()
    report.timed(FAST, Timing(3e-3, 2e-3, 9e-3, 9), kept=True)
    (text,) = report.warnings
    assert "candidate" in text and "before" not in text
    assert ("warning", text) in report.rows()


def test_busy_processes_beside_the_timing_are_warned_of() -> None:
    report = searched()
    report.kernels_disturbed = 7
    (text,) = report.warnings
    assert "7 kernels" in text and ("warning", text) in report.rows()


def test_the_users_own_rules_come_first() -> None:
    report = replace(searched(), own_rules=("mine", "other"))
    assert dict(report.rows())["rules"].startswith("mine (3), factor (900)")
    many = {f"own-{n}": 1 for n in range(12)}
    told = replace(searched(), own_rules=tuple(many), rules_fired={"factor": 900, **many})
    assert all(f"{name} (1)" in dict(told.rows())["rules"] for name in many)


def test_a_choice_by_estimates_is_told() -> None:
    assert "estimates" not in dict(searched().rows())["kernels"]
    assert dict(searched().rows())["gap"] == "no bound"
    assert "12.5%" in dict(replace(searched(), gap=0.125).rows())["gap"]
    assert "2 of the plan's" in dict(replace(searched(), kernels_estimated=2).rows())["kernels"]


@pytest.mark.parametrize(
    ("step", "excess_s", "words"),
    [
        (StepTime("Matmul (a)", "torch", 3e-3, ("Mul", "Add"), 1e-3), 2e-3, "(Mul, Add)"),
        (StepTime("copy", "torch", 3e-3, (), 0.0), 3e-3, "nothing"),
        (StepTime("Scope", "tvm flat", 3e-3), 0.0, "3.000 ms"),
    ],
)
def test_a_step_says_what_it_replaced(step: StepTime, excess_s: float, words: str) -> None:
    assert step.excess_s == pytest.approx(excess_s) and words in str(step)
    report = replace(searched(), why_not=(step,))
    assert ("why not", str(step)) in report.rows()


def test_the_share_of_the_time_is_told_by_backend() -> None:
    terms = [Input(name, TensorType((2,), "float32")) for name in "abcd"]
    kernels = ("openvino 2026.4", "onednn.linear:relu", "tvm 4x4", "openvino 2026.4")
    report = searched()
    report.operator_times = OperatorTimes(
        {}, dict(zip(terms, (0.5, 0.25, 0.125, 0.125), strict=True)),
        dict(zip(terms, kernels, strict=True)),
    )  # fmt: skip
    assert report.shares == {"openvino": 0.625, "onednn": 0.25, "tvm": 0.125}
    assert dict(report.rows())["share of time"] == "openvino 62%, onednn 25%, tvm 12%"
    assert "share of time" not in dict(searched().rows())
