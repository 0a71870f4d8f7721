"""ONNX models through the whole of ``optimize``, against ONNX's own reference evaluator."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import I64, F, cnn, model, node, transformer, weights

import eqsynth
from eqsynth.errors import (
    CaptureError,
    DtypeError,
    EqsynthError,
    ShapeError,
    UnsupportedOperatorError,
)
from eqsynth.frontend.onnx import module_of
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.tensor import Op
from eqsynth.testing.onnx_backend import Verdict, cases, run

# A whole search is no part of what is asked here: so many e-nodes hold the fused forms.
LIMITS: dict[str, Any] = {
    "objective": "flops", "node_limit": 600, "time_limit_s": 60, "progress": False,
}  # fmt: skip


def expected(proto: onnx.ModelProto, *inputs: torch.Tensor) -> list[np.ndarray[Any, Any]]:
    names = [info.name for info in proto.graph.input]
    fed = dict(zip(names, (x.numpy() for x in inputs), strict=True))
    return list(ReferenceEvaluator(proto).run(None, fed))


def close(result: torch.Tensor, wanted: np.ndarray[Any, Any]) -> None:
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-5)


def run_python(code: str, *args: str) -> str:
    """What a new process prints."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout


def test_a_net_from_a_file(tmp_path: Path) -> None:
    proto, path = cnn(), tmp_path / "net.onnx"
    onnx.save(proto, path)
    x, other = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16)
    program = eqsynth.optimize(path, (x,), **LIMITS)
    assert program.original is None and not program.report.opaque_share
    close(program(x), expected(proto, x)[0])
    close(program(x=other), expected(proto, other)[0])
    with pytest.raises(ShapeError):
        program(x[:1])


@pytest.mark.rotating
def test_a_block_with_a_function_of_its_own_and_no_inputs_given() -> None:
    proto = transformer()
    program = eqsynth.optimize(proto.SerializeToString(), **LIMITS)
    x = torch.randn(2, 5, 16)
    assert program.original is None
    close(program(x), expected(proto, x)[0])


def test_weights_are_folded_in_anew() -> None:
    proto = model([node("MatMul", "x w", "y")], {"x": (F, [4, 3])}, ["y"], {"w": weights(3, 5)})
    program = eqsynth.optimize(proto, **LIMITS)
    x, w = torch.randn(4, 3), torch.randn(3, 5)
    program.refresh({"w": w})
    torch.testing.assert_close(program(x), x @ w)


@pytest.mark.rotating
def test_results_in_their_order_and_sequences() -> None:
    nodes = [
        node("Split", "x", "a b", axis=0),
        node("SequenceConstruct", "a b", "s"),
        node("ConcatFromSequence", "s", "y", axis=1),
        node("TopK", "x k", "v i"),
    ]
    proto = model(nodes, {"x": (F, [4, 3])}, ["y", "i", "v"], {"k": np.array([2])})
    proto.graph.output[1].type.tensor_type.elem_type = I64
    x = torch.randn(4, 3)
    program = eqsynth.optimize(proto, **LIMITS)
    for got, wanted in zip(program(x), expected(proto, x), strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted)


def test_a_condition_on_a_shape_is_captured_and_one_on_data_runs() -> None:
    branches = {
        name: helper.make_graph(
            [node(kind, "x", "r")], name, [], [helper.make_tensor_value_info("r", F, None)]
        )
        for name, kind in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }

    def choosing(*nodes: onnx.NodeProto) -> onnx.ModelProto:
        cond = helper.make_node("If", ["c"], ["y"], **branches)
        constants = {"one": np.int64(1), "half": np.float32(0.5)}
        return model([*nodes, cond], {"x": (F, [2, 3])}, ["y"], constants)

    shape = [node("Size", "x", "n"), node("Greater", "n one", "c")]
    module, args = module_of(choosing(*shape), (), {})
    assert [term.name for term in capture(module, args).program.outputs] == ["Relu"]
    data = choosing(node("ReduceMax", "x", "m", keepdims=0), node("Greater", "m half", "c"))
    x = torch.tensor([[0.1, -0.2, 0.3], [0.9, 0.0, -1.0]])
    program = eqsynth.optimize(data, (x,), **LIMITS)
    assert program.original is not None and program.report.stop == "capture"
    for value in (x, x / 2):
        close(program(value), expected(data, value)[0])


