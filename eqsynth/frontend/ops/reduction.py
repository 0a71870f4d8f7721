"""Reductions, softmax, normalization and pooling under torch's names."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from eqsynth.errors import DtypeError, ShapeError, UnsupportedOperatorError
from eqsynth.frontend.expr import Expr, cast, make
from eqsynth.frontend.ops import creation, pointwise, views
from eqsynth.frontend.promotion import Number, dtype_name
from eqsynth.ir.inference import window
from eqsynth.ir.types import is_float, promote

if TYPE_CHECKING:
    from eqsynth.frontend.promotion import Dtype

Dim = int | Sequence[int] | None
Size = int | Sequence[int]


def _reduce(operator: str, input: Expr, dim: Dim, keepdim: bool) -> Expr:
    axes = views.axes_of(dim, input.ndim)
    return make(operator, (input,), axes, int(keepdim)) if input.ndim else input


def _require_floats(name: str, input: Expr) -> None:
    if not is_float(input.dtype):
        raise DtypeError(
            what=f"{name} of integers", got=input.dtype, expected="floats", hint="cast to a float"
        )


def sum(input: Expr, dim: Dim = None, keepdim: bool = False, dtype: Dtype | None = None) -> Expr:
    """The sum over axes, all by default; integers and bools give int64.

    Raises:
        UnsupportedOperatorError: integers are to be added as floats of 16 bits.
    """
    return _in_whole("ReduceSum", input, dim, keepdim, dtype)


def prod(input: Expr, dim: Dim = None, keepdim: bool = False, dtype: Dtype | None = None) -> Expr:
    """The product over axes, all by default; integers and bools give int64.

    Raises:
        UnsupportedOperatorError: integers are to be multiplied as floats of 16 bits.
    """
    return _in_whole("ReduceProd", input, dim, keepdim, dtype)


def _in_whole(
    operator: str, input: Expr, dim: Dim, keepdim: bool, given: Dtype | None
) -> Expr:
    """A sum or a product in a dtype, which is int64 by default for integers and bools.

    Raises:
        UnsupportedOperatorError: integers are to be reduced as floats of 16 bits.
    """
    dtype = dtype_name(given)
    if dtype in ("float16", "bfloat16") and not is_float(input.dtype):
        raise UnsupportedOperatorError(
            what="integers are reduced as floats of 16 bits",
            got=f"{input.dtype} to {dtype}",
            expected="a dtype that holds the integers",
            hint="torch rounds some of them before they are added and some after; cast first",
        )
    kind = dtype or (input.dtype if is_float(input.dtype) else "int64")
    return cast(_reduce(operator, cast(input, dtype or input.dtype), dim, keepdim), kind)


def mean(input: Expr, dim: Dim = None, keepdim: bool = False, dtype: Dtype | None = None) -> Expr:
    """The mean over axes, all by default."""
    name = dtype_name(dtype)
    if name is None:
        _require_floats("mean", input)
        return _reduce("ReduceMean", input, dim, keepdim)
    if not is_float(name):
        raise DtypeError(
            what="mean of integers", got=name, expected="floats", hint="take a dtype of floats"
        )
    # Only the result is rounded: 70000 is too large for float16, but the mean of 70000 and -70000
    # isn't.
    wide = name if name == input.dtype else promote(promote(input.dtype, name), "float32")
    return cast(_reduce("ReduceMean", cast(input, wide), dim, keepdim), name)


def amax(input: Expr, dim: Dim = None, keepdim: bool = False) -> Expr:
    """The maximum over axes, all by default."""
    return _reduce("ReduceMax", input, dim, keepdim)


def amin(input: Expr, dim: Dim = None, keepdim: bool = False) -> Expr:
    """The minimum over axes, all by default."""
    return _reduce("ReduceMin", input, dim, keepdim)


def any(input: Expr, dim: Dim = None, keepdim: bool = False) -> Expr:
    """True where some element isn't 0. An empty ``dim`` means no axes, as in torch."""
    return _truth(amax, input, dim, keepdim)


