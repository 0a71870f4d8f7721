"""The table of operators: each operator and view of the IR as operators of ONNX.

    Conv2d(x, w)    ->    Conv
    G2BMM(a, b)     ->    Pad, Gather, Transpose, MatMul, Reshape

A row of the table is a function of the arguments' values and the operator's attributes. Rows that
compute get 16-bit floats as float32, and their results are rounded once. Views take every dtype as
it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from eqsynth.ir.inference import window
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, args_of, topological
from eqsynth.ir.types import is_float
from eqsynth.lower.constant_values import evaluate_constant
from eqsynth.lower.onnx_out import functions
from eqsynth.lower.onnx_out.calls import emit_call
from eqsynth.lower.onnx_out.graph import Graph, Value, refuse, ring, wide
from eqsynth.lower.onnx_out.scopes import emit_scope

Ints = tuple[int, ...]
Row = Callable[..., Value]


def emit(graph: Graph, terms: tuple[Tensor, ...], known: Mapping[Tensor, Value]) -> list[Value]:
    """Return the values of terms, given the values of the terms that are known.

    Raises:
        UnsupportedOperatorError: ONNX can't express a term, or would compute it differently.
    """
    values = dict(known)
    for term in _unknown(terms, values):
        values[term] = _emitted(graph, term, values)
    return [values[term] for term in terms]


def _unknown(terms: tuple[Tensor, ...], known: Mapping[Tensor, Value]) -> list[Tensor]:
    """The subterms that have to be computed, each after its arguments."""
    needed, stack = set[Tensor](), [t for t in terms if t not in known]
    while stack:
        term = stack.pop()
        if term not in needed:
            needed.add(term)
            stack.extend(arg for arg in args_of(term) if arg not in known)
    return [term for term in topological(terms) if term in needed]


def _emitted(graph: Graph, term: Tensor, values: Mapping[Tensor, Value]) -> Value:
    """Return the value of a term, given the values of its arguments."""
    if graph.exported and 0 in term.shape:
        return graph.array(np.zeros(term.shape), term.dtype)
    if 0 in term.shape or any(0 in arg.shape for arg in args_of(term)):
        refuse(term.label, str(term.type), "tensors with elements")
    if isinstance(term, Scope):
        value = emit_scope(graph, term, values)
    elif isinstance(term, Region):
        return region_values(graph, term, [values[arg] for arg in term.args])[0]
    elif isinstance(term, Op):
        value = _operator(graph, term, [values[arg] for arg in term.args])
    else:
        refuse(term.label, type(term).__name__, "an operator or a scope")
    assert (value.shape, value.dtype) == (term.shape, term.dtype), (str(term), value)
    return value


def region_values(graph: Graph, region: Region, args: list[Value]) -> list[Value]:
    """Return the values of a region's outputs."""
    own: dict[Tensor, Value] = {
        Input(str(n), arg.type): args[n] for n, arg in enumerate(region.args)
    }
    return emit(graph, region.outputs, own)


def _operator(graph: Graph, term: Op, args: list[Value]) -> Value:
    """Return the value of an operator: by its row of the tables below, by its definition, or by a
    scalar function."""
    row = term.row
    if row.expand is not None:
        own = tuple(Input(str(n), arg.type) for n, arg in enumerate(term.args))
        return region_values(graph, Region((row.expand(own, term.attrs),), own), args)[0]
    if row.kind == "opaque":
        return emit_call(graph, term, args)
    if row.kind == "constant":
        value = evaluate_constant(term, {})
        value = value.float() if term.dtype == "bfloat16" else value
        return graph.array(value.numpy(), term.dtype)
    if row.function:
        return graph.cast(functions.apply(graph, row.function, args, term.label), term.dtype)
    if term.name == "Cast":
        return graph.cast(args[0], term.dtype)
    if term.name == "Concat":
        return graph.concat([graph.cast(arg, term.dtype) for arg in args], int(term.attrs[0]))  # type: ignore[arg-type]
    if row.kind == "view":
        return _VIEWS[term.name](graph, *args, *term.attrs)
    if term.name in _DATA:
        return _DATA[term.name](graph, *args, *term.attrs)
    if term.name not in _REDUCTIONS and not is_float(args[0].dtype) and term.name != "Matmul":
        refuse(term.label, f"{term.name} of {args[0].dtype}", "floats")
    inner = [graph.cast(arg, _computed_in(term, arg.dtype)) for arg in args]
    return graph.cast(_COMPUTED[term.name](graph, *inner, *term.attrs), term.dtype)


def _computed_in(term: Op, dtype: str) -> str:
    if term.name in ("Matmul", "ReduceSum", "ReduceProd"):
        return ring(dtype)
    return wide(dtype) if is_float(dtype) else dtype


# ---- contractions --------------------------------------------------------------------------


def _spatial(**amounts: Ints) -> dict[str, list[int]]:
    return {name: list(part) for name, part in amounts.items()}


