"""The command line: a model goes in, a program comes out, is run, timed and explained."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

import eqsynth
from eqsynth import pipeline
from eqsynth.cli import app
from eqsynth.cli.models import model
from eqsynth.errors import CaptureError, EqsynthError
from eqsynth.extract import carried
from eqsynth.frontend.onnx import module_of
from eqsynth.lower.cuda.driver import missing
from tests.played import PLAYED, a_gpu

ROOT = Path(__file__).resolve().parents[2]

MODELS = """\
import torch

class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return (q @ k.transpose(-1, -2)) @ v

def attention():
    return Attention(), tuple(torch.randn(64, 4) for _ in range(3))

def layers():
    layer = lambda: torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    return torch.nn.Sequential(layer(), layer()), torch.randn(1, 16, 32)

def nothing():
    return 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("cli")
    (found / "attentive.py").write_text(MODELS)
    return found


def command(*args: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "eqsynth", *args], cwd=cwd, start_new_session=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture(scope="module")
def optimized(folder: Path) -> Path:
    """What ``eqsynth optimize`` writes."""
    asked = ["attentive:attention", "-o", "fast.eqsynth", "--objective", "flops", "--json"]
    asked.append("--certify")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = CliRunner().invoke(app, ["optimize", *asked], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["flops_after"] < told["flops_before"] and not told["interrupted"]
    assert " hold (" in told["certified"]
    assert told["out"] == "fast.eqsynth" and "x at " in result.stderr
    return folder / "fast.eqsynth"


def output(*args: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, args)), env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.rotating
def test_what_is_written_is_the_program(optimized: Path, folder: Path) -> None:
    q, k, v = (torch.randn(64, 4) for _ in range(3))
    program = eqsynth.load(optimized)
    torch.testing.assert_close(program(q, k, v), (q @ k.T) @ v, rtol=1e-4, atol=1e-4)
    torch.save((q, k, v), folder / "x.pt")
    said = output("run", optimized, "--inputs", folder / "x.pt", "-o", folder / "y.pt")
    assert "float32[64, 4]" in said
    torch.testing.assert_close(torch.load(folder / "y.pt"), program(q, k, v))
    assert json.loads(output("run", optimized, "--json"))["outputs"] == ["float32[64, 4]"]


@pytest.mark.rotating
def test_it_is_explained_in_two_lengths(optimized: Path) -> None:
    said, full = output("explain", optimized), output("explain", optimized, "--full")
    # Times decide whether k is turned in a step of its own, `q @ x`, or in the product, `q @ kᵀ`.
    assert " @ v -> " in said and "original program" not in said
    assert "original program" in full and len(full) > len(said)


@pytest.mark.rotating(parts=4)
def test_its_steps_are_timed(optimized: Path) -> None:
    steps = json.loads(output("profile", optimized, "--json"))
    program = eqsynth.load(optimized)
    assert [step["step"] for step in steps] == [step.name for step in program.steps]
    assert sum(step["share"] for step in steps) == pytest.approx(1.0)
    said = output("profile", optimized)
    assert all(step["kernel"] in said for step in steps) and "of the peak" in said
    # A step that takes time has a rate: of its FLOPs or of its bytes.
    assert all(("of_peak" in step) == (step["seconds"] > 0) for step in steps)
    assert sum(step["flops"] for step in steps) > 0 < min(step["bytes"] for step in steps)


def test_an_exported_program_is_a_model(folder: Path) -> None:
    layer, x = torch.nn.Linear(4, 3).eval(), torch.ones(2, 4)
    torch.export.save(torch.export.export(layer, (x,)), folder / "linear.pt2")
    found = model(str(folder / "linear.pt2"))
    torch.testing.assert_close(found.program(*found.args), layer(x))
    out = folder / "linear.eqsynth"
    said = output("optimize", folder / "linear.pt2", "-o", out, "--objective", "flops")
    assert "saturated" in said and f"written to {out}" in said.replace("\n", " ")
    torch.testing.assert_close(eqsynth.load(out)(x), layer(x))
    # The other way out: read again, as a model.
    onnx_out = folder / "linear.onnx"
    output("optimize", folder / "linear.pt2", "-o", onnx_out, "--objective", "flops")
    torch.testing.assert_close(module_of(onnx_out, (x,), {})[0](x), layer(x))
    output("optimize", folder / "linear.pt2", "-o", folder / "fast.pt2", "--objective", "flops")
    exported = torch.export.load(folder / "fast.pt2")
    torch.testing.assert_close(exported.module()(x), layer(x))


