"""The value of each operator, computed by NumPy: one function an operator.

Floats are computed in float64, or in another arithmetic (``arithmetic.py``). The functions are
written for clarity, not speed, and share no code with the lowering of operators, so that each of
the two checks the other. Not here: scopes (``interpret.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.ir.arithmetic import Array, arithmetic
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.inference import window
from eqsynth.ir.operators import Attr, operator
from eqsynth.ir.types import TensorType, is_float, numpy_dtype


def storage(dtype: str) -> np.dtype:
    """Return the NumPy dtype that holds values of ``dtype`` here: for floats, the arithmetic's."""
    return arithmetic().dtype if is_float(dtype) else np.dtype(dtype)


def stored(value: Any, dtype: str) -> Array:
    """Convert a value to the storage of ``dtype``."""
    array = np.asarray(value).astype(storage(dtype))
    convert = arithmetic().convert
    return array if convert is None or not is_float(dtype) else convert(array)


def rounded(array: Array, dtype: str) -> Array:
    """Round an array to ``dtype``, and convert the result to the storage of ``dtype``."""
    array, cast = np.asarray(array), arithmetic().cast
    if cast is not None and array.dtype == object:
        return cast(array, dtype)
    with np.errstate(all="ignore"):
        return stored(array.astype(numpy_dtype(dtype)), dtype)


def _function(name: str, x: Any) -> Array:
    # NumPy returns a bare element, not an array, for arithmetic on arrays of rank 0.
    x = np.asarray(x)
    return np.asarray(FUNCTIONS[name].value(x)).astype(x.dtype)


def _least(dtype: np.dtype) -> int:
    return 0 if dtype.kind == "b" else int(np.iinfo(dtype).min)


def _patches(x: Array, kernel: Any, stride: Any, padding: Any, dilation: Any, fill: float) -> Array:
    """Return the windows of x, ``(n, c, h, w) -> (n, c, h', w', r, s)``, with ``fill`` outside."""
    n, c, h, w = x.shape
    (kr, ks), (sh, sw), (ph, pw), (dr, ds) = kernel, stride, padding, dilation
    least = fill if x.dtype.kind in "fO" or np.isfinite(fill) else _least(x.dtype)
    padded = np.full((n, c, h + 2 * ph, w + 2 * pw), least, dtype=x.dtype)
    padded[:, :, ph : ph + h, pw : pw + w] = x
    oh, ow = window(h, kr, sh, ph, dr), window(w, ks, sw, pw, ds)
    rows = (np.arange(oh) * sh)[:, None] + np.arange(kr) * dr
    columns = (np.arange(ow) * sw)[:, None] + np.arange(ks) * ds
    return padded[:, :, rows[:, None, :, None], columns[None, :, None, :]]


