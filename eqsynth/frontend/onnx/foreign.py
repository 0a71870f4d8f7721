"""Foreign operators: they run through ONNX Runtime, or through ONNX's reference evaluator.

A foreign operator has neither an entry in the table nor a definition by other operators. It becomes
a call of one torch operator, ``eqsynth::onnx_operator`` (``lower/onnx_operator.py``), which holds
the ONNX operator as a model of its own. Capture keeps the call as an opaque operator. The shapes of
its results come from ONNX's shape inference on the shapes of its inputs; if they depend on data,
capture fails and the model runs as it is.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import onnx
import torch

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.frontend.onnx.graphs import Operator
from eqsynth.lower.onnx_operator import NUMBERS, runner

Tensor = torch.Tensor


def call(operator: Operator, values: Sequence[Any]) -> list[Tensor | None]:
    """Run the operator and return its results; None for a result that the model doesn't use.

    Raises:
        UnsupportedOperatorError: neither ONNX Runtime nor the evaluator can run the operator, or an
            input is no tensor of numbers.
    """
    tensors = [value for value in values if value is not None]
    if not all(isinstance(value, torch.Tensor) and value.dtype in NUMBERS for value in tensors):
        raise unsupported(operator, "inputs that are no tensors of numbers")
    model = _model(operator, tuple(None if v is None else NUMBERS[v.dtype] for v in values))
    text = base64.b64encode(model.SerializeToString(deterministic=True)).decode()
    try:
        runner(text)
    except Exception as error:  # ONNX Runtime and the evaluator each have errors of their own
        raise unsupported(operator, f"{type(error).__name__}: {error}") from error
    try:
        results = iter(torch.ops.eqsynth.onnx_operator(tensors, text))
    except ImportError as error:  # the evaluator lacks a library that it needs
        raise unsupported(operator, str(error)) from error
    return [next(results) if name else None for name in operator.outputs]


def unsupported(operator: Operator, why: str) -> UnsupportedOperatorError:
    domain = operator.domain or "ai.onnx"
    return UnsupportedOperatorError(
        f"nothing here can run {domain}::{operator.kind} of opset {operator.opset}",
        where=operator.place,
        got=why[:300],
        expected="an operator that eqsynth, ONNX Runtime or ONNX's reference evaluator knows",
        hint="pip install onnxruntime, or write the operator as a function of the model",
    )


def _model(operator: Operator, dtypes: tuple[int | None, ...]) -> onnx.ModelProto:
    """A model of this operator alone, with inputs ``i0``, ``i1``, … and outputs ``o0``, ….

    Equal operators then give equal models, whatever their values are called in the user's model.
    """
    node = onnx.NodeProto()
    node.CopyFrom(operator.node)
    del node.input[:], node.output[:]
    node.name = ""
    node.input.extend("" if dtype is None else f"i{n}" for n, dtype in enumerate(dtypes))
    node.output.extend(f"o{n}" if name else "" for n, name in enumerate(operator.outputs))
    inputs = [
        onnx.helper.make_tensor_value_info(f"i{n}", dtype, None)
        for n, dtype in enumerate(dtypes)
        if dtype is not None
    ]
    outputs = [
        onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name
    ]
    graph = onnx.helper.make_graph([node], "operator", inputs, outputs)
    opsets = [onnx.helper.make_opsetid(d, v) for d, v in sorted(operator.opsets.items())]
    return onnx.helper.make_model(graph, opset_imports=opsets, producer_name="", ir_version=10)