def test_inputs_take_the_place_of_a_model_s_own(folder: Path) -> None:
    layer = torch.nn.Linear(4, 3).eval()
    torch.export.save(torch.export.export(layer, (torch.ones(2, 4),)), folder / "own.pt2")
    q, k, v = torch.ones(3, 32, 4).unbind()
    torch.save((q, k, v), folder / "three.pt")
    torch.save(2 * torch.ones(2, 4), folder / "one.pt")
    made = model(f"{folder / 'attentive.py'}:attention", folder / "three.pt")
    assert [x.shape for x in made.args] == [(32, 4)] * 3 and not made.kwargs
    (x,) = model(str(folder / "own.pt2"), folder / "one.pt").args
    torch.testing.assert_close(x, 2 * torch.ones(2, 4))
    with pytest.raises(EqsynthError) as caught:
        model(str(folder / "own.pt2"), folder / "own.pt2")
    assert caught.value.where == str(folder / "own.pt2") and "torch.save" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("nothing.pt2", ""),
        ("model.bin", "says nothing of its kind"),
        ("attentive.py:missing", "missing"),
        ("attentive.py:nothing", "returns int"),
        ("no_such_module:f", "ModuleNotFoundError"),
    ],
)
def test_what_names_no_model_is_refused(
    name: str, got: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(EqsynthError) as caught:
        model(name)
    assert got in caught.value.got and caught.value.hint
    output("optimize", name, "-o", "never.eqsynth", code=2)
    assert not (folder / "never.eqsynth").exists()


def test_a_damaged_export_is_refused(folder: Path) -> None:
    (folder / "damaged.pt2").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(CaptureError) as caught:
        model(str(folder / "damaged.pt2"))
    assert caught.value.where.endswith("damaged.pt2")


def test_a_file_that_is_no_program_is_refused(folder: Path) -> None:
    for name in ("run", "explain", "profile"):
        output(name, folder / "attentive.py", code=2)
        output(name, folder / "missing.eqsynth", code=2)


def test_the_version_is_that_of_the_package() -> None:
    assert output("--version").split() == ["eqsynth", eqsynth.__version__]


def leaves(group: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The commands that do something."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*names, name))
        else:
            yield *names, name


def test_every_command_teaches_with_an_example() -> None:
    found = list(leaves(get_command(app)))
    assert len(found) >= 13 and ("rules", "generate") in found
    for names in found:
        told = output(*names, "--help").split("Usage")[1].split("\n", 1)[1]
        assert re.search(rf"^ *eqsynth {' '.join(names)}\b", told, re.MULTILINE), names
    assert "Exit codes" in output("--help")


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_found(folder: Path) -> None:
    """Once the first search has said what it found, Ctrl-C ends the second."""
    process = command(
        "optimize", "attentive.py:layers", "-o", "kept.eqsynth", "--time-limit", "24", "--json",
        cwd=folder,
    )  # fmt: skip
    assert process.stderr is not None
    while "x at " not in (line := process.stderr.readline()):
        assert line, "it ended without a word"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out)["interrupted"]
    assert eqsynth.load(folder / "kept.eqsynth")(torch.randn(1, 16, 32)).shape == (1, 16, 32)


@pytest.mark.rotating
@pytest.mark.parametrize("limit", ["4", "40"])
def test_ctrl_c_while_kernels_are_tuned_keeps_what_the_search_found(
    limit: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuning is of the last search, so that there is a program to keep."""
    asked: list[tuple[float, float]] = []
    search = pipeline.optimize

    def once(*args: Any, **options: Any) -> Any:
        asked.append((options["time_limit_s"], options["tune"]))
        if options["tune"]:
            raise KeyboardInterrupt
        return search(*args, **options)

    monkeypatch.setattr(pipeline, "optimize", once)
    name, out = f"{folder / 'attentive.py'}:attention", folder / f"kept{limit}.eqsynth"
    flags = ["--time-limit", limit, "--tune", "300", "--objective", "flops", "--json"]
    result = CliRunner().invoke(app, ["optimize", name, "-o", str(out), *flags])
    assert result.exit_code == 0 and json.loads(result.stdout)["interrupted"]
    assert [tune for _, tune in asked] == [0.0, 300.0] and eqsynth.load(out)
    assert sum(seconds for seconds, _ in asked) <= max(8.0, float(limit))


def test_a_device_is_measured_into_a_file(tmp_path: Path) -> None:
    """Of a GPU that is played, and of none; where the file is, ``optimize`` plans by it."""
    runner, path = CliRunner(), tmp_path / "round.json"
    with a_gpu():
        done = runner.invoke(app, ["profile", "--device", "cuda", "-o", str(path)])
    assert done.exit_code == 0 and "a GPU with round numbers" in done.stdout
    assert "20,000 GFLOPS" in done.stdout and carried.read(path) == PLAYED
    wrong = [["profile"], ["profile", "--device", "tpu"], ["profile", "x", "--device", "cuda"]]
    if missing():
        wrong.append(["profile", "--device", "cuda"])
    assert [runner.invoke(app, args).exit_code for args in wrong] == [2] * len(wrong)
