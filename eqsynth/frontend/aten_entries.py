"""Entries of the ATen table for operators whose arguments differ from the functions in ``ops/``.

Each entry takes the arguments of one ATen operator in the order of its schema, and returns terms,
or refuses the case by an ``EqsynthError``. For example, ``aten::native_batch_norm`` has a momentum
and two more results, which ``ops.batch_norm`` has not. The table from operators to entries is in
``aten.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.frontend import ops
from eqsynth.frontend.expr import Expr, as_tensor, cast
from eqsynth.frontend.ops import creation, indexing, pointwise, positions, views, writes
from eqsynth.frontend.promotion import Number, common_dtype
from eqsynth.ir.types import INTEGERS, is_float

Entry = Callable[..., Any]


def refuse(what: str, got: object, expected: str) -> NoReturn:
    raise UnsupportedOperatorError(
        what=what, got=str(got), expected=expected, hint="the operator stays opaque"
    )


def identity(input: Expr, *_rest: Any, **_options: Any) -> Expr:
    return input


def dropout(input: Expr, p: float, train: bool = True) -> Expr:
    if train and p:
        refuse("dropout in training mode", f"p = {p}", "evaluation mode")
    return input


def native_batch_norm(
    input: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mean: Expr,
    var: Expr,
    _m: float,
    eps: float,
) -> tuple[Expr, None, None]:
    return ops.batch_norm(input, mean, var, weight, bias, eps), None, None


def batch_norm(
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
        refuse("batch norm over the batch", "training", "running statistics")
    return ops.batch_norm(input, mean, var, weight, bias, eps)


def native_layer_norm(
    input: Expr, shape: Sequence[int], weight: Expr | None, bias: Expr | None, eps: float
) -> tuple[Expr, None, None]:
    return ops.layer_norm(input, shape, weight, bias, eps), None, None


def group_norm(
    input: Expr,
    groups: int,
    weight: Expr | None = None,
    bias: Expr | None = None,
    eps: float = 1e-5,
    _cudnn: bool = True,
) -> Expr:
    return ops.group_norm(input, groups, weight, bias, eps)


def instance_norm(
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


def layer_norm(
    input: Expr,
    shape: Sequence[int],
    weight: Expr | None = None,
    bias: Expr | None = None,
    eps: float = 1e-5,
    _cudnn: bool = True,
) -> Expr:
    return ops.layer_norm(input, shape, weight, bias, eps)


def convolution(
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
    axes = weight.ndim - 2
    if transposed:
        up: Entry = getattr(ops, f"conv_transpose{axes}d")
        return up(input, weight, bias, stride, padding, output_padding, groups, dilation)  # type: ignore[no-any-return]
    conv: Entry = getattr(ops, f"conv{axes}d")
    return conv(input, weight, bias, stride, padding, dilation, groups)  # type: ignore[no-any-return]


def max_pool2d_with_indices(input: Expr, *args: Any) -> tuple[Expr, None]:
    return ops.max_pool2d(input, *args), None


def avg_pool2d(
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


def scaled_size(
    input: Expr, size: Sequence[int] | None, scales: Sequence[float | None] | None
) -> Sequence[int]:
    """The size of an interpolation's result, if ``size`` and ``scales`` mean the same size.

    Raises:
        UnsupportedOperatorError: an extent times its scale isn't the extent of the result.
    """
    extents = input.shape[2:]
    if scales is None or None in scales:
        assert size is not None
        return size
    exact = [extent * scale for extent, scale in zip(extents, scales, strict=True)]  # type: ignore[operator]
    result = [int(extent) for extent in exact] if size is None else list(size)
    if exact != [float(extent) for extent in result]:
        refuse("interpolation by a factor that gives no whole size", scales, "whole sizes")
    return result


def upsample_bilinear2d_vec(
    input: Expr, size: Sequence[int] | None, align: bool, scales: Sequence[float] | None = None
) -> Expr:
    return ops.upsample_bilinear2d(input, scaled_size(input, size, scales), align)


def upsample_bilinear2d(
    input: Expr, size: Sequence[int], align: bool, *scales: float | None
) -> Expr:
    return ops.upsample_bilinear2d(input, scaled_size(input, size, scales or None), align)


def nearest(offset: float = 0.0) -> dict[str, Entry]:
    """Entries of nearest-neighbour interpolation over one to three axes, two overloads for each.

    Args:
        offset: 0 for ``upsample_nearest``, 0.5 for ``_upsample_nearest_exact``; element i of the
            result is the input's element at ``floor((i + offset) / factor)``.
    """

    def vec(input: Expr, size: Sequence[int] | None, scales: Sequence[float] | None = None) -> Expr:
        if size is None:
            assert scales is not None
            size = [int(n * scale) for n, scale in zip(input.shape[2:], scales, strict=True)]
        return ops.upsample_nearest(input, size, scales, offset)

    def default(input: Expr, size: Sequence[int], *scales: float | None) -> Expr:
        return ops.upsample_nearest(input, size, scales or None, offset)

    name = "aten::_upsample_nearest_exact" if offset else "aten::upsample_nearest"
    return {
        **{f"{name}{rank}d.vec": vec for rank in (1, 2, 3)},
        **{f"{name}{rank}d": default for rank in (1, 2, 3)},
    }


def index(input: Expr, indices: Sequence[Expr | None]) -> Expr:
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    for _, place in given:
        if place.dtype not in ("int32", "int64"):
            refuse("indexing by a mask", place.dtype, "int32 or int64")
    if not given:
        refuse("indexing by nothing", len(given), "an index tensor")
    if len(given) > 1:
        return indexing.at_indices(input, dict(given))
    axis, place = given[0]
    return indexing.take_rows(input, axis, place)


def embedding_bag(
    weight: Expr,
    indices: Expr,
    offsets: Expr,
    scale_grad: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Expr | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Expr, None, None, None]:
    """Sums or means of bags of one length, which begin at known places: (b * n), offsets 0, n, 2 n,
    … Bags of other lengths, and ids that a bag leaves out, stay with torch. So do the largest of a
    bag, since torch's is NaN only if the first is, and weights in 16 bits, whose products torch
    doesn't round."""
    starts = positions.known_value(offsets.tensor)
    count = len(starts) - include_last_offset if starts is not None and starts.ndim else 0
    size = indices.shape[0] // count if count > 0 and indices.ndim == 1 else 0
    regular = size > 0 and [*starts] == [size * n for n in range(len(starts))]
    if not regular or count * size != indices.shape[0]:
        refuse("bags of several lengths", offsets.tensor.type, "known offsets 0, n, 2 n")
    if padding_idx >= 0:
        refuse("bags that leave an id out", padding_idx, "no padding_idx")
    if mode > 1:
        refuse("the largest of a bag", mode, "a sum or a mean")
    rows = indexing.embedding(weight, ops.reshape(indices, (count, size)))
    if per_sample_weights is not None:
        if weight.dtype not in ("float32", "float64"):
            refuse("a weighted bag", weight.dtype, "float32 or float64")
        shares = ops.reshape(per_sample_weights, (count, size, 1))
        rows = pointwise.mul(rows, shares)
    return (ops.sum, ops.mean)[mode](rows, 1), None, None, None


