"""Every term as plain, differentiable torch: operators, views, regions.

Example: ``function_of(Op("Matmul", (a, b)))`` is a function of two tensors that calls
``torch.matmul``.

Not here: scopes (``torch_scopes.py``), evaluating constants (``constant_values.py``), which of
these functions are kernels at which layouts (``torch_backend.py``), oneDNN's operators
(``vendor.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, Final

import torch
import torch.nn.functional as F

from eqsynth.errors import LoweringError
from eqsynth.extract.target import CPU
from eqsynth.ir.inference import window
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, args_of, topological
from eqsynth.ir.types import is_float, promote
from eqsynth.lower.attention import attention
from eqsynth.lower.torch_scalars import (
    SCALAR_FUNCTIONS,
    apply,
    kept_dtype,
    limits,
    number,
    torch_dtype,
)
from eqsynth.lower.torch_scopes import run_scope

Array = torch.Tensor
Ints = tuple[int, ...]
Function = Callable[..., torch.Tensor]
Opaque = Mapping[str, Function]


def run_term(
    term: Tensor, args: Sequence[Array], opaque: Opaque | None = None, exact: bool = False
) -> Array:
    """The value of one term. It may be a view of an argument; gradients flow through it.

    Args:
        args: in the order of ``args`` for an operator or a region, of ``args_of`` for a scope.
        opaque: for each ``Opaque`` operator, by its name, the function that runs it.
        exact: whether floats are float64 throughout (except that casts round).

    Raises:
        LoweringError: an opaque operator has no function, or the term is an input or a weight.
    """
    return function_of(term, opaque, exact)(*args)


def function_of(term: Tensor, opaque: Opaque | None = None, exact: bool = False) -> Function:
    """The function that :func:`run_term` calls. All decisions that depend on the term alone are
    made here, once."""
    if isinstance(term, Scope):
        reads = args_of(term)
        return lambda *args: run_scope(term, dict(zip(reads, args, strict=True)), exact)
    if isinstance(term, Region):
        outputs = region_function(term, opaque, exact)
        return lambda *args: outputs(*args)[0]
    if not isinstance(term, Op):
        raise LoweringError(
            what="this is no computation",
            where=term.label,
            got=type(term).__name__,
            expected="an operator or a scope",
            hint="give the values of inputs and weights as arguments",
        )
    function, kept = _function_of_operator(term, opaque or {}, exact), kept_dtype(term.dtype, exact)
    # An operator on floats of one dtype gives that dtype; only a cast needs a conversion (in
    # float64, to round).
    same = is_float(term.dtype) and {arg.dtype for arg in term.args} == {term.dtype}
    if same and term.name != "Cast":
        return function
    return lambda *args: function(*args).to(kept)


def region_function(
    region: Region,
    opaque: Opaque | None = None,
    exact: bool = False,
    known: Mapping[int, Array] | None = None,
) -> Callable[..., list[Array]]:
    """A function of a region's arguments that computes its outputs, term by term.

    Args:
        known: arguments that are the same in every call. Terms that depend on them alone are
            computed now, except opaque operators, which may draw random numbers.
    """
    # Values are kept in a list: looking terms up in a dict is slow (83 arguments of a BERT: 30 us a
    # call).
    kept = {} if known is None else known
    varying = [n for n in range(len(region.args)) if n not in kept]
    place: dict[Tensor, int] = {Input(str(n), a.type): n for n, a in enumerate(region.args)}
    values: list[Any] = [kept.get(n) for n in range(len(region.args))]
    steps = []
    for term in (term for term in topological(region.outputs) if term not in place):
        read = [place[arg] for arg in (term.args if isinstance(term, Op) else args_of(term))]
        function, at = function_of(term, opaque, exact), len(values)
        place[term] = at
        values.append(None)
        fixed = known is not None and not (isinstance(term, Op) and term.name == "Opaque")
        if fixed and all(values[n] is not None for n in read):
            values[at] = function(*[values[n] for n in read])
        else:
            steps.append((function, read, at))
    outputs = [place[term] for term in region.outputs]

    def run(*args: Array) -> list[Array]:
        all_values = values[:]
        for n, arg in zip(varying, args, strict=True):
            all_values[n] = arg
        for function, read, at in steps:
            all_values[at] = function(*[all_values[n] for n in read])
        return [all_values[n] for n in outputs]

    return run


def _function_of_operator(term: Op, opaque: Opaque, exact: bool) -> Function:
    """The function of an operator's arguments."""
    row, attrs = term.row, term.attrs
    fused = None if exact else attention(term)
    if fused is not None:
        return fused.function()
    if row.expand is not None:
        own = [Input(str(n), arg.type) for n, arg in enumerate(term.args)]
        outputs = region_function(Region((row.expand(own, attrs),), tuple(own)), opaque, exact)
        return lambda *args: outputs(*args)[0]
    sizes = (term.type.size, *(arg.type.size for arg in term.args))
    if row.kind in ("contraction", "reduction") and 0 in sizes:
        return partial(_over_nothing, term, exact)
    if term.name == "Opaque":
        return _opaque(term, opaque)
    if row.function:
        return _elementwise(term, row.function, exact)
    if term.name == "Cast":
        dtype = torch_dtype(term.dtype)
        return lambda x: x.to(dtype)
    if term.name == "Concat":
        axis: Any = attrs[0]
        return lambda *args: torch.cat(args, axis)
    if not attrs:
        return _OPERATORS[term.name]
    function = _OPERATORS[term.name]
    return lambda *args: function(*args, *attrs)


