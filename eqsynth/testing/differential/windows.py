"""Rows of windows: poolings with every attribute, im2col and col2im, unfold, pixel shuffles."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F

from eqsynth.testing.differential.reductions import FINITE
from eqsynth.testing.differential.row import Operand, Row

_SINGLE: Final = ("float32",)
_X: Final = Operand((2, 3, 7, 6))
# (window, stride, padding, dilation)
_WINDOWS: Final[tuple[Any, ...]] = (
    ([3, 2], [], [0, 0], [1, 1]), ([3], [2], [1], [1]), ([2, 2], [2, 2], [1, 1], [1, 1]),
    ([3, 3], [3, 2], [1, 0], [1, 1]), ([2, 2], [1, 1], [0, 0], [2, 3]),
    ([7, 6], [1, 1], [0, 0], [1, 1]), ([2, 2], [3, 3], [1, 1], [1, 1]),
    ([2, 2], [5, 5], [1, 1], [2, 2]), ([1, 1], [4, 4], [0, 0], [1, 1]),
)  # fmt: skip


def _poolings() -> list[Row]:
    rows = []
    for kernel, stride, padding, dilation in _WINDOWS:
        for ceil in (False, True):
            window = (kernel, stride, padding, dilation, ceil)
            rows += [
                Row("aten::max_pool2d", (_X, *window), dtypes=("float32", "int8", "uint8")),
                Row("aten::max_pool2d_with_indices", (Operand((3, 7, 6)), *window),
                    dtypes=("bfloat16",), kinds=("edges",)),
            ]  # fmt: skip
            if dilation != [1, 1]:
                continue
            for counted in (False, True):
                rows += [
                    Row("aten::avg_pool2d", (x, kernel, stride, padding, ceil, counted, divisor),
                        dtypes=_SINGLE, kinds=FINITE, sensitive=True)
                    for x in (_X, Operand((3, 7, 6))) for divisor in (None, 3, -2)
                    if x is _X or divisor is None
                ]  # fmt: skip
    rows += [
        Row("aten::max_pool2d", (_X, [3, 2]), dtypes=("float16", "float64", "int64", "int32")),
        Row("aten::avg_pool2d", (_X, [3, 2]), kinds=FINITE, sensitive=True),
        Row("ops.max_pool2d", (_X, 3, 2, 1, 1, True), reference=F.max_pool2d, dtypes=_SINGLE),
        Row("ops.avg_pool2d", (_X, 3, 2, 1), reference=F.avg_pool2d, dtypes=_SINGLE,
            kinds=FINITE, sensitive=True),
        Row("ops.adaptive_max_pool2d", (_X, (1, 2)), reference=F.adaptive_max_pool2d,
            dtypes=_SINGLE),
    ]  # fmt: skip
    for size in ([1, 1], [7, 6], [7, 3], [1, 2]):
        rows += [
            *(Row(f"aten::{name}", (_X, size), dtypes=("float32", "bfloat16"), kinds=FINITE,
                  sensitive=True) for name in ("adaptive_avg_pool2d", "_adaptive_avg_pool2d")),
            Row("aten::adaptive_max_pool2d", (_X, size), dtypes=("float32", "float64")),
        ]  # fmt: skip
    volume = Operand((2, 3, 5, 7, 6))
    for kernel, stride, padding, dilation in (
        ([2, 3, 2], [], [0, 0, 0], [1, 1, 1]), ([3], [2], [1], [1]),
        ([2, 1, 2], [1, 2, 3], [1, 0, 1], [2, 1, 2]), ([1, 2, 2], [3, 2, 2], [0, 1, 1], [1, 1, 1]),
    ):  # fmt: skip
        for ceil in (False, True):
            window = (kernel, stride, padding, dilation, ceil)
            rows += [
                Row("aten::max_pool3d", (volume, *window), dtypes=("float32", "int8")),
                Row("aten::max_pool3d_with_indices", (Operand((3, 5, 7, 6)), *window),
                    dtypes=("bfloat16",), kinds=("edges",)),
            ]  # fmt: skip
            if all(d == 1 for d in dilation):
                rows += [
                    Row("aten::avg_pool3d", (volume, kernel, stride, padding, ceil, counted),
                        dtypes=_SINGLE, kinds=FINITE, sensitive=True)
                    for counted in (False, True)
                ]  # fmt: skip
    rows += [
        Row("aten::avg_pool3d", (volume, [2], [2], [0], False, True, 3), dtypes=_SINGLE,
            kinds=FINITE, refused=True),
        Row("aten::max_pool3d", (Operand((0, 3, 5, 7, 6)), [2]), dtypes=_SINGLE),
        Row("aten::avg_pool3d", (volume, [2, 3, 2]), dtypes=("float16", "bfloat16", "float64"),
            kinds=FINITE, sensitive=True),
        Row("ops.max_pool3d", (volume, 2), reference=F.max_pool3d, dtypes=_SINGLE),
        Row("ops.avg_pool3d", (Operand((3, 5, 7, 6)), 2), reference=F.avg_pool3d, dtypes=_SINGLE,
            kinds=FINITE, sensitive=True),
        *(Row(f"aten::{name}adaptive_avg_pool3d", (Operand((2, 3, 4, 6, 8)), size), dtypes=_SINGLE,
              kinds=FINITE, sensitive=True)
          for name in ("", "_") for size in ([1, 1, 1], [2, 3, 4], [4, 6, 8], [1, 2, 8])),
        Row("ops.adaptive_avg_pool3d", (Operand((2, 3, 4, 6, 8)), 2), dtypes=_SINGLE, kinds=FINITE,
            sensitive=True, reference=F.adaptive_avg_pool3d),
    ]  # fmt: skip
    for size in ([2, 3], [14, 12]):
        rows += [Row(f"aten::adaptive_{name}_pool2d", (_X, size), dtypes=_SINGLE, kinds=("normal",),
                     refused=True) for name in ("avg", "max")]  # fmt: skip
    return rows


def _columns() -> list[Row]:
    rows = []
    once: dict[str, Any] = {"dtypes": _SINGLE, "kinds": ("normal",)}
    summed: dict[str, Any] = {"dtypes": ("float32", "float64"), "kinds": FINITE, "sensitive": True}
    for kernel, dilation, padding, stride, points in (
        ([3, 2], [1, 1], [0, 0], [1, 1], 25), ([3, 2], [2, 1], [1, 1], [2, 1], 21),
        ([2, 2], [1, 1], [3, 3], [1, 1], 132), ([1, 1], [1, 1], [0, 0], [3, 2], 9),
    ):  # fmt: skip
        taps = 3 * kernel[0] * kernel[1]
        window = (kernel, dilation, padding, stride)
        rows += [
            Row("aten::im2col", (_X, *window), **once),
            Row("aten::im2col", (Operand((3, 7, 6)), *window), **once),
            Row("aten::col2im", (Operand((2, taps, points)), [7, 6], *window), **summed),
            Row("aten::col2im", (Operand((taps, points)), [7, 6], *window), **summed),
        ]
    rows += [
        Row(f"aten::pixel_{name}", (Operand((2, 36, 6, 6)), r), **once)
        for name in ("shuffle", "unshuffle") for r in (1, 2, 3)
    ]  # fmt: skip
    rows += [
        Row("aten::unfold", (Operand((3, 4, 5)), *window), **once)
        for window in ((0, 2, 1), (-1, 3, 2), (1, 4, 1), (1, 0, 1), (0, 1, 9))
    ]
    rows += [
        Row("ops.im2col", (_X, 3, 1, 1, 2), reference=F.unfold, **once),
        Row("ops.col2im", (Operand((2, 12, 30)), (7, 6), 2), reference=F.fold, **summed),
        Row("ops.unfold", (Operand((3, 7)), -1, 3, 2), reference=torch.Tensor.unfold, **once),
        Row("ops.pixel_shuffle", (_X, 1), reference=F.pixel_shuffle, **once),
        Row("ops.pixel_unshuffle", (Operand((3, 6, 6)), 2), reference=F.pixel_unshuffle, **once),
    ]
    return rows


ROWS: Final = (*_poolings(), *_columns())