def extreme_place(reduce: Entry) -> Entry:
    """The entry of argmax (argmin) on integers: the first position of the largest element.

        argmax(x)   ->   the least j with x[j] = max(x)

    On floats these operators stay opaque: ``x`` and its maximum may be computed by two kernels that
    round differently, and then no element would equal the maximum.

    Args:
        reduce: ``ops.amax`` or ``ops.amin``.
    """

    def place(input: Expr, dim: int | None = None, keepdim: bool = False) -> Expr:
        if is_float(input.dtype) or 0 in input.shape:
            refuse("the place of an extreme float", input.tensor.type, "integers")
        if dim is None:
            found = place(ops.flatten(input), 0)
            return ops.reshape(found, (1,) * input.ndim) if keepdim else found
        if not input.ndim:
            return creation.full((), 0, "int64")
        axis = views.axis_of(dim, input.ndim)
        here = pointwise.eq(input, reduce(input, axis, True))
        places = creation.iota(input.shape, axis)
        last = input.shape[axis] - 1
        return ops.amin(pointwise.where(here, places, last), axis, keepdim)

    return place


def gather(input: Expr, dim: int, index: Expr, sparse_grad: bool = False) -> Expr:
    return ops.gather(input, dim, index)


def embedding(weight: Expr, indices: Expr, *_training: Any) -> Expr:
    return ops.embedding(weight, indices)


