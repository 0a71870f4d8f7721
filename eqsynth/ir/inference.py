"""Shape and dtype inference of operators, one function each. Not here: views
(``view_inference.py``).

A function takes the types of the arguments and the attributes, and returns the result's type:
``matmul`` of ``float32[2, 3]`` and ``float32[3, 4]`` is ``float32[2, 4]``. It raises an error that
names the operator and what was expected; ``Operator.infer`` adds the place in the user's model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn

from eqsynth.errors import DtypeError, ShapeError
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.types import Shape, TensorType, broadcast_shapes, is_float, promote

Types = Sequence[TensorType]
Ints = tuple[int, ...]


def shape_error(what: str, got: object, expected: str, hint: str) -> NoReturn:
    raise ShapeError(what=what, got=str(got), expected=expected, hint=hint)


def _same_dtype(operator: str, types: Types) -> str:
    dtypes = {t.dtype for t in types}
    if len(dtypes) != 1:
        raise DtypeError(
            what=f"{operator}: the arguments have different dtypes",
            got=" and ".join(t.dtype for t in types),
            expected="one dtype",
            hint="cast the arguments to the same dtype first",
        )
    return dtypes.pop()


def _factors_dtype(operator: str, types: Types) -> str:
    """Return the common dtype of two factors; as in torch, products of bool tensors are errors."""
    dtype = _same_dtype(operator, types)
    if dtype == "bool":
        raise DtypeError(
            what=f"{operator} of bools", got="bool", expected="numbers", hint="cast to an integer"
        )
    return dtype


def _of_floats(operator: str, t: TensorType) -> None:
    if not is_float(t.dtype):
        raise DtypeError(
            what=f"{operator} of integers", got=t.dtype, expected="floats", hint="cast to a float"
        )


def _require_rank(operator: str, what: str, t: TensorType, rank: int) -> None:
    if t.rank != rank:
        shape_error(f"{operator}: {what} has the wrong rank", t, f"rank {rank}", "reshape it")


def axis_in(operator: str, axis: int, rank: int) -> int:
    if not 0 <= axis < rank:
        shape_error(
            f"{operator}: no such axis", axis, f"0 to {rank - 1}", "count axes from 0, not from -1"
        )
    return axis


# Functions that torch refuses if all arguments are bools; minus it refuses if any is.
_OF_NUMBERS = ("relu", "abs", "floor", "ceil", "floordiv", "mod", "pow")


def elementwise(fn: str) -> Callable[..., TensorType]:
    """Return the inference function of a scalar function mapped over broadcast tensors."""

    def infer(types: Types) -> TensorType:
        shape = broadcast_shapes(fn, *(t.shape for t in types))
        bools = [t.dtype == "bool" for t in types]
        if (fn.lower() in ("sub", "neg") and any(bools)) or (fn in _OF_NUMBERS and all(bools)):
            raise DtypeError(
                what=f"{fn.lower()}: bools are no numbers here",
                got=" and ".join(t.dtype for t in types),
                expected="numbers",
                hint="cast to an integer, or use a logical operator",
            )
        result = FUNCTIONS[fn].result if fn in FUNCTIONS else "same"
        dtype = types[-1].dtype
        for t in types[1 if fn == "where" else 0 :]:
            dtype = promote(dtype, t.dtype)
        if result == "bool":
            dtype = "bool"
        elif result == "float" and not is_float(dtype):
            dtype = "float32"
        return TensorType(shape, dtype)

    return infer


def cast(types: Types, dtype: str) -> TensorType:
    return TensorType(types[0].shape, dtype)


def matmul(types: Types) -> TensorType:
    """``(*b, m, k) @ (*b, k, n) -> (*b, m, n)``; batch axes broadcast, both ranks at least 2."""
    a, b = types
    dtype = _factors_dtype("matmul", types)
    if a.rank < 2 or b.rank < 2:
        shape_error(
            "matmul: a matrix is needed", f"{a} @ {b}", "ranks of 2 or more", "unsqueeze vectors"
        )
    if a.shape[-1] != b.shape[-2]:
        shape_error(
            "matmul: inner extents differ",
            f"{a} @ {b}",
            f"the second matrix to have {a.shape[-1]} rows",
            "transpose or reshape one of them",
        )
    batch = broadcast_shapes("matmul", a.shape[:-2], b.shape[:-2])
    return TensorType((*batch, a.shape[-2], b.shape[-1]), dtype)


def window(extent: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Return the number of positions of a sliding window; 0 or less if the window doesn't fit."""
    return (extent + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _windows(
    operator: str, spatial: Shape, kernel: Shape, stride: Ints, padding: Ints, dilation: Ints
) -> Shape:
    _require_steps(operator, kernel, stride, padding, dilation)
    out = tuple(map(window, spatial, kernel, stride, padding, dilation))
    if any(extent < 1 for extent in out) and 0 not in spatial:
        shape_error(
            f"{operator}: the window doesn't fit",
            f"input {spatial}, window {kernel}, padding {padding}, dilation {dilation}",
            "a window no larger than the padded input",
            "pad more or use a smaller window",
        )
    return tuple(max(extent, 0) for extent in out)


def _require_steps(
    operator: str, kernel: Shape, stride: Ints, padding: Ints, dilation: Ints
) -> None:
    sizes = (kernel, stride, padding, dilation)
    if {len(size) for size in sizes} != {2}:
        shape_error(
            f"{operator}: not one number an axis",
            f"window {kernel}, stride {stride}, padding {padding}, dilation {dilation}",
            "two numbers each",
            "",
        )
    if min(*kernel, *stride, *dilation) < 1 or min(padding) < 0:
        shape_error(
            f"{operator}: there is no such window",
            f"window {kernel}, stride {stride}, padding {padding}, dilation {dilation}",
            "window, stride and dilation of 1 or more, padding of 0 or more",
            "slice the input where it shall be smaller",
        )


def conv2d(types: Types, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> TensorType:
    """``(n, g*c, h, w), (f, c, r, s) -> (n, f, h', w')``."""
    x, w = types
    dtype = _factors_dtype("conv2d", types)
    _require_rank("conv2d", "the input", x, 4)
    _require_rank("conv2d", "the weight", w, 4)
    if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        shape_error(
            "conv2d: channels don't fit",
            f"input {x}, weight {w}, groups {groups}",
            f"{w.shape[1] * groups} input channels, output channels a multiple of {groups}",
            "check the weight's shape and groups",
        )
    spatial = _windows("conv2d", x.shape[2:], w.shape[2:], stride, padding, dilation)
    return TensorType((x.shape[0], w.shape[0], *spatial), dtype)


def conv_transpose2d(
    types: Types, stride: Ints, padding: Ints, output_padding: Ints, dilation: Ints, groups: int
) -> TensorType:
    """``(n, g*c, h, w), (g*c, f, r, s) -> (n, g*f, h', w')``."""
    x, w = types
    dtype = _factors_dtype("conv_transpose2d", types)
    _require_rank("conv_transpose2d", "the input", x, 4)
    _require_rank("conv_transpose2d", "the weight", w, 4)
    if x.shape[1] != w.shape[0] or x.shape[1] % groups:
        shape_error(
            "conv_transpose2d: channels don't fit",
            f"input {x}, weight {w}, groups {groups}",
            f"{w.shape[0]} input channels, a multiple of {groups}",
            "check the weight's shape and groups",
        )
    _require_steps("conv_transpose2d", w.shape[2:], stride, padding, dilation)
    fits = (0 <= o < max(s, d) for o, s, d in zip(output_padding, stride, dilation, strict=True))
    if not all(fits):
        shape_error(
            "conv_transpose2d: more output padding than a step makes",
            output_padding,
            f"less than the stride {stride} or the dilation {dilation}",
            "pad the result",
        )
    spatial = tuple(
        max((e - 1) * s - 2 * p + d * (k - 1) + o + 1, 0)
        for e, k, s, p, o, d in zip(
            x.shape[2:], w.shape[2:], stride, padding, output_padding, dilation, strict=True
        )
    )
    return TensorType((x.shape[0], w.shape[1] * groups, *spatial), dtype)


def g2bmm(types: Types, width: int, dilation: int) -> TensorType:
    """``(b, m, k), (b, m, k) -> (b, m, 2*width + 1)``: a band of the product ``a @ bᵀ``."""
    a, b = types
    _require_rank("g2bmm", "the first matrix", a, 3)
    if a.shape != b.shape:
        shape_error("g2bmm: shapes differ", f"{a}, {b}", "two equal shapes (b, m, k)", "")
    _require_band("g2bmm", width, dilation)
    return TensorType((*a.shape[:2], 2 * width + 1), _factors_dtype("g2bmm", types))


def gbmm(types: Types, dilation: int) -> TensorType:
    """``(b, m, 2*width + 1), (b, m, n) -> (b, m, n)``: a band times a matrix."""
    a, b = types
    _require_rank("gbmm", "the band", a, 3)
    _require_rank("gbmm", "the matrix", b, 3)
    if a.shape[:2] != b.shape[:2] or a.shape[2] % 2 == 0:
        shape_error(
            "gbmm: the band doesn't fit",
            f"band {a}, matrix {b}",
            "(b, m, 2*width + 1) and (b, m, n)",
            "make the band with g2bmm",
        )
    _require_band("gbmm", a.shape[2] // 2, dilation)
    return TensorType(b.shape, _factors_dtype("gbmm", types))


def _require_band(operator: str, width: int, dilation: int) -> None:
    if width < 0 or dilation < 1:
        shape_error(
            f"{operator}: there is no such band",
            f"width {width}, dilation {dilation}",
            "width of 0 or more, dilation of 1 or more",
            "",
        )


def fused_conv2d(
    types: Types, stride: Ints, padding: Ints, dilation: Ints, groups: int, post: str
) -> TensorType:
    """``post(conv2d(x, w) + bias[channel] + residual)``; the residual is optional."""
    out = conv2d(types[:2], stride, padding, dilation, groups)
    return _fused("fused_conv2d", out, 1, types)


def fused_matmul(types: Types, post: str) -> TensorType:
    """``post((*b, m, k) @ (*b, k, n) + bias[n] + residual)``; the residual is optional."""
    return _fused("fused_matmul", matmul(types[:2]), -1, types)


def _fused(operator: str, out: TensorType, channel: int, types: Types) -> TensorType:
    if types[2].shape != (out.shape[channel],):
        shape_error(
            f"{operator}: the bias doesn't fit", types[2], f"[{out.shape[channel]}]", "reshape it"
        )
    if len(types) > 3 and types[3].shape != out.shape:
        shape_error(f"{operator}: the residual doesn't fit", types[3], str(out), "expand it")
    return TensorType(out.shape, _same_dtype(operator, types))


def pool2d(types: Types, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints) -> TensorType:
    """``(n, c, h, w) -> (n, c, h', w')``, a window on each spatial axis."""
    _require_rank("pool2d", "the input", types[0], 4)
    spatial = _windows("pool2d", types[0].shape[2:], kernel, stride, padding, dilation)
    return TensorType((*types[0].shape[:2], *spatial), types[0].dtype)


def avg_pool2d(types: Types, *window: Ints) -> TensorType:
    """Like :func:`pool2d`, for floats only, since a mean of integers isn't an integer."""
    _of_floats("avg_pool2d", types[0])
    return pool2d(types, *window)


def reduction(reducer: str) -> Callable[..., TensorType]:
    def infer(types: Types, axes: Ints, keepdim: int) -> TensorType:
        (x,) = types
        gone = {axis_in(reducer, axis, x.rank) for axis in axes}
        kept = [
            1 if axis in gone else extent
            for axis, extent in enumerate(x.shape)
            if keepdim or axis not in gone
        ]
        summed = reducer in ("sum", "prod") and not is_float(x.dtype)
        dtype = "int64" if summed else x.dtype
        if reducer == "mean":
            _of_floats("mean", x)
        if reducer in ("max", "min") and any(x.shape[axis] == 0 for axis in gone):
            shape_error(f"{reducer} over nothing", x, "a non-empty axis", "it has no value")
        return TensorType(tuple(kept), dtype)

    return infer


def along_axis(types: Types, axis: int) -> TensorType:
    """Softmax: the result has the argument's type, which must be float."""
    axis_in("softmax", axis, max(types[0].rank, 1))
    _of_floats("softmax", types[0])
    return types[0]


def cumulative(types: Types, axis: int) -> TensorType:
    """CumSum: the result has the argument's type, which must be float and have the axis. Torch adds
    integers up as int64."""
    axis_in("cumsum", axis, types[0].rank)
    _of_floats("cumsum", types[0])
    return types[0]


def layer_norm(types: Types, axes: int, eps: float) -> TensorType:
    """``axes`` counts the last axes, which are normalized; scale and shift have their shape."""
    x = types[0]
    if not 0 <= axes <= x.rank:
        shape_error("layer_norm: not so many axes", axes, f"0 to {x.rank}", "normalize fewer axes")
    _of_floats("layer_norm", x)
    normalized = x.shape[x.rank - axes :]
    for t in types[1:]:
        if t.shape != normalized:
            shape_error("layer_norm: scale or shift doesn't fit", t, str(normalized), "reshape it")
    return TensorType(x.shape, _same_dtype("layer_norm", types))


def given(_types: Types, shape: Ints, _value_or_axis: float, dtype: str) -> TensorType:
    return TensorType(shape, dtype)


def interpolation(_types: Types, extents: Ints, align: int, dtype: str) -> TensorType:
    """The matrix (out, in) of linear interpolation between ``extents = (out, in)`` points."""
    return TensorType(extents, dtype)


def literal(_types: Types, shape: Ints, above: Ints, below: Ints, dtype: str) -> TensorType:
    """The tensor of the numbers ``above[n] / below[n]``, in row-major order."""
    if not is_float(dtype):
        raise DtypeError(
            what="literal: rational numbers are floats",
            got=dtype,
            expected="a float dtype",
            hint="give a float dtype",
        )
    if {len(above), len(below)} != {math.prod(shape)}:
        given = f"{len(above)} numerators, {len(below)} denominators"
        shape_error("literal: another number of elements than its shape has", given,
                    str(math.prod(shape)), "give one of each for each element")  # fmt: skip
    if any(number < 1 for number in below):
        shape_error("literal: a denominator isn't positive", str(below), "1 or more", "")
    return TensorType(shape, dtype)


def upsample(types: Types, size: Ints, align: int) -> TensorType:
    _require_rank("upsample_bilinear2d", "the input", types[0], 4)
    _of_floats("upsample_bilinear2d", types[0])
    if 0 in (*types[0].shape[2:], *size):
        shape_error(
            "upsample_bilinear2d: nothing to interpolate", f"{types[0]} to {size}", "extents", ""
        )
    return TensorType((*types[0].shape[:2], *size), types[0].dtype)


def embedding(types: Types) -> TensorType:
    """``(v, d), (*i) -> (*i, d)``."""
    _require_rank("embedding", "the table", types[0], 2)
    if is_float(types[1].dtype):
        raise DtypeError(
            what="embedding: the indices are floats",
            got=types[1].dtype,
            expected="integers",
            hint="cast them",
        )
    return TensorType((*types[1].shape, types[0].shape[1]), types[0].dtype)


def gather(types: Types, axis: int) -> TensorType:
    """``result[.., i, ..] = x[.., index[.., i, ..], ..]``, as torch.gather."""
    axis_in("gather", axis, types[0].rank)
    _require_rank("gather", "the index", types[1], types[0].rank)
    extents = enumerate(zip(types[1].shape, types[0].shape, strict=True))
    if 0 not in types[1].shape and any(e > n for a, (e, n) in extents if a != axis):
        shape_error(
            "gather: the index is larger than what it reads",
            f"{types[1]} of {types[0]}",
            f"no larger extents but on axis {axis}",
            "expand the input first",
        )
    return TensorType(types[1].shape, types[0].dtype)


def opaque(_types: Types, _target: str, shape: Ints, dtype: str) -> TensorType:
    return TensorType(shape, dtype)
