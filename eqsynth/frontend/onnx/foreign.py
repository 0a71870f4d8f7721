"""Operators that the table doesn't know: through ONNX Runtime, or ONNX's reference evaluator.

Each is one operator of torch, ``eqsynth::onnx_operator``, over the tensors that it reads; so it is
captured, and stays in a program as it is. What shape its results have is what ONNX's own shape
inference says of the shapes of its inputs. Where that depends on data nothing can be captured, and
the model runs as it is.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import torch

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.frontend.onnx.graphs import Operator, torch_of
from eqsynth.frontend.onnx.table import DTYPES, NUMBERS

Tensor = torch.Tensor
_Arrays = Callable[[Sequence[Any]], Sequence[Any]]


def call(operator: Operator, values: Sequence[Any]) -> list[Tensor | None]:
    """The operator's results; None for those that aren't asked for.

    Raises:
        UnsupportedOperatorError: nothing here can run it.
    """
    tensors = [value for value in values if value is not None]
    if not all(isinstance(value, torch.Tensor) and value.dtype in NUMBERS for value in tensors):
        raise unsupported(operator, "inputs that are no tensors of numbers")
    model = _model(operator, tuple(None if v is None else NUMBERS[v.dtype] for v in values))
    text = base64.b64encode(model.SerializeToString(deterministic=True)).decode()
    runner(text, operator)
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
    """A model of this operator alone, its inputs and outputs under names of their own."""
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
    return onnx.helper.make_model(graph, opset_imports=opsets, producer_name="")


def runner(text: str, operator: Operator | None = None) -> _Arrays:
    """Runs the model of an operator on arrays.

    Raises:
        UnsupportedOperatorError: neither ONNX Runtime nor the reference evaluator knows it.
    """
    try:
        return _runner(text)
    except Exception as error:  # each has its own errors for operators that it doesn't know
        if operator is None:
            raise
        raise unsupported(operator, f"{type(error).__name__}: {error}") from error


@functools.lru_cache(maxsize=256)
def _runner(text: str) -> _Arrays:
    model = onnx.ModelProto.FromString(base64.b64decode(text))
    if find_spec("onnxruntime") is not None:
        import onnxruntime

        try:
            typed = onnx.shape_inference.infer_shapes(model)
            session = onnxruntime.InferenceSession(
                typed.SerializeToString(), providers=["CPUExecutionProvider"]
            )
            names = [i.name for i in session.get_inputs()]
            return lambda arrays: session.run(None, dict(zip(names, arrays, strict=True)))
        except Exception:  # it doesn't know the operator for these types: the evaluator may
            pass
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model)
    inputs = list(evaluator.input_names)

    def evaluated(arrays: Sequence[Any]) -> Sequence[Any]:
        return list(evaluator.run(None, dict(zip(inputs, arrays, strict=True))))

    return evaluated


def _array(x: Tensor) -> Any:
    if x.dtype == torch.bfloat16 or str(x.dtype).startswith("torch.float8"):
        import ml_dtypes

        name = str(x.dtype).removeprefix("torch.")
        bits = torch.int16 if x.dtype.itemsize == 2 else torch.uint8
        return x.contiguous().view(bits).numpy().view(getattr(ml_dtypes, name))
    return x.contiguous().numpy()


@torch.library.custom_op("eqsynth::onnx_operator", mutates_args=())
def _onnx_operator(inputs: list[Tensor], model: str) -> list[Tensor]:
    results = runner(model)([_array(x) for x in inputs])
    tensors = []
    for result in results:
        array = np.array(result, order="C", copy=True)
        number = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        tensors.append(torch_of(array, DTYPES[number]))
    return tensors


@_onnx_operator.register_fake
def _(inputs: list[Tensor], model: str) -> list[Tensor]:
    proto = onnx.ModelProto.FromString(base64.b64decode(model))
    for info, x in zip(proto.graph.input, inputs, strict=True):
        info.type.tensor_type.shape.SetInParent()
        for extent in x.shape:
            info.type.tensor_type.shape.dim.add().dim_value = int(extent)
    typed = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    results = []
    for info in typed.graph.output:
        tensor = info.type.tensor_type
        dims = [d.dim_value for d in tensor.shape.dim]
        known = tensor.HasField("shape") and all(
            d.WhichOneof("value") == "dim_value" for d in tensor.shape.dim
        )
        if not known or tensor.elem_type not in DTYPES:
            raise NotImplementedError("the shape of the result depends on data")
        results.append(torch.empty(dims, dtype=DTYPES[tensor.elem_type]))
    return results