def conv2d(x: Array, w: Array, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    n, f = x.shape[0], w.shape[0]
    p = _patches(x, w.shape[2:], stride, padding, dilation, 0.0)
    p = p.reshape(n, groups, w.shape[1], *p.shape[2:])
    grouped = w.reshape(groups, f // groups, *w.shape[1:])
    out: Array = np.einsum("ngchwrs,gfcrs->ngfhw", p, grouped, optimize=True)
    return out.reshape(n, f, *out.shape[3:])


def conv_transpose2d(
    x: Array,
    w: Array,
    stride: Any,
    padding: Any,
    output_padding: Any,
    dilation: Any,
    groups: int,
) -> Array:
    """Add each input element times the kernel to the output, then crop the padding."""
    (n, c, h, width), (_, f, kr, ks) = x.shape, w.shape
    (sh, sw), (ph, pw), (oh, ow), (dr, ds) = stride, padding, output_padding, dilation
    rows, columns = (h - 1) * sh + dr * (kr - 1) + 1 + oh, (width - 1) * sw + ds * (ks - 1) + 1 + ow
    out = np.zeros((n, groups, f, max(rows, 0), max(columns, 0)), dtype=x.dtype)
    xg = x.reshape(n, groups, c // groups, h, width)
    wg = w.reshape(groups, c // groups, f, kr, ks)
    for r in range(kr):
        for s in range(ks):
            part = np.einsum("ngchw,gcf->ngfhw", xg, wg[..., r, s], optimize=True)
            out[
                ...,
                r * dr : r * dr + (h - 1) * sh + 1 : sh,
                s * ds : s * ds + (width - 1) * sw + 1 : sw,
            ] += part
    cropped = out[..., ph : rows - ph, pw : columns - pw]
    return cropped.reshape(n, groups * f, *cropped.shape[3:])


def _banded(b: Array, width: int, dilation: int) -> Array:
    """Return for each row m the rows ``m + dilation * (w - width)``, or 0 outside:
    ``(n, m, k) -> (n, m, 2*width + 1, k)``."""
    rows = b.shape[1]
    at = np.arange(rows)[:, None] + dilation * (np.arange(2 * width + 1) - width)
    inside = (at >= 0) & (at < rows)
    if not rows:
        return np.zeros((b.shape[0], 0, 2 * width + 1, b.shape[2]), b.dtype)
    return np.where(inside[:, :, None], b[:, np.where(inside, at, 0)], 0)


def _g2bmm(a: Array, b: Array, width: int, dilation: int) -> Array:
    return np.asarray(np.einsum("nmk,nmwk->nmw", a, _banded(b, width, dilation)))


def _gbmm(a: Array, b: Array, dilation: int) -> Array:
    return np.asarray(np.einsum("nmw,nmwk->nmk", a, _banded(b, a.shape[2] // 2, dilation)))


def _post(y: Array, post: str) -> Array:
    return y if post == "none" else np.asarray(FUNCTIONS[post].value(y))


def fused_conv2d(x: Array, w: Array, bias: Array, *rest: Any) -> Array:
    residual, attrs = (rest[0], rest[1:]) if isinstance(rest[0], np.ndarray) else (0.0, rest)
    *window_attrs, post = attrs
    y = conv2d(x, w, *window_attrs) + bias[:, None, None] + residual
    return _post(y, post)


def fused_matmul(x: Array, w: Array, bias: Array, *rest: Any) -> Array:
    residual, post = rest if len(rest) == 2 else (0.0, rest[0])
    return _post(np.matmul(x, w) + bias + residual, post)


def _reduce(ufunc: Callable[..., Any]) -> Callable[..., Array]:
    return lambda x, axes, keepdim: np.asarray(ufunc(x, axis=tuple(axes), keepdims=bool(keepdim)))


def _softmax(x: Array, axis: int) -> Array:
    if x.size == 0:
        return x
    e = _function("exp", x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


def _max_pool(x: Array, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Array:
    return np.asarray(_patches(x, kernel, stride, padding, dilation, -np.inf).max(axis=(-2, -1)))


def _avg_pool(x: Array, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Array:
    return np.asarray(_patches(x, kernel, stride, padding, dilation, 0.0).mean(axis=(-2, -1)))


def _layer_norm(x: Array, scale: Array, shift: Array, axes: int, eps: float) -> Array:
    if x.size == 0:
        return x
    over = tuple(range(x.ndim - axes, x.ndim))
    centred = x - x.mean(axis=over, keepdims=True)
    variance = (centred**2).mean(axis=over, keepdims=True)
    return np.asarray(centred * _function("rsqrt", variance + eps) * scale + shift)


def _split(x: Array, axis: int, block: int) -> Array:
    """Split an axis into blocks: ``(…, g*b, …) -> (…, g, b, …)``."""
    starts = range(0, x.shape[axis], block)
    blocks = [x.take(range(start, start + block), axis) for start in starts]
    empty = x.reshape(*x.shape[:axis], 0, block, *x.shape[axis + 1 :]) if not blocks else x
    return np.stack(blocks, axis) if blocks else empty


def _slice(x: Array, axis: int, start: int, stop: int, step: int) -> Array:
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def _pad(x: Array, before: Any, after: Any, value: float) -> Array:
    # Integers have no -inf; their least value serves, which a maximum ignores as well.
    fill = _least(x.dtype) if value == -np.inf and x.dtype.kind in "iub" else x.dtype.type(value)
    return np.pad(x, list(zip(before, after, strict=True)), constant_values=fill)


def _unfold(x: Array, axis: int, size: int) -> Array:
    extent = x.shape[axis]
    at = np.arange(extent)[:, None] + np.arange(size) - size // 2
    inside = (at >= 0) & (at < extent)
    taken = np.take(x, np.where(inside, at, 0), axis=axis) if extent else x.repeat(size, axis)
    shape = (1,) * axis + inside.shape + (1,) * (x.ndim - axis - 1)
    taken = taken.reshape(*x.shape[: axis + 1], size, *x.shape[axis + 1 :])
    return np.where(inside.reshape(shape), taken, 0)


def interpolation(extents: Any, align_corners: int, dtype: str) -> Array:
    """Return the ``(out, in)`` matrix of torch's linear interpolation."""
    out, size = extents
    at = np.arange(out, dtype=np.float64)
    if align_corners:
        source = at * ((size - 1) / (out - 1) if out > 1 else 0.0)
    else:
        source = np.maximum((at + 0.5) * (size / out) - 0.5, 0.0)
    low = np.minimum(np.floor(source).astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    weight = source - low
    matrix = np.zeros((out, size))
    np.add.at(matrix, (np.arange(out), low), 1 - weight)
    np.add.at(matrix, (np.arange(out), high), weight)
    return matrix


def _upsample(x: Array, size: Any, align_corners: int) -> Array:
    rows = stored(interpolation((size[0], x.shape[2]), align_corners, "float64"), "float64")
    columns = stored(interpolation((size[1], x.shape[3]), align_corners, "float64"), "float64")
    return np.asarray(np.einsum("nchw,ih,jw->ncij", x, rows, columns, optimize=True))


def _iota(shape: Any, axis: int, dtype: str) -> Array:
    line = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return stored(np.broadcast_to(line, shape), dtype)


def _literal(shape: Any, above: Any, below: Any, dtype: str) -> Array:
    # The division is done in the current arithmetic, so that 1/3 is exact in a finite field.
    return np.asarray(stored(above, dtype) / stored(below, dtype)).reshape(shape)


def _from_the_front(positions: Array) -> Array:
    """Check that no position is negative: NumPy would count it from the end of the axis."""
    if positions.size and positions.min() < 0:
        raise IndexError(f"position {positions.min()} is out of range")
    return positions


_REFERENCE: Final[dict[str, Callable[..., Any]]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Cast": lambda x, dtype: rounded(x, dtype),
    "Matmul": np.matmul,
    "Conv2d": conv2d,
    "ConvTranspose2d": conv_transpose2d,
    "G2BMM": _g2bmm,
    "GBMM": _gbmm,
    "FusedConv2d": fused_conv2d,
    "FusedConv2dAdd": fused_conv2d,
    "FusedMatmul": fused_matmul,
    "FusedMatmulAdd": fused_matmul,
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "ReduceProd": _reduce(np.prod),
    "ReduceMean": _reduce(np.mean),
    "Softmax": _softmax,
    "CumSum": lambda x, axis: np.cumsum(x, axis),
    "MaxPool2d": _max_pool,
    "AvgPool2d": _avg_pool,
    "LayerNorm": _layer_norm,
    "Permute": lambda x, order: x.transpose(order),
    "Reshape": lambda x, shape: x.reshape(shape),
    "Expand": lambda x, shape: np.broadcast_to(x, shape),
    "Slice": _slice,
    "Pad": _pad,
    "Reverse": lambda x, axes: np.flip(x, axes),
    "Shift": lambda x, axis, amount: np.roll(x, -amount, axis),
    "Unfold": _unfold,
    "Stride": lambda x, axis, step: _slice(x, axis, 0, x.shape[axis], step),
    "Split": _split,
    "Merge": lambda x, axis: x.reshape(
        *x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]
    ),
    "UpsampleBilinear2d": _upsample,
    "Full": lambda shape, value, dtype: stored(np.full(shape, value), dtype),
    "Iota": _iota,
    "Interpolation": interpolation,
    "Literal": _literal,
    "Embedding": lambda table, ids: table[_from_the_front(ids)],
    "Gather": lambda x, index, axis: np.take_along_axis(
        x[tuple(slice(0, e) if a != axis else slice(None) for a, e in enumerate(index.shape))],
        _from_the_front(index),
        axis,
    ),
}


def evaluate_operator(
    name: str, args: Sequence[Array], attrs: Sequence[Attr], result: TensorType
) -> Array:
    """Evaluate one operator of the table.

    Raises:
        UnsupportedOperatorError: the operator is opaque, so that eqsynth can't evaluate it.
    """
    row = operator(name)
    with np.errstate(all="ignore"):
        if name == "Concat":
            value = np.concatenate(args, axis=int(attrs[0]))  # type: ignore[arg-type]
        elif name in _REFERENCE:
            value = _REFERENCE[name](*args, *attrs)
        elif row.function in FUNCTIONS:
            value = FUNCTIONS[row.function].value(*args)
        else:
            raise UnsupportedOperatorError(
                what="an opaque operator has no value in the interpreter",
                got=str(attrs[0] if attrs else name),
                expected="an operator of the table",
                hint="evaluate the original program through torch instead",
            )
        return stored(value, result.dtype)