def _over_nothing(term: Op, exact: bool, *args: Array) -> Array:
    """A product or reduction over no elements: torch's kernels refuse some of them."""
    value = {"ReduceProd": 1.0, "ReduceMean": float("nan")}.get(term.name, 0.0)
    dtype = kept_dtype(term.dtype, exact)
    result = torch.full(term.shape, value, dtype=dtype, device=args[0].device)
    if term.row.vendor:
        bias = args[2][:, None, None] if term.row.images else args[2]
        result = _post(result + bias + (args[3] if len(args) > 3 else 0), str(term.attrs[-1]))
    return result


def _opaque(term: Op, opaque: Opaque) -> Function:
    """The function that runs an opaque operator."""
    function = opaque.get(str(term.attrs[0]))
    if function is None:
        raise LoweringError(
            what="an opaque operator has no function to run it",
            where=term.origin,
            got=str(term.attrs[0]),
            expected="one of the functions that the frontend captured",
            hint="lower the program with the functions of its capture",
        )
    return function


# ---- elementwise ---------------------------------------------------------------------------

_ARITHMETIC: Final[dict[str, Function]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Neg": torch.neg,
}


def _elementwise(term: Op, function: str, exact: bool) -> Function:
    """The function of an elementwise operator, with its arguments promoted to one dtype."""
    result = _ARITHMETIC.get(function) or partial(_apply, function, exact)
    if function in SCALAR_FUNCTIONS and all(is_float(arg.dtype) for arg in term.args):
        result = SCALAR_FUNCTIONS[function]
    first = 1 if function == "where" else 0
    if len({arg.dtype for arg in term.args[first:]}) == 1:
        return result
    # In torch a tensor without axes doesn't decide the dtype beside one with axes; here it does.
    joined = kept_dtype(reduce(promote, (arg.dtype for arg in term.args[first:])), exact)
    return lambda *args: result(*args[:first], *(arg.to(joined) for arg in args[first:]))


def _apply(function: str, exact: bool, *args: Array) -> Array:
    return apply(function, args, exact)


def _post(y: Array, post: str) -> Array:
    """Apply the activation of a fused operator."""
    return y if post == "none" else apply(post, [y])


# ---- contractions --------------------------------------------------------------------------


