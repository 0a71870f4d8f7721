"""An ONNX model that is optimized and written as ONNX can replace the file that was read: it has
the same names outside, and the operators that torch or ONNX ran as they are."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import F, model, node, weights
from typer.testing import CliRunner

import eqsynth
from eqsynth.cli import app
from eqsynth.errors import UnsupportedOperatorError
from eqsynth.lower.onnx_operator import session
from eqsynth.testing.differential.onnx_columns import evaluated

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
def test_the_command_line_takes_inputs_and_keeps_the_names(tmp_path: Path) -> None:
    """A model that leaves a size open can't be optimized without inputs, and the error says how
    they are given."""
    proto = classifier()
    for info in proto.graph.input[:2]:
        info.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(proto, tmp_path / "net.onnx")
    asked = ["optimize", tmp_path / "net.onnx", "-o", tmp_path / "fast.onnx"]
    asked += ["--objective", "flops", "--engine", "", "--time-limit", "10"]
    refused = CliRunner().invoke(app, list(map(str, asked)))
    assert refused.exit_code == 2 and "--inputs FILE" in refused.output
    torch.save((torch.ones(5, 6), torch.ones(5, 3), torch.ones(2)), tmp_path / "x.pt")
    done = CliRunner().invoke(app, list(map(str, [*asked, "--inputs", tmp_path / "x.pt"])))
    assert done.exit_code == 0, done.output
    again = onnx.load(tmp_path / "fast.onnx")
    assert interface(again) == interface(proto)
    assert again.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 5


def test_a_module_whose_input_has_the_name_of_an_output(tmp_path: Path) -> None:
    class Named(torch.nn.Module):
        def forward(self, output0: torch.Tensor) -> torch.Tensor:
            return torch.relu(output0)

    program = eqsynth.optimize(Named().eval(), (torch.ones(3),), **LIMITS)
    program.to_onnx(tmp_path / "named.onnx")
    given, made = interface(onnx.load(tmp_path / "named.onnx"))
    assert given == ["output0"] and len(made) == 1 and made != given


BACK: dict[str, tuple[onnx.ModelProto, dict[str, Any]]] = {}


def _back(
    name: str, nodes: Sequence[Any], outputs: str, opsets: Any = None, **given: Any
) -> None:
    """A model, and arrays for its inputs."""
    kinds = {
        name: (helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape))
        for name, array in given.items()
        if name != "w"
    }
    constants = {"w": given.pop("w")} if "w" in given else {}
    proto = model(nodes, kinds, outputs.split(), constants, opsets)
    for info, result in zip(proto.graph.output, results(proto, given), strict=True):
        info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(result.dtype)
    BACK[name] = proto, given


_rng = np.random.default_rng(0)
_bytes = np.arange(256, dtype=np.uint8).reshape(4, 64)
_back(
    "integers", [
        node("Div", "n m", "q"), node("Mod", "n m", "r", fmod=1), node("Div", "b b1", "h"),
        node("BitShift", "b by", "l", direction="LEFT"),
        node("BitShift", "b by", "g", direction="RIGHT"),
    ], "q r h l g",
    n=_rng.integers(-99, 99, (4, 6)), m=_rng.integers(1, 9, (4, 6)) * np.array([1, -1] * 3),
    b=_bytes, b1=_bytes[::-1] | np.uint8(1), by=_bytes % np.uint8(8),
)  # fmt: skip
_back("remainder of floats", [node("Mod", "x y", "r", fmod=1)], "r",
      x=weights(4, 6), y=weights(4, 6, seed=1))  # fmt: skip
_back(
    "the last of the least", [
        node("ArgMin", "x", "i", axis=1, select_last_index=1),
        node("ArgMax", "x", "j", axis=0, keepdims=0),
    ], "i j", x=_rng.integers(-2, 3, (5, 7)).astype(np.float32),
)  # fmt: skip
for _name in ("SAME_UPPER", "SAME_LOWER"):
    _back(f"transposed convolution {_name}",
          [node("ConvTranspose", "x w", "y", auto_pad=_name, strides=[2, 3])],
          "y", x=weights(2, 6, 4, 5), w=weights(6, 2, 3, 4, seed=1))  # fmt: skip
_back("pool with places", [
    node("MaxPool", "x", "p i", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0]),
    node("MaxPool", "p", "q j", kernel_shape=[2, 2], storage_order=1),
], "p i q j", x=weights(2, 4, 9, 9))  # fmt: skip
_back("an empty part", [node("Split", "x w", "a b c", axis=1)], "a b c",
      x=weights(4, 6), w=np.array([2, 0, 4]))  # fmt: skip
_back("another domain", [
    node("Relu", "x", "r"),
    helper.make_node("Binarizer", ["r"], ["b"], domain="ai.onnx.ml", threshold=0.5),
], "b", {"": 17, "ai.onnx.ml": 3}, x=weights(3, 4))  # fmt: skip


@pytest.mark.parametrize("name", BACK)
def test_operators_of_onnx_are_written_back(name: str, tmp_path: Path) -> None:
    """Both files give the same, in the evaluator and in ONNX Runtime."""
    proto, given = BACK[name]
    again = written(proto, tmp_path / "again.onnx", tuple(map(torch.from_numpy, given.values())))
    assert interface(again) == interface(proto)
    runtimes = [evaluated]
    if find_spec("onnxruntime") is not None:
        runtimes.append(session)
    arrays = list(given.values())
    for runtime in runtimes:
        mine, its = (runtime(part.SerializeToString())(arrays) for part in (again, proto))
        for one, other in zip(mine, its, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_an_operator_that_onnx_has_changed_since_is_refused(tmp_path: Path) -> None:
    """The file is of opset 20, where the axis of a Fourier transform is an input."""
    transform = node("DFT", "x", "y", axis=1)
    old = model([transform], {"x": (F, [2, 8, 1])}, ["y"], opsets={"": 17})
    program = eqsynth.optimize(old, **LIMITS)
    with pytest.raises(UnsupportedOperatorError) as caught:
        program.to_onnx(tmp_path / "again.onnx")
    assert "onnx_operator" in caught.value.got and not list(tmp_path.iterdir())