@pytest.mark.rotating
def test_a_loop_that_is_counted_is_unrolled() -> None:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Mul", "v w", "next"), node("Add", "next i0", "row")],
        "body",
        [info("i", I64, []), info("go", onnx.TensorProto.BOOL, []), info("v", F, [3])],
        [info("on", onnx.TensorProto.BOOL, []), info("next", F, [3]), info("row", F, [3])],
    )
    body.node.insert(0, node("Cast", "i", "i0", to=F))
    loop = helper.make_node("Loop", ["n", "", "x"], ["last", "rows"], body=body)
    proto = model([loop], {"x": (F, [3])}, ["last", "rows"],
                  {"n": np.int64(4), "w": weights(3)})  # fmt: skip
    x, w = torch.randn(3), torch.from_numpy(weights(3))
    program = eqsynth.optimize(proto, **LIMITS)
    assert program.original is None
    last, rows = program(x)
    torch.testing.assert_close(last, x * w**4)
    torch.testing.assert_close(rows, torch.stack([x * w ** (i + 1) + i for i in range(4)]))


def test_a_loop_that_is_given_no_condition_ignores_its_body_s() -> None:
    """As in ONNX's text, ``cond = ...; // ignored``. Its evaluator and ONNX Runtime stop."""
    kinds = {"i": (I64, []), "go": (onnx.TensorProto.BOOL, []), "s": (F, [2])}
    infos = {name: helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()}
    outputs = [
        helper.make_tensor_value_info("stop", onnx.TensorProto.BOOL, []),
        helper.make_tensor_value_info("t", F, [2]),
    ]
    steps = [node("Add", "s s", "t"), node("Identity", "no", "stop")]
    body = helper.make_graph(steps, "body", list(infos.values()), outputs)
    loop = node("Loop", "n - x", "y", body=body)
    constants = {"n": np.int64(3), "no": np.array(False)}
    module, args = module_of(model([loop], {"x": (F, [2])}, ["y"], constants), (), {})
    torch.testing.assert_close(module(*args), 8 * args[0])


@pytest.mark.parametrize("scale", [0.7, 1.6])
def test_corners_are_aligned_by_the_size_that_is_not_rounded(scale: float) -> None:
    resize = node("Resize", "x - s", "y", mode="linear",
                  coordinate_transformation_mode="align_corners")  # fmt: skip
    sizes = {"s": np.array([1, 1, scale, scale], np.float32)}
    proto = model([resize], {"x": (F, [1, 2, 5, 7])}, ["y"], sizes, opsets={"": 19})
    x = torch.randn(1, 2, 5, 7)
    module, _ = module_of(proto, (x,), {})
    close(module(x), expected(proto, x)[0])


@pytest.mark.rotating
def test_a_foreign_operator_stays_as_it_is_and_is_saved(tmp_path: Path) -> None:
    """A binarizer of ``ai.onnx.ml``, between operators that are known."""
    nodes = [
        node("Relu", "x", "r"),
        helper.make_node("Binarizer", ["r"], ["b"], domain="ai.onnx.ml", threshold=0.5),
        node("Add", "b x", "y"),
    ]
    proto = model(nodes, {"x": (F, [3, 4])}, ["y"], opsets={"": 17, "ai.onnx.ml": 3})
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    program = eqsynth.optimize(proto, (x,), **LIMITS)
    module, args = module_of(proto, (x,), {})
    assert "onnx_operator" in str(capture(module, args).program)
    close(program(x), expected(proto, x)[0])
    eqsynth.save(program, tmp_path / "program")
    code = (
        "import sys, torch, eqsynth; torch.manual_seed(0)\n"
        "print(eqsynth.load(sys.argv[1])(torch.randn(3, 4)).tolist())"
    )
    again = run_python(code, str(tmp_path / "program"))
    assert json.loads(again) == program(x).tolist()


def test_an_operator_of_onnx_runtime_costs_no_more_than_itself() -> None:
    """The package ``onnx`` infers no shapes of ONNX Runtime's own operators; without them
    ``torch.export`` refused the whole model."""
    pytest.importorskip("onnxruntime")
    domain = "com.microsoft"
    nodes = [
        node("Relu", "x", "r"),
        helper.make_node("Gelu", ["r"], ["g"], domain=domain),
        node("Add", "g x", "y"),
    ]
    proto = model(nodes, {"x": (F, [3, 4])}, ["y"], opsets={"": 17, domain: 1})
    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    module, args = module_of(proto, (x,), {})
    captured = capture(module, args)
    assert "onnx_operator" in str(captured.program) and "Relu" in str(captured.program)
    close(module(x), torch.nn.functional.gelu(x.relu()) + x)