def index_put(
    input: Expr, indices: Sequence[Expr | None], values: Expr, accumulate: bool = False
) -> Expr:
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1 or given[0][1].dtype != "bool":
        refuse("a write at positions", len(given), "one mask")
    axis, mask = given[0]
    return writes.masked_write(input, mask, axis, values, accumulate)


def copy(input: Expr, src: Expr, _non_blocking: bool = False) -> Expr:
    return views.expand(cast(src, input.dtype), input.shape)


def squeeze(input: Expr, *dim: Any) -> Expr:
    return ops.squeeze(input, *dim)


def constant_pad(input: Expr, amounts: Sequence[int], value: float = 0.0) -> Expr:
    return ops.pad(input, amounts, value=value)


def in_memory(args: Sequence[Any], strides: Sequence[int], begin: int) -> tuple[Any, ...] | None:
    """Rewrite the arguments of ``as_strided`` so that they hold for the tensor's order in memory.

    ``as_strided`` reads memory by strides and an offset, and a term has no memory. Therefore the
    tensor's axes are permuted into the order of memory, slowest axis first, and the offset counts
    from the tensor's first element.

    Args:
        args: the tensor, size, strides, and optionally the offset in the storage.
        strides: the tensor's own strides.
        begin: the position of the tensor's first element in its storage.

    Returns:
        The new arguments; None if the tensor has gaps in memory, or elements that overlap.
    """
    input, size, stride, *offset = args
    order = sorted(range(input.ndim), key=lambda a: (input.shape[a] != 1, -strides[a]))
    step = 1
    for axis in reversed(order):
        if input.shape[axis] != 1 and strides[axis] != step:
            return None
        step *= input.shape[axis]
    given = offset[0] if offset else None
    return ops.permute(input, order), size, stride, 0 if given is None else given - begin


# -- overloads that differ in more than their types -------------------------------------------


def max_dim(input: Expr, dim: int, keepdim: bool = False) -> tuple[Expr, None]:
    return ops.amax(input, dim, keepdim), None


def min_dim(input: Expr, dim: int, keepdim: bool = False) -> tuple[Expr, None]:
    return ops.amin(input, dim, keepdim), None


