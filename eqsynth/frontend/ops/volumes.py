"""Operators over three spatial axes, made of those over two.

    conv3d(x, w)        a conv2d of each slice, whose channels are those of the slices in its window
    max_pool3d(x, k)    a max_pool2d of each slice, then one along the slices

``(n, c, d, h, w)`` -> ``(n, d, c, h, w)`` is a batch of n * d images. So what is known of images
holds for volumes: a batch norm is folded into the weights, windows are computed by tiles, libraries
pack the weights. Between two layers the orders of axes cancel.

Linear interpolation isn't made so: along an axis that keeps its extent, bilinear interpolation
multiplies a neighbour by 0, and 0 * inf is NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from eqsynth.errors import ShapeError
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.ops import contraction, reduction, views, windows
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Scope

Size = int | Sequence[int]
_Pair = Sequence[int]


def conv3d(
    input: Expr,
    weight: Expr,
    bias: Expr | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Expr:
    """``(n, g*c, d, h, w), (f, c, q, r, s) -> (n, f, d', h', w')``; the batch axis may be left out.

    ``result[n, z]`` is ``conv2d(x[n, z : z + q], w)`` with the q slices as channels, each with its
    own part of the weights.
    """
    if input.ndim == 4:
        rest = (bias, stride, padding, dilation, groups)
        return views.squeeze(conv3d(views.unsqueeze(input, 0), weight, *rest), 0)
    _check_rank("conv3d: weight", weight)
    step, spread = _three(stride), _three(dilation)
    if isinstance(padding, str):
        total = contraction.named_padding(padding, step, spread, weight.shape[2:])
        amounts = [(size // 2, size - size // 2) for size in reversed(total)]
        input, padding = views.pad(input, [*itertools.chain(*amounts)]), 0
    pads = _three(padding)
    slices = _windows(input, weight.shape[2], step[0], pads[0], spread[0])
    maps = contraction.conv2d(
        views.flatten(slices, 0, 1), views.flatten(weight, 1, 2), bias, step[1:], pads[1:],
        spread[1:], groups,
    )  # fmt: skip
    return views.permute(views.unflatten(maps, 0, slices.shape[:2]), (0, 2, 1, 3, 4))


def _windows(input: Expr, size: int, step: int, padding: int, spread: int) -> Expr:
    """Windows along the slices as images: (n, c, d, h, w) -> (n, d', c*size, h, w).

    image[n, z] = cat(x[n, :, z*step - padding + i*spread] for i < size), each channel beside its
    own copies.
    """
    _check_rank("a volume", input)
    n, c, d, h, w = input.shape
    places = (d + 2 * padding - spread * (size - 1) - 1) // step + 1
    if places < 1:
        raise ShapeError(
            what="a window that is larger than the volume", got=f"{size} of {d} slices",
            expected=f"at most {d + 2 * padding} slices", hint="pad the volume",
        )  # fmt: skip
    if (size, step, padding) == (1, 1, 0):
        return views.permute(input, (0, 2, 1, 3, 4))
    shape = (n, places, c, size, h, w)
    at = [Index.iterator(slot, extent) for slot, extent in enumerate(shape)]
    read = Read(input.tensor, (at[0], at[2], at[1] * step + at[3] * spread - padding, *at[4:]))
    return views.flatten(Expr(Scope(shape, (), read), input.values), 2, 3)


def _check_rank(what: str, x: Expr) -> None:
    if x.ndim != 5:
        raise ShapeError(
            what=f"{what} of another rank", got=str(x.tensor.type), expected="five axes", hint=""
        )


def conv_transpose3d(
    input: Expr,
    weight: Expr,
    bias: Expr | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Expr:
    """``(n, g*c, d, h, w), (g*c, f, q, r, s) -> (n, g*f, d', h', w')``; the batch axis may be left
    out.

    A conv_transpose2d of each slice gives q images, which are added where they fall together.
    """
    if input.ndim == 4:
        rest = (bias, stride, padding, output_padding, groups, dilation)
        return views.squeeze(conv_transpose3d(views.unsqueeze(input, 0), weight, *rest), 0)
    _check_rank("conv_transpose3d: weight", weight)
    step, pads, more, spread = map(_three, (stride, padding, output_padding, dilation))
    slices = _windows(input, 1, 1, 0, 1)
    n, d, f, size = *slices.shape[:2], weight.shape[1] * groups, weight.shape[2]
    images = contraction.conv_transpose2d(
        views.flatten(slices, 0, 1), views.flatten(weight, 1, 2), None, step[1:], pads[1:],
        more[1:], groups, spread[1:],
    )  # fmt: skip
    h, w = images.shape[2:]
    parts = views.reshape(images, (n, d, f, size, h, w))
    columns = views.reshape(views.permute(parts, (0, 2, 4, 5, 3, 1)), (n, f * h * w * size, d))
    depth = (d - 1) * step[0] - 2 * pads[0] + spread[0] * (size - 1) + 1 + more[0]
    added = windows.col2im(
        columns, (depth, 1), (size, 1), (spread[0], 1), (pads[0], 0), (step[0], 1)
    )
    result = views.permute(views.reshape(added, (n, f, h, w, depth)), (0, 1, 4, 2, 3))
    return contraction.with_bias(result, bias)


def max_pool3d(
    input: Expr,
    kernel_size: Size,
    stride: Size = (),
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
) -> Expr:
    """``(n, c, d, h, w) -> (n, c, d', h', w')``, padded by -inf; the batch axis may be left out."""
    kernel = _three(kernel_size)
    sizes = (kernel, _three(stride, kernel), _three(padding), _three(dilation))

    def pool(x: Expr, window: _Pair, step: _Pair, pads: _Pair, spread: _Pair) -> Expr:
        return reduction.max_pool2d(x, window, step, pads, spread, ceil_mode)

    return _pooled(input, sizes, pool)


def avg_pool3d(
    input: Expr,
    kernel_size: Size,
    stride: Size = (),
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Expr:
    """``(n, c, d, h, w) -> (n, c, d', h', w')``; the batch axis may be left out.

    Raises:
        ShapeError: ``ceil_mode`` would make windows that reach beyond the padding, or there is a
            divisor of its own.
    """
    if divisor_override is not None:
        raise ShapeError(
            what="avg_pool3d: a divisor of its own", got=str(divisor_override), expected="None",
            hint="multiply the result",
        )  # fmt: skip
    kernel = _three(kernel_size)
    sizes = (kernel, _three(stride, kernel), _three(padding))

    def pool(x: Expr, window: _Pair, step: _Pair, pads: _Pair) -> Expr:
        return reduction.avg_pool2d(x, window, step, pads, ceil_mode, count_include_pad)

    return _pooled(input, sizes, pool)


def _pooled(
    input: Expr, sizes: Sequence[tuple[int, ...]], pool: Callable[..., Expr]
) -> Expr:
    """Pool each slice, then along the slices: a window's maximum is that of the maxima of its
    slices, and so is its mean.

    Args:
        sizes: kernel, stride, padding and dilation, of each three numbers.
    """
    if input.ndim == 4:
        return views.squeeze(_pooled(views.unsqueeze(input, 0), sizes, pool), 0)
    _check_rank("a volume", input)
    n, c, d, h, w = input.shape
    flat = pool(views.reshape(input, (n * c, d, h, w)), *(size[1:] for size in sizes))
    h, w = flat.shape[2:]
    # A window of one element, in steps of one, along the axis of the places in a slice.
    along = [(size[0], rest) for size, rest in zip(sizes, (1, 1, 0, 1), strict=False)]
    deep = pool(views.reshape(flat, (n * c, 1, d, h * w)), *along)
    return views.reshape(deep, (n, c, deep.shape[2], h, w))


def adaptive_avg_pool3d(input: Expr, output_size: Size) -> Expr:
    """Average pooling to a size that divides the input's."""
    sizes = _three(output_size)
    *batch, d, h, w = input.shape
    flat = reduction.adaptive_avg_pool2d(views.reshape(input, (-1, d, h, w)), sizes[1:])
    deep = reduction.adaptive_avg_pool2d(
        views.reshape(flat, (-1, 1, d, sizes[1] * sizes[2])), (sizes[0], sizes[1] * sizes[2])
    )
    return views.reshape(deep, (*batch, *sizes))


def _three(value: Size, default: Sequence[int] = ()) -> tuple[int, ...]:
    """One number for each axis; a single number holds for all axes, none for the default."""
    sizes = (value,) if isinstance(value, int) else tuple(value) or tuple(default)
    return sizes * 3 if len(sizes) == 1 else sizes
