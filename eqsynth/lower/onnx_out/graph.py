"""A graph of ONNX operators under construction: nodes, typed values, constants.

It is plain data and doesn't need the ``onnx`` package, so that whether ONNX can express a term is
known before the package is loaded. Each value has its shape and dtype. Equal nodes over equal
values are one node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import torch

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.ir.types import Shape, broadcast_shapes, is_float
from eqsynth.lower.torch_calls import TorchCall
from eqsynth.lower.torch_scalars import number, torch_dtype

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: its name, and its type."""

    name: str
    shape: Shape
    dtype: str

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Node:
    """An operator of ONNX. An optional input that is left out has an empty name.

    Attributes:
        whole: a ``NodeProto`` that has the operator and its attributes, but no names of inputs and
            outputs; empty if ``operator`` and ``attributes`` say what the operator is.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    whole: bytes = b""


def refuse(where: str, got: str, expected: str) -> NoReturn:
    """Raise the error for a term that ONNX can't express, or would compute differently
    than the IR."""
    raise UnsupportedOperatorError(
        what="this can't be written as ONNX",
        where=where,
        got=got,
        expected=expected,
        hint="save the program with eqsynth.save, or keep this operator out of the exported part",
    )


@dataclass
class Graph:
    """Nodes in order, and the arrays of constants by name.

    Attributes:
        calls: the calls of torch that the ``Opaque`` operators stand for, by name.
        exported: whether the graph is a whole program for a file, which the user's runtime will
            run. An engine's region, in contrast, has to raise an error wherever torch raises one.
        opsets: the opsets of domains other than ONNX's own.
        prefix: what the names of values that are made here begin with; no input or output may
            have such a name.
    """

    calls: Mapping[str, TorchCall] = field(default_factory=dict)
    exported: bool = False
    prefix: str = "."
    opsets: dict[str, int] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    arrays: dict[str, Array | torch.Tensor] = field(default_factory=dict)
    _known: dict[object, Value] = field(default_factory=dict)

    def node(
        self,
        operator: str,
        inputs: Sequence[Value | None],
        shape: Shape,
        dtype: str,
        **attributes: Any,
    ) -> Value:
        """Return the result of an operator of ONNX, and add the operator unless there is an equal
        one."""
        names = tuple("" if value is None else value.name for value in inputs)
        plain = tuple(
            (key, tuple(part) if isinstance(part, list) else part)
            for key, part in sorted(attributes.items())
        )
        key = (operator, names, plain, dtype)
        if key not in self._known:
            value = Value(f"{self.prefix}v{len(self.nodes)}", tuple(shape), dtype)
            self.nodes.append(Node(operator, names, (value.name,), plain))
            self._known[key] = value
        return self._known[key]

    def nodes_of(
        self,
        operator: str,
        inputs: Sequence[Value | None],
        results: Sequence[tuple[Shape, str]],
        **attributes: Any,
    ) -> list[Value]:
        """Return the results of an operator of ONNX that has several."""
        names = tuple("" if value is None else value.name for value in inputs)
        key = (operator, names, tuple(sorted(attributes.items())))
        places = [(key, n) for n in range(len(results))]
        if places[0] not in self._known:
            name = f"{self.prefix}v{len(self.nodes)}"
            made = [Value(f"{name}.{n}", *kind) for n, kind in enumerate(results)]
            self.nodes.append(Node(operator, names, tuple(v.name for v in made), key[2]))
            self._known |= zip(places, made, strict=True)
        return [self._known[place] for place in places]

    def foreign(
        self,
        whole: bytes,
        inputs: Sequence[Value | None],
        results: Sequence[tuple[Shape, str]],
        used: Sequence[bool],
    ) -> list[Value]:
        """Return the results of an operator that is given as a ``NodeProto``.

        Args:
            whole: see :class:`Node`.
            used: for each output of the operator, whether it is one of the results.
        """
        names = tuple("" if value is None else value.name for value in inputs)
        places = [(whole, names, n) for n in range(len(results))]
        if places[0] not in self._known:
            name = f"{self.prefix}v{len(self.nodes)}"
            made = [Value(f"{name}.{n}", *kind) for n, kind in enumerate(results)]
            left = iter(made)
            outputs = tuple(next(left).name if part else "" for part in used)
            self.nodes.append(Node("", names, outputs, whole=whole))
            self._known |= zip(places, made, strict=True)
        return [self._known[place] for place in places]

    # ---- constants ------------------------------------------------------------------------

    def array(self, array: Array, dtype: str) -> Value:
        """Return a constant."""
        held = np.ascontiguousarray(array.astype(_numpy(dtype))).reshape(array.shape)
        key = (held.tobytes(), held.shape, dtype)
        if key not in self._known:
            value = Value(f"{self.prefix}a{len(self.arrays)}", held.shape, dtype)
            self.arrays[value.name] = held
            self._known[key] = value
        return self._known[key]

    def integers(self, *numbers: int) -> Value:
        """Return a vector of int64: axes, extents or bounds."""
        return self.array(np.array(numbers, np.int64), "int64")

    def place(self, number: int) -> Value:
        """Return an int64 of rank 0: an axis."""
        return self.array(np.array(number, np.int64), "int64")

    def number(self, value: float, dtype: str) -> Value:
        """Return a constant of rank 0. For an integer dtype, a number that doesn't fit wraps
        around, and an infinity becomes the dtype's limit."""
        fitting = number(value, torch_dtype(dtype))
        return self.array(np.array(fitting), dtype)

    # ---- what everything is made of --------------------------------------------------------

    def cast(self, x: Value, dtype: str) -> Value:
        if x.dtype == dtype:
            return x
        return self.node("Cast", [x], x.shape, dtype, to=dtype)

    def map(self, operator: str, *args: Value, dtype: str = "", **attributes: Any) -> Value:
        """Return an elementwise operator of broadcast arguments. Its dtype is that of the last
        argument by default."""
        shape = broadcast_shapes(operator, *(arg.shape for arg in args))
        return self.node(operator, args, shape, dtype or args[-1].dtype, **attributes)

    def reshape(self, x: Value, shape: Shape) -> Value:
        if x.shape == shape:
            return x
        return self.node("Reshape", [x, self.integers(*shape)], shape, x.dtype)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        if list(order) == sorted(order):
            return x
        shape = tuple(x.shape[axis] for axis in order)
        return self.node("Transpose", [x], shape, x.dtype, perm=tuple(order))

    def expand(self, x: Value, shape: Shape) -> Value:
        if x.shape == shape:
            return x
        return self.node("Expand", [x, self.integers(*shape)], shape, x.dtype)

    def slice(self, x: Value, axis: int, start: int, count: int, step: int = 1) -> Value:
        """Return ``count`` elements of an axis, from ``start`` on; a negative step goes
        backwards."""
        if start == 0 and step == 1 and count == x.shape[axis]:
            return x
        stop = start + (count - 1) * step + (1 if step > 0 else -1)
        if stop < 0:
            stop = -x.shape[axis] - 1  # before the first element; -1 would mean the last
        bounds = [self.integers(k) for k in (start, stop, axis, step)]
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        return self.node("Slice", [x, *bounds], shape, x.dtype)

    def pad(self, x: Value, before: Sequence[int], after: Sequence[int], fill: float) -> Value:
        """Return the tensor with ``fill`` around it."""
        if not any((*before, *after)):
            return x
        shape = tuple(b + e + a for b, e, a in zip(before, x.shape, after, strict=True))
        amounts, value = self.integers(*before, *after), self.number(fill, x.dtype)
        return self.node("Pad", [x, amounts, value], shape, x.dtype, mode="constant")

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        if len(parts) == 1:
            return parts[0]
        joined = sum(part.shape[axis] for part in parts)
        shape = (*parts[0].shape[:axis], joined, *parts[0].shape[axis + 1 :])
        return self.node("Concat", parts, shape, parts[0].dtype, axis=axis)

    def gather(self, x: Value, index: Value, axis: int) -> Value:
        """Return the tensor with an axis replaced by the axes of ``index``, whose values lie in [0,
        extent)."""
        shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
        return self.node("Gather", [x, index], shape, x.dtype, axis=axis)

    def reduce(self, reducer: str, x: Value, axes: Sequence[int], keepdim: bool = False) -> Value:
        """Return the sum, max, min, prod or mean over axes; the tensor itself if there
        are no axes."""
        if not axes:
            return x
        gone = set(axes)
        shape = tuple(
            1 if axis in gone else extent
            for axis, extent in enumerate(x.shape)
            if keepdim or axis not in gone
        )
        wide = x
        if reducer == "prod" and not is_float(x.dtype):
            return self.reshape(self._product(x, sorted(gone)), shape)
        if reducer in ("max", "min") and x.dtype in ("int8", "uint8", "int16", "bool"):
            wide = self.cast(x, "int32")  # ONNX lacks this reduction for some of these dtypes
        operator = f"Reduce{reducer.capitalize()}"
        inputs = [wide, self.integers(*sorted(gone))]
        return self.cast(
            self.node(operator, inputs, shape, wide.dtype, keepdims=int(keepdim)), x.dtype
        )

    def _product(self, x: Value, axes: Sequence[int]) -> Value:
        """Return the product of integers over axes, half by half. It wraps around as torch's does,
        and ONNX Runtime's own operator doesn't: it computes in float64."""
        kept = [axis for axis in range(x.rank) if axis not in axes]
        moved, count = self.transpose(x, [*kept, *axes]), math.prod(x.shape[axis] for axis in axes)
        made = self.reshape(moved, (*(x.shape[axis] for axis in kept), count))
        if not count:
            return self.expand(self.number(1.0, x.dtype), made.shape[:-1])
        while (extent := made.shape[-1]) > 1:
            parts = [self.slice(made, len(kept), n * (extent // 2), extent // 2) for n in (0, 1)]
            rest = [self.slice(made, len(kept), extent - 1, 1)] if extent % 2 else []
            made = self.concat([self.map("Mul", *parts), *rest], len(kept))
        return made

    def matmul(self, a: Value, b: Value) -> Value:
        """Return the product of stacks of matrices, whose batch axes are equal or broadcast."""
        batch = broadcast_shapes("MatMul", a.shape[:-2], b.shape[:-2])
        return self.node("MatMul", [a, b], (*batch, a.shape[-2], b.shape[-1]), a.dtype)


def wide(dtype: str) -> str:
    """The dtype in which values of a dtype are computed. As in torch, 16-bit floats are computed in
    float32 and rounded after each operator. Integers below 32 bits are computed in int32, whose low
    bits are the result."""
    if dtype in ("float16", "bfloat16"):
        return "float32"
    return "int32" if dtype in ("int8", "uint8", "int16") else dtype


def ring(dtype: str) -> str:
    """The dtype in which sums and products of many values are computed. For integers it is int64,
    whose wrap-around agrees with that of narrower dtypes."""
    return wide(dtype) if is_float(dtype) else "int64"


def _numpy(dtype: str) -> Any:
    return ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
