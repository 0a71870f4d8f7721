"""Reductions, softmax, normalization and pooling under torch's names."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence

from eqsynth.errors import ShapeError
from eqsynth.frontend.expr import Expr, cast, make
from eqsynth.frontend.ops import pointwise, views
from eqsynth.frontend.promotion import Number
from eqsynth.ir.inference import window

Dim = int | Sequence[int] | None
Size = int | Sequence[int]


def _reduce(operator: str, input: Expr, dim: Dim, keepdim: bool) -> Expr:
    axes = views.axes_of(dim, input.ndim)
    return make(operator, (input,), axes, int(keepdim)) if input.ndim else input


def sum(input: Expr, dim: Dim = None, keepdim: bool = False, dtype: str | None = None) -> Expr:
    """The sum over axes, all by default; of integers and bools it is int64."""
    input = cast(input, dtype) if dtype else input
    result = _reduce("ReduceSum", input, dim, keepdim)
    if dtype:
        return cast(result, dtype)
    return (
        cast(result, "int64")
        if result.dtype in ("bool", "uint8", "int8", "int16", "int32")
        else result
    )


def prod(input: Expr, dim: Dim = None, keepdim: bool = False, dtype: str | None = None) -> Expr:
    """The product over axes, all by default; of integers and bools it is int64."""
    input = cast(input, dtype) if dtype else input
    result = _reduce("ReduceProd", input, dim, keepdim)
    if dtype:
        return cast(result, dtype)
    return (
        cast(result, "int64")
        if result.dtype in ("bool", "uint8", "int8", "int16", "int32")
        else result
    )


def mean(input: Expr, dim: Dim = None, keepdim: bool = False, dtype: str | None = None) -> Expr:
    """The mean over axes, all by default."""
    return _reduce("ReduceMean", cast(input, dtype) if dtype else input, dim, keepdim)


def amax(input: Expr, dim: Dim = None, keepdim: bool = False) -> Expr:
    """The maximum over axes, all by default."""
    return _reduce("ReduceMax", input, dim, keepdim)


def amin(input: Expr, dim: Dim = None, keepdim: bool = False) -> Expr:
    """The minimum over axes, all by default."""
    return _reduce("ReduceMin", input, dim, keepdim)


def any(input: Expr, dim: Dim = None, keepdim: bool = False) -> Expr:
    """True where some element isn't 0."""
    return amax(cast(input, "bool"), dim, keepdim)


def all(input: Expr, dim: Dim = None, keepdim: bool = False) -> Expr:
    """True where no element is 0."""
    return amin(cast(input, "bool"), dim, keepdim)


def var(input: Expr, dim: Dim = None, correction: Number = 1, keepdim: bool = False) -> Expr:
    """The variance over axes, its sum divided by ``count - correction``."""
    return var_mean(input, dim, correction, keepdim)[0]


def var_mean(
    input: Expr, dim: Dim = None, correction: Number = 1, keepdim: bool = False
) -> tuple[Expr, Expr]:
    """Variance and mean over axes."""
    axes = views.axes_of(dim, input.ndim)
    centre = mean(input, axes, keepdim=True)
    squares = pointwise.square(pointwise.sub(input, centre))
    if correction == 0:
        spread = mean(squares, axes, keepdim)
    else:
        count = math.prod(input.shape[axis] for axis in axes)
        spread = pointwise.div(sum(squares, axes, keepdim), float(max(count - correction, 0)))
    return spread, centre if keepdim or not input.ndim else views.squeeze(centre, axes)


def std(input: Expr, dim: Dim = None, correction: Number = 1, keepdim: bool = False) -> Expr:
    """The standard deviation over axes."""
    return pointwise.sqrt(var(input, dim, correction, keepdim))


def softmax(input: Expr, dim: int, dtype: str | None = None) -> Expr:
    """``exp(x) / sum(exp(x))`` on one axis."""
    input = cast(input, dtype) if dtype else input
    return make("Softmax", (input,), views.axis_of(dim, input.ndim))


def log_softmax(input: Expr, dim: int, dtype: str | None = None) -> Expr:
    """``x - log(sum(exp(x)))`` on one axis."""
    input = cast(input, dtype) if dtype else input
    centred = pointwise.sub(input, amax(input, dim, keepdim=True))
    total = sum(pointwise.exp(centred), dim, keepdim=True)
    return pointwise.sub(centred, pointwise.log(total))  # type: ignore[no-any-return]


