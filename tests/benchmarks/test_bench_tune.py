"""The comparison of tuners: what it prints and writes. No time is asserted."""

import json
from pathlib import Path

import pytest

from benchmarks.bench_tune import KERNELS, kernel_of, main
from eqsynth.lower.kernel_tuning import space_for


@pytest.mark.slow
def test_a_run_and_its_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    arguments = ["--kernel", "column_sum", "--tuner", "opevo", "coordinates", "--trials", "9"]
    main([*arguments, "--json", str(tmp_path / "first.json")])
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    main([*arguments, "--json", str(tmp_path / "second.json")])
    printed = capsys.readouterr().out
    assert printed.count("best after 8: ") == 4 and "trials to 2 %" in printed
    first, second = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("first", "second"))
    assert {"machine", "versions", "commit"} <= first.keys()
    for one, other in zip(first["runs"], second["runs"], strict=True):
        assert one["stop"] == "trials" and len(one["best_so_far_s"]) == len(one["elapsed_s"]) == 9
        # What was measured is kept.
        assert one["best_so_far_s"] == other["best_so_far_s"]
        assert one["default_s"] > 0 and one["found_s"] > 0


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_has_a_space(name: str) -> None:
    kernel = kernel_of(KERNELS[name]())
    space = space_for(kernel)
    assert kernel.schedule in {space.made(point) for point in space.starts}
    assert space.size > 2 * len(space.starts)
