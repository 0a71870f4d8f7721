"""ONNX's own definitions of operators by other operators.

    Celu(x)   ->   max(0, x) + min(0, alpha * (exp(x / alpha) - 1)), as a body of Exp, Max, …

A definition is used where the table has no entry, or the entry refuses the case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch

from eqsynth.frontend.onnx.graphs import Bodies, Body, Operator
from eqsynth.frontend.onnx.values import outside
from eqsynth.lower.onnx_operator import NUMBERS

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Definition:
    """An operator's definition: a body, and the tensors of its constants."""

    body: Body
    tensors: Mapping[str, Tensor]


class Definitions:
    """The definitions of a model's operators. Each is made once for each tuple of input types."""

    def __init__(self) -> None:
        self._made: dict[tuple[Operator, tuple[Any, ...]], Definition | None] = {}

    def of(self, operator: Operator, values: Sequence[Any]) -> Definition | None:
        """ONNX's definition of the operator for inputs like ``values``; None if there is none."""
        key = (operator, tuple(map(_kind, values)))
        if key not in self._made:
            with outside():  # the constants need values, and capture has tensors without any
                self._made[key] = _defined(operator, values)
        return self._made[key]


def _kind(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, tuple(map(int, value.shape))
    return type(value)


def _defined(operator: Operator, values: Sequence[Any]) -> Definition | None:
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
    return Definition(body, bodies.tensors)


def _type_proto(value: Any) -> bytes | None:
    if value is None:
        return bytes(onnx.TypeProto().SerializeToString())
    if not isinstance(value, Tensor) or value.dtype not in NUMBERS:
        return None
    shape = [int(extent) for extent in value.shape]
    kind = onnx.helper.make_tensor_type_proto(NUMBERS[value.dtype], shape)
    return bytes(kind.SerializeToString())
