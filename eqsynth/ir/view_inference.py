"""Shape and dtype inference of views: operators that move elements and compute nothing.

``permute`` of ``float32[2, 3]`` with order (1, 0) is ``float32[3, 2]``. Not here: other operators
(``inference.py``), the index maps of views (``calculus/views.py``).
"""

from __future__ import annotations

from typing import Any

from eqsynth.ir.inference import Ints, Types, axis_in, shape_error
from eqsynth.ir.types import TensorType, broadcast_shapes, promote


def permute(types: Types, order: Ints) -> TensorType:
    """``result.shape[i] = x.shape[order[i]]``."""
    if sorted(order) != list(range(types[0].rank)):
        shape_error("permute: no permutation", order, f"each of 0 to {types[0].rank - 1}", "")
    return TensorType(tuple(types[0].shape[axis] for axis in order), types[0].dtype)


def reshape(types: Types, shape: Ints) -> TensorType:
    result = TensorType(shape, types[0].dtype)
    if result.size != types[0].size:
        shape_error(
            "reshape: sizes differ", f"{types[0]} to {shape}", f"{types[0].size} elements", ""
        )
    return result


def expand(types: Types, shape: Ints) -> TensorType:
    if broadcast_shapes("expand", types[0].shape, shape) != shape:
        shape_error("expand: an axis would shrink", f"{types[0]} to {shape}", "larger extents", "")
    return TensorType(shape, types[0].dtype)


def slice_(types: Types, axis: int, start: int, stop: int, step: int) -> TensorType:
    """``x[start:stop:step]`` on one axis, 0 <= start <= stop <= extent, step >= 1."""
    (x,) = types
    extent = x.shape[axis_in("slice", axis, x.rank)]
    if not (0 <= start <= stop <= extent and step >= 1):
        shape_error(
            "slice: out of range",
            f"{start}:{stop}:{step} of {extent}",
            "0 <= start <= stop <= extent and step >= 1",
            "clamp the bounds first",
        )
    length = -(-(stop - start) // step)
    return TensorType((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype)


def pad(types: Types, before: Ints, after: Ints, value: float) -> TensorType:
    (x,) = types
    if not len(before) == len(after) == x.rank:
        shape_error("pad: wrong rank", f"{before}, {after}", f"{x.rank} amounts each", "")
    extents = tuple(b + e + a for b, e, a in zip(before, x.shape, after, strict=True))
    if min((*before, *after), default=0) < 0:
        shape_error("pad: negative amount", f"{before}, {after}", "0 or more", "slice instead")
    return TensorType(extents, x.dtype)


def concat(types: Types, axis: int) -> TensorType:
    first = types[0]
    axis_in("concat", axis, first.rank)
    rests = {(t.rank, *t.shape[:axis], *t.shape[axis + 1 :]) for t in types}
    if len(rests) != 1:
        shape_error(
            "concat: extents differ",
            " and ".join(map(str, types)),
            f"equal extents but on axis {axis}",
            "",
        )
    dtype = first.dtype
    for t in types[1:]:
        dtype = promote(dtype, t.dtype)
    joined = sum(t.shape[axis] for t in types)
    return TensorType((*first.shape[:axis], joined, *first.shape[axis + 1 :]), dtype)


def same(types: Types, *_attrs: Any) -> TensorType:
    return types[0]


def reverse(types: Types, axes: Ints) -> TensorType:
    """The elements along ``axes``, each of which stands once, in the opposite order."""
    (x,) = types
    for axis in axes:
        axis_in("reverse", axis, x.rank)
    if len(set(axes)) < len(axes):
        shape_error("reverse: an axis twice", axes, "each axis once", "twice is not at all")
    return x


def shift(types: Types, axis: int, amount: int) -> TensorType:
    axis_in("shift", axis, types[0].rank)
    return types[0]


def unfold(types: Types, axis: int, size: int) -> TensorType:
    """Syno's Unfold: axis i becomes axes (i, w) that read x[i + w - size // 2], 0 outside."""
    (x,) = types
    axis_in("unfold", axis, x.rank)
    if size < 1:
        shape_error("unfold: no window", size, "1 or more", "")
    return TensorType((*x.shape[: axis + 1], size, *x.shape[axis + 1 :]), x.dtype)


def stride(types: Types, axis: int, step: int) -> TensorType:
    """Syno's Stride: every ``step``-th element of an axis whose extent ``step`` divides."""
    (x,) = types
    extent = x.shape[axis_in("stride", axis, x.rank)]
    if step < 1 or extent % step:
        shape_error("stride: doesn't divide", f"{step} of {extent}", "a divisor", "slice instead")
    return TensorType((*x.shape[:axis], extent // step, *x.shape[axis + 1 :]), x.dtype)


def split(types: Types, axis: int, block: int) -> TensorType:
    """Syno's Split: an axis split into blocks, (.., g*b, ..) -> (.., g, b, ..)."""
    (x,) = types
    extent = x.shape[axis_in("split", axis, x.rank)]
    if block < 1 or extent % block:
        shape_error("split: doesn't divide", f"{block} of {extent}", "a divisor", "pad first")
    return TensorType((*x.shape[:axis], extent // block, block, *x.shape[axis + 1 :]), x.dtype)


def merge(types: Types, axis: int) -> TensorType:
    """Syno's Merge: an axis merged with the next one, (.., g, b, ..) -> (.., g*b, ..)."""
    (x,) = types
    axis_in("merge", axis, x.rank - 1)
    extent = x.shape[axis] * x.shape[axis + 1]
    return TensorType((*x.shape[:axis], extent, *x.shape[axis + 2 :]), x.dtype)