def _conv2d(
    g: Graph, x: Value, w: Value, stride: Ints, padding: Ints, dilation: Ints, groups: int,
    bias: Value | None = None,
) -> Value:  # fmt: skip
    rows = map(window, x.shape[2:], w.shape[2:], stride, padding, dilation)
    inputs = [x, w] if bias is None else [x, w, bias]
    return g.node(
        "Conv", inputs, (x.shape[0], w.shape[0], *rows), x.dtype, group=groups,
        **_spatial(
            kernel_shape=w.shape[2:], strides=stride, pads=padding * 2, dilations=dilation
        ),
    )  # fmt: skip


def _conv_transpose2d(
    g: Graph, x: Value, w: Value, stride: Ints, padding: Ints, output_padding: Ints,
    dilation: Ints, groups: int,
) -> Value:  # fmt: skip
    extents = tuple(
        (e - 1) * s - 2 * p + d * (k - 1) + o + 1
        for e, k, s, p, o, d in zip(
            x.shape[2:], w.shape[2:], stride, padding, output_padding, dilation, strict=True
        )
    )
    return g.node(
        "ConvTranspose", [x, w], (x.shape[0], w.shape[1] * groups, *extents), x.dtype,
        group=groups,
        **_spatial(
            kernel_shape=w.shape[2:], strides=stride, pads=padding * 2, dilations=dilation,
            output_padding=output_padding,
        ),
    )  # fmt: skip


def _band(g: Graph, b: Value, width: int, dilation: int) -> Value:
    """(n, m, k) -> (n, m, 2 * width + 1, k): for each row the rows of its band, 0 outside of the
    tensor."""
    reach = width * dilation
    padded = g.pad(b, (0, reach, 0), (0, reach, 0), 0.0)
    at = np.arange(b.shape[1])[:, None] + dilation * np.arange(2 * width + 1)
    return g.gather(padded, g.array(at, "int64"), 1)


def _g2bmm(g: Graph, a: Value, b: Value, width: int, dilation: int) -> Value:
    rows = g.transpose(_band(g, b, width, dilation), (0, 1, 3, 2))
    n, m, k = a.shape
    product = g.matmul(g.reshape(a, (n, m, 1, k)), rows)
    return g.reshape(product, (n, m, 2 * width + 1))


