"""The table of peers: what it prints and writes, and what it refuses. Engines are real ones."""

import dataclasses
import importlib
import json
import math
import pickle
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import bench_peers, gpu_peers, zoo
from benchmarks.bench_peers import holes, line, main, means, measured_rows, plot, write
from benchmarks.curve import bars
from benchmarks.peers import ENGINES, NATIVE, OURS, PHONES, Engine, takes
from benchmarks.side_by_side import Row, measure
from benchmarks.workloads import DEPTHS, MEASURED, MODELS, SUITES, WORKLOADS, Workload
from eqsynth.peers import Given
from eqsynth.side_by_side import REFERENCE, relative_error, wrong
from tests.shared import once

CHAIN = WORKLOADS["chain"]
EAGER = next(engine for engine in ENGINES if engine.name == "eager")
OPENVINO = next(engine for engine in ENGINES if engine.name == "openvino")
EQSYNTH = next(engine for engine in ENGINES if engine.name == OURS)
# What the issue and the house's style ask of a row.
FIELDS = {
    "workload", "batch", "median_s", "quartiles_s", "best_peer", "ratio_over_best_peer",
    "error_rel", "optimize_s", "flops_before", "flops_after", "rules",
    "machine", "versions", "commit", "seed", "threads",
}  # fmt: skip
# The row that these tests ask about takes ten seconds to measure.
TOGETHER = pytest.mark.rotating(together="row")


def small_row(*engines: Engine) -> Row:
    return measure(CHAIN, 1, engines, threads=1, rounds=2, reduced=True, show=False)


def blank(workload: Workload, batch: int) -> Row:
    """A row of which nothing was measured."""
    empty = {field.name: None for field in dataclasses.fields(Row)}
    told = {"workload": workload.name, "batch": batch, "suite": workload.suite}
    kinds = ("median_s", "quartiles_s", "samples", "errors_rel", "failed")
    return Row(**{**empty, **dict.fromkeys(kinds, {}), **told, "rules": ()})  # type: ignore[arg-type]


@pytest.fixture
def row() -> Row:
    return once("row-of-two-engines", lambda: small_row(EQSYNTH, EAGER))


