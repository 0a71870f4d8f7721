"""Models that are damaged or mean harm: each is refused, by name and place, in little time."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx_models import I64, F, cnn, model, node, transformer, weights

from eqsynth.errors import CaptureError, EqsynthError, ShapeError, UnsupportedOperatorError
from eqsynth.frontend.onnx import module_of
from eqsynth.frontend.onnx.reading import read
from eqsynth.testing.onnx_damage import damaged, refusal


def refused(proto: Any, inputs: Sequence[torch.Tensor] = ()) -> EqsynthError:
    error = refusal(proto, inputs)
    assert error is not None
    return error


# ---- data outside of the file ------------------------------------------------------------


def stored_outside(folder: Path, location: str, **told: int) -> Path:
    """A model whose weight lies in another file."""
    proto = model([node("MatMul", "x w", "y")], {"x": (F, [2, 3])}, ["y"], {"w": weights(3, 4)})
    (tensor,) = proto.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **told}.items():
        tensor.external_data.add(key=key, value=str(value))
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.rotating
def test_data_beside_the_model_are_read(tmp_path: Path) -> None:
    path = stored_outside(tmp_path / "a", "deep/w.bin", offset=8, length=48)
    (tmp_path / "a" / "deep").mkdir()
    (tmp_path / "a" / "deep" / "w.bin").write_bytes(b"8 bytes." + weights(3, 4).tobytes())
    module, _ = module_of(path, (), {})
    x = torch.randn(2, 3)
    torch.testing.assert_close(module(x), x @ torch.from_numpy(weights(3, 4)))


@pytest.mark.parametrize("how", ["above", "absolute", "link", "folder link", "bytes", "nowhere"])
def test_data_from_elsewhere_are_not(tmp_path: Path, how: str) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(weights(3, 4).tobytes())
    inside = tmp_path / "a"
    location = {"above": "../secret.bin", "absolute": str(secret), "link": "link.bin",
                "folder link": "up/secret.bin", "bytes": "w.bin", "nowhere": ""}[how]  # fmt: skip
    path = stored_outside(inside, location)
    if how == "link":
        os.symlink(secret, inside / "link.bin")
    if how == "folder link":
        os.symlink(tmp_path, inside / "up")
    error = refused(path.read_bytes() if how == "bytes" else path)
    assert isinstance(error, CaptureError) and "'w'" in error.where and location in error.got


@pytest.mark.parametrize("told", [{"offset": 40}, {"offset": -1}, {"length": 10**15}])
def test_data_that_the_file_does_not_have(tmp_path: Path, told: dict[str, int]) -> None:
    path = stored_outside(tmp_path / "a", "w.bin", **told)
    (tmp_path / "a" / "w.bin").write_bytes(weights(3, 4).tobytes())
    error = refused(path)
    assert isinstance(error, CaptureError)


# ---- shapes of the graph ------------------------------------------------------------


def test_files_that_are_cut(tmp_path: Path) -> None:
    data = cnn().SerializeToString()
    for end in (0, 1, 10, len(data) // 2, len(data) - 1):
        (tmp_path / "m.onnx").write_bytes(data[:end])
        assert isinstance(refused(tmp_path / "m.onnx"), CaptureError)
    assert isinstance(refused(tmp_path), CaptureError)


def test_a_circle() -> None:
    nodes = [node("Add", "x b", "a"), node("Relu", "a", "b")]
    assert isinstance(refused(model(nodes, {"x": (F, [2])}, ["b"])), CaptureError)


def test_a_function_that_calls_itself() -> None:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    again = helper.make_node("Again", ["x"], ["y"], domain="own")
    function = helper.make_function("own", "Again", ["x"], ["y"], [again], imports)
    proto = model([again], {"x": (F, [2])}, ["y"], opsets={"": 17, "own": 1}, functions=[function])
    assert isinstance(refused(proto), CaptureError)


@pytest.mark.rotating
def test_functions_that_double() -> None:
    """Twenty lines that stand for a million operators."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = [helper.make_function("own", "F0", ["x"], ["y"], [node("Relu", "x", "y")], imports)]
    for i in range(1, 21):
        calls = [helper.make_node(f"F{i - 1}", [a], [b], domain="own") for a, b in ("xz", "zy")]
        functions.append(helper.make_function("own", f"F{i}", ["x"], ["y"], calls, imports))
    call = helper.make_node("F20", ["x"], ["y"], domain="own")
    proto = model([call], {"x": (F, [2])}, ["y"], opsets={"": 17, "own": 1}, functions=functions)
    begin = time.process_time()
    error = refused(proto)
    assert isinstance(error, CaptureError) and "100000" in error.got
    assert time.process_time() - begin < 60


