"""An ONNX model that is optimized and written as ONNX can replace the file that was read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from onnx_models import F, model, node, weights
from typer.testing import CliRunner

import eqsynth
from eqsynth.cli import app

LIMITS: dict[str, Any] = {
    "objective": "flops", "engines": (), "node_limit": 150, "time_limit_s": 60, "check": False,
    "progress": False,
}  # fmt: skip


def written(proto: onnx.ModelProto, path: Path, *args: Any, **options: Any) -> onnx.ModelProto:
    """The model that is written of the program of a model."""
    eqsynth.optimize(proto, *args, **LIMITS, **options).to_onnx(path)
    return onnx.load(path)


def interface(proto: onnx.ModelProto) -> tuple[list[str], list[str]]:
    return [i.name for i in proto.graph.input], [o.name for o in proto.graph.output]


def results(proto: onnx.ModelProto, given: Mapping[str, Any]) -> list[Any]:
    return list(ReferenceEvaluator(proto).run(None, dict(given)))


def classifier() -> onnx.ModelProto:
    """Names that aren't Python's: of inputs, of outputs, and those that eqsynth gives to values."""
    nodes = [
        node("Gemm", "in.x w", "h"),
        node("Add", "h .v0", "logits"),
        node("Softmax", "logits", "/head/probs:0"),
    ]
    inputs = {"in.x": (F, [4, 6]), ".v0": (F, [4, 3]), "output": (F, [2])}
    outputs = ["/head/probs:0", "output", "logits"]
    return model(nodes, inputs, outputs, {"w": weights(6, 3)})


def test_inputs_and_outputs_keep_the_names_of_the_model(tmp_path: Path) -> None:
    proto = classifier()
    again = written(proto, tmp_path / "again.onnx")
    assert interface(again) == interface(proto)
    given = {"in.x": weights(4, 6), ".v0": weights(4, 3), "output": weights(2)}
    for one, other in zip(results(again, given), results(proto, given), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_names_stay_with_their_inputs_however_those_are_given(tmp_path: Path) -> None:
    """By name, and the second one first."""
    proto = model([node("Sub", "a.1 b.1", "c.1")], {"a.1": (F, [3]), "b.1": (F, [3])}, ["c.1"])
    named = {"b_1": torch.ones(3), "a_1": torch.ones(3)}
    again = written(proto, tmp_path / "again.onnx", example_kwargs=named)
    given = {"a.1": np.full(3, 5, np.float32), "b.1": np.full(3, 2, np.float32)}
    np.testing.assert_array_equal(results(again, given)[0], np.full(3, 3))


@pytest.mark.rotating
def test_names_are_saved_with_the_program(tmp_path: Path) -> None:
    proto = classifier()
    eqsynth.save(eqsynth.optimize(proto, **LIMITS), tmp_path / "program")
    eqsynth.load(tmp_path / "program").to_onnx(tmp_path / "again.onnx")
    assert interface(onnx.load(tmp_path / "again.onnx")) == interface(proto)


@pytest.mark.rotating
def test_the_command_line_keeps_the_names(tmp_path: Path) -> None:
    onnx.save(classifier(), tmp_path / "net.onnx")
    asked = ["optimize", tmp_path / "net.onnx", "-o", tmp_path / "fast.onnx"]
    asked += ["--objective", "flops", "--time-limit", "10"]
    done = CliRunner().invoke(app, list(map(str, asked)))
    assert done.exit_code == 0, done.output
    assert interface(onnx.load(tmp_path / "fast.onnx")) == interface(classifier())


def test_a_module_whose_input_has_the_name_of_an_output(tmp_path: Path) -> None:
    class Named(torch.nn.Module):
        def forward(self, output0: torch.Tensor) -> torch.Tensor:
            return torch.relu(output0)

    program = eqsynth.optimize(Named().eval(), (torch.ones(3),), **LIMITS)
    program.to_onnx(tmp_path / "named.onnx")
    given, made = interface(onnx.load(tmp_path / "named.onnx"))
    assert given == ["output0"] and len(made) == 1 and made != given
