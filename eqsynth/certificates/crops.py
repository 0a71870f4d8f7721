"""Compute elements of products that are too large to be computed whole, by cropping operands.

    conv2d(x, w)[n, f, i, j]  =  conv2d(x[n, group of f, window at i, j], w[f])[0, 0, 0, 0]
    matmul(a, b)[n, i, j]     =  matmul(a[n, i], b[n, :, j])[0, 0, 0]

Only the parts of the operands that an element reads are cut out. The interpreter then computes the
product of these parts with the same operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from eqsynth.ir.arithmetic import Array
from eqsynth.ir.interpret import evaluate_one
from eqsynth.ir.operators import Attr
from eqsynth.ir.tensor import Input, Op, Tensor
from eqsynth.ir.types import TensorType

_Cut = tuple[list[Array], tuple[Attr, ...]]


def is_cut(term: Tensor) -> bool:
    """Whether single elements of a term can be computed from parts of its operands."""
    return isinstance(term, Op) and term.name in _CROPS


def work(op: Op) -> int:
    """The number of products in the sum of one element."""
    first, second = (arg.shape for arg in op.args[:2])
    return math.prod(second[1:]) if op.row.images else first[-1]


def elements(op: Op, operands: Sequence[Array], points: Sequence[Array]) -> Array:
    """The elements of a product at some points, as a vector; ``points`` has one array per axis."""
    places = zip(*(axis.tolist() for axis in points), strict=True)
    return np.asarray([_element(op, operands, place) for place in places])


def _element(op: Op, operands: Sequence[Array], place: tuple[int, ...]) -> Any:
    cut, attrs = _CROPS[op.name](op, list(operands), place)
    leaves = [Input(f"x{n}", TensorType(part.shape, arg.dtype))
              for n, (part, arg) in enumerate(zip(cut, op.args, strict=True))]  # fmt: skip
    values: dict[Tensor, Array] = dict(zip(leaves, cut, strict=True))
    return evaluate_one(Op(op.name, tuple(leaves), attrs), values, {}).reshape(-1)[0]


def _picked(tensor: Array, place: Sequence[int | None]) -> Array:
    """The part of a broadcast tensor at one place; the whole axis where the place is None."""
    own = place[len(place) - tensor.ndim :]
    return tensor[tuple(
        slice(None) if i is None else slice(0, 1) if n == 1 else slice(i, i + 1)
        for i, n in zip(own, tensor.shape, strict=True)
    )]  # fmt: skip


def _of_matmul(op: Op, operands: list[Array], place: tuple[int, ...]) -> _Cut:
    (a, b, *rest), (*n, i, j) = operands, place
    parts = [_picked(a, (*n, i, None)), _picked(b, (*n, None, j))]
    return [*parts, *(_picked(part, place) for part in rest)], op.attrs


def _of_conv2d(op: Op, operands: list[Array], place: tuple[int, ...]) -> _Cut:
    (x, w, *rest), (n, f, *at) = operands, place
    stride, padding, dilation, groups, *post = op.attrs
    channels, first = w.shape[1], f // (w.shape[0] // int(str(groups))) * w.shape[1]
    window: Array = x[n : n + 1, first : first + channels]
    for axis in (0, 1):
        s, p, d = (int(pair[axis]) for pair in (stride, padding, dilation))  # type: ignore[index]
        taken = at[axis] * s - p + d * np.arange(w.shape[2 + axis])
        inside = (taken >= 0) & (taken < window.shape[2 + axis])
        cut = window.take(np.where(inside, taken, 0), 2 + axis)
        window = np.where(inside.reshape([-1 if a == 2 + axis else 1 for a in range(4)]), cut, 0)
    parts = [window, w[f : f + 1], *(bias[f : f + 1] for bias in rest[:1])]
    parts += [_picked(residual, place) for residual in rest[1:]]
    return parts, ((1, 1), (0, 0), (1, 1), 1, *post)


_CROPS: Final[Mapping[str, Callable[[Op, list[Array], tuple[int, ...]], _Cut]]] = {
    "Matmul": _of_matmul, "FusedMatmul": _of_matmul, "FusedMatmulAdd": _of_matmul,
    "Conv2d": _of_conv2d, "FusedConv2d": _of_conv2d, "FusedConv2dAdd": _of_conv2d,
}  # fmt: skip