def logsumexp(input: Expr, dim: Dim, keepdim: bool = False) -> Expr:
    """``log(sum(exp(x)))`` over axes."""
    peak = amax(input, dim, keepdim=True)
    # An infinite peak must not make inf - inf.
    finite = pointwise.eq(pointwise.abs(peak), math.inf)
    peak = pointwise.where(finite, 0.0, peak)
    total = sum(pointwise.exp(pointwise.sub(input, peak)), dim, keepdim)
    shift = peak if keepdim else views.squeeze(peak, views.axes_of(dim, input.ndim))
    return pointwise.add(pointwise.log(total), shift)  # type: ignore[no-any-return]


# -- normalization ------------------------------------------------------------------------------


def layer_norm(
    input: Expr,
    normalized_shape: Sequence[int],
    weight: Expr | None = None,
    bias: Expr | None = None,
    eps: float = 1e-5,
) -> Expr:
    """The last axes to mean 0 and variance 1, then scaled and shifted."""
    shape = tuple(normalized_shape)
    weight = views.full(shape, 1.0, input.dtype) if weight is None else weight
    bias = views.full(shape, 0.0, input.dtype) if bias is None else bias
    parts = (input, cast(weight, input.dtype), cast(bias, input.dtype))
    return make("LayerNorm", parts, len(shape), eps)


def batch_norm(
    input: Expr,
    running_mean: Expr,
    running_var: Expr,
    weight: Expr | None = None,
    bias: Expr | None = None,
    eps: float = 1e-5,
) -> Expr:
    """Inference: ``input * s + t``, s = weight / sqrt(var + eps), t = bias - mean * s.

    s and t are terms over the statistics, so they are computed once, when the program is optimized.
    """
    scale = pointwise.rsqrt(pointwise.add(running_var, eps))
    scale = scale if weight is None else pointwise.mul(weight, scale)
    shift = pointwise.mul(running_mean, scale)
    shift = pointwise.neg(shift) if bias is None else pointwise.sub(bias, shift)
    channels = (input.shape[1], *(1,) * (input.ndim - 2))
    scale, shift = (cast(views.reshape(v, channels), input.dtype) for v in (scale, shift))
    return pointwise.add(pointwise.mul(input, scale), shift)  # type: ignore[no-any-return]


def _over_statistics(input: Expr, axes: Sequence[int], eps: float) -> Expr:
    """The input to mean 0 and variance 1 over the axes."""
    spread, centre = var_mean(input, axes, 0, keepdim=True)
    scale = pointwise.rsqrt(pointwise.add(spread, eps))
    return pointwise.mul(pointwise.sub(input, centre), scale)  # type: ignore[no-any-return]


def _affine(input: Expr, weight: Expr | None, bias: Expr | None) -> Expr:
    """Scaled and shifted a channel (axis 1)."""
    channels = (input.shape[1], *(1,) * (input.ndim - 2))
    if weight is not None:
        input = pointwise.mul(input, views.reshape(weight, channels))
    return input if bias is None else pointwise.add(input, views.reshape(bias, channels))