def _conv2d(x: Array, w: Array, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Array:
    if x.is_floating_point():
        return F.conv2d(x, w, None, stride, padding, dilation, groups)
    patches = _windows(x, tuple(w.shape[2:]), stride, padding, dilation, 0)
    parts = patches.unflatten(1, (groups, w.shape[1]))
    grouped = w.unflatten(0, (groups, w.shape[0] // groups))
    return torch.einsum("ngchwrs,gfcrs->ngfhw", parts, grouped).flatten(1, 2)


def _conv_transpose2d(
    x: Array,
    w: Array,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    dilation: Ints,
    groups: int,
) -> Array:
    return F.conv_transpose2d(x, w, None, stride, padding, output_padding, groups, dilation)


def _g2bmm(a: Array, b: Array, width: int, dilation: int) -> Array:
    # One diagonal at a time: the rows of all diagonals at once take k times the band's memory.
    rows = _band(b, width, dilation)
    return torch.stack([(a * row).sum(-1, dtype=a.dtype) for row in rows], -1)


def _gbmm(a: Array, b: Array, dilation: int) -> Array:
    rows = _band(b, a.shape[2] // 2, dilation)
    result = torch.zeros_like(b)
    for w, row in enumerate(rows):
        result = torch.addcmul(result, a[:, :, w : w + 1], row)
    return result


def _band(b: Array, width: int, dilation: int) -> list[Array]:
    """``b`` shifted along its rows, once for each diagonal; zeros are shifted in."""
    padded = F.pad(b, (0, 0, width * dilation, width * dilation))
    return [padded[:, w * dilation :][:, : b.shape[1]] for w in range(2 * width + 1)]


def _fused_conv2d(x: Array, w: Array, bias: Array, *rest: Any) -> Array:
    residual, attrs = (rest[0], rest[1:]) if isinstance(rest[0], Array) else (None, rest)
    y = _conv2d(x, w, *attrs[:4]) + bias[:, None, None]
    return _post(y if residual is None else y + residual, attrs[4])


def _fused_matmul(x: Array, w: Array, bias: Array, *rest: Any) -> Array:
    y = torch.matmul(x, w) + bias
    return _post(y if len(rest) == 1 else y + rest[0], rest[-1])


# ---- reductions ----------------------------------------------------------------------------


def _reduce(reduction: Function) -> Function:
    # With no axes, torch reduces over all of them.
    return lambda x, axes, keepdim: reduction(x, axes, bool(keepdim)) if axes else x


def _prod(x: Array, axes: Ints, keepdim: bool) -> Array:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim)
    return x


def _softmax(x: Array, axis: int) -> Array:
    return torch.softmax(x if x.is_floating_point() else x.float(), axis)


def _windows(
    x: Array, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, fill: float | int
) -> Array:
    """(n, c, h, w) -> (n, c, h', w', r, s): the windows, with ``fill`` outside of the image."""
    (rows, columns) = (
        window(e, k, s, p, d)
        for e, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    )
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]), value=fill)
    n, c, h, w = x.stride()
    steps = (n, c, h * stride[0], w * stride[1], h * dilation[0], w * dilation[1])
    return x.as_strided((*x.shape[:2], rows, columns, *kernel), steps, x.storage_offset())


def _cumsum(x: Array, axis: int) -> Array:
    """Along an axis whose elements are neighbours in memory also in the result, which torch would
    otherwise make contiguous: 2 million elements take 2 ms so, and 13 across."""
    if x.dim() > 1 and x.stride(axis) == 1:
        return torch.cumsum(x.movedim(axis, -1), -1).movedim(-1, axis)
    return torch.cumsum(x, axis)


def _max_pool(x: Array, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints) -> Array:
    if x.is_floating_point() and all(2 * p <= k for p, k in zip(padding, kernel, strict=True)):
        return F.max_pool2d(x, kernel, stride, padding, dilation)
    fill = number(limits(x.dtype)[0], x.dtype)
    return _windows(x, kernel, stride, padding, dilation, fill).amax((-2, -1))


def _avg_pool(x: Array, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints) -> Array:
    plain = all(2 * p <= k for p, k in zip(padding, kernel, strict=True))
    if x.is_floating_point() and set(dilation) == {1} and plain:
        return F.avg_pool2d(x, kernel, stride, padding)
    windows = _windows(x, kernel, stride, padding, dilation, 0)
    return (windows if x.is_floating_point() else windows.double()).mean((-2, -1))


def _layer_norm(x: Array, scale: Array, shift: Array, axes: int, eps: float) -> Array:
    return F.layer_norm(x, x.shape[x.dim() - axes :], scale, shift, eps)


