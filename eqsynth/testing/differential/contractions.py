"""Rows of contractions: matrix products, convolutions, attention, interpolation."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
import torch.nn.functional as F

from eqsynth.ir.types import FLOATS, INTEGERS, Shape
from eqsynth.testing.differential.reductions import FINITE
from eqsynth.testing.differential.row import NUMBERS, Operand, Row

_SINGLE: Final = ("float32",)
_KINDS: Final = ("normal", "mixed", "offset 1e4", "sparse")


def _of(*shape: int, **options: Any) -> Operand:
    return Operand(shape, **options)


def _row(
    entry: str, *args: Any, dtypes: tuple[str, ...] = ("float32", "float64", "int64"), **more: Any
) -> Row:
    rest: dict[str, Any] = {"kinds": _KINDS, "sensitive": True, "roundings": 16, **more}
    return Row(entry, args, dtypes=dtypes, **rest)


def _matrices() -> list[Row]:
    rows = [
        _row("aten::mm", _of(9, 33), _of(33, 7), dtypes=NUMBERS, kinds=FINITE),
        _row("aten::bmm", _of(3, 5, 9), _of(3, 9, 4), dtypes=NUMBERS),
        _row("aten::mv", _of(9, 33), _of(33), dtypes=NUMBERS),
        _row("aten::dot", _of(33), _of(33), dtypes=NUMBERS),
        _row("aten::linear", _of(2, 3, 9), _of(5, 9), _of(5), dtypes=FLOATS, kinds=FINITE),
        _row("aten::linear", _of(9), _of(5, 9)),
        _row("aten::linear", _of(2, 3, 9), _of(9), _of()),
    ]
    shapes: list[tuple[Shape, Shape]] = [
        ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)),
        ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((0, 4), (4, 5)), ((3, 0), (0, 5)),
    ]  # fmt: skip
    rows += [_row("aten::matmul", _of(*a), _of(*b)) for a, b in shapes]
    for shape in ((5,), (1,), (3, 5), (3, 1), ()):
        for beta, alpha in ((1, 1), (2, 3), (0, 1), (1, 0)):
            scaled = {"beta": beta, "alpha": alpha}
            rows.append(_row("aten::addmm", _of(*shape), _of(3, 9), _of(9, 5), options=scaled))
    half = {"beta": 0.5, "alpha": 0.25}
    # With beta = 0 the first operand isn't read, so it may be NaN. For integers, torch takes no
    # fractions as beta and alpha.
    nothing = _of(3, 5, kind="normal", change=all_nan)
    rows += [
        _row("aten::addmm", _of(5), _of(3, 9), _of(9, 5), dtypes=FLOATS, options=half),
        _row("aten::addmm", _of(5), _of(3, 9), _of(9, 5), dtypes=INTEGERS, options=half,
             refused=True),
        _row("aten::addmm", nothing, _of(3, 9), _of(9, 5), dtypes=FLOATS, options={"beta": 0}),
        _row("aten::baddbmm", _of(2, 3, 5), _of(2, 3, 4), _of(2, 4, 5), options=half,
             dtypes=FLOATS, kinds=("normal", "sparse")),
        _row("aten::baddbmm", _of(5), _of(2, 3, 4), _of(2, 4, 5)),
        _row("aten::addmv", _of(3), _of(3, 4), _of(4), options={"beta": 2, "alpha": 3}),
        _row("aten::bilinear", _of(3, 4), _of(3, 5), _of(2, 4, 5), dtypes=FLOATS),
        _row("aten::bilinear", _of(2, 3, 4), _of(2, 3, 5), _of(6, 4, 5), _of(6), dtypes=FLOATS),
        _row("aten::bilinear", _of(4), _of(5), _of(2, 4, 5), _of(2)),
        _row("aten::bilinear", _of(3, 4), _of(2, 5), _of(6, 4, 5), refused=True),
        _row("ops.matmul", _of(3, 4), _of(4, 5), reference=torch.matmul),
        _row("ops.addmm", _of(5), _of(3, 4), _of(4, 5), 0.5, 2.0, dtypes=FLOATS,
             reference=lambda b, x, y, beta, alpha: torch.addmm(b, x, y, beta=beta, alpha=alpha)),
        _row("ops.g2bmm", _of(2, 7, 5), _of(2, 7, 5), 2, 3, dtypes=_SINGLE, reference=band_of),
        _row("ops.gbmm", _of(2, 7, 5), _of(2, 7, 4), 2, dtypes=_SINGLE, reference=band_times),
    ]  # fmt: skip
    rows += [
        _row("ops.einsum", text, *(_of(*shape) for shape in shapes), dtypes=("float32", "int64"),
             reference=torch.einsum)
        for text, shapes in (
            ("ij,jk->ik", ((3, 4), (4, 5))), ("ij,jk", ((3, 4), (4, 5))), ("ii->i", ((4, 4),)),
            ("bij,bkj->bki", ((2, 3, 4), (2, 5, 4))), ("i,j->ji", ((3,), (4,))),
            ("ij->", ((3, 4),)),
            ("abc,cd,ae->be", ((2, 3, 4), (4, 5), (2, 3))), ("ij->ji", ((3, 4),)),
        )
    ]  # fmt: skip
    rows += [
        _row("aten::einsum", text, [_of(*shape) for shape in shapes], dtypes=FLOATS, **more)
        for text, shapes, more in (
            ("ij,jk->ik", ((3, 9), (9, 5)), {}), ("bhid,bhjd->bhij", ((2, 3, 4, 9),) * 2, {}),
            ("...ij,jk", ((2, 3, 4), (4, 5)), {}), ("i,j->ji", ((3,), (4,)), {}),
            ("ij,ij->", ((3, 4), (3, 4)), {}), ("ij->j", ((3, 4),), {}),
            ("abc,cd,ae->be", ((2, 3, 4), (4, 5), (2, 3)), {}),
            ("abc,cd,ae->be", ((2, 3, 4), (4, 5), (2, 3)), {"options": {"path": [0, 2, 0, 1]}}),
            ("ii->i", ((4, 4),), {"refused": True}),
            ("ij,jk->ik", ((3, 1), (4, 5)), {"refused": True}),
        )
    ]  # fmt: skip
    return rows


def all_nan(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, math.nan)


def band_of(a: torch.Tensor, b: torch.Tensor, width: int, dilation: int) -> torch.Tensor:
    whole = F.pad(a @ b.mT, (width * dilation,) * 2)
    at = torch.arange(a.shape[1])[:, None] + dilation * torch.arange(2 * width + 1)
    return torch.gather(whole, 2, at.expand(a.shape[0], -1, -1))


def band_times(a: torch.Tensor, b: torch.Tensor, dilation: int) -> torch.Tensor:
    width = a.shape[2] // 2
    rows = F.pad(b, (0, 0, width * dilation, width * dilation))
    return sum(
        a[:, :, w, None] * rows[:, w * dilation :][:, : b.shape[1]] for w in range(a.shape[2])
    )  # type: ignore[return-value]


def _over_volumes() -> list[Row]:
    rows, x = [], _of(2, 4, 5, 4, 6)
    for kernel, stride, padding, dilation, groups in (
        ((3, 3, 2), [1, 1, 1], [0, 0, 0], [1, 1, 1], 1),
        ((1, 3, 3), [1, 2, 1], [0, 1, 1], [1, 1, 1], 1),
        ((3, 1, 1), [2, 1, 1], [1, 0, 0], [1, 1, 1], 2),
        ((2, 2, 2), [2, 1, 3], [2, 1, 1], [3, 2, 1], 2), ((1, 1, 1), [1] * 3, [0] * 3, [1] * 3, 1),
        ((2, 2, 2), [2, 2, 2], [0, 0, 0], [1, 1, 1], 4),
    ):  # fmt: skip
        w, bias = _of(8, 4 // groups, *kernel), _of(8)
        rest = (stride, padding, dilation)
        rows += [
            _row("aten::conv3d", x, w, bias, *rest, groups, dtypes=_SINGLE),
            _row("aten::conv3d", _of(4, 5, 4, 6), w, None, *rest, groups, dtypes=("float64",)),
            _row("aten::convolution", x, w, bias, *rest, False, [0] * 3, groups, dtypes=_SINGLE),
        ]
        for more in ([0, 0, 0], [1, 0, 0]):
            if more[0] < max(stride[0], dilation[0]):
                up, b = _of(4, 3, *kernel), _of(3 * groups)
                rows += [
                    _row("aten::conv_transpose3d.input", _of(2, 4, 3, 4, 5), up, b, stride, padding,
                         more, groups, dilation, dtypes=_SINGLE),
                    _row("aten::convolution", _of(1, 4, 3, 4, 5), up, None, stride, padding,
                         dilation, True, more, groups, dtypes=("float64",)),
                ]  # fmt: skip
    rows += [
        _row("aten::conv3d.padding", x, _of(6, 4, 2, 3, 2), None, [1] * 3, padding, [d] * 3,
             dtypes=_SINGLE)
        for padding in ("same", "valid") for d in (1, 2)
    ]  # fmt: skip
    rows += [
        _row("aten::conv3d", x, _of(6, 4, 3, 3, 2), _of(6), dtypes=("float16", "bfloat16")),
        _row("aten::conv_transpose3d.input", x, _of(4, 3, 3, 2, 2), _of(3), [1, 2, 1],
             dtypes=("float16", "bfloat16")),
        _row("aten::conv3d", _of(1, 2, 1, 1, 1), _of(3, 2, 1, 1, 1), dtypes=_SINGLE),
        _row("aten::conv3d", _of(0, 4, 5, 4, 6), _of(6, 4, 3, 3, 2), dtypes=_SINGLE),
        _row("ops.conv3d", x, _of(6, 4, 3, 3, 2), _of(6), 1, 1, dtypes=_SINGLE, reference=F.conv3d),
        _row("ops.conv_transpose3d", x, _of(4, 2, 2, 2, 2), None, 2, dtypes=_SINGLE,
             reference=F.conv_transpose3d),
    ]  # fmt: skip
    return rows


def _convolutions() -> list[Row]:
    rows = []
    windows: list[tuple[Any, ...]] = [
        ([1, 1], [0, 0], [1, 1], 1), ([2, 1], [1, 1], [1, 1], 1), ([1, 1], [2, 2], [2, 1], 1),
        ([1, 1], [0, 1], [1, 1], 2), ([3, 2], [1, 0], [1, 2], 2),
    ]  # fmt: skip
    for stride, padding, dilation, groups in windows:
        w, bias = _of(6, 4 // groups, 3, 2), _of(6)
        rest = (stride, padding, dilation)
        rows += [
            _row("aten::conv2d", _of(2, 4, 7, 6), w, bias, *rest, groups, dtypes=_SINGLE),
            _row("aten::conv2d", _of(4, 7, 6), w, None, *rest, groups, dtypes=("float64",)),
            _row("aten::convolution", _of(2, 4, 7, 6), w, bias, *rest, False, [0, 0], groups,
                 dtypes=_SINGLE),
            _row("aten::conv1d", _of(2, 4, 9), _of(6, 4 // groups, 3), bias,
                 *(part[:1] for part in rest), groups, dtypes=_SINGLE),
        ]  # fmt: skip
        for more in ([0, 0], [1, 1]):
            up = _of(4, 3, 3, 2)
            b = _of(3 * groups)
            if all(m < max(s, d) for m, s, d in zip(more, stride, dilation, strict=True)):
                rows += [
                    _row("aten::conv_transpose2d.input", _of(2, 4, 5, 6), up, b, stride, padding,
                         more, groups, dilation, dtypes=_SINGLE),
                    _row("aten::conv_transpose1d", _of(2, 4, 9), _of(4, 3, 3), b, stride[:1],
                         padding[:1], more[1:], groups, dilation[:1], dtypes=_SINGLE),
                    _row("aten::convolution", _of(1, 4, 5, 6), up, None, stride, padding, dilation,
                         True, more, groups, dtypes=("float64",)),
                ]  # fmt: skip
    for padding in ("same", "valid"):
        for dilation in (1, 2):
            rows += [
                _row("aten::conv2d.padding", _of(2, 4, 7, 6), _of(6, 4, 3, 2), None, [1, 1],
                     padding, [dilation] * 2, dtypes=_SINGLE),
                _row("aten::conv1d.padding", _of(2, 4, 9), _of(6, 4, 4), None, [1], padding,
                     [dilation], dtypes=_SINGLE),
            ]  # fmt: skip
    rows += _over_volumes()
    x, w = _of(2, 4, 6, 5), _of(6, 4, 3, 3)
    rows += [
        _row("aten::conv2d", x, w, _of(6), dtypes=("float16", "bfloat16")),
        _row("aten::conv2d", _of(0, 4, 6, 5), w, dtypes=_SINGLE),
        _row("ops.conv2d", x, w, _of(6), 2, 1, dtypes=_SINGLE, reference=F.conv2d),
        _row("ops.conv1d", _of(2, 4, 9), _of(6, 4, 3), dtypes=_SINGLE, reference=F.conv1d),
        _row("ops.conv_transpose2d", x, _of(4, 2, 3, 3), None, 2, 1, 1, dtypes=_SINGLE,
             reference=F.conv_transpose2d),
        _row("ops.conv_transpose1d", _of(2, 4, 9), _of(4, 2, 3), None, 2, dtypes=_SINGLE,
             reference=F.conv_transpose1d),
    ]  # fmt: skip
    return rows


def lower_half(x: torch.Tensor) -> torch.Tensor:
    """A mask of which one row allows nothing."""
    result = torch.tril(x != 0)
    result[..., 2, :] = False
    return result


def minus_infinity(x: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(lower_half(torch.ones_like(x)), -math.inf)


def large(x: torch.Tensor) -> torch.Tensor:
    """Products of these are no float16, and float32 has no tenths of them."""
    return x * 64


def _attention() -> list[Row]:
    q, k, v = _of(2, 4, 5, 8), _of(2, 4, 7, 8), _of(2, 4, 7, 6)
    name = "aten::scaled_dot_product_attention"
    kinds = ("normal", "constant rows", "near equal")
    square = (q, q, q)
    masks = [
        Operand((5, 5), "bool", "normal"), Operand((2, 1, 5, 5), "bool", "normal"),
        Operand((5, 5), kind="normal"), Operand((5, 5), "bool", "normal", change=lower_half),
        Operand((5, 5), kind="normal", change=minus_infinity),
    ]  # fmt: skip
    every: dict[str, Any] = {"dtypes": FLOATS, "kinds": kinds}
    wide = _of(2, 4, 5, 8, kind="normal", change=large)
    rows = [
        _row(name, q, k, v, **every),
        _row(name, *square, None, 0.0, True, **every),
        _row(name, q, k, v, None, 0.0, True, dtypes=_SINGLE, kinds=kinds),
        _row(name, k, q, _of(2, 4, 5, 6), None, 0.0, True, dtypes=_SINGLE, kinds=kinds),
        *(_row(name, *square, mask, dtypes=("float32", "float16"), kinds=kinds) for mask in masks),
        _row(name, *square, masks[0], 0.0, True, dtypes=_SINGLE, kinds=kinds),
        _row(name, wide, wide, q, **every),
        *(_row(name, *square, options={"scale": scale}, dtypes=_SINGLE, kinds=kinds)
          for scale in (0.3, 0.0, -2.0)),
        *(_row(name, q, _of(2, heads, 5, 8), _of(2, heads, 5, 8), options={"enable_gqa": True},
               dtypes=_SINGLE, kinds=kinds) for heads in (1, 2, 4)),
        _row(name, _of(5, 8), _of(7, 8), _of(7, 8), dtypes=_SINGLE, kinds=kinds),
        _row(name, _of(3, 5, 8), _of(3, 7, 8), _of(3, 7, 8), dtypes=_SINGLE, kinds=kinds),
        # With dropout the result is random.
        _row(name, *square, None, 0.5, dtypes=FLOATS, kinds=("normal",), refused=True),
    ]  # fmt: skip
    return rows


def _interpolation() -> list[Row]:
    rows = []
    x = _of(1, 2, 7, 6)
    for align in (False, True):
        for size in ([5, 7], [14, 12], [3, 3], [1, 1], [7, 6]):
            rows += [
                _row("aten::upsample_bilinear2d", x, size, align, dtypes=("float32", "float64")),
                _row("aten::upsample_bilinear2d.vec", x, size, align, None, dtypes=_SINGLE),
            ]
        for scale in ([2.0, 2.0], [2.0, 3.0]):
            vec = _row("aten::upsample_bilinear2d.vec", x, None, align, scale, dtypes=_SINGLE)
            rows.append(vec)
        for scale in ([1.5, 1.5], [1.3, 0.7]):
            rows.append(
                _row("aten::upsample_bilinear2d.vec", x, None, align, scale, dtypes=_SINGLE,
                     refused=True)
            )  # fmt: skip
    rows.append(_row("ops.upsample_bilinear2d", x, (5, 7), True, dtypes=_SINGLE,
                     reference=torch.ops.aten.upsample_bilinear2d.default))  # fmt: skip
    sizes = ([5, 7, 4], [14, 12, 8], [3, 3, 3], [1, 1, 1], [7, 6, 5], [13, 11, 9])
    picture = (7, 6, 5)
    for name in ("upsample_nearest", "_upsample_nearest_exact"):
        for rank in (1, 2, 3):
            x = _of(1, 2, *picture[:rank], kind="normal")
            exact: dict[str, Any] = {"dtypes": ("float32", "uint8"), "kinds": ("normal",)}
            rows += [_row(f"aten::{name}{rank}d", x, size[:rank], **exact) for size in sizes]
            rows += [
                _row(f"aten::{name}{rank}d.vec", x, None, [factor] * rank, **exact)
                for factor in (2.0, 1.5, 0.5)
            ]
    rows.append(_row("ops.upsample_nearest", _of(1, 2, 7, 6), (5, 9), dtypes=_SINGLE,
                     reference=F.interpolate))  # fmt: skip
    return rows


ROWS: Final = (*_matrices(), *_convolutions(), *_attention(), *_interpolation())
