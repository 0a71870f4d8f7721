"""Measuring this CPU gives a target, which is measured once per machine. No number is asserted."""

import math
from pathlib import Path

import pytest

from eqsynth.extract import measure
from eqsynth.extract.disturbance import Usage
from eqsynth.extract.profile import Profile
from eqsynth.extract.target import MemoryLevel, Target


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profile") / "profile.sqlite"


@pytest.fixture(scope="module")
def target(path: Path) -> Target:
    with pytest.MonkeyPatch.context() as patch:
        _busy(patch, False)
        return measure.measure_cpu_target(path)


def _busy(patch: pytest.MonkeyPatch, busy: bool) -> None:
    """Whether other processes look busy, whatever they are."""
    patch.setattr(Usage, "disturbed", lambda *_: busy)
    patch.setattr(measure, "is_quiet", lambda _: not busy)


@pytest.mark.rotating
def test_measured_target_is_sound(target: Target) -> None:
    import torch

    assert target.name == "cpu" and target.threads == torch.get_num_threads()
    assert target.levels[-1].capacity_bytes == float("inf")
    capacities = [level.capacity_bytes for level in target.levels]
    rates = [level.bandwidth_bytes_per_s for level in target.levels]
    assert capacities == sorted(capacities) and rates == sorted(rates, reverse=True)
    assert min(rates) > 0 and target.dispatch_s > 0
    assert {"float32", "float64", "bfloat16", "float16"} <= dict(target.flops_per_s).keys()
    assert min(rate for _, rate in target.flops_per_s) > 0


@pytest.mark.rotating
def test_measured_once(target: Target, path: Path) -> None:
    # Two measurements never agree to the last digit, so equal peaks were read from the file.
    assert measure.measure_cpu_target(path) == target


@pytest.mark.rotating
def test_a_damaged_text_is_measured_anew(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _busy(monkeypatch, False)
    path = tmp_path / "profile.sqlite"
    Profile(target.key(), path=path).store_document(measure._DOCUMENT, "{}")
    anew = measure.measure_cpu_target(path)
    assert anew.key() == target.key()
    assert measure.measure_cpu_target(path) == anew


@pytest.mark.rotating
def test_peaks_of_a_busy_machine_are_measured_again_when_it_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "profile.sqlite"
    monkeypatch.setattr(measure, "_look_at", {})
    _busy(monkeypatch, True)
    disturbed = measure.measure_cpu_target(path)
    assert measure.measure_cpu_target(path) == disturbed
    _busy(monkeypatch, False)
    assert measure.measure_cpu_target(path) == disturbed  # it was looked at just before
    monkeypatch.setattr(measure, "_look_at", {})
    quiet = measure.measure_cpu_target(path)
    assert quiet != disturbed
    _busy(monkeypatch, True)
    assert measure.measure_cpu_target(path) == quiet


def test_peaks_of_threads_that_wait_for_each_other_are_raised_to_those_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else kernels that no peak promises to be fast are never timed."""
    import torch

    threads = torch.get_num_threads()
    # (bytes/s of the first cache and of the memory, FLOP/s) by the number of threads
    rates = {1: (20e9, 8e9, 60e9), 2: (30e9, 9e9, 4e9)}

    def levels(threads: int) -> tuple[MemoryLevel, ...]:
        near, far, _ = rates[threads]
        return MemoryLevel("L1", 32768.0 * threads, near), MemoryLevel("DRAM", math.inf, far)

    monkeypatch.setattr(measure, "_measure_levels", levels)
    monkeypatch.setattr(
        measure, "_measure_flops", lambda: (("float32", rates[torch.get_num_threads()][2]),)
    )
    torch.set_num_threads(2)
    try:
        for busy, path, expected in (
            (False, tmp_path / "quiet", (30e9, 9e9, 4e9)),
            (True, tmp_path / "busy", (40e9, 9e9, 120e9)),
        ):
            _busy(monkeypatch, busy)
            target = measure.measure_cpu_target(path)
            near, far = target.levels
            assert (near.capacity_bytes, near.bandwidth_bytes_per_s) == (65536.0, expected[0])
            assert far.bandwidth_bytes_per_s == expected[1]
            assert target.flops_per_s == (("float32", expected[2]),)
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("fast_below", "held"),
    [(800, 800), (300, 400), (150, 200), (60, 800), (0, 800)],
    ids=["all", "half", "a quarter", "less than the second level", "no cache is seen"],
)
def test_a_cache_counts_as_far_as_data_are_fast_in_it(fast_below: int, held: int) -> None:
    """Of a shared cache others may have a part. Sizes in MB, rates in GB/s."""

    class Given(measure.Probe):
        def _triad_s(self, elements: int) -> float:
            return 0.0

        def _bandwidth(self, working_set_bytes: float, call_s: float) -> float:
            return 45.0 if working_set_bytes <= fast_below << 20 else 22.0

    assert Given("cpu").held_bytes(800 << 20, 100 << 20, 1600 << 20) == held << 20


def test_caches_of_two_threads_are_not_smaller_than_of_one() -> None:
    one, two = measure.cache_capacities(1), measure.cache_capacities(2)
    assert one.keys() == two.keys() and min(one.values()) > 0
    assert all(two[level] >= one[level] for level in one)