PLANTED = """
import os
from eqsynth.peers import Loaded, arrays

def right(given, threads):
    call = given.caller(given.module)
    return Loaded(call, lambda: arrays(call()))

def wrong(given, threads):
    call = given.caller(given.module)
    return Loaded(call, lambda: arrays(1.001 * call()))

def refuses(given, threads):
    raise ValueError("no such operator")

def crashes(given, threads):
    os.abort()

def crashes_later(given, threads):
    calls, call = iter(range(1, 7)), given.caller(given.module)
    return Loaded(lambda: next(calls, None) or os.abort(), lambda: arrays(call()))
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """``planted("crashes")``: an engine, found here and in processes that start from here."""
    (tmp_path / "planted_engines.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    module = importlib.import_module("planted_engines")
    return lambda load, name="": Engine(name or load, getattr(module, load))


# ---- rows ---------------------------------------------------------------------------------------


@pytest.mark.rotating
@TOGETHER
def test_a_row_of_two_engines(row: Row) -> None:
    assert not row.failed
    assert set(row.median_s) == set(row.quartiles_s) == set(row.errors_rel) == {OURS, "eager"}
    for name, median in row.median_s.items():
        low, high = row.quartiles_s[name]
        assert 0 < low <= median <= high
        assert row.samples[name] >= 2
    assert row.best_peer == "eager"
    assert row.ratio_over_best_peer == row.median_s["eager"] / row.median_s[OURS]
    assert row.ratio_native is None
    assert row.foreign_share is not None and 0 <= row.foreign_share <= 1
    assert row.error_rel is not None and row.error_rel < 1e-5
    assert row.optimize_s is not None and row.optimize_s > 0
    assert row.flops_before == 2 * 16 * 16 * (16 + 2)
    assert row.by_hand is None  # the gain is that of the full size
    assert holes([row], [(CHAIN, 1)], [EQSYNTH, EAGER]) == []


@TOGETHER
def test_both_times_stand_beside_a_ratio(row: Row) -> None:
    text = line(row)
    for name, median in row.median_s.items():
        assert f"{name} {median * 1e3:.3f} ms" in text
    assert f"{row.ratio_over_best_peer:.2f}" in text


# ---- failures -----------------------------------------------------------------------------------


@pytest.mark.rotating
def test_an_engine_that_fails_costs_the_ratio(planted: Callable[..., Engine]) -> None:
    reasons = {
        "wrong": "wrong",
        "refuses": "ValueError: no such operator",
        "crashes": "SIGABRT",
        "crashes_later": "SIGABRT",
    }
    engines = [planted("right", OURS), *map(planted, reasons), EAGER]
    row = small_row(*engines)
    assert set(row.failed) == set(reasons)
    assert all(reason in row.failed[name] for name, reason in reasons.items())
    assert set(row.median_s) == {OURS, "eager"}
    assert row.best_peer == "eager" and row.ratio_over_best_peer is None
    assert len(holes([row], [(CHAIN, 1)], engines)) == len(reasons)


@pytest.mark.rotating
def test_no_ratio_where_ours_is_wrong(planted: Callable[..., Engine]) -> None:
    row = measure(
        CHAIN, 1, [planted("wrong", OURS), EAGER], threads=1, rounds=1, reduced=True,
        allow_missing=True, show=False,
    )  # fmt: skip
    assert "wrong" in row.failed[OURS]
    assert row.ratio_over_best_peer is None and OURS not in row.median_s
    assert row.error_rel == pytest.approx(1e-3, rel=1e-2)
    assert means([row]) == "no ratios"


@TOGETHER
def test_a_table_with_holes_is_refused(row: Row) -> None:
    cases = [(CHAIN, 1), (CHAIN, 16), (WORKLOADS["gnn"], 1)]
    found = holes([row], cases, [EQSYNTH, EAGER, OPENVINO])
    assert len(found) == 3
    assert OPENVINO.name in found[0]
    assert "batch 16" in found[1] and "gnn" in found[2]
    unchecked = dataclasses.replace(row, failed={REFERENCE: "MemoryError"})
    assert REFERENCE in holes([unchecked], cases[:1], [EQSYNTH, EAGER])[0]


@pytest.mark.rotating
def test_our_program_without_engines_is_no_peer(planted: Callable[..., Engine]) -> None:
    row = small_row(planted("right", OURS), planted("right", NATIVE), EAGER)
    assert row.best_peer == "eager"
    assert row.ratio_native == row.median_s["eager"] / row.median_s[NATIVE]
    assert f"without engines {row.ratio_native:.2f}" in line(row)


@pytest.mark.rotating
def test_an_engine_has_no_column_where_it_is_not_made_for_the_workload() -> None:
    for engine in PHONES:
        assert takes(engine, MEASURED["resnet18"], 1) and not takes(engine, CHAIN, 1)
        assert not takes(engine, MEASURED["resnet18"], 16)
    assert small_row(*PHONES).failed == {}


@TOGETHER
def test_measured_rows_are_kept_for_the_same_tree_and_machine(row: Row, tmp_path: Path) -> None:
    file, origin = tmp_path / "rows.json", {"commit": "a", "threads": 1}
    assert measured_rows(file, origin) == []
    write([{**dataclasses.asdict(row), **origin}], file)
    (kept,) = measured_rows(file, origin)
    assert kept.workload == row.workload and kept.median_s == row.median_s
    assert measured_rows(file, {**origin, "commit": "b"}) == []
    write([{"workload": "chain", **origin}], file)
    with pytest.raises(ValueError, match="median_s"):
        measured_rows(file, origin)


@TOGETHER
def test_rows_are_drawn(row: Row) -> None:
    text = plot([row])
    assert "chain, 1" in text and OURS in text
    assert f"{row.median_s['eager'] / row.median_s[OURS]:.2f}" in text
    with pytest.raises(ValueError, match="values"):
        bars("", {})


# ---- errors of results --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("got", "error"),
    [
        ([[1.0, -4.0]], 0.0),
        ([[1.5, -4.0]], 0.125),
        ([[math.nan, -4.0]], math.inf),
        ([[math.inf, -4.0]], math.inf),
        ([[1.0]], math.inf),
        ([], math.inf),
        ([[1.0, -4.0], [0.0]], math.inf),
    ],
)
def test_relative_error(got: list[list[float]], error: float) -> None:
    arrays = [np.array(values, np.float32) for values in got]
    assert relative_error(arrays, [np.array([1.0, -4.0])]) == error


def test_a_later_result_counts_too() -> None:
    one, nan = np.ones(1), np.full(1, math.nan)
    assert relative_error([one, one], [one, 2 * one]) == 0.5
    assert relative_error([nan, one], [one, one]) == math.inf


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ({"eager": 2e-7, OURS: 3e-6}, []),
        ({"eager": 2e-7, OURS: 2e-4}, [OURS]),
        ({"eager": 1e-4, OURS: 1e-3}, []),
        ({"eager": math.inf, OURS: 2e-4}, ["eager", OURS]),
        ({"eager": 0.0, OURS: math.nan}, [OURS]),
    ],
)
def test_wrong(errors: dict[str, float], expected: list[str]) -> None:
    assert wrong(errors) == expected


# ---- the command --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "listed"),
    [
        (["--suite", "nothing"], SUITES),
        (["--workload", "nothing"], ("chain", "linear_attention")),
        (["--suite", "nets", "--workload", "chain"], ("resnet18",)),
        (["--batch", "3"], ("batch 3", "chain")),
        (["--rounds", "0"], ("--rounds",)),
    ],
)
def test_what_does_not_exist_is_an_error(
    arguments: list[str], listed: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    text = capsys.readouterr().err
    assert all(name in text for name in listed)


@pytest.mark.slow
def test_the_command_with_every_installed_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "rows.json"
    arguments = ["--workload", "transition", "--reduced", "--warm", "--rounds", "2"]
    assert main([*arguments, "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert len(rows) == 1 and FIELDS <= set(rows[0])
    installed = {engine.name for engine in ENGINES if engine.installed}
    assert set(rows[0]["median_s"]) == set(rows[0]["quartiles_s"]) == installed
    assert rows[0]["not_installed"] == [e.name for e in ENGINES if e.name not in installed]
    assert "torch" in rows[0]["versions"] and rows[0]["machine"]["cores"] >= 1
    text = capsys.readouterr().out
    assert "geometric mean of 1 ratios" in text and rows[0]["best_peer"] in text


def test_suites_hold_every_workload() -> None:
    assert {w.suite for w in MEASURED.values()} == set(SUITES)
    assert len(MEASURED) == len(WORKLOADS) + len(MODELS) + len(DEPTHS)


def test_models_of_libraries_that_are_not_installed_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    absent = [m.name for m in MODELS if not zoo.installed(zoo.MODELS[m.name].library)]
    if not absent:
        pytest.skip("all are installed")
    with pytest.raises(SystemExit):
        main(["--suite", "models", "--workload", absent[0]])
    assert "eqsynth[models]" in capsys.readouterr().err


@pytest.mark.rotating
@pytest.mark.parametrize("name", [model.name for model in MODELS])
def test_a_model_is_called_with_tensors_and_gives_one(name: str) -> None:
    # Not `importorskip`: timm is imported after the zoo has declared operators of torchvision.
    if not zoo.installed(library := zoo.MODELS[name].library):
        pytest.skip(f"{library} is not installed")
    model = MEASURED[name]
    module, inputs = model.reduced()
    again, same = model.reduced()
    with torch.no_grad():
        result = module(*inputs)
        assert isinstance(result, torch.Tensor) and result.is_floating_point()
        torch.testing.assert_close(again(*same), result, rtol=0, atol=0)


def test_gains_by_hand_have_the_published_mean() -> None:
    gains = [w.by_hand for w in WORKLOADS.values() if w.suite == "algebra"]
    assert len(gains) == 9
    assert statistics.geometric_mean([g for g in gains if g]) == pytest.approx(10.5, abs=0.1)


def test_engines_are_looked_up_by_name_in_their_process() -> None:
    for engine in ENGINES:
        home = sys.modules[engine.load.__module__]
        assert getattr(home, engine.load.__name__) is engine.load


def test_engines_of_a_device_go_to_processes_of_their_own() -> None:
    """Here on the CPU: the model and its arguments are moved, and the results come back."""
    module, args = CHAIN.reduced()
    wanted = module(*args)
    for engine in pickle.loads(pickle.dumps(gpu_peers.engines("cpu"))):
        if engine.name == "eager":
            with torch.no_grad():
                (got,) = engine.load(Given(module, args), 1).results()
    np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-5)


def test_a_device_that_is_not_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that is missing is told at once."""
    monkeypatch.setattr(gpu_peers.driver, "missing", lambda: "torch finds no GPU")
    monkeypatch.setattr(gpu_peers.nvrtc, "available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        main(["--device", "cuda"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "torch finds no GPU: run this where a GPU is" in told and "eqsynth[cuda]" in told


def test_one_command_measures_what_a_gpu_is_measured_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All nets, algebra and kernels, into a file of the device's name; here each engine is asked
    for nothing, since nobody has the device."""
    seen: list[tuple[str, int]] = []

    def measured(workload: Workload, batch: int, *_: object, **__: object) -> Row:
        seen.append((workload.name, batch))
        return blank(workload, batch)

    monkeypatch.setattr(gpu_peers, "missing", list)
    monkeypatch.setattr(gpu_peers, "RESULTS", tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(bench_peers, "measure", measured)
    assert main(["--device", "cuda"]) == 1  # a table without times is refused
    suites = {"nets", "algebra", "kernels"}
    assert set(seen) == {(w.name, b) for w in MEASURED.values() if w.suite in suites
                         for b in w.batches}  # fmt: skip
    rows = json.loads((tmp_path / "nvidia-h200.json").read_text())
    assert len(rows) == len(seen) and {row["device"] for row in rows} == {"NVIDIA H200"}
    seen.clear()
    assert main(["--device", "cuda", "--resume"]) == 1 and not seen
    assert "resnet18 at batch 16: inductor, CUDA graphs: no times" in capsys.readouterr().out