def group_norm(
    input: Expr,
    num_groups: int,
    weight: Expr | None = None,
    bias: Expr | None = None,
    eps: float = 1e-5,
) -> Expr:
    """Each group of channels to mean 0 and variance 1, then scaled and shifted a channel."""
    n, c, *spatial = input.shape
    groups = views.reshape(input, (n, num_groups, c // num_groups, *spatial))
    result = _over_statistics(groups, range(2, groups.ndim), eps)
    return _affine(views.reshape(result, input.shape), weight, bias)


def instance_norm(
    input: Expr, weight: Expr | None = None, bias: Expr | None = None, eps: float = 1e-5
) -> Expr:
    """Each channel of each sample to mean 0 and variance 1, then scaled and shifted."""
    return _affine(_over_statistics(input, range(2, input.ndim), eps), weight, bias)


# -- pooling ------------------------------------------------------------------------------------


def _pair(value: Size, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    sizes = (value,) if isinstance(value, int) else tuple(value) or default
    return sizes * 2 if len(sizes) == 1 else sizes


def _overhang(
    input: Expr, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:  # fmt: skip
    """What ``ceil_mode`` reads beyond the end of each axis (torch: a window starts inside)."""
    result = []
    for extent, k, s, p, d in zip(input.shape[2:], kernel, stride, padding, dilation, strict=True):
        floor = window(extent, k, s, p, d)
        last = -(-(extent + 2 * p - d * (k - 1) - 1) // s)
        more = last + 1 > floor and last * s < extent + p
        result.append(last * s + d * (k - 1) + 1 - (extent + 2 * p) if more else 0)
    return result


def max_pool2d(
    input: Expr,
    kernel_size: Size,
    stride: Size = (),
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
) -> Expr:
    """``(n, c, h, w) -> (n, c, h', w')``; padding is -inf; the batch axis may be left out."""
    if input.ndim == 3:
        rest = (kernel_size, stride, padding, dilation, ceil_mode)
        return views.squeeze(max_pool2d(views.unsqueeze(input, 0), *rest), 0)
    kernel = _pair(kernel_size)
    attrs = (kernel, _pair(stride, kernel), _pair(padding), _pair(dilation))
    if ceil_mode:
        down, right = _overhang(input, *attrs)
        input = views.pad(input, (0, right, 0, down), value=-math.inf)
    return make("MaxPool2d", (input,), *attrs)


def avg_pool2d(
    input: Expr,
    kernel_size: Size,
    stride: Size = (),
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Expr:
    """``(n, c, h, w) -> (n, c, h', w')``; the batch axis may be left out.

    Raises:
        ShapeError: ``ceil_mode`` would make windows that reach beyond the padding.
    """
    if input.ndim == 3:
        rest = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
        return views.squeeze(avg_pool2d(views.unsqueeze(input, 0), *rest), 0)
    kernel = _pair(kernel_size)
    attrs = (kernel, _pair(stride, kernel), _pair(padding), (1, 1))
    if ceil_mode and _overhang(input, *attrs) != [0, 0]:
        raise ShapeError(
            what="avg_pool2d: ceil_mode with windows that reach beyond the padding",
            got=str(input.tensor.type),
            expected="windows that fit",
            hint="pad the input first",
        )
    result = make("AvgPool2d", (input,), *attrs)
    if divisor_override is not None:
        return pointwise.mul(result, math.prod(kernel) / divisor_override)  # type: ignore[no-any-return]
    if count_include_pad or attrs[2] == (0, 0):
        return result
    inside = views.full((1, 1, *input.shape[2:]), 1.0, input.dtype)
    return pointwise.div(result, make("AvgPool2d", (inside,), *attrs))  # type: ignore[no-any-return]


def _whole_windows(input: Expr, output_size: Size) -> tuple[int, ...]:
    """The window of an adaptive pooling, if it is the same everywhere.

    Raises:
        ShapeError: the output size doesn't divide the input's.
    """
    sizes = (output_size,) if isinstance(output_size, int) else tuple(output_size)
    sizes = sizes * 2 if len(sizes) == 1 else sizes
    extents = input.shape[-2:]
    if builtins.any(extent % size for extent, size in zip(extents, sizes, strict=True)):
        raise ShapeError(
            what="adaptive pooling to a size that doesn't divide the input's",
            got=f"{extents} to {sizes}",
            expected="a divisor on each axis",
            hint="resize the input first",
        )
    return tuple(extent // size for extent, size in zip(extents, sizes, strict=True))


def adaptive_avg_pool2d(input: Expr, output_size: Size) -> Expr:
    """Average pooling to a given size that divides the input's; to 1x1 it is a mean."""
    kernel = _whole_windows(input, output_size)
    if kernel == input.shape[-2:]:
        return mean(input, (-2, -1), keepdim=True)
    return input if kernel == (1, 1) else avg_pool2d(input, kernel, kernel)


def adaptive_max_pool2d(input: Expr, output_size: Size) -> Expr:
    """Maximum pooling to a given size that divides the input's; to 1x1 it is a maximum."""
    kernel = _whole_windows(input, output_size)
    if kernel == input.shape[-2:]:
        return amax(input, (-2, -1), keepdim=True)
    return max_pool2d(input, kernel, kernel)
