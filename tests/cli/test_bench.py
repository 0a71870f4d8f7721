"""``eqsynth bench``: each engine is timed and held against eager, and what is wrong isn't."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from onnx import helper, save
from typer.testing import CliRunner

import eqsynth
from eqsynth.cli import app

MODELS = """\
import torch

class Attention(torch.nn.Module):
    def forward(self, q, k, v, *, factor):
        return (q @ k.transpose(-1, -2)) @ v * factor

def attention():
    tensors = torch.randn(64, 4), torch.randn(64, 4), torch.randn(64, 4)
    return Attention(), tensors, {"factor": torch.tensor(2.0)}

class More(Attention):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs) * 1.01

def other():
    return More(), *attention()[1:]
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of ``models.py:attention``, and the directory to be in."""
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(MODELS)
    names: dict[str, object] = {}
    exec(MODELS, names)
    model, args, kwargs = names["attention"]()  # type: ignore[operator]
    program = eqsynth.optimize(
        model.eval(), args, example_kwargs=kwargs, objective="flops", time_limit_s=600, engines=()
    )
    assert program.original is None
    eqsynth.save(program, "fast.eqsynth")
    return tmp_path


def bench(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["bench", *args], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.rotating
def test_a_program_is_timed_beside_eager(written: Path) -> None:
    asked = "--program", "fast.eqsynth", "--engine", "eager", "--rounds", "1", "--threads", "1"
    told = json.loads(bench("models.py:attention", *asked, "--json"))
    assert [row["engine"] for row in told["engines"]] == ["eager", "eqsynth"]
    assert all(0 < row["q1_s"] <= row["median_s"] <= row["q3_s"] for row in told["engines"])
    assert all(row["error"] < 1e-5 for row in told["engines"]) and not told["failed"]
    assert told["threads"] == told["rounds"] == 1
    # The program of another model: its time would be worth nothing.
    said = bench("models.py:other", *asked, code=1)
    assert "eqsynth failed: wrong: off by 9." in said.replace("\n", " ")
    assert any(line.startswith("eager ") for line in said.splitlines())


@pytest.mark.slow
def test_an_onnx_file_is_a_model_and_the_search_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = [helper.make_tensor_value_info(name, 1, [8, 8]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "x"], ["y"])], "square", values[:1], values[1:]
    )
    opset = helper.make_opsetid("", 17)
    save(helper.make_model(graph, opset_imports=[opset], ir_version=10), "square.onnx")
    said = bench("square.onnx", "--time-limit", "2", "--rounds", "1", "--engine", "inductor")
    assert [line.split()[0] for line in said.splitlines()][:4] == [
        "engine", "eager", "inductor", "eqsynth"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "got"),
    [
        (("missing.onnx",), "missing.onnx"),
        (("models.py:attention", "--engine", "gpu"), "gpu"),
        (("models.py:attention", "--program", "models.py"), "models.py"),
    ],
)
def test_what_cannot_be_timed_is_told(
    args: tuple[str, ...], got: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(MODELS)
    assert got in bench(*args, code=2)


@pytest.mark.rotating
def test_each_process_builds_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eqsynth.cli.bench import given

    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(MODELS)
    one, other = given("models.py:attention"), given("models.py:attention")
    assert all(map(torch.equal, one.tensors(), other.tensors()))
    torch.testing.assert_close(one.caller(one.module)(), other.caller(other.module)())
