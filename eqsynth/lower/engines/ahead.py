"""What torch does of a region before an engine computes the rest.

A position in an embedding's table or along a gathered axis has to lie within that axis, else torch
raises. Engines do otherwise: ONNX and Inductor count a negative one from the end, and what lies
beyond is the engine's affair. So an engine gets a region whose positions are arguments, whose
values are compared with the extents before each call. Positions that the region computes are
computed by torch before it:

    Embedding(w, Add(ids, 2))   ->   p = ids + 2 in torch, 0 <= p < rows, Embedding(w, p)

So is what an engine refuses, and what that is computed from, where it is next to nothing of the
region: masks, mostly. The engine begins after it.

    Where(Cast(mask, bool), 0, -inf)   ->   seen = mask.bool() in torch, Where(seen, 0, -inf)
    Embedding(w, sort(ids))            ->   p = sort(ids) in torch, Embedding(w, p)
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from eqsynth.extract.kernel import Runner
from eqsynth.ir.program import positions
from eqsynth.ir.tensor import Input, Op, Region, Tensor, args_of, over, topological
from eqsynth.ir.work import flops
from eqsynth.lower.torch_ops import Opaque, region_function

_MOVING: Final = ("Reshape", "Permute", "Expand", "Split", "Merge", "Concat", "Cast")
"""Operators whose result holds every value of their arguments, and no other: casts do so among
integers in which every position has its place."""
_CASTS: Final = (("int32", "int64"), ("int64", "int32"))

_POSITIONS: Final = {"int64": ctypes.c_int64, "int32": ctypes.c_int32}
_FEW: Final = 256

_LITTLE: Final = 0.01
"""Of the region's operations, what torch may do before the engine, operator by operator."""


@dataclass(frozen=True)
class Apart:
    """A region for an engine, and what torch does before it.

    Attributes:
        region: as the engine gets it: positions are arguments, or moved by ``_MOVING``.
        computed: what computes the last arguments of ``region``, from those of the region that was
            taken apart; None where there are none.
        limits: of each argument of ``region`` that holds positions, how many places there are.
    """

    region: Region
    computed: Region | None
    limits: Mapping[int, int]


def _nothing(_: Tensor) -> bool:
    return False


@functools.lru_cache(maxsize=256)
def taken_apart(region: Region, refuses: Callable[[Tensor], bool] = _nothing) -> Apart:
    """The region with its positions as arguments, and what is refused, if that is little.

    Args:
        refuses: whether the engine doesn't compute what a term means.
    """
    terms = list(topological(region.outputs))
    ahead = _ahead(region, terms, refuses)
    rest = [term for term in terms if term not in ahead]
    number: dict[Tensor, int] = {Input(str(n), a.type): n for n, a in enumerate(region.args)}
    computed: dict[Tensor, Input] = {}

    def given(term: Tensor) -> int:
        n = number.setdefault(term, len(number))
        if n >= len(region.args):
            computed[term] = Input(str(n), term.type)
        return n

    for term in rest:
        for arg in args_of(term):
            if arg in ahead:
                given(arg)
    limits: dict[int, int] = {}
    for index, count in positions(rest).items():
        stack: list[Tensor] = [index]
        while stack:
            term = stack.pop()
            moved = isinstance(term, Op) and term.name in _MOVING and term not in ahead
            if moved and _keeps_numbers(term):
                stack.extend(args_of(term))
                continue
            n = given(term)
            limits[n] = min(count, limits.get(n, count))
    if not computed:
        return Apart(region, None, limits)
    images: dict[Tensor, Tensor] = dict(computed)
    for term in rest:
        if term not in images:
            images[term] = over(term, images)
    outputs = tuple(images[output] for output in region.outputs)
    return Apart(
        Region(outputs, (*region.args, *computed.values())),
        Region(tuple(computed), region.args),
        limits,
    )


def _ahead(
    region: Region, terms: Sequence[Tensor], refuses: Callable[[Tensor], bool]
) -> set[Tensor]:
    """What is refused, and what that is computed from; nothing where that is much, or a result."""
    found: set[Tensor] = set()
    for term in reversed(terms):
        if not isinstance(term, Input) and (term in found or refuses(term)):
            found.add(term)
            found.update(arg for arg in args_of(term) if not isinstance(arg, Input))
    if found.intersection(region.outputs):
        return set()
    return found if sum(map(flops, found)) <= _LITTLE * sum(map(flops, terms)) else set()


