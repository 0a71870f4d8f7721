"""Regions for engines that take ONNX: the model of a region."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.ir.tensor import Region
from eqsynth.lower.onnx_out.graph import Graph, Value
from eqsynth.lower.onnx_out.model import to_model
from eqsynth.lower.onnx_out.operators import region_values


def model_of(region: Region, constants: Mapping[int, torch.Tensor]) -> bytes:
    """A region as a model: inputs ``x0``, ``x1``, … by the numbers of the arguments that aren't
    constant, outputs ``y0``, ``y1``, …

    Raises:
        UnsupportedOperatorError: ONNX can't say it.
    """
    graph, results = _graph(region)
    for n, value in constants.items():
        graph.arrays[f"x{n}"] = value
    inputs = {f"x{n}": arg.type for n, arg in enumerate(region.args) if n not in constants}
    outputs = [(f"y{n}", value) for n, value in enumerate(results)]
    model: Any = to_model(graph, inputs, outputs)
    return bytes(model.SerializeToString())


def _graph(region: Region) -> tuple[Graph, list[Value]]:
    graph = Graph()
    args = [Value(f"x{n}", arg.shape, arg.dtype) for n, arg in enumerate(region.args)]
    return graph, region_values(graph, region, args)


@lru_cache(maxsize=256)
def can_be_said(region: Region) -> bool:
    """Whether ONNX can say the region."""
    try:
        _graph(region)
    except UnsupportedOperatorError:
        return False
    return True
