"""A graph as a ``ModelProto``. Only this module needs the ``onnx`` package to build a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from eqsynth.ir.types import TensorType
from eqsynth.lower.onnx_operator import NUMBERS
from eqsynth.lower.onnx_out.graph import Graph, Node, Value
from eqsynth.lower.torch_scalars import as_bytes, torch_dtype

OPSET: Final = 20
IR_VERSION: Final = 9
"""The least version that allows opset 20; older runtimes can read it, too."""


def to_model(
    graph: Graph, inputs: Mapping[str, TensorType], outputs: Sequence[tuple[str, Value]]
) -> Any:
    """Return the model of a graph: its inputs by name, and its outputs under the given names."""
    from onnx import helper

    nodes = [_node(node) for node in graph.nodes]
    # Identity gives each output its name: an output may be an input, a constant, or equal to
    # another one. A model may also return an input under the input's own name.
    nodes += [
        helper.make_node("Identity", [value.name], [name])
        for name, value in outputs
        if name != value.name
    ]
    made = helper.make_graph(
        nodes,
        "eqsynth",
        [_info(name, kind.shape, kind.dtype) for name, kind in inputs.items()],
        [_info(name, value.shape, value.dtype) for name, value in outputs],
        [_tensor(name, array) for name, array in graph.arrays.items()],
    )
    opsets = [helper.make_opsetid(d, n) for d, n in ({"": OPSET} | graph.opsets).items()]
    return helper.make_model(
        made, opset_imports=opsets, ir_version=IR_VERSION, producer_name="eqsynth"
    )


def element_type(dtype: str) -> int:
    """ONNX's number for a dtype."""
    return NUMBERS[torch_dtype(dtype)]


def _node(node: Node) -> Any:
    from onnx import NodeProto, helper

    if node.whole:
        made = NodeProto.FromString(node.whole)
        made.input.extend(node.inputs)
        made.output.extend(node.outputs)
        return made
    attributes = dict(node.attributes)
    if node.operator == "Cast":
        attributes["to"] = element_type(attributes["to"])
    return helper.make_node(node.operator, node.inputs, node.outputs, **attributes)


def _info(name: str, shape: Sequence[int], dtype: str) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, element_type(dtype), shape)


def _tensor(name: str, array: np.ndarray[Any, Any] | torch.Tensor) -> Any:
    import onnx

    if isinstance(array, torch.Tensor):
        dtype = str(array.dtype).removeprefix("torch.")
        data = as_bytes(array).numpy().tobytes()
    else:
        dtype, data = array.dtype.name, array.tobytes()
    made = onnx.TensorProto(dims=array.shape, data_type=element_type(dtype), raw_data=data)
    made.name = name
    return made
