"""Scopes as plain, differentiable torch.

Example: ``L_ij sum_k a[i, k] * b[k, j]`` is an einsum of a and b; ``L_i relu(x[2*i + 1])`` is relu
of a strided view of x.

Each read becomes a tensor with one axis for each iterator of the scope: a strided view if the index
is affine (of a padded copy if it leaves the tensor), else a gather. A sum of products of reads is
an einsum; any other body is computed elementwise on broadcast views, and then reduced. Large scopes
are computed in pieces along the traversal. Not here: operators (``torch_ops.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import torch
import torch.nn.functional as F

from eqsynth.ir.functions import FUNCTIONS, REDUCERS
from eqsynth.ir.index import FloorDiv, Index, It, Max, Min, Mod
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Evaluation,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    dtype_of,
    factors_of,
    iterators,
)
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.lower.accumulation import accumulation
from eqsynth.lower.torch_scalars import apply, arithmetic_dtype, kept_dtype, number

# The most elements of an intermediate tensor; larger scopes are computed in pieces.
_PIECE: Final = 1 << 24
# A read takes a padded copy if this has at most so many times the elements that are read; else it
# is a gather.
_PADDING: Final = 4

Values = Mapping[Tensor, torch.Tensor]


@dataclass(frozen=True)
class _Box:
    """A part of a scope's iteration space: for each iterator where it starts, and how many steps it
    has."""

    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    traversal: int
    exact: bool
    device: torch.device

    @property
    def rank(self) -> int:
        return len(self.lengths)

    def points(self, slots: set[int]) -> int:
        """The number of points of these iterators."""
        return math.prod(self.lengths[slot] for slot in slots)

    def values(self, slot: int) -> torch.Tensor:
        """The iterator's values, along its own axis."""
        start, length = self.starts[slot], self.lengths[slot]
        line = torch.arange(start, start + length, device=self.device)
        return line.reshape([-1 if axis == slot else 1 for axis in range(self.rank)])

    def parts(self, slot: int, count: int) -> list[_Box]:
        """The box cut along an iterator into so many parts that are equal but for one step."""
        ends = [part * self.lengths[slot] // count for part in range(count + 1)]
        return [
            replace(
                self,
                starts=_with(self.starts, slot, self.starts[slot] + begin),
                lengths=_with(self.lengths, slot, end - begin),
            )
            for begin, end in pairwise(ends)
        ]


def _with(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])


def run_scope(scope: Scope, values: Values, exact: bool = False) -> torch.Tensor:
    """The value of a scope from the values of the tensors that it reads; it may be a view of
    one."""
    device = next((value.device for value in values.values()), torch.device("cpu"))
    kept = kept_dtype(scope.dtype, exact)
    if 0 in scope.extents:
        fill = number(REDUCERS[scope.reducer], kept) if 0 in scope.reduction else 0
        return torch.full(scope.traversal, fill, dtype=kept, device=device)
    box = _Box((0,) * len(scope.extents), scope.extents, len(scope.traversal), exact, device)
    return _pieces(scope, values, box).to(kept)


