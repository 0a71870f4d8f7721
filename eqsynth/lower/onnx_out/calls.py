"""Calls of torch that the IR has no operator for, as operators of ONNX.

    aten.cumsum.default($0, 1)   ->   CumSum(x, 1)

A row of the table is a function for an operator of ATen; it takes the operator's arguments in the
order of its schema. It returns None (the call is refused) if ONNX defines the operator differently,
or if a runtime was seen to compute it differently. A complex tensor is represented by its real and
imaginary parts, along an additional last axis. Not here: operators of the IR (``operators.py``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch

from eqsynth.ir.tensor import Op
from eqsynth.ir.types import broadcast_shapes, is_float
from eqsynth.lower.onnx_out.foreign import written_back
from eqsynth.lower.onnx_out.functions import apply, truncated
from eqsynth.lower.onnx_out.graph import Graph, Value, refuse, wide
from eqsynth.lower.torch_calls import Argument, Named, TorchCall

Ints = Sequence[int]


@dataclass(frozen=True)
class Complex:
    """A complex tensor: its real and imaginary parts along a last axis of extent 2."""

    parts: Value


def emit_call(graph: Graph, term: Op, args: Sequence[Value]) -> Value:
    """Return the value of an ``Opaque`` operator.

    Raises:
        UnsupportedOperatorError: ONNX has no operators that mean the same.
    """
    name = str(term.attrs[0])
    call = graph.calls.get(name)
    if call is None:
        refuse(term.label, f"the operator {name}", "operators that the IR knows")
    value = _Emission(graph, args, term.label).value(call)
    if not isinstance(value, Value) or (value.shape, value.dtype) != (term.shape, term.dtype):
        refuse(term.label, f"the operator {name}", "a result of the type that torch says")
    return value


@dataclass(frozen=True)
class _Emission:
    """Computes nested calls, given the values of the tensor arguments of the outermost call."""

    graph: Graph
    args: Sequence[Value]
    where: str

    def value(self, leaf: Any) -> Any:
        if isinstance(leaf, Argument):
            return self.args[leaf.position]
        if isinstance(leaf, Named):
            self._refuse(leaf.name)
        if isinstance(leaf, list | tuple):
            return [self.value(part) for part in leaf]
        return self._call(leaf) if isinstance(leaf, TorchCall) else leaf

    def _call(self, call: TorchCall) -> Any:
        args = [self.value(arg) for arg in call.args]
        kwargs = {name: self.value(arg) for name, arg in call.kwargs.items()}
        if call.target is operator.getitem:
            return args[0][args[1]]
        is_operator = isinstance(call.target, torch._ops.OpOverload)
        rows = {**_ROWS, **_EXPORTED} if self.graph.exported else _ROWS
        row = rows.get(call.target.name()) if is_operator else None
        made = None if row is None else row(self.graph, *args, **kwargs)
        if made is None:
            self._refuse(call.name)
        return made

    def _refuse(self, name: str) -> NoReturn:
        refuse(self.where, f"the operator {name}", "operators that the IR knows")


def _axis(x: Value, dim: int) -> int:
    return dim % x.rank


# ---- sums on the way, and order ----------------------------------------------------------------


def _cumsum(g: Graph, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    """A cumulative sum. Sums of integers are int64 by default, as in torch."""
    wanted = str(dtype).removeprefix("torch.") if dtype is not None else x.dtype
    if dtype is None and not is_float(x.dtype):
        wanted = "int64"
    x = g.cast(x, wanted)
    if not x.rank:
        return x
    axis, inner = g.place(_axis(x, dim)), g.cast(x, wide(wanted))
    return g.cast(g.node("CumSum", [inner, axis], x.shape, inner.dtype), wanted)


def _topk(
    g: Graph, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[Value] | None:
    """The k largest or smallest integers and their positions. Of equal elements the first one comes
    first, as in torch's stable sort. Floats are refused: if NaN is among them, runtimes sort by a
    comparison that isn't an order."""
    if is_float(x.dtype) or x.dtype == "bool" or not x.rank:
        return None
    axis, inner = _axis(x, dim), g.cast(x, "int64")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    found = g.nodes_of(
        "TopK", [inner, g.integers(k)], [(shape, "int64"), (shape, "int64")],
        axis=axis, largest=int(largest), sorted=1,
    )  # fmt: skip
    return [g.cast(found[0], x.dtype), found[1]]


