"""Positions of a region that are data, looked at before an engine computes with them.

A position in an embedding's table or along a gathered axis has to lie within that axis, else torch
raises. Engines do otherwise: ONNX and Inductor count a negative one from the end, and what lies
beyond is the engine's affair. So an engine gets a region whose positions are arguments, whose
values are compared with the extents before each call. Positions that the region computes are
computed by torch before it:

    Embedding(w, Add(ids, 2))   ->   p = ids + 2 in torch, 0 <= p < rows, Embedding(w, p)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from eqsynth.extract.kernel import Runner
from eqsynth.ir.program import positions
from eqsynth.ir.tensor import Input, Op, Region, Tensor, over, topological
from eqsynth.lower.torch_ops import region_function

_MOVING: Final = ("Reshape", "Permute", "Expand", "Split", "Merge", "Concat", "Cast")
"""Operators whose result holds every value of their arguments, and no other: casts do so among
integers in which every position has its place."""
_CASTS: Final = (("int32", "int64"), ("int64", "int32"))


@dataclass(frozen=True)
class Apart:
    """A region, and what of it concerns positions.

    Attributes:
        region: as the engine gets it: positions are arguments, or moved by ``_MOVING``.
        computed: what computes the last arguments of ``region``, from those of the region that was
            taken apart; None where no position is computed.
        limits: of each argument of ``region`` that holds positions, how many places there are.
    """

    region: Region
    computed: Region | None
    limits: Mapping[int, int]


@functools.lru_cache(maxsize=256)
def positions_apart(region: Region) -> Apart:
    """The region with its positions as arguments."""
    number: dict[Tensor, int] = {Input(str(n), a.type): n for n, a in enumerate(region.args)}
    computed: dict[Tensor, Input] = {}
    limits: dict[int, int] = {}
    for index, count in positions(topological(region.outputs)).items():
        stack: list[Tensor] = [index]
        while stack:
            term = stack.pop()
            if isinstance(term, Op) and term.name in _MOVING and _keeps_numbers(term):
                stack.extend(term.args)
                continue
            n = number.setdefault(term, len(number))
            if n >= len(region.args):
                computed[term] = Input(str(n), term.type)
            limits[n] = min(count, limits.get(n, count))
    if not computed:
        return Apart(region, None, limits)
    images: dict[Tensor, Tensor] = dict(computed)
    for term in topological(region.outputs):
        if term not in images:
            images[term] = over(term, images) if isinstance(term, Op) else term
    outputs = tuple(images[output] for output in region.outputs)
    return Apart(
        Region(outputs, (*region.args, *computed.values())),
        Region(tuple(computed), region.args),
        limits,
    )


def _keeps_numbers(term: Op) -> bool:
    return all(arg.dtype == term.dtype or (arg.dtype, term.dtype) in _CASTS for arg in term.args)


def guarded(run: Runner, apart: Apart, constants: Mapping[int, torch.Tensor]) -> Runner:
    """A runner of the region that was taken apart, from the engine's runner of ``apart.region``.

    The runner raises ``IndexError`` where a position isn't in its axis, as torch does.

    Args:
        constants: those of the region's arguments that aren't given at the call.
    """
    varying = [n for n in range(len(apart.region.args)) if n not in constants]
    places = [(varying.index(n), count) for n, count in apart.limits.items() if n in varying]
    if not places:
        return run
    before = None if apart.computed is None else region_function(apart.computed)

    def guard(*args: torch.Tensor) -> Any:
        if before is not None:
            values = {**constants, **dict(zip(varying, args, strict=False))}
            computed = before(*(values[n] for n in range(len(values))))
            args = (*args, *(value.contiguous() for value in computed))
        for place, count in places:
            if args[place].numel():
                low, high = torch.aminmax(args[place])
                if low < 0 or high >= count:
                    raise IndexError("index out of range in self")
        return run(*args)

    return guard