def test_an_operator_that_nothing_knows_is_named_with_its_place() -> None:
    odd = helper.make_node("Twirl", ["r"], ["y"], domain="com.example", name="here")
    proto = model([node("Relu", "x", "r"), odd], {"x": (F, [2])}, ["y"],
                  opsets={"": 17, "com.example": 3})  # fmt: skip
    with pytest.raises(UnsupportedOperatorError) as error:
        eqsynth.optimize(proto)
    assert "com.example::Twirl of opset 3" in error.value.what
    assert "here" in error.value.where


@pytest.mark.parametrize("opset", [18, 20, 21])
def test_a_group_norm_is_scaled_by_group_or_by_channel(opset: int) -> None:
    """Until opset 20 it has one scale a group, which ONNX's checker refuses as withdrawn."""
    scales = 2 if opset < 21 else 6
    norm = node("GroupNormalization", "x s b", "y", num_groups=2, epsilon=1e-2)
    constants = {"s": weights(scales) + 1, "b": weights(scales, seed=1)}
    proto = model([norm], {"x": (F, [2, 6, 5])}, ["y"], constants, opsets={"": opset})
    stored = proto.SerializeToString()
    x = torch.randn(2, 6, 5)
    module, args = module_of(proto, (x,), {})
    close(module(x), expected(proto, x)[0])
    captured = capture(module, args)
    assert not [t for t in captured.program.terms() if getattr(t, "name", "") == "Opaque"]
    assert proto.SerializeToString() == stored


def test_an_open_size_asks_for_inputs() -> None:
    with pytest.raises(ShapeError) as error:
        eqsynth.optimize(cnn())
    assert (error.value.where, error.value.got) == ("input 'x', axis 0", "batch")


def test_inputs_are_held_against_the_model() -> None:
    with pytest.raises(ShapeError) as shape:
        eqsynth.optimize(cnn(), (torch.ones(2, 4, 16, 16),))
    assert shape.value.where == "x" and "batch, 3, 16, 16" in shape.value.expected
    with pytest.raises(DtypeError) as dtype:
        eqsynth.optimize(cnn(), (torch.ones(2, 3, 16, 16).double(),))
    assert dtype.value.got == "torch.float64"
    with pytest.raises(EqsynthError):
        eqsynth.optimize(cnn(), (torch.ones(2, 3, 16, 16), torch.ones(1)))
    pair = model([node("Add", "a b", "y")], {"a": (F, ["n"]), "b": (F, ["n"])}, ["y"])
    with pytest.raises(ShapeError) as names:
        eqsynth.optimize(pair, (torch.ones(3), torch.ones(1)))
    assert names.value.where == "b" and "n = 3" in names.value.expected


@pytest.mark.rotating
def test_without_onnx_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "import eqsynth\n"
        "try: eqsynth.optimize('model.onnx')\n"
        "except eqsynth.CaptureError as error: print(error.hint)\n"
    )
    assert "eqsynth[onnx]" in run_python(code)


def test_a_path_without_a_file() -> None:
    with pytest.raises(CaptureError) as error:
        eqsynth.optimize("nowhere.onnx")
    assert error.value.where == "nowhere.onnx"


@pytest.mark.rotating
def test_what_onnx_defines_by_others_is_captured() -> None:
    """``Attention`` has no entry: its definition computes shapes, and casts constants like data."""
    attend = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1)
    kinds = {name: (F, [2, 3, 4, 8]) for name in "qkv"}
    module, args = module_of(model([attend], kinds, ["y"], opsets={"": 23}), (), {})
    program = capture(module, args).program
    assert not [t for t in program.terms() if getattr(t, "name", "") == "Opaque"]
    wanted = torch.nn.functional.scaled_dot_product_attention(*args, is_causal=True)
    torch.testing.assert_close(module(*args), wanted)


def test_places_are_those_of_the_model() -> None:
    module, args = module_of(cnn(), (torch.randn(2, 3, 16, 16),), {})
    places = {t.name: t.origin for t in capture(module, args).program.terms() if isinstance(t, Op)}
    assert places["Conv2d"] == "stem"


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["test_layer_normalization_2d_axis0", "test_convtranspose_pads"])
def test_what_an_entry_refuses_is_captured_otherwise(name: str) -> None:
    (case,) = (case for case in cases("node") if case.name == name)
    assert run(case).verdict is Verdict.CAPTURED