def _gbmm(g: Graph, a: Value, b: Value, dilation: int) -> Value:
    n, m, w = a.shape
    rows = _band(g, b, w // 2, dilation)
    return g.reshape(g.matmul(g.reshape(a, (n, m, 1, w)), rows), b.shape)


def _post(g: Graph, y: Value, post: str) -> Value:
    return y if post == "none" else functions.apply(g, post, [y])


def _fused_matmul(g: Graph, x: Value, w: Value, bias: Value, *rest: Any) -> Value:
    y = g.map("Add", g.matmul(x, w), bias)
    return _post(g, y if len(rest) == 1 else g.map("Add", y, rest[0]), rest[-1])


def _fused_conv2d(g: Graph, x: Value, w: Value, bias: Value, *rest: Any) -> Value:
    residual, attrs = (rest[0], rest[1:]) if isinstance(rest[0], Value) else (None, rest)
    stride, padding, dilation, groups = attrs[:4]
    y = _conv2d(g, x, w, stride, padding, dilation, groups, bias)
    return _post(g, y if residual is None else g.map("Add", y, residual), attrs[4])


# ---- reductions ----------------------------------------------------------------------------


def _reduce(reducer: str) -> Row:
    return lambda g, x, axes, keepdim: g.reduce(reducer, x, axes, bool(keepdim))


def _softmax(g: Graph, x: Value, axis: int) -> Value:
    if not x.rank:
        return g.number(1.0, x.dtype)
    return g.node("Softmax", [x], x.shape, x.dtype, axis=axis)


def _cumsum(g: Graph, x: Value, axis: int) -> Value:
    inner = g.cast(x, wide(x.dtype))
    return g.cast(g.node("CumSum", [inner, g.place(axis)], x.shape, inner.dtype), x.dtype)


def _pool(operator: str, fill: float, **attributes: Any) -> Row:
    """A row for a pooling operator; ``fill`` is the value of the padding."""

    def row(g: Graph, x: Value, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints) -> Value:
        rows = tuple(map(window, x.shape[2:], kernel, stride, padding, dilation))
        shape = (*x.shape[:2], *rows)
        if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
            # More padding than torch and ONNX allow: a window may lie entirely in the padding.
            x, padding = g.pad(x, (0, 0, *padding), (0, 0, *padding), fill), (0, 0)
        places = _spatial(kernel_shape=kernel, strides=stride, pads=padding * 2, dilations=dilation)
        return g.node(operator, [x], shape, x.dtype, **places, **attributes)

    return row


def _layer_norm(g: Graph, x: Value, scale: Value, shift: Value, axes: int, eps: float) -> Value:
    """A layer norm over the last axes, by ONNX's operator for float32, else composed."""
    if not axes:
        refuse("LayerNorm", "no axes", "an axis to normalize")
    if x.dtype == "float32":
        return g.node(
            "LayerNormalization", [x, scale, shift], x.shape, x.dtype, axis=-axes, epsilon=eps
        )
    # ONNX's operator computes mean and variance in float32, whatever the dtype of x.
    over = range(x.rank - axes, x.rank)
    centred = g.map("Sub", x, g.reduce("mean", x, over, True))
    variance = g.reduce("mean", g.map("Mul", centred, centred), over, True)
    deviation = g.map("Sqrt", g.map("Add", variance, g.number(eps, x.dtype)))
    normal = g.map("Div", centred, deviation)
    return g.map("Add", g.map("Mul", normal, scale), shift)


def _upsample(g: Graph, x: Value, size: Ints, align_corners: int) -> Value:
    # half_pixel gives coordinates outside of [0, extent); ONNX takes the border there, and torch
    # clamps the coordinate, which is the same.
    mode = "align_corners" if align_corners else "half_pixel"
    shape = (*x.shape[:2], *size)
    return g.node(
        "Resize", [x, None, None, g.integers(*shape)], shape, x.dtype, mode="linear",
        coordinate_transformation_mode=mode,
    )  # fmt: skip


# ---- views ---------------------------------------------------------------------------------


def _slice(g: Graph, x: Value, axis: int, start: int, stop: int, step: int) -> Value:
    return g.slice(x, axis, start, -(-(stop - start) // step), step)


def _shift(g: Graph, x: Value, axis: int, amount: int) -> Value:
    """``result[i] = x[(i + amount) % extent]``"""
    extent = x.shape[axis]
    amount %= extent
    if not amount:
        return x
    parts = g.slice(x, axis, amount, extent - amount), g.slice(x, axis, 0, amount)
    return g.concat(parts, axis)


def _reverse(g: Graph, x: Value, axes: tuple[int, ...]) -> Value:
    for axis in axes:
        extent = x.shape[axis]
        x = g.slice(x, axis, extent - 1, extent, -1) if extent > 1 else x
    return x


def _unfold(g: Graph, x: Value, axis: int, size: int) -> Value:
    before, after = [0] * x.rank, [0] * x.rank
    before[axis], after[axis] = size // 2, size - 1 - size // 2
    at = np.arange(x.shape[axis])[:, None] + np.arange(size)
    return g.gather(g.pad(x, before, after, 0.0), g.array(at, "int64"), axis)


def _split(g: Graph, x: Value, axis: int, block: int) -> Value:
    blocks = x.shape[axis] // block
    return g.reshape(x, (*x.shape[:axis], blocks, block, *x.shape[axis + 1 :]))


def _merge(g: Graph, x: Value, axis: int) -> Value:
    extent = x.shape[axis] * x.shape[axis + 1]
    return g.reshape(x, (*x.shape[:axis], extent, *x.shape[axis + 2 :]))


# ---- positions that are data -----------------------------------------------------------------


def _gather(g: Graph, x: Value, index: Value, axis: int) -> Value:
    for other, extent in enumerate(index.shape):
        if other != axis:
            x = g.slice(x, other, 0, extent)
    places = g.cast(index, "int64")
    return g.node("GatherElements", [x, places], index.shape, x.dtype, axis=axis)


_VIEWS: Final[dict[str, Row]] = {
    "Permute": lambda g, x, order: g.transpose(x, order),
    "Reshape": lambda g, x, shape: g.reshape(x, shape),
    "Expand": lambda g, x, shape: g.expand(x, shape),
    "Slice": _slice,
    "Pad": lambda g, x, before, after, value: g.pad(x, before, after, value),
    "Reverse": _reverse,
    "Shift": _shift,
    "Unfold": _unfold,
    "Stride": lambda g, x, axis, step: g.slice(x, axis, 0, x.shape[axis] // step, step),
    "Split": _split,
    "Merge": _merge,
}

_DATA: Final[dict[str, Row]] = {
    "Embedding": lambda g, table, ids: g.gather(table, g.cast(ids, "int64"), 0),
    "Gather": _gather,
}

_REDUCTIONS: Final[dict[str, Row]] = {
    f"Reduce{reducer.capitalize()}": _reduce(reducer)
    for reducer in ("sum", "max", "min", "prod", "mean")
}

_COMPUTED: Final[dict[str, Row]] = {
    **_REDUCTIONS,
    "Matmul": lambda g, a, b: g.matmul(a, b),
    "Conv2d": _conv2d,
    "ConvTranspose2d": _conv_transpose2d,
    "G2BMM": _g2bmm,
    "GBMM": _gbmm,
    "FusedMatmul": _fused_matmul,
    "FusedMatmulAdd": _fused_matmul,
    "FusedConv2d": _fused_conv2d,
    "FusedConv2dAdd": _fused_conv2d,
    "Softmax": _softmax,
    "CumSum": _cumsum,
    "MaxPool2d": _pool("MaxPool", float("-inf")),
    "AvgPool2d": _pool("AveragePool", 0.0, count_include_pad=1),
    "LayerNorm": _layer_norm,
    "UpsampleBilinear2d": _upsample,
}
