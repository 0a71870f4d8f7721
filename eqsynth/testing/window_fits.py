"""Argument types and attributes that fit together, for convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eqsynth.ir.inference import window
from eqsynth.ir.operators import operator
from eqsynth.ir.types import Shape, TensorType
from eqsynth.testing.world import Attrs, Fit, Types, World, fill


def pairs(world: World, options: Sequence[int]) -> tuple[int, int]:
    """Two numbers, for the two spatial axes, at least as large as the least option."""
    least = min(options)
    return world.number(options, least), world.number(options, least)


def _window_attrs(world: World, attrs: Attrs, at: Sequence[int]) -> None:
    for position, options in zip(at, ((1, 2, 3), (0, 1, 2), (1, 2)), strict=True):
        if attrs[position] is None:
            attrs[position] = pairs(world, options)


def _input_extents(
    world: World, want: Shape | None, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape
) -> Shape:
    """Spatial extents on which a window fits, with ``want`` windows along the axes if possible."""
    found = []
    for axis, k in enumerate(kernel):
        s, p, d = stride[axis], padding[axis], dilation[axis]
        positions = want[axis] if want is not None else world.choices.pick((1, 2, 3))
        least = max((positions - 1) * s + d * (k - 1) + 1 - 2 * p, 1)
        slack = world.choices.pick(range(s)) if s > 1 else 0
        extent = least + slack
        found.append(extent if window(extent, k, s, p, d) >= 1 else least)
    return tuple(found)


def _conv2d(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    pick = world.choices.pick
    x, w = types[:2]
    _window_attrs(world, attrs, (0, 1, 2))
    if attrs[3] is None:
        attrs[3] = world.number((1, 1, 2, 3), least=1)
        if x is not None and x.rank == 4 and x.shape[1]:
            attrs[3] = pick([g for g in range(1, x.shape[1] + 1) if x.shape[1] % g == 0])
    groups = attrs[3]
    if w is None:
        filters = groups * pick((1, 2))
        if want is not None and want.rank == 4:
            filters = want.shape[1]
        channels = pick((1, 2, 1))
        if x is not None and x.rank == 4:
            channels = max(x.shape[1] // groups, 1)
        # Some rules are of products of channels at each pixel alone.
        kernel = pick(((1, 1), ())) or pairs(world, (1, 2, 3))
        dtype = x.dtype if x is not None else world.dtype
        w = types[1] = TensorType((filters, channels, *kernel), dtype)
    if x is None and w.rank == 4:
        spatial = want.shape[2:] if want is not None and want.rank == 4 else None
        extents = _input_extents(world, spatial, w.shape[2:], *attrs[:3])
        batch = want.shape[0] if want is not None and want.rank == 4 else pick((1, 2))
        x = types[0] = TensorType((batch, w.shape[1] * groups, *extents), w.dtype)
    if len(types) > 2 and x is not None and w.rank == x.rank == 4:
        fill(types, 2, lambda: TensorType((w.shape[0],), w.dtype))
    if len(types) > 3 and types[3] is None:
        out = operator("Conv2d").infer([x, w], attrs[:4])  # type: ignore[list-item]
        types[3] = out


def _conv_transpose2d(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    pick = world.choices.pick
    for position, options in enumerate(((1, 2, 3), (0, 1), (0, 0, 1), (1, 2))):
        if attrs[position] is None:
            attrs[position] = pairs(world, options)
    groups = attrs[4] = pick((1, 1, 2)) if attrs[4] is None else attrs[4]
    x = fill(types, 0, lambda: TensorType((pick((1, 2)), groups * pick((1, 2)), *pairs(
        world, (2, 1, 3))), world.dtype))  # fmt: skip
    if x.rank == 4:
        fill(types, 1, lambda: TensorType((x.shape[1], pick((1, 2)), *pairs(world, (1, 2, 3))),
                                           x.dtype))  # fmt: skip


def _pool(world: World, want: TensorType | None, types: Types, attrs: Attrs) -> None:
    if attrs[0] is None:
        attrs[0] = pairs(world, (1, 2, 3))
    _window_attrs(world, attrs, (1, 2, 3))
    spatial = want.shape[2:] if want is not None and want.rank == 4 else None
    front = want.shape[:2] if want is not None and want.rank == 4 else pairs(world, (1, 2))
    fill(types, 0, lambda: TensorType(
        (*front, *_input_extents(world, spatial, *attrs[:4])), world.dtype))  # fmt: skip


WINDOW_FITS: Final[dict[str, Fit]] = {
    "Conv2d": _conv2d,
    "FusedConv2d": _conv2d,
    "FusedConv2dAdd": _conv2d,
    "ConvTranspose2d": _conv_transpose2d,
    "MaxPool2d": _pool,
    "AvgPool2d": _pool,
}
