"""Measuring this CPU gives a target, which is measured once per machine. No number is asserted."""

from pathlib import Path

import pytest

from eqsynth.extract import measure
from eqsynth.extract.disturbance import Usage
from eqsynth.extract.profile import Profile
from eqsynth.extract.target import Target


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
    Profile(target.key(), path=path).store_document("target", "{}")
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


def test_caches_of_two_threads_are_not_smaller_than_of_one() -> None:
    one, two = measure.cache_capacities(1), measure.cache_capacities(2)
    assert one.keys() == two.keys() and min(one.values()) > 0
    assert all(two[level] >= one[level] for level in one)