def _pieces(scope: Scope, values: Values, box: _Box) -> torch.Tensor:
    """The value over a box, in pieces that are small enough."""
    axis = max(range(box.traversal), key=box.lengths.__getitem__, default=None)
    largest = _largest(scope, box)
    if axis is None or box.lengths[axis] == 1 or largest <= _PIECE:
        return _piece(scope, values, box)
    count = min(box.lengths[axis], -(-largest // _PIECE))
    return torch.cat([_pieces(scope, values, part) for part in box.parts(axis, count)], axis)


def _largest(scope: Scope, box: _Box) -> int:
    """The number of elements of the largest tensor that is made to compute a box.

    None is made for a view, ``L_iw x[i + 4*w]``: in pieces it would be copied. (A sliding window
    over keys, 135 million elements of 1.3: frozen Inductor took 5.9 s a call in pieces, and 0.09 s
    as a view.)
    """
    body = scope.body
    if not scope.reduction and isinstance(body, Read) and all(i.is_affine for i in body.index):
        return 0
    everything = math.prod(box.lengths)
    if not scope.reduction or scope.reducer != "sum":
        return everything
    factors = factors_of(scope.body)
    if len(factors) > 2:
        return everything
    operands = [box.points({it.slot for it in iterators(factor)}) for factor in factors]
    return max(*operands, math.prod(box.lengths[: box.traversal]))


def _piece(scope: Scope, values: Values, box: _Box) -> torch.Tensor:
    """The value over a box, at once."""
    shape = box.lengths[: box.traversal]
    kind, whole_body = accumulation(scope)
    body = _Body(whole_body, values, box)
    if not scope.reduction:
        return body.value(scope.body).expand(shape)
    dtype = arithmetic_dtype(kind, box.exact)
    if scope.reducer == "sum":
        factors = [body.value(f).to(dtype) for f in factors_of(whole_body)]
        return _contract(factors, box).expand(shape)
    whole = body.value(scope.body).to(dtype)
    whole = whole if whole.dim() else whole.expand((1,) * box.rank)
    if scope.reducer == "prod":
        full = whole.expand(*whole.shape[: box.traversal], *box.lengths[box.traversal :])
        return full.flatten(box.traversal).prod(-1, dtype=dtype).expand(shape)
    reduce = torch.amax if scope.reducer == "max" else torch.amin
    return reduce(whole, tuple(range(box.traversal, box.rank))).expand(shape)


def _contract(factors: list[torch.Tensor], box: _Box) -> torch.Tensor:
    """The sum over the reduction of a product of broadcast tensors, as an einsum."""
    operands: list[object] = []
    used: set[int] = set()
    scale: torch.Tensor | None = None
    for factor in factors:
        slots = [axis for axis, extent in enumerate(factor.shape) if extent > 1]
        used.update(slots)
        if slots:
            operands += [factor.reshape([factor.shape[axis] for axis in slots]), slots]
        else:
            scale = factor.reshape(()) if scale is None else scale * factor.reshape(())
    kept = sorted(slot for slot in used if slot < box.traversal)
    # If no factor depends on an iterator of the reduction, each term is added as often as it has
    # steps.
    unused = {*range(box.traversal, box.rank)} - used
    repeats = box.points(unused)
    ones = [box.lengths[slot] if slot in used else 1 for slot in range(box.traversal)]
    if not operands:
        assert scale is not None
        return (scale * repeats).reshape(ones)
    letters = {slot: letter for letter, slot in enumerate(sorted(used))}
    named = [[letters[s] for s in part] if isinstance(part, list) else part for part in operands]
    result: torch.Tensor = torch.einsum(*named, [letters[slot] for slot in kept])
    if repeats != 1:
        result = result * repeats
    if scale is not None:
        result = result * scale
    return result.reshape(ones)


class _Body(Evaluation[torch.Tensor]):
    """The values of a body over a box. A tensor has one axis for each iterator, of extent 1 if it
    doesn't depend on it.

    Numbers have no axes, so that they don't decide the dtype of results (torch's promotion).
    """

    def __init__(self, body: Scalar, values: Values, box: _Box) -> None:
        super().__init__(body)
        self._values, self._box = values, box

    def computed(self, scalar: Scalar) -> torch.Tensor:
        box = self._box
        match scalar:
            case Num(value=value):
                whole = value.is_integer() and abs(value) < 1 << 62
                dtype = torch.int64 if whole else torch.float64
                return torch.tensor(int(value) if whole else value, dtype=dtype, device=box.device)
            case Value(index=index):
                return _position(index, box)
            case Cast(dtype=dtype_name, arg=arg):
                rounded = self.value(arg).to(kept_dtype(dtype_name, False))
                return rounded.to(arithmetic_dtype(dtype_name, box.exact))
            case Call(fn=fn, args=args):
                return apply(fn, _alike(scalar, [*map(self.value, args)], box), box.exact)
            case Prod(factors=parts) | Sum(terms=parts):
                combine = torch.mul if isinstance(scalar, Prod) else torch.add
                result, *rest = _alike(scalar, [*map(self.value, parts)], box)
                for part in rest:
                    result = combine(result, part)
                return result
        assert isinstance(scalar, Read)
        dtype = arithmetic_dtype(scalar.tensor.dtype, box.exact)
        return _read(scalar, self._values[scalar.tensor].to(dtype), box)


def _alike(scalar: Scalar, args: list[torch.Tensor], box: _Box) -> list[torch.Tensor]:
    """The arguments of a function in the dtype of its result, if that is joined from theirs; the
    arguments of a comparison in a dtype that holds both.

    torch's own promotion would depend on which of them have axes.
    """
    fn = scalar.fn if isinstance(scalar, Call) else ""
    first = 1 if fn == "where" else 0
    result = FUNCTIONS[fn].result if fn else "same"
    if result == "same":
        known = dtype_of(scalar)
        if known is None:
            return args
        dtype = arithmetic_dtype(known, box.exact)
    elif len(args) < 2 or result == "float":
        return args
    elif any(arg.is_floating_point() and arg.dim() for arg in args):
        dtype = torch.result_type(args[0], args[1])
    else:
        dtype = torch.promote_types(args[0].dtype, args[1].dtype)
    return [*args[:first], *(arg.to(dtype) for arg in args[first:])]


def _position(index: Index, box: _Box) -> torch.Tensor:
    """The values of an index over the box."""
    total = torch.full((1,) * box.rank, index.const, device=box.device)
    for atom, coefficient in index.terms:
        if isinstance(atom, It):
            part = box.values(atom.slot)
        else:
            value = _position(atom.value, box)
            match atom:
                case FloorDiv(divisor=n):
                    part = torch.div(value, n, rounding_mode="floor")
                case Mod(divisor=n):
                    part = torch.remainder(value, n)
                case Min(bound=n):
                    part = torch.clamp(value, max=n)
                case Max(bound=n):
                    part = torch.clamp(value, min=n)
        total = total + coefficient * part
    return total


def _read(read: Read, array: torch.Tensor, box: _Box) -> torch.Tensor:
    """The values of a read over the box."""
    fill = number(read.fill, array.dtype)
    if array.numel() == 0:
        return torch.full((1,) * box.rank, fill, dtype=array.dtype, device=box.device)
    if all(index.is_affine for index in read.index):
        view = _strided(read, array, fill, box)
        if view is not None:
            return view
    at = [_position(index, box) for index in read.index]
    if read.in_range():
        return array[tuple(at)] if at else array.expand((1,) * box.rank)
    inside = torch.ones((1,) * box.rank, dtype=torch.bool, device=box.device)
    for position, extent in zip(at, array.shape, strict=True):
        inside = inside & (position >= 0) & (position < extent)
    safe = [p.clamp(0, extent - 1) for p, extent in zip(at, array.shape, strict=True)]
    return torch.where(inside, array[tuple(safe)], fill)


def _strided(
    read: Read, array: torch.Tensor, fill: float | int | bool, box: _Box
) -> torch.Tensor | None:
    """An affine read as a view of the tensor or of a padded copy; None if the copy would be too
    large."""
    bounds = [_bounds(index, box) for index in read.index]
    lows, outside = [], []
    for axis, (low, high) in enumerate(bounds):
        extent = array.shape[axis]
        if high < 0 or low >= extent:
            return torch.full((1,) * box.rank, fill, dtype=array.dtype, device=box.device)
        outside.append((max(-low, 0), max(high - extent + 1, 0)))
        lows.append(low)
    if any(map(any, outside)):
        padded = math.prod(high - low + 1 for low, high in bounds)
        slots = {it.slot for index in read.index for it in index.iterators()}
        if padded > _PADDING * (array.numel() + box.points(slots)):
            return None
        if isinstance(fill, int) and abs(fill) > 1 << 53:
            return None  # torch converts the fill to float64, which would round it
        for axis, (low, high) in enumerate(bounds):
            inner = max(low, 0), min(high, array.shape[axis] - 1)
            array = array.narrow(axis, inner[0], inner[1] - inner[0] + 1)
        amounts = [amount for pair in reversed(outside) for amount in pair]
        array = F.pad(array, amounts, value=fill)
        return _view(read, array, array.stride(), 0, lows, box)
    array, own = _each_once(array)
    offset = sum(low * step for low, step in zip(lows, own, strict=True))
    return _view(read, array, own, offset, lows, box)


def _each_once(array: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """A tensor without the repeated elements that ``expand`` gives it, and the strides at which it
    reads as the original tensor. (Inductor reads wrong elements in ``arange(2).double().expand(4,
    2).as_strided(…)``; without the expand it reads the right ones.)"""
    repeated = [e > 1 and step == 0 for e, step in zip(array.shape, array.stride(), strict=True)]
    if not any(repeated):
        return array, array.stride()
    once = array[tuple(slice(0, 1) if axis else slice(None) for axis in repeated)].contiguous()
    pairs = zip(repeated, once.stride(), strict=True)
    return once, tuple(0 if axis else step for axis, step in pairs)


def _view(
    read: Read, array: torch.Tensor, own: Sequence[int], offset: int, lows: list[int], box: _Box
) -> torch.Tensor:
    """The read as a strided view over the box.

    Args:
        own: the strides at which the tensor's axes are read.
        offset: where in the tensor, in elements, the position ``lows`` lies.
        lows: the least index of each axis.
    """
    sizes, steps, reversed_slots = [1] * box.rank, [0] * box.rank, []
    for index, step in zip(read.index, own, strict=True):
        for atom, coefficient in index.terms:
            assert isinstance(atom, It)
            sizes[atom.slot] = box.lengths[atom.slot]
            steps[atom.slot] += coefficient * step
    # Move the offset from the least index of each axis to the position at which all iterators are
    # at their start.
    for index, low, step in zip(read.index, lows, own, strict=True):
        first = index.const + sum(c * box.starts[it.slot] for it, c in _affine(index))
        offset += (first - low) * step
    for slot, step in enumerate(steps):
        if step < 0:
            # torch has no negative strides: read forwards, and flip the axis.
            offset += step * (sizes[slot] - 1)
            steps[slot] = -step
            reversed_slots.append(slot)
    view = array.as_strided(sizes, steps, array.storage_offset() + offset)
    return view.flip(reversed_slots) if reversed_slots else view


def _affine(index: Index) -> list[tuple[It, int]]:
    """The iterators and coefficients of an affine index."""
    return [(atom, c) for atom, c in index.terms if isinstance(atom, It)]


def _bounds(index: Index, box: _Box) -> tuple[int, int]:
    """The least and the largest value of an affine index over the box."""
    low = high = index.const
    for it, c in _affine(index):
        ends = c * box.starts[it.slot], c * (box.starts[it.slot] + box.lengths[it.slot] - 1)
        low, high = low + min(ends), high + max(ends)
    return low, high