def _sort(g: Graph, x: Value, dim: int = -1, descending: bool = False) -> list[Value] | None:
    return _topk(g, x, x.shape[dim], dim, descending) if x.rank else None


def _stable(
    g: Graph, x: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> list[Value] | None:
    return _sort(g, x, dim, descending)


# ---- Fourier transforms ------------------------------------------------------------------------


def _to_complex(g: Graph, x: Any, *, dtype: torch.dtype | None = None) -> Complex | None:
    """A real tensor as a complex one, with zeros for imaginary parts."""
    if not isinstance(x, Value) or _PARTS.get(dtype) != x.dtype:
        return None
    zero = g.expand(g.number(0.0, x.dtype), (*x.shape, 1))
    return Complex(g.concat([g.reshape(x, (*x.shape, 1)), zero], x.rank))


_PARTS: Final[dict[torch.dtype | None, str]] = {
    torch.complex64: "float32", torch.complex128: "float64",
}  # fmt: skip


def _fft(g: Graph, z: Any, dim: Ints, normalization: int, forward: bool) -> Complex | None:
    """The Fourier transform of a complex tensor along several axes, one after another."""
    if not isinstance(z, Complex):
        return None
    x, rank = z.parts, z.parts.rank - 1
    for axis in dim:
        x = _along(g, x, axis % rank, forward)
    extents = math.prod(x.shape[axis % rank] for axis in dim)
    # ONNX's inverse divides by the product of the extents. torch divides by 1, by its root, or by
    # it.
    scale = (1.0 if forward else extents) / (1.0, math.sqrt(extents), extents)[normalization]
    return Complex(x if scale == 1.0 else g.map("Mul", x, g.number(scale, x.dtype)))


def _along(g: Graph, x: Value, axis: int, forward: bool) -> Value:
    """The Fourier transform along one axis. The axis is moved to position 1, the default in opset
    17, where it is an attribute: OpenVINO ignores the input that opset 20 has for it."""
    order = [*(n for n in range(x.rank - 1) if n != axis), axis, x.rank - 1]
    moved = g.transpose(x, order)
    rows = g.reshape(moved, (x.size // (2 * x.shape[axis]), x.shape[axis], 2))
    made = g.node(
        "DFT", [rows, None, g.place(1)], rows.shape, x.dtype, inverse=int(not forward), onesided=0
    )
    back = [order.index(n) for n in range(x.rank)]
    return g.transpose(g.reshape(made, moved.shape), back)


def _real_fft(g: Graph, x: Value, dim: Ints, normalization: int, onesided: bool) -> Complex | None:
    """The Fourier transform of a real tensor. One-sided, only that half of the last axis is
    returned from which the other half follows."""
    complexes = [dtype for dtype, real in _PARTS.items() if real == x.dtype]
    z = _to_complex(g, x, dtype=complexes[0]) if complexes else None
    made = None if z is None else _fft(g, z, dim, normalization, True)
    if made is None or not onesided:
        return made
    axis = dim[-1] % (made.parts.rank - 1)
    return Complex(g.slice(made.parts, axis, 0, made.parts.shape[axis] // 2 + 1))


def _as_real(g: Graph, z: Any) -> Value | None:
    return z.parts if isinstance(z, Complex) else None


# ---- bits --------------------------------------------------------------------------------------


def _bits(operator: str) -> Callable[..., Value | None]:
    """A row for a bitwise operator of integers or bools of one dtype."""

    def row(g: Graph, *args: Any) -> Value | None:
        if any(not isinstance(a, Value) or a.dtype != args[0].dtype for a in args):
            return None
        return g.map(operator, *args) if not is_float(args[0].dtype) else None

    return row


# ---- in files only -----------------------------------------------------------------------------
#
# torch raises if an integer is divided by 0, or if a position isn't within its axis. ONNX doesn't
# define the first (here the result is 0); for the second a runtime may access memory out of bounds.
# So these rows aren't used for engines.


def _of_integers(function: str, *, fmod: bool = False) -> Callable[..., Value | None]:
    """A row for a division of integers. ``fmod`` gives the remainder the sign of the dividend."""

    def row(g: Graph, x: Any, y: Any, *, rounding_mode: str = "floor") -> Value | None:
        if not isinstance(x, Value) or rounding_mode not in ("floor", "trunc"):
            return None
        if is_float(x.dtype):
            return _float_remainder(g, x, y) if fmod else None
        if not isinstance(y, Value | int):
            return None
        divisor = y if isinstance(y, Value) else g.number(y, x.dtype)
        if divisor.dtype != x.dtype:
            return None
        wide_x, wide_y = g.cast(x, "int64"), g.cast(divisor, "int64")
        if rounding_mode == "trunc":
            return g.cast(truncated(g, wide_x, wide_y), x.dtype)
        made = apply(g, function, [wide_x, wide_y])
        if fmod:
            # 7 mod -3 is -2, and 1 in C: a remainder whose sign isn't the dividend's is off by one
            # divisor.
            zero = g.number(0, "int64")
            signs = [g.map("Less", part, zero, dtype="bool") for part in (made, wide_x)]
            other = g.map("And", g.map("Not", g.map("Equal", made, zero, dtype="bool")),
                          g.map("Xor", *signs))  # fmt: skip
            made = g.map("Where", other, g.map("Sub", made, wide_y), made)
        return g.cast(made, x.dtype)

    return row


def _float_remainder(g: Graph, x: Value, y: Any) -> Value | None:
    """The remainder of floats, with the sign of the dividend."""
    if not isinstance(y, Value | int | float):
        return None
    divisor = y if isinstance(y, Value) else g.number(y, x.dtype)
    if divisor.dtype != x.dtype:
        return None
    inner = wide(x.dtype)
    return g.cast(g.map("Mod", g.cast(x, inner), g.cast(divisor, inner), fmod=1), x.dtype)


def _shifted(direction: str) -> Callable[..., Value | None]:
    """A row for a shift of unsigned integers, of which the IR has those of 8 bits. A shift by more
    gives 0; ONNX doesn't define it."""

    def row(g: Graph, x: Any, y: Any) -> Value | None:
        if not isinstance(x, Value) or x.dtype != "uint8":
            return None
        if isinstance(y, int) and y >= 0:
            y = g.number(min(y, 8), "uint8")
        if not isinstance(y, Value) or y.dtype != "uint8":
            return None
        zero, bits = g.number(0, "uint8"), g.number(8, "int32")
        inside = g.map("Less", g.cast(y, "int32"), bits, dtype="bool")
        made = g.map("BitShift", x, g.map("Where", inside, y, zero), direction=direction)
        return g.map("Where", inside, made, zero)

    return row


def _max_pool_with_places(
    g: Graph, x: Value, kernel: Ints, stride: Ints = (), padding: Ints = (0,),
    dilation: Ints = (1,), ceil_mode: bool = False,
) -> list[Value] | None:  # fmt: skip
    """The largest elements of windows, and their places in the plane. ONNX counts places in the
    whole tensor."""
    if not is_float(x.dtype) or x.rank not in (3, 4):
        return None
    kernel, stride, padding, dilation = (
        list(part) * (2 // len(part)) for part in (kernel, stride or kernel, padding, dilation)
    )
    extents, rows, after = x.shape[-2:], list[int](), list[int]()
    for e, k, s, p, d in zip(extents, kernel, stride, padding, dilation, strict=True):
        room, reach = e + 2 * p, d * (k - 1) + 1
        row = (room - reach + (s - 1 if ceil_mode else 0)) // s + 1
        row -= ceil_mode and (row - 1) * s >= e + p  # no window begins behind the tensor
        rows.append(row)
        after.append(max(p, (row - 1) * s + reach - e - p))
        if after[-1] >= k:
            return None  # a runtime may refuse it
    lead = x.shape[:-2]
    planes = g.reshape(g.cast(x, wide(x.dtype)), (*(1,) * (4 - x.rank), *x.shape))
    shape = (*planes.shape[:2], *rows)
    most, at = g.nodes_of(
        "MaxPool", [planes], [(shape, planes.dtype), (shape, "int64")], kernel_shape=tuple(kernel),
        strides=tuple(stride), pads=(*padding, *after), dilations=tuple(dilation),
    )  # fmt: skip
    places = g.map("Mod", at, g.number(math.prod(extents), "int64"))
    return [g.reshape(g.cast(most, x.dtype), (*lead, *rows)), g.reshape(places, (*lead, *rows))]


def _round(g: Graph, x: Value) -> Value | None:
    if not is_float(x.dtype):
        return x
    return g.cast(g.map("Round", g.cast(x, wide(x.dtype))), x.dtype)


def _ordered(
    g: Graph, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[Value] | None:
    """The k largest or smallest elements and their positions. NaN counts as the largest float, as
    in torch. A second, stable sort moves it to its place: [2, nan, inf] -> [2, inf, inf] -> [2,
    inf, nan]."""
    if not is_float(x.dtype):
        return _topk(g, x, k, dim, largest, sorted)
    if not x.rank:
        return None
    axis = _axis(x, dim)
    inner = g.cast(x, "float32" if wide(x.dtype) == "float32" else "float64")
    unknown = g.map("IsNaN", inner, dtype="bool")
    numbers = g.map("Where", unknown, g.number(math.inf, inner.dtype), inner)
    extent = g.integers(x.shape[axis])
    by_number = g.nodes_of(
        "TopK", [numbers, extent], [(x.shape, inner.dtype), (x.shape, "int64")],
        axis=axis, largest=int(largest), sorted=1,
    )[1]  # fmt: skip
    last = _along_axis(g, g.cast(unknown, "int64"), by_number, axis)
    by_kind = g.nodes_of(
        "TopK", [last, extent], [(x.shape, "int64"), (x.shape, "int64")],
        axis=axis, largest=int(largest), sorted=1,
    )[1]  # fmt: skip
    order = g.slice(_along_axis(g, by_number, by_kind, axis), axis, 0, k)
    return [_along_axis(g, x, order, axis), order]


def _largest(g: Graph, x: Value, dim: int, keepdim: bool = False) -> list[Value] | None:
    """The largest element of an axis, and its position: the first NaN if there is one."""
    found = _ordered(g, x, 1, dim)
    if found is None or keepdim:
        return found
    axis = _axis(x, dim)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return [g.reshape(part, shape) for part in found]


def _smallest(g: Graph, x: Value, dim: int, keepdim: bool = False) -> list[Value] | None:
    """The smallest element of an axis, and its position: the first NaN if there is one."""
    if x.dtype == "bool" or not x.rank:
        return None
    # For integers -1 - x, as the negative of the least one is no number of the dtype.
    wider = g.cast(x, wide(x.dtype))
    minus = g.number(-1, wider.dtype)
    turned = g.map("Neg", wider) if is_float(x.dtype) else g.map("Sub", minus, wider)
    found = _largest(g, turned, dim, keepdim)
    if found is None:
        return None
    least = found[0]
    back = g.map("Neg", least) if is_float(x.dtype) else g.map("Sub", minus, least)
    return [g.cast(back, x.dtype), found[1]]


def _position(
    of: Callable[..., list[Value] | None]
) -> Callable[[Graph, Value, int | None, bool], Value | None]:
    """A row for the position of the largest or smallest element of an axis, or of the tensor."""

    def row(g: Graph, x: Value, dim: int | None = None, keepdim: bool = False) -> Value | None:
        if dim is None and keepdim:
            return None
        found = of(g, g.reshape(x, (x.size,)) if dim is None else x, dim or 0, keepdim)
        return None if found is None else found[1]

    return row


def _along_axis(g: Graph, x: Value, index: Value, axis: int) -> Value:
    return g.node("GatherElements", [x, index], index.shape, x.dtype, axis=axis)


def _all_ordered(
    g: Graph, x: Value, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> list[Value] | None:
    return _ordered(g, x, x.shape[dim], dim, descending) if x.rank else None


def _index_put(
    g: Graph, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value | None:
    """A tensor with values written at positions, or where a mask is true."""
    known = [index for index in indices if index is not None]
    if len(known) < len(indices) or not known or values.dtype != x.dtype:
        return None
    if known[0].dtype == "bool":
        mask = known[0]
        if len(known) > 1 or accumulate or values.size != 1 or mask.shape != x.shape[: mask.rank]:
            return None
        spread = g.reshape(mask, (*mask.shape, *[1] * (x.rank - mask.rank)))
        return g.map("Where", spread, g.reshape(values, ()), x)
    if any(index.dtype not in ("int32", "int64") for index in known):
        return None
    if accumulate and x.dtype not in ("float32", "float64", "int32", "int64"):
        return None
    shape = broadcast_shapes("index_put", *(index.shape for index in known))
    rows = [g.reshape(g.expand(g.cast(index, "int64"), shape), (*shape, 1)) for index in known]
    updates = g.expand(values, (*shape, *x.shape[len(known) :]))
    inputs = [x, g.concat(rows, len(shape)), updates]
    return g.node("ScatterND", inputs, x.shape, x.dtype,
                  reduction="add" if accumulate else "none")  # fmt: skip


_EXPORTED: Final[dict[str, Callable[..., Any]]] = {
    **{f"aten::remainder.{kind}": _of_integers("mod") for kind in ("Tensor", "Scalar")},
    **{f"aten::fmod.{kind}": _of_integers("mod", fmod=True) for kind in ("Tensor", "Scalar")},
    **{f"aten::div.{kind}_mode": _of_integers("floordiv") for kind in ("Tensor", "Scalar")},
    "aten::floor_divide": _of_integers("floordiv"),
    "aten::round": _round,
    "aten::topk": _ordered,
    "aten::sort": _all_ordered,
    "aten::sort.stable": lambda g, x, *, stable=None, dim=-1, descending=False: _all_ordered(
        g, x, dim, descending
    ),
    "aten::max.dim": _largest,
    "aten::min.dim": _smallest,
    "aten::argmax": _position(_largest),
    "aten::argmin": _position(_smallest),
    **{
        f"aten::bitwise_{way}_shift.{kind}": _shifted(way.upper())
        for way in ("left", "right")
        for kind in ("Tensor", "Tensor_Scalar")
    },
    "aten::max_pool2d_with_indices": _max_pool_with_places,
    "eqsynth::onnx_operator": written_back,
    "aten::index_put": _index_put,
}

_ROWS: Final[dict[str, Callable[..., Any]]] = {
    "aten::cumsum": _cumsum,
    "aten::topk": _topk,
    "aten::sort": _sort,
    "aten::sort.stable": _stable,
    "aten::_to_copy": _to_complex,
    "aten::_fft_c2c": _fft,
    "aten::_fft_r2c": _real_fft,
    "aten::view_as_real": _as_real,
    "aten::bitwise_not": _bits("BitwiseNot"),
    **{
        f"aten::bitwise_{name}.Tensor": _bits(f"Bitwise{name.capitalize()}")
        for name in ("and", "or", "xor")
    },
}
