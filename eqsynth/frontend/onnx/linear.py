"""Matrix products, normalization, and operators on quantized tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from eqsynth.frontend.onnx.elementwise import to_dtype
from eqsynth.frontend.onnx.table import Refused, axis_of, dtype_of, op
from eqsynth.frontend.onnx.windows import windows
from eqsynth.lower.onnx_operator import NUMBERS

Tensor = torch.Tensor


@op("MatMul")
def matmul(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


@op("Gemm")
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(f"matrices of rank {a.ndim} and {b.ndim}")
    a = a.T if transA else a
    if alpha == beta == 1 and transB and (c is None or c.shape == b.shape[:1]):
        return F.linear(a, b, c)
    result = torch.matmul(a, b.T if transB else b)
    # An integer tensor times a float is a float tensor in torch; ONNX keeps the integers' dtype.
    if alpha != 1:
        result = torch.mul(result, alpha).to(a.dtype)
    if c is None:
        return result
    if torch.broadcast_shapes(c.shape, result.shape) != result.shape:
        raise ValueError(f"a matrix of {list(result.shape)} and an addend of {list(c.shape)}")
    return result + (c if beta == 1 else torch.mul(c, beta).to(a.dtype))


@op("Einsum")
def einsum(*xs: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *xs)


@op("Det")
def det(x: Tensor) -> Tensor:
    found: Tensor = torch.linalg.det(x)
    return found


# ---- normalization ------------------------------------------------------------------------------


@op("BatchNormalization")
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Any:
    if not training_mode:
        if len({t.dtype for t in (x, scale, bias, mean, var)}) != 1:
            raise Refused("a batch norm of several dtypes")
        return F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)
    axes = [0, *range(2, x.ndim)]
    now, spread = torch.mean(x, axes), torch.var(x, axes, correction=0)
    result = F.batch_norm(x, now, spread, scale, bias, False, 0.0, epsilon)
    return (
        result,
        mean * momentum + now * (1 - momentum),
        var * momentum + spread * (1 - momentum),
    )


@op("InstanceNormalization")
def instance_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5
) -> Tensor:
    return F.instance_norm(x, None, None, scale, bias, True, 0.0, epsilon)


@op("LayerNormalization")
def layer_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    outputs: int = 1,
) -> Tensor:
    shape = list(x.shape[axis_of(axis, x.ndim) :])
    if outputs > 1 or stash_type != 1 or x.dtype == torch.float64:
        raise Refused("statistics that torch doesn't give")
    fits = list(scale.shape) == shape and (bias is None or list(bias.shape) == shape)
    if fits:
        return F.layer_norm(x, shape, scale, bias, epsilon)
    result = F.layer_norm(x, shape, None, None, epsilon) * scale
    return result if bias is None else result + bias


@op("GroupNormalization")
def group_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    epsilon: float = 1e-5,
    num_groups: int,
    stash_type: int = 1,
    opset: int,
) -> Tensor:
    if stash_type != 1:
        raise Refused("a norm that is computed in another dtype")
    if opset < 21:  # before, there was one scale a group, and not one a channel
        each = x.shape[1] // num_groups
        scale, bias = scale.repeat_interleave(each), bias.repeat_interleave(each)
    return F.group_norm(x, num_groups, scale, bias, epsilon)


@op("RMSNormalization")
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    shape = list(x.shape[axis_of(axis, x.ndim) :])
    if stash_type != 1 or x.dtype != torch.float32 or list(scale.shape) != shape:
        raise Refused("a norm whose square is kept in another dtype")
    return F.rms_norm(x, shape, scale, epsilon)


@op("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    size = torch.sum(torch.abs(x), axis, True) if p == 1 else (x * x).sum(axis, True).sqrt()
    return torch.where(size == 0, torch.zeros_like(x), x / size)


@op("LRN")
def local_response_normalization(
    x: Tensor, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int
) -> Tensor:
    if size < 1 or size > 1 << 20:
        raise ValueError(f"a size of {size}")
    before, after = (size - 1) // 2, size // 2
    squares = F.pad(x * x, [0, 0] * (x.ndim - 2) + [before, after])
    total = squares.unfold(1, size, 1).sum(-1)
    return x / (bias + alpha / size * total) ** beta


# ---- integers in the place of floats ------------------------------------------------------------


def _over(x: Tensor, value: Tensor, axis: int, block: int) -> Tensor:
    """Shape a scale or zero point so that it broadcasts with ``x``.

    Args:
        value: one number for all of ``x``, one per element of ``axis``, or one per block.
        block: the number of elements of ``axis`` that share a number; 0 without blocks.
    """
    if value.numel() == 1 and value.ndim <= 1 and not block:
        return value.reshape(())
    at = axis_of(axis, x.ndim)
    if block:
        spread = value.repeat_interleave(block, at)
        return spread.narrow(at, 0, x.shape[at])
    if value.ndim != 1:
        raise Refused(f"scales of rank {value.ndim}")
    return value.reshape([-1] + [1] * (x.ndim - 1 - at))


_RANGES = {torch.uint8, torch.int8, torch.int16, torch.uint16}


@op("QuantizeLinear")
def quantize_linear(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Tensor:
    dtype = zero.dtype if zero is not None else dtype_of(output_dtype or NUMBERS[torch.uint8])
    if precision or not x.is_floating_point() or scale.dtype != x.dtype:
        raise Refused("a division in another precision")
    scaled = x / _over(x, scale, axis, block_size)
    if dtype.is_floating_point:
        if zero is not None:
            raise Refused("a zero point of floats")
        return to_dtype(scaled, dtype, bool(saturate))
    if dtype not in _RANGES or x.dtype not in (torch.float32, torch.float16):
        raise Refused(f"{x.dtype} as {dtype}")
    return _quantized(scaled.float(), zero, dtype, lambda z: _over(x, z, axis, block_size))


def _quantized(scaled: Tensor, zero: Tensor | None, dtype: torch.dtype, over: Any) -> Tensor:
    """Round to even, add the zero point, and clamp to the range of the integer dtype."""
    rounded = torch.round(scaled)
    if zero is not None:
        rounded = rounded + over(zero).to(torch.float32)
    info = torch.iinfo(dtype)
    return torch.clamp(rounded, info.min, info.max).to(torch.int32).to(dtype)


@op("DequantizeLinear")
def dequantize_linear(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    if output_dtype and dtype_of(output_dtype) != scale.dtype:
        raise Refused("a product in another dtype")
    if scale.dtype not in (torch.float32, torch.float16):
        raise Refused(f"a scale of {scale.dtype}")
    if x.dtype in (torch.uint32, torch.uint64, torch.int64):
        raise Refused(f"{x.dtype} less its zero point in 32 bits")
    if x.is_floating_point():
        moved = x.to(torch.float32)
        if zero is not None:
            moved = moved - _over(x, zero, axis, block_size).to(torch.float32)
    else:
        moved = x.to(torch.int32)
        if zero is not None:
            moved = moved - _over(x, zero, axis, block_size).to(torch.int32)
    return (moved.to(torch.float32) * _over(x, scale, axis, block_size).float()).to(scale.dtype)


def _less_zero(x: Tensor, zero: Tensor | None, axis: int | None) -> Tensor:
    """``x - zero`` as float64, which holds integers, and sums of their products, exactly.

    Args:
        axis: the axis of ``x`` that a zero point with several elements belongs to.
    """
    wide = x.to(torch.float64)
    if zero is None:
        return wide
    if zero.numel() == 1:
        return wide - zero.reshape(()).to(torch.float64)
    if zero.ndim != 1 or axis is None:
        raise Refused(f"zero points of rank {zero.ndim}")
    shape = [-1] + [1] * (x.ndim - 1 - axis_of(axis, x.ndim))
    return wide - zero.to(torch.float64).reshape(shape)


@op("MatMulInteger")
def matmul_integer(
    a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    return torch.matmul(_less_zero(a, a_zero, -2), _less_zero(b, b_zero, -1)).to(torch.int32)


@op("QLinearMatMul")
def q_linear_matmul(
    a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor,
    y_scale: Tensor, y_zero: Tensor,
) -> Tensor:  # fmt: skip
    if any(t.numel() != 1 for t in (a_scale, a_zero, b_scale, b_zero, y_scale, y_zero)):
        raise Refused("scales by row or column")
    if y_scale.dtype != torch.float32:
        raise Refused(f"scales of {y_scale.dtype}")
    if y_zero.dtype not in _RANGES:
        raise Refused(f"numbers as {y_zero.dtype}")
    product = torch.matmul(_less_zero(a, a_zero, None), _less_zero(b, b_zero, None))
    factor = (a_scale * b_scale / y_scale).reshape(())
    return _quantized(product.float() * factor, y_zero.reshape(()), y_zero.dtype, lambda z: z)


@op("ConvInteger")
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    wide = _less_zero(x, x_zero, None)
    return _conv_wide(wide, _less_zero(w, w_zero, 0), auto_pad, dilations, group, pads,
                      strides).to(torch.int32)  # fmt: skip


def _conv_wide(
    x: Tensor, w: Tensor, auto_pad: str, dilations: Any, group: int, pads: Any, strides: Any
) -> Tensor:
    if x.ndim != 4:
        raise Refused(f"a convolution over {x.ndim - 2} axes")
    at = windows(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    padded = F.pad(x, at.flat_pads())
    return F.conv2d(padded, w, None, list(at.stride), 0, list(at.dilation), group)


@op("QLinearConv")
def q_linear_conv(
    x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor,
    y_scale: Tensor, y_zero: Tensor, b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    if any(t.numel() != 1 for t in (x_scale, x_zero, y_scale, y_zero)) or w_scale.ndim > 1:
        raise Refused("scales by place")
    product = _conv_wide(_less_zero(x, x_zero, None), _less_zero(w, w_zero, 0), auto_pad,
                         dilations, group, pads, strides)  # fmt: skip
    if b is not None:
        product = product + b.to(torch.float64).reshape(-1, 1, 1)
    factor = x_scale.reshape(()) * w_scale.reshape(-1, 1, 1) / y_scale.reshape(())
    return _quantized(product.float() * factor, y_zero.reshape(()), y_zero.dtype, lambda z: z)


