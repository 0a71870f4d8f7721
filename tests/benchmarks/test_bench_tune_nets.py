"""Whole nets tuned step by step: what is stored, going on, and the table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import eqsynth
from benchmarks import bench_tune_nets
from benchmarks.bench_tune import read, write
from benchmarks.nets import AlexNet


def test_alexnets_convolutions_have_the_papers_sizes() -> None:
    shapes: list[tuple[int, ...]] = []
    module = AlexNet(4, 16, 8).eval()
    for part in module.convolutions:
        if isinstance(part, torch.nn.Conv2d):
            part.register_forward_hook(lambda _m, given, _y: shapes.append(tuple(given[0].shape)))
    assert module(torch.zeros(1, 3, 227, 227)).shape == (1, 8)
    assert [size for *_, size in shapes] == [227, 27, 13, 13, 13]
    with torch.device("meta"):
        whole = AlexNet().convolutions
    filters = [part.out_channels for part in whole if isinstance(part, torch.nn.Conv2d)]
    assert filters == [64, 192, 384, 256, 256]


def test_the_table_has_the_last_race_of_each_net(tmp_path: Path) -> None:
    file = tmp_path / "nets.jsonl"
    write(file, {"net": "a", "tuned_s": 0.0, "trials": 0})
    write(file, {"net": "a", "tuned_s": 60.0, "trials": 123})
    for eager in (9.0, 4e-3):
        times = {"eager": eager, "untuned": 3e-3, "tuned 60 s": 2e-3}
        write(file, {"net": "a", "raced": {n: [t, t, t] for n, t in times.items()}})
    write(file, {"net": "b", "raced": {"eager": [1.0] * 3, "untuned": [2.0] * 3}})
    heads, _, a, b = bench_tune_nets.table(file).splitlines()
    assert heads == "| net | eager, ms | untuned, ms | tuned 60 s, ms | untuned / last |"
    assert a == "| a | 4.000 | 3.000 | 2.000 (123 trials) | 1.50 |"
    assert b == "| b | 1000.000 | 2000.000 |  |  |"


@pytest.mark.slow
def test_a_net_is_tuned_for_the_seconds_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[float] = []
    plain = eqsynth.optimize

    def optimize(*args: object, tune: float, **kwargs: object) -> object:
        given.append(tune)
        return plain(*args, tune=tune, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(eqsynth, "optimize", optimize)
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))  # restores it afterwards
    file = tmp_path / "nets.jsonl"
    arguments = [str(file), "--net", "alexnet", "--limit-s", "4", "--rounds", "2", "--reduced"]
    bench_tune_nets.main([*arguments, "--seconds", "1"])
    assert given == [0.0, 1.0]
    bench_tune_nets.main([*arguments, "--seconds", "1", "3"])
    assert given == [0.0, 1.0, 2.0]
    assert [row["tuned_s"] for row in read(file, "tuned_s")] == [0.0, 1.0, 3.0]
    last = read(file, "raced")[-1]["raced"]
    assert set(last) == {"eager", "untuned", "tuned 1 s", "tuned 3 s"} and all(
        q[0] > 0 for q in last.values()
    )
    assert "| alexnet |" in capsys.readouterr().out