def _keeps_numbers(term: Tensor) -> bool:
    dtype = term.dtype
    return all(arg.dtype == dtype or (arg.dtype, dtype) in _CASTS for arg in args_of(term))


def settled(
    apart: Apart, constants: Mapping[int, torch.Tensor], opaque: Opaque | None = None
) -> dict[int, torch.Tensor]:
    """The constant arguments of ``apart.region``: those of the region that was taken apart, and
    what is computed before from them alone, a slice of a table of positions for instance.

    Args:
        opaque: what runs the ``Opaque`` operators of ``apart.computed``.
    """
    found = dict(constants)
    if apart.computed is None:
        return found
    first = len(apart.computed.args)
    given = {Input(str(n), a.type) for n, a in enumerate(apart.computed.args) if n not in found}
    parts = [(first + n, out) for n, out in enumerate(apart.computed.outputs)]
    fixed = {n: out for n, out in parts if given.isdisjoint(topological([out]))}
    if fixed:
        before = Region(tuple(fixed.values()), apart.computed.args)
        function = region_function(before, opaque, known=found)
        values = function(*[None] * len(given))
        found.update((n, value.contiguous()) for n, value in zip(fixed, values, strict=True))
    return found


def guarded(
    run: Runner,
    apart: Apart,
    constants: Mapping[int, torch.Tensor],
    opaque: Opaque | None = None,
) -> Runner:
    """A runner of the region that was taken apart, from the engine's runner of ``apart.region``.

    The runner raises ``IndexError`` where a position isn't in its axis, as torch does.

    Args:
        constants: the arguments of ``apart.region`` that aren't given at the call (``settled``).
        opaque: what runs the ``Opaque`` operators of ``apart.computed``.
    """
    varying = [n for n in range(len(apart.region.args)) if n not in constants]
    places = [(varying.index(n), count) for n, count in apart.limits.items() if n in varying]
    before = _before(apart, constants, opaque)
    if not places and before is None:
        return run

    bounds = {place: _bounds_of(apart.region.args[varying[place]]) for place, _ in places}

    def guard(*args: torch.Tensor) -> Any:
        if before is not None:
            args = (*args, *(value.contiguous() for value in before(*args)))
        for place, count in places:
            low, high = bounds[place](args[place])
            if low < 0 or high >= count:
                raise IndexError("index out of range in self")
        return run(*args)

    return guard


def _bounds_of(positions: Tensor) -> Callable[[torch.Tensor], tuple[int, int]]:
    """What gives the least and the largest of a contiguous tensor of positions. Those of a few are
    read as Python's numbers: two operators of torch and four more steps to two numbers cost twice
    as much where an engine has run since (90 us, and 38)."""
    count = math.prod(positions.shape)
    kind = _POSITIONS.get(positions.dtype)
    if kind is None or not 0 < count <= _FEW:
        return _bounds
    row = (kind * count).from_address

    def bounds(given: torch.Tensor) -> tuple[int, int]:
        if given.device.type != "cpu":
            return _bounds(given)
        values: Any = row(given.data_ptr())[:]
        return min(values), max(values)

    return bounds


def _bounds(given: torch.Tensor) -> tuple[int, int]:
    if not given.numel():
        return 0, -1
    low, high = torch.aminmax(given)
    # As numbers: to compare tensors is an operator of torch each, and one more to ask.
    return int(low.item()), int(high.item())


def _before(
    apart: Apart, constants: Mapping[int, torch.Tensor], opaque: Opaque | None
) -> Callable[..., list[torch.Tensor]] | None:
    """What computes the last arguments of ``apart.region`` that vary from the others that do."""
    if apart.computed is None:
        return None
    args = apart.computed.args
    parts = enumerate(apart.computed.outputs, len(args))
    varying = tuple(out for n, out in parts if n not in constants)
    known = {n: value for n, value in constants.items() if n < len(args)}
    return region_function(Region(varying, args), opaque, known=known) if varying else None
