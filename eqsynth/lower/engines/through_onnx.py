"""The ONNX model of a region, for engines that read ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.ir.tensor import Input, Op, Region, Tensor, topological
from eqsynth.lower.onnx_out.graph import Graph, Value
from eqsynth.lower.onnx_out.model import to_model
from eqsynth.lower.onnx_out.operators import region_values
from eqsynth.lower.torch_calls import NO_CALLS, Calls, TorchCall


def model_of(
    region: Region, constants: Mapping[int, torch.Tensor], calls: Calls = NO_CALLS
) -> bytes:
    """Return a region as a model. Its inputs are ``x0``, ``x1``, …, by the numbers of the arguments
    that aren't constant, its outputs ``y0``, ``y1``, …

    Raises:
        UnsupportedOperatorError: ONNX can't express the region.
    """
    graph, results = _graph(region, calls)
    for n, value in constants.items():
        graph.arrays[f"x{n}"] = value
    inputs = {f"x{n}": arg.type for n, arg in enumerate(region.args) if n not in constants}
    outputs = [(f"y{n}", value) for n, value in enumerate(results)]
    model: Any = to_model(graph, inputs, outputs)
    return bytes(model.SerializeToString())


def _graph(region: Region, calls: Calls) -> tuple[Graph, list[Value]]:
    graph = Graph(calls)
    args = [Value(f"x{n}", arg.shape, arg.dtype) for n, arg in enumerate(region.args)]
    return graph, region_values(graph, region, args)


def can_be_said(region: Region, calls: Calls = NO_CALLS) -> bool:
    """Whether ONNX can express the region.

    Args:
        calls: the calls of torch that its ``Opaque`` operators stand for, by name.
    """
    parts = topological(region.outputs)
    names = [str(p.attrs[0]) for p in parts if isinstance(p, Op) and p.name == "Opaque"]
    return _can_be_said(region, tuple((n, calls[n]) for n in dict.fromkeys(names) if n in calls))


def call_is_said(term: Tensor, calls: Calls) -> bool:
    """Whether a term is no ``Opaque`` operator, or one that ONNX can express."""
    if not isinstance(term, Op) or term.name != "Opaque":
        return True
    own = tuple(Input(str(n), arg.type) for n, arg in enumerate(term.args))
    return can_be_said(Region((Op(term.name, own, term.attrs),), own), calls)


@lru_cache(maxsize=256)
def _can_be_said(region: Region, calls: tuple[tuple[str, TorchCall], ...]) -> bool:
    try:
        _graph(region, dict(calls))
    except UnsupportedOperatorError:
        return False
    return True