def all(input: Expr, dim: Dim = None, keepdim: bool = False) -> Expr:
    """True where no element is 0. An empty ``dim`` means no axes, as in torch."""
    return _truth(amin, input, dim, keepdim)


def _truth(reduce: Callable[..., Expr], input: Expr, dim: Dim, keepdim: bool) -> Expr:
    found = cast(input, "bool")
    if dim is None or isinstance(dim, int) or dim:
        found = reduce(found, dim, keepdim)
    # torch's result for uint8 is a uint8, not a bool.
    return cast(found, "uint8") if input.dtype == "uint8" else found


def var(input: Expr, dim: Dim = None, correction: Number = 1, keepdim: bool = False) -> Expr:
    """The variance over axes: the sum of squared differences, divided by ``count - correction``."""
    return cast(_spread(input, dim, correction, keepdim)[0], input.dtype)


def var_mean(
    input: Expr, dim: Dim = None, correction: Number = 1, keepdim: bool = False
) -> tuple[Expr, Expr]:
    """Variance and mean over axes."""
    spread, centre = _spread(input, dim, correction, keepdim)
    return cast(spread, input.dtype), cast(centre, input.dtype)


def std(input: Expr, dim: Dim = None, correction: Number = 1, keepdim: bool = False) -> Expr:
    """The standard deviation over axes."""
    return cast(pointwise.sqrt(_spread(input, dim, correction, keepdim)[0]), input.dtype)


def _spread(input: Expr, dim: Dim, correction: Number, keepdim: bool) -> tuple[Expr, Expr]:
    """The variance and the mean over axes, both computed in float64, as torch does.

    In float32 the mean of numbers around 1e6 would be off by up to 0.03, and the variance would
    have 3 right digits. The variance is ``mean(d^2) - mean(d)^2`` with ``d = x - c``, which holds
    for any c; here c is the mean rounded to float32. That c is near the mean, so few digits cancel.
    For a constant row of float32 numbers, c is the constant itself, however the sum was rounded,
    and the variance is exactly 0.
    """
    _require_floats("var", input)
    wide, axes = cast(input, "float64"), views.axes_of(dim, input.ndim)
    centre = mean(wide, axes, keepdim=True)
    apart = pointwise.sub(wide, cast(cast(centre, "float32"), "float64"))
    shift = mean(apart, axes, keepdim)
    spread = pointwise.sub(mean(pointwise.square(apart), axes, keepdim), pointwise.square(shift))
    spread = pointwise.maximum(spread, 0.0)
    if correction != 0:
        count = math.prod(input.shape[axis] for axis in axes)
        left = float(max(count - correction, 0))
        spread = pointwise.div(pointwise.mul(spread, float(count)), left)
    return spread, centre if keepdim or not input.ndim else views.squeeze(centre, axes)


def cumsum(input: Expr, dim: int, dtype: Dtype | None = None) -> Expr:
    """The sums of all elements up to each one along an axis: ``result[i] = sum_{k <= i} x[k]``.

    Raises:
        DtypeError: the elements are integers or bools, which torch adds up as int64.
    """
    input = cast(input, dtype_name(dtype)) if dtype else input
    _require_floats("cumsum", input)
    return make("CumSum", (input,), views.axis_of(dim, input.ndim)) if input.ndim else input


def softmax(input: Expr, dim: int, dtype: Dtype | None = None) -> Expr:
    """``exp(x) / sum(exp(x))`` on one axis."""
    input = cast(input, dtype_name(dtype)) if dtype else input
    return make("Softmax", (input,), views.axis_of(dim, input.ndim))


def log_softmax(input: Expr, dim: int, dtype: Dtype | None = None) -> Expr:
    """``x - log(sum(exp(x)))`` on one axis."""
    input = cast(input, dtype_name(dtype)) if dtype else input
    _require_floats("log_softmax", input)
    centred = pointwise.sub(input, amax(input, dim, keepdim=True))
    total = sum(pointwise.exp(centred), dim, keepdim=True)
    return pointwise.sub(centred, pointwise.log(total))  # type: ignore[no-any-return]


