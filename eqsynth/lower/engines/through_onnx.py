"""Regions for engines that take ONNX: the model of a region, and positions that these don't check.

A position that is data has to lie within its axis, else torch raises; ONNX's ``Gather`` counts a
negative one from the end, and what lies beyond is the runtime's affair. So positions have to be
arguments of the region, which are looked at before each call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import torch

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.ir.program import positions
from eqsynth.ir.tensor import Input, Op, Region, Tensor, topological
from eqsynth.lower.onnx_out.graph import Graph, Value
from eqsynth.lower.onnx_out.model import to_model
from eqsynth.lower.onnx_out.operators import region_values

_MOVING: Final = ("Reshape", "Permute", "Expand", "Split", "Merge", "Concat", "Cast")
"""Operators whose result holds every value of their arguments, and no other: casts do so among
integers in which every position has its place."""
_CASTS: Final = (("int32", "int64"), ("int64", "int32"))


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
    """Whether ONNX can say the region, with positions that are arguments."""
    try:
        _graph(region)
        position_limits(region)
    except UnsupportedOperatorError:
        return False
    return True


def position_limits(region: Region) -> dict[int, int]:
    """Arguments that hold positions, and how many places there are.

    Raises:
        UnsupportedOperatorError: a position is computed.
    """
    number: dict[Tensor, int] = {Input(str(n), a.type): n for n, a in enumerate(region.args)}
    limits: dict[int, int] = {}
    for index, count in positions(topological(region.outputs)).items():
        stack: list[Tensor] = [index]
        while stack:
            term = stack.pop()
            if term in number:
                n = number[term]
                limits[n] = min(count, limits.get(n, count))
            elif isinstance(term, Op) and term.name in _MOVING and _keeps_numbers(term):
                stack.extend(term.args)
            else:
                raise UnsupportedOperatorError(
                    "a position is computed in the region",
                    where=term.label,
                    expected="positions that are arguments, which are checked before the call",
                )
    return limits


def _keeps_numbers(term: Op) -> bool:
    return all(arg.dtype == term.dtype or (arg.dtype, term.dtype) in _CASTS for arg in term.args)


def checked(region: Region, constants: Mapping[int, torch.Tensor]) -> Callable[..., None] | None:
    """What looks at the positions among the arguments that aren't constant; None if none are.

    The function raises ``IndexError``, as torch does.
    """
    varying = [n for n in range(len(region.args)) if n not in constants]
    limits = position_limits(region)
    places = [(varying.index(n), count) for n, count in limits.items() if n not in constants]
    if not places:
        return None

    def check(*args: torch.Tensor) -> None:
        for place, count in places:
            low, high = torch.aminmax(args[place])
            if low < 0 or high >= count:
                raise IndexError("index out of range in self")

    return check