@pytest.mark.rotating
def test_a_loop_without_end() -> None:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Neg", "v", "next")], "body",
        [info("i", I64, []), info("go", TensorProto.BOOL, []), info("v", F, [1])],
        [info("on", TensorProto.BOOL, []), info("next", F, [1])],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    proto = model([loop], {"x": (F, [1])}, ["y"], {"n": np.int64(2**62)})
    assert "Loop" in refused(proto).where or "body" in refused(proto).where


def test_an_opset_of_long_ago() -> None:
    error = refused(model([node("Relu", "x", "y")], {"x": (F, [2])}, ["y"], opsets={"": 12}))
    assert isinstance(error, CaptureError) and error.got == "opset 12"


# ---- sizes ------------------------------------------------------------


def test_an_input_that_no_machine_holds() -> None:
    error = refused(model([node("Relu", "x", "y")], {"x": (F, [10**6, 10**9])}, ["y"]))
    assert isinstance(error, ShapeError) and error.where == "x"


@pytest.mark.rotating
@pytest.mark.parametrize("nodes", [
    [node("ConstantOfShape", "huge", "y")],
    [node("Expand", "x huge", "e"), node("Neg", "e", "y")],
    [node("Tile", "x huge", "y")],
    [node("Resize", "x - - huge", "y", mode="nearest")],
    [node("Pad", "x pads", "y")],
])  # fmt: skip
def test_results_that_no_machine_holds(nodes: list[onnx.NodeProto]) -> None:
    constants = {"huge": np.array([10**6, 10**7]), "pads": np.array([0, 10**7, 10**6, 0])}
    error = refused(model(nodes, {"x": (F, [1, 1])}, ["y"], constants))
    assert nodes[0].op_type in error.where and error.expected.startswith("at most")


def test_a_constant_that_is_no_data() -> None:
    proto = cnn()
    proto.graph.initializer[0].dims[0] = 10**15
    assert isinstance(refused(proto), CaptureError)


def test_an_element_type_that_cannot_be_computed_with() -> None:
    text = numpy_helper.from_array(np.array(["a", "b"], dtype=object), "s")
    proto = model([node("Identity", "s", "y")], {}, ["y"])
    proto.graph.initializer.append(text)
    error = refused(proto)
    assert isinstance(error, UnsupportedOperatorError) and error.got == "STRING"


def test_a_name_that_is_no_text() -> None:
    proto = model([node("Relu", "x", "y", name="relu")], {"x": (F, [2])}, ["y"])
    error = refused(proto.SerializeToString().replace(b"relu", b"re\xffu"))
    assert isinstance(error, CaptureError) and "xff" in error.got and error.expected


def test_reading_leaves_the_callers_model_as_it_was() -> None:
    proto = transformer()
    before = proto.SerializeToString()
    module_of(proto, (), {})
    assert read(proto) is not proto and proto.SerializeToString() == before


# ---- damage at random ------------------------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize("seeds", [
    range(150), pytest.param(range(150, 6000), marks=pytest.mark.slow),
])  # fmt: skip
def test_models_damaged_at_random(seeds: range) -> None:
    """Nothing but errors of eqsynth comes out (``refusal`` raises all else)."""
    sound = [(cnn(), [torch.randn(2, 3, 16, 16)]), (transformer(), [])]
    ends = []
    for seed in seeds:
        proto, inputs = sound[seed % 2]
        ends.append(refusal(damaged(proto, seed), inputs))
    assert None in ends and any(ends)