def logsumexp(input: Expr, dim: Dim, keepdim: bool = False) -> Expr:
    """``log(sum(exp(x)))`` over axes."""
    peak = amax(input, dim, keepdim=True)
    # Where the peak is infinite, 0 is subtracted instead, since inf - inf is NaN.
    infinite = pointwise.eq(pointwise.abs(peak), math.inf)
    peak = pointwise.where(infinite, 0.0, peak)
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
    """Normalize the last axes to mean 0 and variance 1, then scale and shift.

    Raises:
        ShapeError: the input's last axes don't have the extents ``normalized_shape``.
    """
    shape = tuple(normalized_shape)
    if not shape or shape != input.shape[-len(shape) :]:
        raise ShapeError(
            what="layer_norm: the input doesn't end with these axes",
            got=f"{shape} of {input.tensor.type}",
            expected="the extents of the last axes, one at least",
            hint="permute the axes to normalize to the end",
        )
    weight = creation.full(shape, 1.0, input.dtype) if weight is None else weight
    bias = creation.full(shape, 0.0, input.dtype) if bias is None else bias
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
    """Batch norm in inference: ``input * s + t`` with s = weight / sqrt(var + eps) and
    t = bias - mean * s.

    s and t are terms over weights, so they are computed once, when the program is optimized.
    """
    scale = pointwise.rsqrt(pointwise.add(running_var, eps))
    scale = scale if weight is None else pointwise.mul(weight, scale)
    shift = pointwise.mul(running_mean, scale)
    shift = pointwise.neg(shift) if bias is None else pointwise.sub(bias, shift)
    channels = (input.shape[1], *(1,) * (input.ndim - 2))
    scale, shift = (cast(views.reshape(v, channels), input.dtype) for v in (scale, shift))
    return pointwise.add(pointwise.mul(input, scale), shift)  # type: ignore[no-any-return]


def _affine(input: Expr, weight: Expr | None, bias: Expr | None) -> Expr:
    """``input * weight + bias``, with one weight and one bias per channel (axis 1)."""
    channels = (input.shape[1], *(1,) * (input.ndim - 2))
    result = input
    if weight is not None:
        result = pointwise.mul(result, views.reshape(weight, channels))
    if bias is not None:
        result = pointwise.add(result, views.reshape(bias, channels))
    return cast(result, input.dtype)


