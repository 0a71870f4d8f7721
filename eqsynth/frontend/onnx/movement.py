"""Operators that move, repeat or choose elements, and operators that read shapes (``Shape``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from eqsynth.frontend.onnx.table import Refused, axis_of, dtype_of, many, one, op

Tensor = torch.Tensor


@op("Identity")
def identity(x: Any) -> Any:
    return x


@op("Dropout", known=(1, 2))
def dropout(
    x: Tensor, ratio: float = 0.5, training: bool | None = None, *, seed: int | None = None,
    outputs: int = 1,
) -> Any:  # fmt: skip
    if training and ratio != 0:
        raise Refused("dropout in training mode")
    return (x, torch.ones_like(x, dtype=torch.bool)) if outputs > 1 else x


# ---- shapes ---------------------------------------------------------------------------------


@op("Reshape", known=(1,))
def reshape(x: Tensor, shape: Sequence[int], *, allowzero: int = 0) -> Tensor:
    if not allowzero:
        shape = [x.shape[i] if extent == 0 else extent for i, extent in enumerate(shape)]
    elif 0 in shape and -1 in shape:
        raise ValueError("with allowzero a shape has no 0 beside -1")
    return x.reshape(list(shape))


@op("Flatten")
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    at = axis + x.ndim if axis < 0 else axis
    if not 0 <= at <= x.ndim:
        raise IndexError(f"axis {axis} of a tensor of rank {x.ndim}")
    return x.reshape(math.prod(x.shape[:at]), math.prod(x.shape[at:]))


@op("Transpose")
def transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    return x.permute(list(range(x.ndim))[::-1] if perm is None else list(perm))


@op("Squeeze", known=(1,))
def squeeze(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    if axes is None:
        return x.squeeze()
    places = {axis_of(axis, x.ndim) for axis in many(axes)}
    if any(x.shape[axis] != 1 for axis in places):
        raise ValueError(f"axes {list(axes)} of a tensor of shape {list(x.shape)} aren't all 1")
    return x.reshape([n for i, n in enumerate(x.shape) if i not in places])


@op("Unsqueeze", known=(1,))
def unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    axes = many(axes)
    rank = x.ndim + len(axes)
    places = {axis_of(axis, rank) for axis in axes}
    if len(places) != len(axes):
        raise ValueError(f"axes {list(axes)} name one axis twice")
    for axis in sorted(places):
        x = x.unsqueeze(axis)
    return x


@op("Expand", known=(1,))
def expand(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape)))


@op("Tile", known=(1,))
def tile(x: Tensor, repeats: Sequence[int]) -> Tensor:
    if len(repeats) != x.ndim:
        raise ValueError(f"{len(repeats)} repeats for a tensor of rank {x.ndim}")
    return x.repeat(list(repeats))


@op("Concat")
def concat(*xs: Tensor, axis: int) -> Tensor:
    if len({x.ndim for x in xs}) != 1:
        raise ValueError("tensors of several ranks")
    return torch.cat(xs, axis)


@op("Split", known=(1,))
def split(
    x: Tensor,
    sizes: Sequence[int] | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    outputs: int = 1,
) -> tuple[Tensor, ...]:
    extent = x.shape[axis_of(axis, x.ndim)]
    if sizes is None:
        count = outputs if num_outputs is None else num_outputs
        if count != outputs:
            raise ValueError(f"{count} parts for {outputs} results")
        size = -(-extent // count)
        sizes = [min(size, extent - size * i) for i in range(count)]
    if len(sizes) != outputs or min(sizes) < 0:
        raise ValueError(f"parts of {list(sizes)} for {outputs} results")
    return tuple(torch.split(x, list(sizes), axis))


@op("Slice", known=(1, 2, 3, 4))
def slices(
    x: Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Tensor:
    axes = range(len(starts)) if axes is None else [axis_of(axis, x.ndim) for axis in axes]
    steps = [1] * len(starts) if steps is None else steps
    for axis, begin, end, step in zip(axes, starts, ends, steps, strict=True):
        extent = x.shape[axis]
        # ONNX counts negative starts and ends from the end of the axis, and clamps them, as
        # Python does.
        chosen = range(*slice(begin, end, step).indices(extent))
        if chosen == range(extent):
            continue
        low, high = (chosen[0], chosen[-1]) if len(chosen) else (0, -1)
        if step < 0:
            low, high = (high, low) if len(chosen) else (0, -1)
        part = (slice(None),) * axis + (slice(low, high + 1, abs(step)),)
        x = x[part]
        if step < 0:
            x = x.flip(axis)
    return x


@op("Pad", known=(1, 2, 3))
def pad(
    x: Tensor,
    pads: Sequence[int],
    value: Any = None,
    axes: Sequence[int] | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    axes = range(x.ndim) if axes is None else [axis_of(axis, x.ndim) for axis in many(axes)]
    count = len(axes)
    if len(pads) != 2 * count:
        raise ValueError(f"{len(pads)} pads for {count} axes")
    amounts = {axis: (pads[i], pads[i + count]) for i, axis in enumerate(axes)}
    if mode == "constant":
        flat = [n for axis in reversed(range(x.ndim)) for n in amounts.get(axis, (0, 0))]
        return torch.constant_pad_nd(x, flat, one(value) or 0)
    for axis, (before, after) in amounts.items():
        if before or after:
            places = _padded(x.shape[axis], before, after, mode)
            x = x.index_select(axis, torch.from_numpy(places))
    return x


def _padded(extent: int, before: int, after: int, mode: str) -> Any:
    """For each position of the padded axis, the position of the element that it holds.

    Args:
        before, after: how many elements are added at the ends; a negative number removes elements.
        mode: ``edge``, ``reflect`` or ``wrap``.
    """
    if before + after > 1 << 24:
        raise ValueError(f"pads of {before} and {after}")
    places = np.arange(extent)[max(0, -before) : extent - max(0, -after)]
    around = (max(0, before), max(0, after))
    return np.pad(places, around, mode=mode)  # type: ignore[call-overload]


@op("Shape", shaped=(0,))
def shape(x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    return torch.tensor(list(x.shape)[start:end], dtype=torch.int64)


@op("Size", shaped=(0,))
def size(x: Tensor) -> Tensor:
    return torch.tensor(x.numel(), dtype=torch.int64)


@op("Range", known=(0, 1, 2))
def number_range(
    start: Any, limit: Any, delta: Any, *, stash_type: int = 1, dtypes: Sequence[torch.dtype]
) -> Tensor:
    start, limit, delta = one(start), one(limit), one(delta)
    dtype = dtypes[0]
    if dtype.is_floating_point and dtype not in (torch.float32, torch.float64):
        raise Refused("numbers in a row of 16 bits")
    count = max(0, math.ceil((limit - start) / delta))
    numbers: Tensor = torch.arange(count, dtype=dtype) * delta + start
    return numbers


@op("ConstantOfShape", known=(0,))
def constant_of_shape(shape: Sequence[int], *, value: Tensor | None = None) -> Tensor:
    if value is None:
        return torch.zeros(list(shape))
    return torch.full(list(shape), one(value.tolist()), dtype=value.dtype)


@op("EyeLike", shaped=(0,))
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    rows, columns = x.shape
    at = torch.arange(columns) - torch.arange(rows).unsqueeze(1)
    return (at == k).to(x.dtype if dtype is None else dtype_of(dtype))


@op("Trilu", known=(1,))
def trilu(x: Tensor, k: Any = None, *, upper: int = 1) -> Tensor:
    return torch.triu(x, one(k or 0)) if upper else torch.tril(x, one(k or 0))


@op("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        x = x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    elif mode == "CRD":
        x = x.reshape(n, c // (b * b), b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    else:
        raise Refused(f"mode {mode}")
    return x.reshape(n, c // (b * b), h * b, w * b)


@op("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int) -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    x = x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4)
    return x.reshape(n, c * b * b, h // b, w // b)


# ---- reads and writes at positions that are data -----------------------------------------------


@op("Gather", scalar=(1,))
def gather(x: Tensor, indices: Any, *, axis: int = 0) -> Tensor:
    if not isinstance(indices, torch.Tensor):
        return x.select(axis, indices)
    if indices.ndim == 0:  # torch.export would need the value of an index of rank 0
        return gather(x, indices.reshape(1), axis=axis).squeeze(axis)
    return x[(slice(None),) * axis_of(axis, x.ndim) + (indices.long(),)]


@op("GatherElements")
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return torch.gather(x, axis, _from_front(indices, x.shape[axis_of(axis, x.ndim)]))


@op("GatherND")
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    depth = indices.shape[-1]
    places = list(indices.long().unbind(-1))
    batch = [
        torch.arange(n).reshape([-1] + [1] * (indices.ndim - 2 - i))
        for i, n in enumerate(x.shape[:batch_dims])
    ]
    if batch_dims + depth > x.ndim:
        raise ValueError(f"{depth} indices for a tensor of rank {x.ndim}")
    return x[tuple(batch + places)] if batch or places else x


@op("ScatterElements")
def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    places = _from_front(indices, x.shape[axis_of(axis, x.ndim)])
    if reduction == "none":
        return torch.scatter(x, axis, places, updates)
    kinds = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    return torch.scatter_reduce(x, axis, places, updates, kinds[reduction])


@op("ScatterND")
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    depth = indices.shape[-1]
    if not 0 < depth <= x.ndim or updates.shape != indices.shape[:-1] + x.shape[depth:]:
        raise ValueError(f"updates of {list(updates.shape)} for a tensor of {list(x.shape)}")
    if reduction in ("none", "add"):
        places = tuple(indices.long().unbind(-1))
        return torch.index_put(x, places, updates, accumulate=reduction == "add")
    flat = torch.zeros(indices.shape[:-1], dtype=torch.int64)
    for i, extent in enumerate(x.shape[:depth]):
        flat = flat * extent + _from_front(indices[..., i], extent)
    rest = list(x.shape[depth:])
    count = math.prod(rest)
    rows = updates.reshape(-1, count)
    at = flat.reshape(-1, 1).expand(rows.shape)
    kinds = {"mul": "prod", "max": "amax", "min": "amin"}
    table = x.reshape(-1, count)
    return torch.scatter_reduce(table, 0, at, rows, kinds[reduction]).reshape(x.shape)


def _from_front(indices: Tensor, extent: int) -> Tensor:
    indices = indices.long()
    return torch.where(indices < 0, indices + extent, indices)


@op("OneHot", known=(1,))
def one_hot(indices: Tensor, depth: Any, values: Tensor, *, axis: int = -1) -> Tensor:
    depth = int(one(depth))
    places = indices.long()
    places = torch.where(places < 0, places + depth, places)
    at = axis_of(axis, indices.ndim + 1)
    numbers = torch.arange(depth).reshape([-1] + [1] * (indices.ndim - at))
    off, on = values.unbind(0)
    return torch.where(places.unsqueeze(at) == numbers, on, off)


@op("Compress", known=(1,))
def compress(x: Tensor, condition: Sequence[bool], *, axis: int | None = None) -> Tensor:
    places = torch.tensor([i for i, chosen in enumerate(condition) if chosen], dtype=torch.int64)
    return x.flatten()[places] if axis is None else x.index_select(axis, places)


@op("NonZero")
def non_zero(x: Tensor) -> Tensor:
    return torch.nonzero(x).T


@op("ReverseSequence")
def reverse_sequence(
    x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    moved = x.movedim((batch_axis, time_axis), (0, 1))
    steps = torch.arange(moved.shape[1])
    ends = lengths.long().unsqueeze(1)
    places = torch.where(steps < ends, ends - 1 - steps, steps)
    rows = torch.arange(moved.shape[0]).unsqueeze(1)
    return moved[rows, places].movedim((0, 1), (batch_axis, time_axis))
