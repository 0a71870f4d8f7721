"""``eqsynth tune``: what it tells, what it refuses, and that a killed run goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eqsynth.cli import app
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.measure import measure_cpu_target
from eqsynth.extract.profile import Profile
from eqsynth.extract.schedule import Rows, Tile
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Input, Scope
from eqsynth.ir.types import TensorType
from eqsynth.lower.tuning_records import Record, keep, records

ROOT = Path(__file__).resolve().parents[2]

it = Index.iterator

MODELS = """\
import torch

class Sums(torch.nn.Module):
    def forward(self, x):
        return (x.transpose(1, 2) * 2 + 1).tanh().sum(1)

def sums():
    return Sums(), torch.randn(4, 96, 80)
"""


def output(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["tune", *args], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.rotating
def test_what_can_not_be_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    assert "there is nothing to tune" in output("profile", code=2)
    assert "there is no such file" in output(str(tmp_path / "none.pt2"), code=2)
    (tmp_path / "bad.eqsynth").write_text("no program")
    for name in ("none.eqsynth", "bad.eqsynth"):
        assert str(tmp_path / name) in output(str(tmp_path / name), code=2)


def kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    monkeypatch.setenv("EQSYNTH_CACHE", str(folder / "cache"))
    with closing(Profile(measure_cpu_target().key())) as profile:
        return records(profile)


def command(*args: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "eqsynth", "tune", *args], cwd=cwd, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "EQSYNTH_CACHE": str(cwd / "cache")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def tuned_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """A profile that has one kernel, a transposition, of which one schedule was tried."""
    monkeypatch.setenv("EQSYNTH_CACHE", str(folder / "cache"))
    read = Read(Input("0", TensorType((96, 80), "float32")), (it(1, 96), it(0, 80)))
    kernel = Kernel(Scope((80, 96), (), read), (False,), "tvm", ((0, 1),), (0, 1), Tile(16, 16))
    record = Record(kernel, 0, (), {Rows(): 1e-3})
    with closing(Profile(measure_cpu_target().key())) as profile:
        keep(profile, record)
    return record


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_ended_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals
) -> None:
    first, before = tuned_before(tmp_path, monkeypatch), list[Record]()
    process, begin = command("profile", "--seconds", "600", cwd=tmp_path), time.monotonic()
    while len((before or [first])[0].times) < 5 and time.monotonic() < begin + 240:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
        before = kept(tmp_path, monkeypatch)
    (os.killpg if sent == signal.SIGINT else os.kill)(process.pid, sent)
    _, err = process.communicate()
    assert process.returncode == (130 if sent == signal.SIGINT else -sent), err
    assert ("what was measured is kept" in err) == (sent == signal.SIGINT)
    (stopped,) = kept(tmp_path, monkeypatch)

    (told,) = json.loads(output("profile", "--seconds", "3", "--json"))["tuned"]
    (after,) = kept(tmp_path, monkeypatch)
    assert list(after.times.items())[: len(stopped.times)] == list(stopped.times.items())
    assert after.kernel == first.kernel and after.starts == first.starts
    assert len(after.times) > len(stopped.times) >= len(before[0].times) >= 5
    assert told["trials"] >= len(stopped.times)
    assert told["default_s"] >= told["found_s"] and told["rate"]["share"] > 0
    assert told["rate"]["unit"] == "GB/s" and told["around"]["along"]


@pytest.mark.slow
def test_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another machine's plan has no generated kernel, that is what is told."""
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    (tmp_path / "models.py").write_text(MODELS)
    name = f"{tmp_path / 'models.py'}:sums"
    arguments = ["tune", name, "--time-limit", "30", "--engine", "", "--seconds", "2"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    if result.exit_code == 0:
        assert "of the peak" in result.output and "beside it, kind: " in result.output
    else:
        assert result.exit_code == 2 and "there is nothing to tune" in result.output
