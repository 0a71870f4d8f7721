"""Operators of an ONNX model that ran as they are (``lower/onnx_operator.py``), written back.

    eqsynth.onnx_operator([x], "<a model of the node Binarizer>")[0]   ->   Binarizer(x)

The file has one opset for all of ONNX's own operators. An operator of an older or a newer opset is
written if ONNX didn't change it between the two; else it is refused. Not here: operators that torch
computes (``calls.py``).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final

import torch

from eqsynth.lower.onnx_out.graph import Graph, Value
from eqsynth.lower.onnx_out.model import OPSET
from eqsynth.lower.torch_scalars import torch_dtype

# The names of the domain of ONNX's own operators.
_OWN: Final = ("", "ai.onnx")


def written_back(graph: Graph, inputs: Sequence[Value], model: str) -> list[Value] | None:
    """Return the results of an operator that is given by a model of its own; None if the file can't
    hold it.

    Args:
        model: as ``eqsynth::onnx_operator`` takes it.
    """
    import onnx

    proto = onnx.ModelProto.FromString(base64.b64decode(model))
    (node,) = proto.graph.node
    domain = "" if node.domain in _OWN else node.domain
    opsets = {"" if o.domain in _OWN else o.domain: o.version for o in proto.opset_import}
    held = [a for a in node.attribute if a.type in (a.GRAPH, a.GRAPHS)]
    if held or not _is_in_file(graph, node.op_type, domain, opsets.get(domain, 1)):
        return None
    kinds = [(tuple(x.shape), _name(x.dtype)) for x in _results(inputs, model)]
    left = iter(inputs)
    given = [next(left) if name else None for name in node.input]
    used = [bool(name) for name in node.output]
    del node.input[:], node.output[:]
    return graph.foreign(node.SerializeToString(deterministic=True), given, kinds, used)


def _is_in_file(graph: Graph, kind: str, domain: str, version: int) -> bool:
    """Whether the operator of this opset means the same in the file; other domains than ONNX's own
    get their opset there."""
    import onnx

    if domain:
        return graph.opsets.setdefault(domain, version) == version
    try:
        since = [onnx.defs.get_schema(kind, n, domain).since_version for n in (version, OPSET)]
    except onnx.defs.SchemaError:
        return False
    return since[0] == since[1]


def _results(inputs: Sequence[Value], model: str) -> list[torch.Tensor]:
    """The operator's results without data, for their types."""
    given = [torch.empty(x.shape, dtype=torch_dtype(x.dtype), device="meta") for x in inputs]
    made: list[torch.Tensor] = torch.ops.eqsynth.onnx_operator(given, model)
    return made


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
