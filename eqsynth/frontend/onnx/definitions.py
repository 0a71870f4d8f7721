"""ONNX's own definitions of operators by others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import torch

from eqsynth.frontend.onnx.graphs import Bodies, Body, Operator
from eqsynth.frontend.onnx.table import NUMBERS

Tensor = torch.Tensor


def defined_by(
    operator: Operator, values: Sequence[Any]
) -> tuple[Body, Mapping[str, Tensor]] | None:
    """The operator as ONNX defines it by others, if it does, and the definition's constants."""
    try:
        schema: Any = onnx.defs.get_schema(operator.kind, operator.opset, operator.domain)
    except onnx.defs.SchemaError:
        return None
    function = onnx.FunctionProto()
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= operator.opset]
        if not versions:
            return None
        function.ParseFromString(schema.get_function_with_opset_version(max(versions)))
    elif schema.has_context_dependent_function:
        types = [_type_proto(value) for value in values]
        versions = [
            v for v in schema.context_dependent_function_opset_versions if v <= operator.opset
        ]
        if None in types or not versions:
            return None
        node = operator.node.SerializeToString()
        made = schema.get_context_dependent_function_with_opset_version(max(versions), node, types)
        if not made:
            return None
        function.ParseFromString(made)
    else:
        return None
    defaults = {
        name: a.default_value for name, a in schema.attributes.items() if a.default_value.type
    }
    bodies = Bodies()
    body = bodies.of_function(function, operator.node, operator.place + "/", defaults)
    if any(o.kind == operator.kind and o.domain == operator.domain for o in body.all_operators()):
        return None
    return body, bodies.tensors


def _type_proto(value: Any) -> bytes | None:
    if value is None:
        return bytes(onnx.TypeProto().SerializeToString())
    if not isinstance(value, Tensor) or value.dtype not in NUMBERS:
        return None
    shape = [int(extent) for extent in value.shape]
    kind = onnx.helper.make_tensor_type_proto(NUMBERS[value.dtype], shape)
    return bytes(kind.SerializeToString())
