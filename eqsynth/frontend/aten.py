"""The table from ATen operators to eqsynth's: one entry an operator or overload.

An entry takes the operator's arguments as ATen's schema orders them, tensors as :class:`Expr`, dtypes as
names. It may refuse a case by raising an ``EqsynthError``; the operator is then decomposed or stays
opaque. Keys are ``namespace::operator`` for all overloads, or with ``.overload`` for one.
Entries for operators that torch composes of others are here only where the whole is worth keeping.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.frontend import ops
from eqsynth.frontend.expr import Expr, as_tensor, cast
from eqsynth.frontend.ops import pointwise, views
from eqsynth.frontend.promotion import Number

Entry = Callable[..., Any]


def _refuse(what: str, got: object, expected: str) -> NoReturn:
    raise UnsupportedOperatorError(
        what=what, got=str(got), expected=expected, hint="the operator stays opaque"
    )


def _identity(input: Expr, *_rest: Any, **_options: Any) -> Expr:
    return input


def _dropout(input: Expr, p: float, train: bool = True) -> Expr:
    if train and p:
        _refuse("dropout in training mode", f"p = {p}", "evaluation mode")
    return input


def _native_batch_norm(
    input: Expr, weight: Expr | None, bias: Expr | None, mean: Expr, var: Expr, _m: float, eps: float
) -> tuple[Expr, None, None]:
    return ops.batch_norm(input, mean, var, weight, bias, eps), None, None


def _batch_norm(
    input: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mean: Expr | None,
    var: Expr | None,
    training: bool,
    _momentum: float,
    eps: float,
    *_cudnn: bool,
) -> Expr:
    if training or mean is None or var is None:
        _refuse("batch norm over the batch", "training", "running statistics")
    return ops.batch_norm(input, mean, var, weight, bias, eps)


def _native_layer_norm(
    input: Expr, shape: Sequence[int], weight: Expr | None, bias: Expr | None, eps: float
) -> tuple[Expr, None, None]:
    return ops.layer_norm(input, shape, weight, bias, eps), None, None


def _group_norm(
    input: Expr,
    groups: int,
    weight: Expr | None = None,
    bias: Expr | None = None,
    eps: float = 1e-5,
    _cudnn: bool = True,
) -> Expr:
    return ops.group_norm(input, groups, weight, bias, eps)


def _instance_norm(
    input: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mean: Expr | None,
    var: Expr | None,
    use_input_stats: bool,
    _momentum: float,
    eps: float,
    _cudnn: bool,
) -> Expr:
    if use_input_stats or mean is None or var is None:
        return ops.instance_norm(input, weight, bias, eps)
    return ops.batch_norm(input, mean, var, weight, bias, eps)


def _layer_norm(
    input: Expr,
    shape: Sequence[int],
    weight: Expr | None = None,
    bias: Expr | None = None,
    eps: float = 1e-5,
    _cudnn: bool = True,
) -> Expr:
    return ops.layer_norm(input, shape, weight, bias, eps)


def _convolution(
    input: Expr,
    weight: Expr,
    bias: Expr | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Expr:
    if weight.ndim not in (3, 4):
        _refuse("convolution over three axes", weight.tensor.type, "one or two spatial axes")
    if transposed:
        up = ops.conv_transpose1d if weight.ndim == 3 else ops.conv_transpose2d
        return up(input, weight, bias, stride, padding, output_padding, groups, dilation)
    conv = ops.conv1d if weight.ndim == 3 else ops.conv2d
    return conv(input, weight, bias, stride, padding, dilation, groups)


def _max_pool2d_with_indices(input: Expr, *args: Any) -> tuple[Expr, None]:
    return ops.max_pool2d(input, *args), None


def _avg_pool2d(
    input: Expr,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Expr:
    return ops.avg_pool2d(
        input, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def _scaled_size(
    input: Expr, size: Sequence[int] | None, scales: Sequence[float | None] | None
) -> Sequence[int]:
    """The size of an interpolation, where it means the same as the scales."""
    extents = input.shape[2:]
    if scales is None or None in scales:
        assert size is not None
        return size
    exact = [extent * scale for extent, scale in zip(extents, scales, strict=True)]  # type: ignore[operator]
    result = [int(extent) for extent in exact] if size is None else list(size)
    if exact != [float(extent) for extent in result]:
        _refuse("interpolation by a factor that gives no whole size", scales, "whole sizes")
    return result


def _upsample_bilinear2d_vec(
    input: Expr, size: Sequence[int] | None, align: bool, scales: Sequence[float] | None = None
) -> Expr:
    return ops.upsample_bilinear2d(input, _scaled_size(input, size, scales), align)


def _upsample_bilinear2d(
    input: Expr, size: Sequence[int], align: bool, *scales: float | None
) -> Expr:
    return ops.upsample_bilinear2d(input, _scaled_size(input, size, scales or None), align)


def _upsample_nearest2d_vec(
    input: Expr, size: Sequence[int] | None, scales: Sequence[float] | None = None
) -> Expr:
    return ops.upsample_nearest2d(input, _scaled_size(input, size, scales))


def _upsample_nearest2d(input: Expr, size: Sequence[int], *scales: float | None) -> Expr:
    return ops.upsample_nearest2d(input, _scaled_size(input, size, scales or None))


def _index(input: Expr, indices: Sequence[Expr | None]) -> Expr:
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        _refuse("indexing by several tensors", len(given), "one index tensor")
    return views.take_rows(input, *given[0])


def _gather(input: Expr, dim: int, index: Expr, sparse_grad: bool = False) -> Expr:
    return ops.gather(input, dim, index)


def _embedding(weight: Expr, indices: Expr, *_training: Any) -> Expr:
    return ops.embedding(weight, indices)


def _squeeze(input: Expr, *dim: Any) -> Expr:
    return ops.squeeze(input, *dim)


def _pad(
    input: Expr, amounts: Sequence[int], mode: str = "constant", value: float | None = None
) -> Expr:
    if mode != "constant":
        _refuse("padding that repeats the input", mode, "constant")
    return ops.pad(input, amounts, value=value)


def _constant_pad(input: Expr, amounts: Sequence[int], value: float = 0.0) -> Expr:
    return ops.pad(input, amounts, value=value)


# -- overloads that differ in more than their types -------------------------------------------


def _max_dim(input: Expr, dim: int, keepdim: bool = False) -> tuple[Expr, None]:
    return ops.amax(input, dim, keepdim), None


def _min_dim(input: Expr, dim: int, keepdim: bool = False) -> tuple[Expr, None]:
    return ops.amin(input, dim, keepdim), None


def _spread(function: Callable[..., Any]) -> dict[str, Entry]:
    """The overloads of var, std and var_mean: by ``unbiased`` or by ``correction``."""

    def correction(
        input: Expr,
        dim: Any = None,
        *,
        correction: Number | None = None,
        keepdim: bool = False,
    ) -> Any:
        return function(input, dim, 1 if correction is None else correction, keepdim)

    def over(input: Expr, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
        return function(input, dim, int(unbiased), keepdim)

    def default(input: Expr, unbiased: bool = True) -> Any:
        return function(input, None, int(unbiased), False)

    name = f"aten::{function.__name__}"
    return {f"{name}.correction": correction, f"{name}.dim": over, name: default}


def _to_device(input: Expr, _device: Any, dtype: str, *_rest: Any) -> Expr:
    return cast(input, dtype)


def _to_dtype(input: Expr, dtype: str | None = None, *_rest: Any) -> Expr:
    return cast(input, dtype) if dtype else input


def _to_other(input: Expr, other: Expr, *_rest: Any) -> Expr:
    return cast(input, other.dtype)


# -- constants --------------------------------------------------------------------------------


def _full(size: Sequence[int], value: Number, dtype: str | None = None) -> Expr:
    return views.full(size, value, dtype)


def _filled(value: Number) -> dict[str, Entry]:
    def new(_like: Expr, size: Sequence[int], dtype: str | None = None) -> Expr:
        return views.full(size, value, dtype or _like.dtype)

    def like(input: Expr, dtype: str | None = None) -> Expr:
        return views.full(input.shape, value, dtype or input.dtype)

    def sized(size: Sequence[int], dtype: str | None = None) -> Expr:
        return views.full(size, value, dtype or "float32")

    name = "ones" if value else "zeros"
    entries = {f"aten::{name}": sized, f"aten::{name}_like": like, f"aten::new_{name}": new}
    if not value:
        # What is empty may hold anything; zeros are as good.
        entries |= {"aten::empty": sized, "aten::empty_like": like, "aten::new_empty": new}
    return entries


def _full_like(input: Expr, value: Number, dtype: str | None = None) -> Expr:
    return views.full(input.shape, value, dtype or input.dtype)


def _new_full(input: Expr, size: Sequence[int], value: Number, dtype: str | None = None) -> Expr:
    return views.full(size, value, dtype or input.dtype)


def _fill(input: Expr, value: Number | Expr) -> Expr:
    return views.expand(as_tensor(value, input.dtype), input.shape)


def _scalar_tensor(value: Number, dtype: str | None = None) -> Expr:
    return views.full((), value, dtype or "float32")


def _arange(start: Number, *rest: Number, dtype: str | None = None) -> Expr:
    return views.arange(start, *rest, dtype=dtype)


def _eye(n: int, m: int | None = None, dtype: str | None = None) -> Expr:
    shape = (n, n if m is None else m)
    same = pointwise.eq(views.iota(shape, 0), views.iota(shape, 1))
    return cast(same, dtype or "float32")


# -- compositions that keep their operators ---------------------------------------------------


def _logical(entry: Callable[..., Any], integers: str) -> Entry:
    """A bitwise operator, which is a logical one on bools."""

    def apply(*operands: Any) -> Any:
        for operand in operands:
            if operand.dtype != "bool" if isinstance(operand, Expr) else type(operand) is not bool:
                _refuse(f"bitwise {integers} of integers", operand, "bools")
        return entry(*operands)

    return apply


def _mish(input: Expr) -> Expr:
    return input * ops.tanh(ops.softplus(input))  # type: ignore[no-any-return]


def _glu(input: Expr, dim: int = -1) -> Expr:
    value, gate = ops.chunk(input, 2, dim)
    return value * ops.sigmoid(gate)  # type: ignore[no-any-return]


def _log_sigmoid(input: Expr) -> Expr:
    return -ops.softplus(-input, threshold=math.inf)  # type: ignore[no-any-return]


def _threshold(input: Expr, threshold: Number, value: Number) -> Expr:
    return ops.masked_fill(input, ops.le(input, threshold), value)


def _scaled(function: Callable[..., Any], inner: float, outer: float) -> Entry:
    """``outer * function(inner * x)``"""
    return lambda x: pointwise.mul_if(function(pointwise.mul_if(x, inner)), outer)


def _log_softmax_half(input: Expr, dim: int, _half_to_float: bool) -> Expr:
    return ops.log_softmax(input, dim)


def _softmax_half(input: Expr, dim: int, _half_to_float: bool) -> Expr:
    return ops.softmax(input, dim)


def _addcmul(input: Expr, a: Expr, b: Expr, value: Number = 1) -> Any:
    return input + pointwise.mul_if(a * b, value)


def _addcdiv(input: Expr, a: Expr, b: Expr, value: Number = 1) -> Any:
    return input + pointwise.mul_if(a / b, value)


def _lerp(start: Expr, end: Expr, weight: Expr | Number) -> Any:
    return start + (end - start) * weight


# Entries whose arguments are those of the function in ``ops`` with the same name.
_SAME: Final = (
    "relu relu6 exp log sqrt rsqrt reciprocal abs sign floor ceil sin cos tanh erf sigmoid silu neg "
    "logical_not logical_and logical_or logical_xor maximum minimum remainder floor_divide "
    "eq ne lt le gt ge add sub rsub mul div pow square where masked_fill clamp hardtanh "
    "hardsigmoid hardswish gelu leaky_relu prelu elu softplus isnan isinf "
    "matmul linear addmm conv1d conv2d conv_transpose1d conv_transpose2d "
    "scaled_dot_product_attention sum prod mean amax amin any all softmax log_softmax logsumexp "
    "max_pool2d adaptive_avg_pool2d permute transpose t movedim flatten unflatten unsqueeze expand "
    "repeat narrow slice select unbind split chunk cat stack roll flip diagonal tril triu "
    "index_select"
).split()

TABLE: Final[dict[str, Entry]] = {
    **{f"aten::{name}": getattr(ops, name) for name in _SAME},
    # Matrix products.
    **{f"aten::{name}": ops.matmul for name in ("mm", "bmm", "mv", "dot")},
    "aten::baddbmm": ops.addmm,
    "aten::addmv": ops.addmm,
    # Convolutions, normalization, pooling, interpolation.
    "aten::convolution": _convolution,
    "aten::_native_batch_norm_legit_no_training": _native_batch_norm,
    "aten::batch_norm": _batch_norm,
    "aten::native_layer_norm": _native_layer_norm,
    "aten::layer_norm": _layer_norm,
    "aten::group_norm": _group_norm,
    "aten::instance_norm": _instance_norm,
    "aten::max_pool2d_with_indices": _max_pool2d_with_indices,
    "aten::avg_pool2d": _avg_pool2d,
    "aten::_adaptive_avg_pool2d": ops.adaptive_avg_pool2d,
    "aten::adaptive_max_pool2d": lambda x, size: (ops.adaptive_max_pool2d(x, size), None),
    "aten::upsample_bilinear2d.vec": _upsample_bilinear2d_vec,
    "aten::upsample_bilinear2d": _upsample_bilinear2d,
    "aten::upsample_nearest2d.vec": _upsample_nearest2d_vec,
    "aten::upsample_nearest2d": _upsample_nearest2d,
    # Reductions.
    "aten::max.dim": _max_dim,
    "aten::min.dim": _min_dim,
    "aten::max.other": ops.maximum,
    "aten::min.other": ops.minimum,
    "aten::max": ops.amax,
    "aten::min": ops.amin,
    **_spread(ops.var),
    **_spread(ops.std),
    **_spread(ops.var_mean),
    "aten::_softmax": _softmax_half,
    "aten::_log_softmax": _log_softmax_half,
    # Elementwise.
    **{f"aten::{name}": getattr(ops, base) for name, base in (
        ("subtract", "sub"), ("multiply", "mul"), ("divide", "div"), ("true_divide", "div"),
        ("greater", "gt"), ("greater_equal", "ge"), ("less", "lt"), ("less_equal", "le"),
        ("not_equal", "ne"), ("absolute", "abs"), ("negative", "neg"), ("sgn", "sign"),
    )},  # fmt: skip
    "aten::clamp_min": lambda x, low: ops.clamp(x, low),
    "aten::clamp_max": lambda x, high: ops.clamp(x, None, high),
    "aten::bitwise_and": _logical(ops.logical_and, "and"),
    "aten::bitwise_or": _logical(ops.logical_or, "or"),
    "aten::bitwise_xor": _logical(ops.logical_xor, "xor"),
    "aten::bitwise_not": _logical(ops.logical_not, "not"),
    "aten::mish": _mish,
    "aten::glu": _glu,
    "aten::log_sigmoid": _log_sigmoid,
    "aten::threshold": _threshold,
    "aten::exp2": _scaled(ops.exp, math.log(2), 1),
    "aten::log2": _scaled(ops.log, 1, 1 / math.log(2)),
    "aten::log10": _scaled(ops.log, 1, 1 / math.log(10)),
    "aten::addcmul": _addcmul,
    "aten::addcdiv": _addcdiv,
    "aten::lerp": _lerp,
    # Views.
    **{f"aten::{name}": ops.reshape for name in ("view", "reshape", "_unsafe_view")},
    "aten::view.dtype": lambda x, dtype: x if x.dtype == dtype else _refuse(
        "bits read as another dtype", dtype, x.dtype
    ),
    **{f"aten::{name}": lambda x, other: ops.reshape(x, other.shape)
       for name in ("view_as", "reshape_as")},  # fmt: skip
    "aten::expand_as": lambda x, other: ops.expand(x, other.shape),
    "aten::broadcast_to": ops.expand,
    "aten::numpy_T": lambda x: ops.permute(x, range(x.ndim)[::-1]),
    "aten::mT": lambda x: ops.transpose(x, -2, -1),
    "aten::squeeze": _squeeze,
    "aten::as_strided": views.as_strided,
    "aten::split_with_sizes": ops.split,
    "aten::concat": ops.cat,
    "aten::pad": _pad,
    "aten::constant_pad_nd": _constant_pad,
    **{f"aten::{name}": _identity for name in (
        "clone", "contiguous", "detach", "alias", "lift", "lift_fresh", "lift_fresh_copy",
    )},  # fmt: skip
    # Data-dependent reads.
    "aten::index.Tensor": _index,
    "aten::_unsafe_index.Tensor": _index,
    "aten::gather": _gather,
    "aten::embedding": _embedding,
    # Dtypes.
    "aten::_to_copy": _to_dtype,
    "aten::to.dtype": _to_dtype,
    "aten::to.dtype_layout": _to_dtype,
    "aten::to.device": _to_device,
    "aten::to.other": _to_other,
    "aten::type_as": _to_other,
    # Dropout outside of training.
    **{f"aten::{name}": _dropout for name in ("dropout", "feature_dropout", "alpha_dropout")},
    # Constants.
    **_filled(0),
    **_filled(1),
    "aten::full": _full,
    "aten::full_like": _full_like,
    "aten::new_full": _new_full,
    "aten::fill": _fill,
    "aten::scalar_tensor": _scalar_tensor,
    "aten::arange": _arange,
    "aten::eye": _eye,
}

# Arguments that say where or how a result is stored, which eqsynth decides itself.
STORAGE_ARGUMENTS: Final = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "requires_grad"}
)


def entry(name: str) -> Entry | None:
    """The entry for ``namespace::operator.overload``."""
    return TABLE.get(name) or TABLE.get(name.partition(".")[0])
