"""Small models, made of nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F, I64 = TensorProto.FLOAT, TensorProto.INT64
Node = onnx.NodeProto


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Node:
    """``node("Add", "x y", "z")``; ``-`` is an input that is left out."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(kind, names, outputs.split(), **attributes)


def model(
    nodes: Sequence[Node],
    inputs: Mapping[str, tuple[int, Sequence[int | str | None] | None]],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    opsets: Mapping[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    stored = [
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in (constants or {}).items()
    ]
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [onnx.ValueInfoProto(name=name, type=onnx.TypeProto(
            tensor_type=onnx.TypeProto.Tensor(elem_type=F))) for name in outputs],
        stored,
    )  # fmt: skip
    imports = [helper.make_opsetid(d, v) for d, v in (opsets or {"": 17}).items()]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)


def weights(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    numbers = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(max(shape))
    return numbers.astype(np.float32)


def cnn() -> onnx.ModelProto:
    """A net as exporters write it: padding by name, a batch norm, and a shape that is computed."""
    nodes = [
        node("Conv", "x w1 b1", "c1", name="stem", auto_pad="SAME_UPPER", strides=[2, 2]),
        node("BatchNormalization", "c1 g b mean var", "n1"),
        node("Clip", "n1 low high", "r1"),
        node("AveragePool", "r1", "p1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", "p1", "s"),
        node("Gather", "s zero", "batch"),
        node("Unsqueeze", "batch axis", "batch1"),
        node("Concat", "batch1 rest", "target", axis=0),
        node("Reshape", "p1 target", "flat"),
        node("Gemm", "flat w2 b2", "y", transB=1),
    ]
    constants = {
        "w1": weights(8, 3, 3, 3), "b1": weights(8, seed=1), "g": weights(8, seed=2) + 1,
        "b": weights(8, seed=3), "mean": weights(8, seed=4), "var": weights(8, seed=5) ** 2 + 1,
        "low": np.float32(0), "high": np.float32(6), "zero": np.int64(0), "axis": np.array([0]),
        "rest": np.array([-1]), "w2": weights(10, 8 * 16), "b2": weights(10, seed=6),
    }  # fmt: skip
    return model(nodes, {"x": (F, ["batch", 3, 16, 16])}, ["y"], constants)


def transformer() -> onnx.ModelProto:
    """A block of attention and a feed-forward net, over a local function."""
    gelu = helper.make_function(
        "own", "Gelu", ["x"], ["y"],
        [
            node("Constant", "", "half", value_float=0.5),
            node("Constant", "", "one", value_float=1.0),
            node("Constant", "", "root", value_float=float(np.sqrt(0.5))),
            node("Mul", "x root", "a"),
            node("Erf", "a", "b"),
            node("Add", "b one", "c"),
            node("Mul", "x c", "d"),
            node("Mul", "d half", "y"),
        ],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    heads = "perm", [0, 2, 1, 3]
    nodes = [node("LayerNormalization", "x g1 h1", "n", axis=-1)]
    for name in "qkv":
        nodes += [
            node("MatMul", f"n w{name}", f"{name}0"),
            node("Reshape", f"{name}0 split", f"{name}1"),
            node("Transpose", f"{name}1", f"{name}2", **dict([heads])),
        ]
    nodes += [
        node("Transpose", "k2", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q2 kt", "s0"),
        node("Div", "s0 scale", "s1"),
        node("Softmax", "s1", "s2", axis=-1),
        node("MatMul", "s2 v2", "a0"),
        node("Transpose", "a0", "a1", **dict([heads])),
        node("Reshape", "a1 join", "a2"),
        node("MatMul", "a2 wo", "a3"),
        node("Add", "x a3", "r"),
        node("LayerNormalization", "r g2 h2", "m", axis=-1),
        node("MatMul", "m wu", "u"),
        helper.make_node("Gelu", ["u"], ["e"], domain="own"),
        node("MatMul", "e wd", "d"),
        node("Add", "r d", "y"),
    ]
    constants: dict[str, Any] = {
        f"w{name}": weights(16, 16, seed=i) for i, name in enumerate("qkvo")
    }
    constants |= {"wu": weights(16, 32, seed=7), "wd": weights(32, 16, seed=8)}
    constants |= {f"g{i}": weights(16, seed=9 + i) + 1 for i in (1, 2)}
    constants |= {f"h{i}": weights(16, seed=19 + i) for i in (1, 2)}
    constants |= {
        "split": np.array([0, 0, 4, 4]), "join": np.array([0, 0, 16]), "scale": np.float32(2),
    }  # fmt: skip
    return model(nodes, {"x": (F, [2, 5, 16])}, ["y"], constants, {"": 17, "own": 1}, [gelu])