def group_norm(
    input: Expr,
    num_groups: int,
    weight: Expr | None = None,
    bias: Expr | None = None,
    eps: float = 1e-5,
) -> Expr:
    """Normalize each group of channels to mean 0 and variance 1, then scale and shift each channel.

    Raises:
        ShapeError: the groups don't divide the channels.
    """
    n, c, *spatial = input.shape
    if num_groups < 1 or c % num_groups:
        raise ShapeError(
            what="group_norm: the groups don't divide the channels",
            got=f"{num_groups} groups of {c} channels",
            expected=f"a divisor of {c}",
            hint="take another number of groups",
        )
    groups = views.reshape(input, (n, num_groups, c // num_groups * math.prod(spatial)))
    result = layer_norm(groups, groups.shape[2:], eps=eps)
    return _affine(views.reshape(result, input.shape), weight, bias)


def instance_norm(
    input: Expr, weight: Expr | None = None, bias: Expr | None = None, eps: float = 1e-5
) -> Expr:
    """Normalize each channel of each sample to mean 0 and variance 1, then scale and shift it."""
    return group_norm(input, input.shape[1], weight, bias, eps)


# -- pooling ------------------------------------------------------------------------------------


def _pair(value: Size, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    sizes = (value,) if isinstance(value, int) else tuple(value) or default
    return sizes * 2 if len(sizes) == 1 else sizes


def _overhang(
    input: Expr, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:  # fmt: skip
    """The number of elements that ``ceil_mode`` reads beyond the padded end of each axis.

    As in torch, a last window that reaches over the end counts if it starts inside the input or the
    padding in front of it.
    """
    result = []
    for extent, k, s, p, d in zip(input.shape[2:], kernel, stride, padding, dilation, strict=True):
        if s < 1:
            return [0, 0]  # the operator refuses such a window
        floor = window(extent, k, s, p, d)
        last = -(-(extent + 2 * p - d * (k - 1) - 1) // s)
        more = last + 1 > floor and last * s < extent + p
        result.append(last * s + d * (k - 1) + 1 - (extent + 2 * p) if more else 0)
    return result


def _require_half(kernel: Sequence[int], padding: Sequence[int]) -> None:
    if builtins.any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        raise ShapeError(
            what="pooling: a window could lie in the padding alone",
            got=f"padding {tuple(padding)}, windows of {tuple(kernel)}",
            expected="at most half of the window",
            hint="pad the input first",
        )


def max_pool2d(
    input: Expr,
    kernel_size: Size,
    stride: Size = (),
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
) -> Expr:
    """``(n, c, h, w) -> (n, c, h', w')``, padded by -inf; the batch axis may be left out."""
    if input.ndim == 3:
        rest = (kernel_size, stride, padding, dilation, ceil_mode)
        return views.squeeze(max_pool2d(views.unsqueeze(input, 0), *rest), 0)
    kernel = _pair(kernel_size)
    attrs = (kernel, _pair(stride, kernel), _pair(padding), _pair(dilation))
    _require_half(attrs[0], attrs[2])
    if ceil_mode:
        down, right = _overhang(input, *attrs)
        if down or right:
            # -inf pads with the least value of the dtype: for integers it becomes their minimum.
            input = make("Pad", (input,), (0,) * 4, (0, 0, down, right), -math.inf)
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
    _require_half(attrs[0], attrs[2])
    if ceil_mode and _overhang(input, *attrs) != [0, 0]:
        raise ShapeError(
            what="avg_pool2d: ceil_mode with windows that reach beyond the padding",
            got=str(input.tensor.type),
            expected="windows that fit",
            hint="pad the input first",
        )
    result = make("AvgPool2d", (input,), *attrs)
    if divisor_override == 0:
        raise ShapeError(
            what="avg_pool2d: a sum is divided by 0", got="divisor_override = 0",
            expected="any other number", hint="",
        )  # fmt: skip
    if divisor_override is not None:
        return pointwise.mul(result, math.prod(kernel) / divisor_override)  # type: ignore[no-any-return]
    if count_include_pad or attrs[2] == (0, 0):
        return result
    inside = creation.full((1, 1, *input.shape[2:]), 1.0, input.dtype)
    return pointwise.div(result, make("AvgPool2d", (inside,), *attrs))  # type: ignore[no-any-return]


def _whole_windows(input: Expr, output_size: Size) -> tuple[int, ...]:
    """The window of an adaptive pooling, which is the same everywhere: 8 elements to 4 -> 2.

    Raises:
        ShapeError: the output size doesn't divide the input's.
    """
    sizes = (output_size,) if isinstance(output_size, int) else tuple(output_size)
    sizes = sizes * 2 if len(sizes) == 1 else sizes
    extents = input.shape[-2:]
    pairs = tuple(zip(extents, sizes, strict=True))
    if 0 in sizes or builtins.any(extent % size for extent, size in pairs):
        raise ShapeError(
            what="adaptive pooling to a size that doesn't divide the input's",
            got=f"{extents} to {sizes}",
            expected="a divisor on each axis",
            hint="resize the input first",
        )
    return tuple(extent // size for extent, size in pairs)


def adaptive_avg_pool2d(input: Expr, output_size: Size) -> Expr:
    """Average pooling to a size that divides the input's; pooling to 1x1 is a mean."""
    _require_floats("adaptive_avg_pool2d", input)
    kernel = _whole_windows(input, output_size)
    if kernel == input.shape[-2:]:
        return mean(input, (-2, -1), keepdim=True)
    return input if kernel == (1, 1) else avg_pool2d(input, kernel, kernel)


def adaptive_max_pool2d(input: Expr, output_size: Size) -> Expr:
    """Maximum pooling to a size that divides the input's; pooling to 1x1 is a maximum."""
    kernel = _whole_windows(input, output_size)
    if kernel == input.shape[-2:]:
        return amax(input, (-2, -1), keepdim=True)
    return max_pool2d(input, kernel, kernel)
