"""``Resize`` and ``GridSample``: interpolation.

``Resize`` interpolates one axis after another. The positions of the result's elements on the
input's axis follow from the shapes, so an axis is a sum of a few reads at constant positions, each
times a constant weight: ``y[i] = 0.25 * x[p[i]] + 0.75 * x[p[i] + 1]`` for a linear interpolation.
Cases that ``F.interpolate`` computes by exactly the same rule are calls of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from eqsynth.frontend.onnx.table import Refused, axis_of, op

Tensor = torch.Tensor
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Rule:
    """The attributes of a ``Resize``."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool


@op("Resize", known=(1, 2, 3))
def resize(
    x: Tensor,
    roi: Sequence[float] | None = None,
    scales: Sequence[float] | None = None,
    sizes: Sequence[int] | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    places = [axis_of(a, x.ndim) for a in (range(x.ndim) if axes is None else axes)]
    extents = [x.shape[a] for a in places]
    if scales and not sizes:
        factors = [float(s) for s in scales]
        wanted = [math.floor(n * s) for n, s in zip(extents, factors, strict=True)]
    elif sizes and not scales:
        factors = [s / n for s, n in zip(sizes, extents, strict=True)]
        wanted = list(sizes)
        if keep_aspect_ratio_policy != "stretch":
            pick = {"not_larger": min, "not_smaller": max}[keep_aspect_ratio_policy]
            factor = pick(factors)
            factors = [factor] * len(factors)
            wanted = [math.floor(n * factor + 0.5) for n in extents]
    else:
        raise ValueError("either scales or sizes are given")
    if min(wanted, default=1) < 0 or min(extents, default=1) == 0 or max(wanted) > 1 << 26:
        raise ValueError(f"a resize of {extents} to {wanted}")
    if not x.is_floating_point() and mode != "nearest":
        raise Refused("an interpolation of integers")
    rule = _Rule(mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a,
                 bool(exclude_outside), bool(antialias))  # fmt: skip
    changed = [
        (axis, n, size, factor, (roi[i], roi[i + len(places)]) if roi else None)
        for i, (axis, n, size, factor) in enumerate(
            zip(places, extents, wanted, factors, strict=True)
        )
        if size != n or factor != 1 or rule.coordinates == "tf_crop_and_resize"
    ]
    if _torch_knows(x, changed, rule):
        sizes_of = {axis: size for axis, _, size, _, _ in changed}
        spatial = [sizes_of.get(a, x.shape[a]) for a in range(2, x.ndim)]
        if mode == "nearest":
            return F.interpolate(x, size=spatial)
        align = rule.coordinates == "align_corners"
        kinds = {3: "linear", 4: "bilinear"}
        return F.interpolate(x, size=spatial, mode=kinds[x.ndim], align_corners=align)
    for axis, n, size, factor, region in changed:
        at, outside = _places(rule.coordinates, n, size, factor, region)
        x = _axis(x, axis, at, min(1.0, factor), rule)
        if outside is not None and outside.any():
            mask = torch.from_numpy(outside).reshape([-1] + [1] * (x.ndim - 1 - axis))
            x = torch.where(mask, extrapolation_value, x)
    return x


def _torch_knows(x: Tensor, changed: Sequence[Any], rule: _Rule) -> bool:
    """Whether ``F.interpolate`` to the sizes in ``changed`` computes the same."""
    exact = all(size == n * factor for _, n, size, factor, _ in changed)
    if not exact or any(axis < 2 for axis, *_ in changed) or x.ndim not in (3, 4):
        return False
    if rule.mode == "nearest":
        whole = all(size % n == 0 for _, n, size, _, _ in changed)
        return whole and (rule.coordinates, rule.nearest) == ("asymmetric", "floor")
    if rule.mode != "linear" or rule.antialias or rule.exclude_outside:
        return False
    longer = all(size > 1 for _, _, size, _, _ in changed)
    return rule.coordinates in ("half_pixel", "align_corners") or (
        rule.coordinates == "pytorch_half_pixel" and longer
    )


def _places(
    mode: str, n: int, size: int, factor: float, region: tuple[float, float] | None
) -> tuple[Array, Array | None]:
    """The positions of the result's elements on the input's axis, in units of its elements.

    Args:
        mode: ONNX's ``coordinate_transformation_mode``.
        n, size: the axis's extent in the input and in the result.
        factor: the scale.
        region: the begin and end of ``tf_crop_and_resize``, as shares of the axis.

    Returns:
        The positions; and for ``tf_crop_and_resize`` a mask of those outside of the axis.
    """
    at = np.arange(size, dtype=np.float64)
    length = factor * n
    if mode == "half_pixel":
        return (at + 0.5) / factor - 0.5, None
    if mode == "pytorch_half_pixel":
        return ((at + 0.5) / factor - 0.5 if length > 1 else np.full(size, -0.5)), None
    if mode == "asymmetric":
        return at / factor, None
    if mode == "align_corners":
        return (at * (n - 1) / (length - 1) if length != 1 else at * 0), None
    if mode == "half_pixel_symmetric":
        offset = n / 2 * (1 - size / length)
        return offset + (at + 0.5) / factor - 0.5, None
    if mode == "tf_crop_and_resize" and region is not None:
        begin, end = region
        if length == 1:
            found = np.full(size, (begin + end) * (n - 1) / 2)
        else:
            found = begin * (n - 1) + at * (end - begin) * (n - 1) / (length - 1)
        return found, (found < 0) | (found > n - 1)
    raise Refused(f"coordinates by {mode}")


def _axis(x: Tensor, axis: int, at: Array, factor: float, rule: _Rule) -> Tensor:
    """Interpolate ``x`` along one axis, at the positions ``at``."""
    n = x.shape[axis]
    if rule.mode == "nearest":
        rounded = {
            "round_prefer_floor": lambda: np.ceil(at - 0.5),
            "round_prefer_ceil": lambda: np.floor(at + 0.5),
            "floor": lambda: np.floor(at),
            "ceil": lambda: np.ceil(at),
        }[rule.nearest]()
        chosen = np.clip(rounded, 0, n - 1).astype(np.int64)
        return x.index_select(axis, torch.from_numpy(chosen))
    reads, weights = _taps(at, factor, rule)
    if rule.exclude_outside:
        weights = np.where((reads >= 0) & (reads < n), weights, 0.0)
        weights = weights / weights.sum(1, keepdims=True)
    reads = np.clip(reads, 0, n - 1)
    if reads.shape[1] > 4:
        matrix = np.zeros((len(at), n))
        np.add.at(matrix, (np.arange(len(at))[:, None], reads), weights)
        moved = torch.matmul(x.movedim(axis, -1), torch.from_numpy(matrix.T).to(x.dtype))
        return moved.movedim(-1, axis)
    shape = [-1] + [1] * (x.ndim - 1 - axis)
    total: Any = 0
    for read, weight in zip(reads.T.copy(), weights.T.copy(), strict=True):
        factors = torch.from_numpy(weight).to(x.dtype).reshape(shape)
        total = total + x.index_select(axis, torch.from_numpy(read)) * factors
    return total  # type: ignore[no-any-return]


def _taps(at: Array, factor: float, rule: _Rule) -> tuple[Array, Array]:
    """For each position, the elements that it reads, and their weights: two arrays of one shape,
    (positions, reads). Elements may lie outside of the axis.

    Args:
        at: the positions on the axis.
        factor: the scale, at most 1. Antialiasing stretches the filter by its inverse.
    """
    reach = {"linear": 1, "cubic": 2}.get(rule.mode)
    if reach is None:
        raise Refused(f"mode {rule.mode}")
    scale = factor if rule.antialias else 1.0
    first = math.floor(-reach / scale) + 1
    if (1 - first) * len(at) > 1 << 24:
        raise ValueError(f"an interpolation that reads {2 - 2 * first} elements a place")
    offsets = np.arange(first, 2 - first)
    base = np.ceil(at) - 1
    ratio = (at - base)[:, None]
    distance = np.abs(offsets - ratio) * scale
    if reach == 1:
        weights = np.clip(1 - distance, 0, 1)
    else:
        a = rule.cubic
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = a * (((distance - 5) * distance + 8) * distance - 4)
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
    if rule.antialias:
        weights = weights / weights.sum(1, keepdims=True)
    return (base[:, None] + offsets).astype(np.int64), weights


@op("GridSample")
def grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Tensor:
    kinds = {"linear": "bilinear", "cubic": "bicubic"}
    kind = kinds.get(mode, mode)
    if x.ndim not in (4, 5) or (x.ndim == 5 and kind == "bicubic"):
        raise Refused(f"mode {mode} over {x.ndim - 2} axes")
    return F.grid_sample(x, grid, kind, padding_mode, bool(align_corners))