def spread(function: Callable[..., Any]) -> dict[str, Entry]:
    """Entries of the overloads of var, std and var_mean, by ``unbiased`` and by ``correction``.

    On float64 these operators stay opaque. For values around 1e6, squares around a mean that was
    rounded lose five digits, and there is no wider dtype to compute the mean in; torch's own
    algorithm keeps the digits.
    """

    def checked(input: Expr, *args: Any) -> Any:
        if input.dtype == "float64":
            refuse(f"{function.__name__} of float64", input.tensor.type, "a dtype below float64")
        return function(input, *args)

    def correction(
        input: Expr,
        dim: Any = None,
        *,
        correction: Number | None = None,
        keepdim: bool = False,
    ) -> Any:
        return checked(input, dim, 1 if correction is None else correction, keepdim)

    def over(input: Expr, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
        return checked(input, dim, int(unbiased), keepdim)

    def default(input: Expr, unbiased: bool = True) -> Any:
        return checked(input, None, int(unbiased), False)

    name = f"aten::{function.__name__}"
    return {f"{name}.correction": correction, f"{name}.dim": over, name: default}


def to_device(input: Expr, _device: Any, dtype: str, *_rest: Any) -> Expr:
    return cast(input, dtype)


def to_dtype(input: Expr | Number, dtype: str | None = None, *_rest: Any) -> Expr:
    # The 2 of ``vmap(vmap(lambda r: r * 2))(x)``: a number in the place of a tensor.
    if not isinstance(input, Expr):
        return creation.full((), input, dtype)
    return cast(input, dtype) if dtype else input


def to_other(input: Expr, other: Expr, *_rest: Any) -> Expr:
    return cast(input, other.dtype)


# -- constants --------------------------------------------------------------------------------


def full(size: Sequence[int], value: Number, dtype: str | None = None) -> Expr:
    return creation.full(size, value, dtype)


def filled(value: Number) -> dict[str, Entry]:
    def new(_like: Expr, size: Sequence[int], dtype: str | None = None) -> Expr:
        return creation.full(size, value, dtype or _like.dtype)

    def like(input: Expr, dtype: str | None = None) -> Expr:
        return creation.full(input.shape, value, dtype or input.dtype)

    def sized(size: Sequence[int], dtype: str | None = None) -> Expr:
        return creation.full(size, value, dtype or "float32")

    name = "ones" if value else "zeros"
    entries: dict[str, Entry] = {
        f"aten::{name}": sized,
        f"aten::{name}_like": like,
        f"aten::new_{name}": new,
    }
    if not value:
        # The elements of an empty tensor are undefined, so zeros are right.
        entries |= {"aten::empty": sized, "aten::empty_like": like, "aten::new_empty": new}
    return entries


def full_like(input: Expr, value: Number, dtype: str | None = None) -> Expr:
    return creation.full(input.shape, value, dtype or input.dtype)


def new_full(input: Expr, size: Sequence[int], value: Number, dtype: str | None = None) -> Expr:
    return creation.full(size, value, dtype or input.dtype)


def fill(input: Expr, value: Number | Expr) -> Expr:
    if not isinstance(value, Expr):
        return creation.full(input.shape, value, input.dtype)
    if value.ndim:
        refuse("a tensor is filled by several numbers", value.tensor.type, "rank 0")
    return views.expand(as_tensor(value, input.dtype), input.shape)


def scalar_tensor(value: Number, dtype: str | None = None) -> Expr:
    return creation.full((), value, dtype or "float32")


def arange(
    start: Number, end: Number | None = None, step: Number = 1, dtype: str | None = None
) -> Expr:
    return creation.arange(start, end, step, dtype)


def eye(n: int, m: int | None = None, dtype: str | None = None) -> Expr:
    shape = (n, n if m is None else m)
    same = pointwise.eq(creation.iota(shape, 0), creation.iota(shape, 1))
    return cast(same, dtype or "float32")


# -- compositions that keep their operators ---------------------------------------------------


def celu(input: Expr, alpha: float = 1.0) -> Expr:
    return ops.elu(input, alpha, 1.0, 1 / alpha)


def rrelu(
    input: Expr,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    _generator: Any = None,
) -> Expr:
    if training:
        refuse("a random slope", "training", "evaluation")
    return ops.leaky_relu(input, (lower + upper) / 2)


def vector_norm(
    input: Expr, order: Number = 2, dim: Any = None, keepdim: bool = False, dtype: str | None = None
) -> Expr:
    if not is_float(input.dtype):
        refuse("a norm of integers", input.dtype, "floats")
    input = cast(input, dtype) if dtype else input
    if order == 2:
        return ops.sqrt(ops.sum(ops.square(input), dim, keepdim))
    if order not in (1, math.inf):
        refuse("a vector norm of another order", order, "1, 2 or infinity")
    size = ops.abs(input)
    return ops.sum(size, dim, keepdim) if order == 1 else ops.amax(size, dim, keepdim)


def glu(input: Expr, dim: int = -1) -> Expr:
    value, gate = ops.chunk(input, 2, dim)
    return pointwise.glu(value, gate)


def nonzero_divisor(function: Entry) -> Entry:
    """The entry of a division that rounds (``function``).

    It refuses integers divided by a tensor or by 0, since torch raises an error where a divisor is
    0, and the IR's operators don't.
    """

    def divided(input: Expr | Number, other: Expr | Number, **options: Any) -> Any:
        kinds = [o.tensor.type if isinstance(o, Expr) else o for o in (input, other)]
        if common_dtype(kinds) in INTEGERS and (isinstance(other, Expr) or not other):
            refuse("integers are divided by what may be 0", other, "a number that isn't 0")
        return function(input, other, **options)

    return divided


def div(input: Expr, other: Expr | Number, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return ops.div(input, other)
    return nonzero_divisor(ops.div)(input, other, rounding_mode=rounding_mode)


def log_softmax_half(input: Expr, dim: int, _half_to_float: bool) -> Expr:
    return ops.log_softmax(input, dim)


def softmax_half(input: Expr, dim: int, _half_to_float: bool) -> Expr:
    return ops.softmax(input, dim)
