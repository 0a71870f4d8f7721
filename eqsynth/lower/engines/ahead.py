"""The parts of a region that torch computes before the engine computes the rest.

**Positions.** A position in an embedding's table or along a gathered axis has to lie within the
axis, else torch raises. ONNX and Inductor count negative positions from the end instead, and leave
positions beyond the end undefined. So in the region that an engine gets, all positions are
arguments, and their values are compared with the extents before each call. Positions that the
region computes are computed by torch:

    Embedding(w, Add(ids, 2))   ->   p = ids + 2 in torch, 0 <= p < rows, Embedding(w, p)

**Refused operators.** An operator that the engine refuses, together with the operators that its
arguments are computed by, is computed by torch if it is a small part of the region. Most of these
are masks:

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
"""Operators whose result has the same values as their arguments. A cast does if it is between
integer dtypes that hold all positions (``_CASTS``)."""
_CASTS: Final = (("int32", "int64"), ("int64", "int32"))

_POSITIONS: Final = {"int64": ctypes.c_int64, "int32": ctypes.c_int32}
_FEW: Final = 256

_LITTLE: Final = 0.01
"""The part of the region's operations that torch may compute before the engine."""


@dataclass(frozen=True)
class Apart:
    """A region for an engine, and the region that torch computes before it.

    Attributes:
        region: the engine's region. Its positions are arguments, or computed from arguments by
            ``_MOVING`` alone.
        computed: computes the last arguments of ``region`` from the arguments of the original
            region; None if there are none.
        limits: for each argument of ``region`` that holds positions, the extent of the axis.
    """

    region: Region
    computed: Region | None
    limits: Mapping[int, int]


def _nothing(_: Tensor) -> bool:
    return False


@functools.lru_cache(maxsize=256)
def taken_apart(region: Region, refuses: Callable[[Tensor], bool] = _nothing) -> Apart:
    """Split a region: positions become arguments, and refused operators are computed before if they
    are little work.

    Args:
        refuses: whether the engine can't compute a term.
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
    """The refused terms, and the terms that they are computed from. Empty if that is much work, or
    if one of them is a result of the region."""
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
    """The constant arguments of ``apart.region``: those of the original region, and those results
    of ``apart.computed`` that depend on constants only, such as a slice of a table of positions.

    Args:
        opaque: runs the ``Opaque`` operators of ``apart.computed``, by name.
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
    """Return a runner of the original region, made of the engine's runner of ``apart.region``.

    It raises ``IndexError`` if a position isn't within its axis, as torch does.

    Args:
        constants: the constant arguments of ``apart.region`` (see ``settled``).
        opaque: runs the ``Opaque`` operators of ``apart.computed``, by name.
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
    """Return a function that gives the least and the largest of a contiguous tensor of positions. A
    few positions are read as Python's numbers: right after an engine has run, while caches are
    cold, this takes 38 us, and torch's operators take 90."""
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
    # Compared as Python's numbers: comparing tensors takes two further calls of torch each.
    return int(low.item()), int(high.item())


def _before(
    apart: Apart, constants: Mapping[int, torch.Tensor], opaque: Opaque | None
) -> Callable[..., list[torch.Tensor]] | None:
    """Return a function that computes those last arguments of ``apart.region`` that aren't constant
    from the other arguments; None if there are none."""
    if apart.computed is None:
        return None
    args = apart.computed.args
    parts = enumerate(apart.computed.outputs, len(args))
    varying = tuple(out for n, out in parts if n not in constants)
    known = {n: value for n, value in constants.items() if n < len(args)}
    return region_function(Region(varying, args), opaque, known=known) if varying else None