# ---- views ---------------------------------------------------------------------------------


def _slice(x: Array, axis: int, start: int, stop: int, step: int) -> Array:
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def _pad(x: Array, before: Ints, after: Ints, value: float) -> Array:
    amounts = [a for pair in zip(reversed(before), reversed(after), strict=True) for a in pair]
    return F.pad(x, amounts, value=number(value, x.dtype)) if any(amounts) else x


def _unfold(x: Array, axis: int, size: int) -> Array:
    amounts = [0, 0] * (x.dim() - axis - 1) + [size // 2, size - 1 - size // 2]
    if x.shape[axis] == 0:
        return x.unsqueeze(axis + 1).repeat_interleave(size, axis + 1)
    return F.pad(x, amounts).unfold(axis, size, 1).movedim(-1, axis + 1)


# ---- constants and data --------------------------------------------------------------------


def _full(shape: Ints, value: float, dtype: str) -> Array:
    kind = torch_dtype(dtype)
    return torch.full(shape, number(value, kind), dtype=kind, device=CPU)


def _iota(shape: Ints, axis: int, dtype: str) -> Array:
    line = torch.arange(shape[axis], device=CPU).to(torch_dtype(dtype))
    return line.reshape([-1 if i == axis else 1 for i in range(len(shape))]).expand(shape)


def _interpolation(extents: Ints, align_corners: int, dtype: str) -> Array:
    # Interpolating the unit vectors gives the columns of the interpolation's matrix.
    units = torch.eye(extents[1], dtype=torch.float64, device=CPU)[None]
    aligned = bool(align_corners)
    return F.interpolate(units, extents[0], mode="linear", align_corners=aligned)[0].T


def _literal(shape: Ints, above: Ints, below: Ints, dtype: str) -> Array:
    # In float64; the caller rounds to the dtype.
    numerators = torch.tensor(above, dtype=torch.float64, device=CPU)
    return (numerators / torch.tensor(below, device=CPU)).reshape(shape)


def _upsample(x: Array, size: Ints, align_corners: int) -> Array:
    return F.interpolate(x, size, mode="bilinear", align_corners=bool(align_corners))


_OPERATORS: Final[dict[str, Function]] = {
    "Matmul": torch.matmul,
    "Conv2d": _conv2d,
    "ConvTranspose2d": _conv_transpose2d,
    "G2BMM": _g2bmm,
    "GBMM": _gbmm,
    "FusedConv2d": _fused_conv2d,
    "FusedConv2dAdd": _fused_conv2d,
    "FusedMatmul": _fused_matmul,
    "FusedMatmulAdd": _fused_matmul,
    "ReduceSum": _reduce(torch.sum),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMin": _reduce(torch.amin),
    "ReduceProd": _reduce(_prod),
    "ReduceMean": _reduce(torch.mean),
    "Softmax": _softmax,
    "CumSum": _cumsum,
    "MaxPool2d": _max_pool,
    "AvgPool2d": _avg_pool,
    "LayerNorm": _layer_norm,
    "Permute": lambda x, order: x.permute(order),
    "Reshape": lambda x, shape: x.reshape(shape),
    "Expand": lambda x, shape: x.expand(shape),
    "Slice": _slice,
    "Pad": _pad,
    "Reverse": lambda x, axes: torch.flip(x, axes),
    "Shift": lambda x, axis, amount: torch.roll(x, -amount, axis),
    "Unfold": _unfold,
    "Stride": lambda x, axis, step: _slice(x, axis, 0, x.shape[axis], step),
    "Split": lambda x, axis, block: x.reshape(
        *x.shape[:axis], x.shape[axis] // block, block, *x.shape[axis + 1 :]
    ),
    "Merge": lambda x, axis: x.reshape(
        *x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]
    ),
    "UpsampleBilinear2d": _upsample,
    "Full": _full,
    "Iota": _iota,
    "Interpolation": _interpolation,
    "Literal": _literal,
    "Embedding": lambda table, ids: F.embedding(ids.long(), table),
    "Gather": lambda x, index, axis: torch.gather(x, axis, index.long()),
}
