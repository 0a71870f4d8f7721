"""Rows of views, which move elements and compute nothing, and of reads at positions that are data.

They are tested on one kind of data, since a view doesn't depend on the values.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
import torch.nn.functional as F

from eqsynth.ir.types import FLOATS
from eqsynth.testing.differential.row import ALL, Operand, Row

_X: Final = Operand((3, 4, 5))
_EDGES: Final = ("edges",)
_LAST: Final = 2**63 - 1


def _view(entry: str, *args: Any, dtypes: tuple[str, ...] = ("float32",), **more: Any) -> Row:
    return Row(entry, args, dtypes=dtypes, **{"kinds": _EDGES, **more})


def _slices() -> list[Row]:
    rows = [_view("aten::slice.Tensor", _X, 1, 1, 3, dtypes=ALL)]
    for start, end, step in (
        (None, None, 1), (0, _LAST, 1), (0, _LAST, 2), (1, -1, 1), (-2, _LAST, 1), (-100, 100, 3),
        (3, 1, 1), (100, _LAST, 1), (-1, -100, 1), (0, 4, 100), (1, 4, 2), (2, 2, 1),
    ):  # fmt: skip
        rows += [_view("aten::slice.Tensor", _X, dim, start, end, step) for dim in (0, -1)]
    rows += [_view("aten::select.int", _X, dim, at) for dim, at in ((0, 2), (-1, -5), (1, -1))]
    rows += [
        _view("aten::narrow", _X, dim, start, length)
        for dim, start, length in ((0, 1, 2), (-1, -2, 1), (1, 4, 0), (1, 0, 4), (-2, -4, 3))
    ]
    rows += [_view("aten::unbind.int", _X, dim) for dim in (0, -1)]
    rows += [
        _view(f"aten::{name}", _X, count, dim)
        for name in ("split.Tensor", "chunk")
        for dim, count in ((0, 2), (1, 3), (-1, 2), (-1, 7), (1, 1))
    ]
    rows += [
        _view("aten::split_with_sizes", _X, sizes, dim)
        for sizes, dim in (([1, 2], 0), ([5], -1), ([0, 4], 1), ([0, 5, 0], 2))
    ]
    rows.append(_view("aten::chunk", Operand((0, 3)), 2, 0))
    return rows


def _orders() -> list[Row]:
    rows = [_view("aten::permute", _X, [2, 0, 1], dtypes=ALL)]
    rows.append(_view("aten::permute", _X, [-1, 0, 1]))
    rows += [_view("aten::transpose.int", _X, a, b) for a, b in ((0, 1), (-1, 0), (1, 1))]
    rows += [_view("aten::movedim.int", _X, a, b) for a, b in ((0, 2), (-1, 0))]
    rows += [_view("aten::movedim.intlist", _X, [0, 1], [2, 0]), _view("aten::mT", _X)]
    rows += [_view("aten::numpy_T", Operand((3, 4))), _view("aten::t", Operand((3, 4)))]
    rows += [_view("aten::t", Operand((3,))), _view("aten::permute", Operand(()), [])]
    rows += [_view("aten::flip", _X, axes) for axes in ([0], [-1, 0], [])]
    rows += [
        _view("aten::roll", _X, shifts, axes)
        for shifts, axes in (([1], [0]), ([-1], [-1]), ([7], [1]), ([100], [2]), ([3], []),
                             ([1, 2], [0, 2]), ([1, 2], [0, 0]))
    ]  # fmt: skip
    rows += [_view("aten::roll", Operand((0, 3)), [2], [0]), _view("aten::flip", Operand(()), [0])]
    rows += [
        _view("aten::diagonal", _X, offset, a, b)
        for offset, a, b in ((0, 0, 1), (2, 1, 2), (-1, 0, 2), (9, 0, 1), (0, -1, 0), (-9, 0, 1))
    ]
    for name in ("tril", "triu"):
        rows += [_view(f"aten::{name}", _X, k, dtypes=("float32", "bool")) for k in (0, 2, -5, 100)]
        # Elements of the other triangle become 0, even if they are NaN or infinite.
        rows.append(_view(f"ops.{name}", Operand((2, 6, 7)), -1, reference=getattr(torch, name)))
    return rows


def _shapes() -> list[Row]:
    rows = []
    for shape in ([12, 5], [-1], [3, -1, 2], [3, 4, 5], [1, 60, 1]):
        rows += [_view(f"aten::{name}", _X, shape) for name in ("view", "reshape", "_unsafe_view")]
    rows += [
        *(_view("aten::reshape", Operand(old), new)
          for old, new in (((0, 3), [-1, 3]), ((), [1, 1]), ((1,), []))),
        _view("aten::view.dtype", _X, torch.float32),
        _view("aten::view.dtype", _X, torch.int32, refused=True),
        _view("aten::view_as", _X, Operand((60,))), _view("aten::reshape_as", _X, Operand((12, 5))),
        _view("aten::expand_as", Operand((5,)), _X),
        _view("aten::broadcast_to", Operand((5,)), [3, 5]),
        *(_view("aten::flatten.using_ints", _X, a, b)
          for a, b in ((0, -1), (1, 2), (1, 1), (-2, -1))),
        _view("aten::flatten.using_ints", Operand(()), 0, -1),
        *(_view("aten::unflatten.int", _X, 1, sizes) for sizes in ([2, 2], [-1, 2], [4, 1, 1])),
        *(_view("aten::unsqueeze", _X, dim) for dim in (0, -1, 3, -4)),
        *(_view("aten::squeeze.dim", Operand((1, 4, 1)), dim) for dim in (0, 1, -1)),
        _view("aten::squeeze", Operand((1, 4, 1))), _view("aten::squeeze", Operand(())),
        *(_view("aten::squeeze.dims", Operand((1, 4, 1)), dims) for dims in ([0, 2], [0, 1])),
        *(_view("aten::expand", _X, size) for size in ([2, 3, 4, 5], [-1, 4, 5], [2, -1, 4, 5])),
        *(_view("aten::expand", Operand((1, 4)), size) for size in ([0, 4], [-1, 4], [3, 4])),
        _view("aten::expand", Operand(()), [2, 2]),
        *(_view(f"aten::{name}", _X, n) for name in ("repeat", "tile")
          for n in ([2, 1, 1], [1, 2, 1, 3], [0, 1, 1])),
        _view("aten::tile", _X, [2]), _view("aten::repeat", Operand(()), [2]),
        *(_view("aten::as_strided", _X, size, stride, offset) for size, stride, offset in (
            ([2, 3], [1, 2], 0), ([2, 3], [3, 1], 4), ([2, 2], [0, 0], 1), ([], [], 3),
            ([60], [1], 0), ([0, 2], [1, 1], 0), ([3, 20], [20, 1], 0))),
        *(_view("aten::as_strided_copy", _X, size, stride, offset) for size, stride, offset in (
            ([2, 3], [3, 1], 4), ([60], [1], 0))),
        *(_view("aten::cat", [_X, _X, _X], dim) for dim in (0, -1)),
        *(_view("aten::concat", [_X, _X], dim) for dim in (1,)),
        *(_view("aten::stack", [_X, _X], dim) for dim in (0, -1)),
        _view("aten::cat", [_X, Operand((0,)), _X], 1), _view("aten::cat", [Operand((0,))], 0),
        *(_view("aten::cat", [Operand((3, 4)), Operand((2, 4), other, "normal")], 0, dtypes=FLOATS)
          for other in ("float64", "int64", "bool", "float16")),
        _view("aten::cat", [Operand((0,), "float64"), Operand((3, 4))], 1),
    ]  # fmt: skip
    return rows


def _pads() -> list[Row]:
    rows = [
        _view("aten::constant_pad_nd", _X, amounts, value)
        for amounts in ([1, 2], [-1, 2], [1, 1, 2, 0], [-1, -1, 3, -2], [1, 1, 1, 1, 1, 1])
        for value in (0.0, 1.5, -math.inf, math.nan)
    ]
    rows += [
        _view("aten::constant_pad_nd", _X, [1, 2], value, dtypes=("bool", "int8", "uint8", "int64"))
        for value in (0, 1, 7)
    ]
    rows.append(_view("aten::constant_pad_nd", _X, [1, 2], -math.inf, dtypes=("bool",)))
    rows.append(_view("aten::constant_pad_nd", _X, [1, 2], -1, dtypes=("bool", "int8")))
    for mode, most in (("reflect", 3), ("replicate", 7), ("circular", 4)):
        for amounts in ([1, 2], [most, most], [0, 0], [-1, 2], [2, -1]):
            rows.append(_view("aten::pad", Operand((2, 3, 5)), amounts, mode))
        rows.append(_view("aten::pad", Operand((2, 3, 4, 5)), [1, 2, 2, 1], mode, dtypes=FLOATS))
    rows += [
        _view("aten::pad", _X, [1, 2], "constant", value, dtypes=("float32", "int64"))
        for value in (None, 2.0)
    ]
    return rows


def _writes() -> list[Row]:
    """Rows of writes into a slice, a row, a diagonal, and where a mask holds."""
    five = Operand((5,))
    rows = [
        _view("aten::slice_scatter", five, Operand((len(range(5)[start:end:step]),)), 0, start,
              end, step, dtypes=ALL if step == 2 else ("float32",))
        for start, end, step in (
            (0, _LAST, 1), (None, None, 2), (1, -1, 1), (-2, _LAST, 1), (1, _LAST, 2), (2, 5, 3),
            (0, 4, 2), (4, 5, 3), (1, 5, 3), (3, 1, 1), (0, 1, 100), (4, 100, 7), (2, 4, 1),
        )
    ]  # fmt: skip
    rows += [
        _view("aten::slice_scatter", _X, Operand((3, 2, 5)), 1, 1, 4, 2),
        _view("aten::slice_scatter", _X, Operand((3, 4, 2)), -1, -3, -1),
        _view("aten::slice_scatter", Operand((3, 0)), Operand((2, 0)), 0, 1, 3),
        *(_view("aten::select_scatter", _X, Operand(shape), dim, at, dtypes=ALL if at else FLOATS)
          for shape, dim, at in (((4, 5), 0, 2), ((3, 4), -1, -5), ((3, 5), 1, 0))),
        *(_view("aten::diagonal_scatter", Operand((3, 4)), Operand((n,)), offset,
                dtypes=ALL if offset == 1 else ("float32",))
          for n, offset in ((3, 0), (3, 1), (2, -1), (1, 3), (0, 4))),
        _view("aten::diagonal_scatter", _X, Operand((4, 3)), 1, 2, 0),
        _view("aten::diagonal_scatter", _X, Operand((4, 2)), -1, 0, 2),
        *(_view("aten::copy", _X, Operand(shape, dtype, "normal"))
          for shape in ((3, 4, 5), (4, 1), (), (1, 1, 5)) for dtype in ("float32", "int64")),
        _view("aten::copy", Operand((4,), "float16"), Operand((4,)), dtypes=FLOATS),
    ]  # fmt: skip
    first, all_of, middle = ((3,), (3, 4, 5), (4,))
    for add in (False, True):
        rows += [
            _view("aten::index_put", _X, [*axes, Operand(mask, "bool", "normal")], Operand(values),
                  add, dtypes=FLOATS if add else ALL)
            for axes, mask, values in (
                ([], all_of, ()), ([], all_of, (1,)), ([], first, ()), ([], first, (4, 5)),
                ([], first, (1, 4, 1)), ([None], middle, (5,)), ([None], middle, (3, 1, 5)),
                ([None, None], (5,), ()), ([None], (4, 5), (1,)), ([], (3, 4), (1, 5)),
            )
        ]  # fmt: skip
    one = Operand((), "bool", "normal")
    rows.append(_view("aten::index_put", _X, [one], Operand((4, 5))))
    rows.append(_view("aten::index_put", Operand((0, 4)), [Operand((0,), "bool")], Operand((4,))))
    at = Operand((3,), "int64", within=(0, 3))  # of the shape that a mask would have
    rows.append(_view("aten::index_put", _X, [at], Operand(()), refused=True))
    two = Operand((3,), "bool", change=_two_chosen)
    rows.append(_view("aten::index_put", Operand((3,)), [two], Operand((2,)), refused=True))
    rows += [
        _view("ops.slice_scatter", five, Operand((2,)), 0, 1, 4, 2, reference=torch.slice_scatter),
        _view("ops.select_scatter", _X, Operand((4, 5)), 0, 1, reference=torch.select_scatter),
        _view("ops.diagonal_scatter", Operand((3, 4)), Operand((3,)), 1,
              reference=torch.diagonal_scatter),
    ]  # fmt: skip
    return rows


def _two_chosen(mask: torch.Tensor) -> torch.Tensor:
    """A mask that chooses two elements."""
    return torch.arange(len(mask)) < 2


def _reads() -> list[Row]:
    """Rows of reads at positions that are valid, negative, and out of range."""
    rows = []
    for kind in ("int64", "int32"):
        for within in ((0, 7), (3, 4), (-7, 0), (-9, -7), (7, 9)):
            front: dict[str, Any] = {"raises": within[0] < 0 or within[1] > 7}
            either: dict[str, Any] = {"raises": within[0] < -7 or within[1] > 7}
            at = Operand((11,), kind, within=within)
            twice, wide = Operand((3, 4), kind, within=within), Operand((7, 5), kind, within=within)
            rows += [
                _view("aten::index_select", Operand((7, 5)), 0, at, **front),
                _view("aten::index_select", Operand((4, 7)), -1, at, dtypes=("int64",), **front),
                _view("aten::embedding", Operand((7, 5)), at, **front),
                _view("aten::embedding", Operand((7, 5)), twice, 1, True, False, **front),
                _view("aten::index.Tensor", Operand((7, 5)), [at], dtypes=("float32", "bool"),
                      **either),
                _view("aten::index.Tensor", Operand((4, 7, 2)), [None, twice], **either),
                _view("aten::_unsafe_index.Tensor", Operand((7, 5)), [at], **either),
            ]  # fmt: skip
            if kind == "int64":
                rows += [
                    _view("aten::gather", Operand((7, 5)), 0, wide, dtypes=("float32", "int64"),
                          **front),
                    _view("aten::gather", Operand((3, 7)), -1, twice, **front),
                    _view("aten::one_hot", at, 7, dtypes=("int64",), **front),
                    _view("aten::one_hot", twice, 7, dtypes=("int64",), **front),
                ]  # fmt: skip
    several = [Operand((11,), "int64", within=(0, 4)), Operand((11,), "int64", within=(0, 5))]
    mask = Operand((7,), "bool", "normal")
    ids, starts = Operand((6,), "int64", within=(0, 7)), Operand((1,), "int64", within=(0, 1))
    rows += [
        _view("aten::index.Tensor", Operand((4, 5)), several, refused=True),
        _view("aten::index.Tensor", Operand((7, 5)), [mask], refused=True),
        _view("aten::_embedding_bag", Operand((7, 5)), ids, starts, refused=True),
        _view("aten::_embedding_bag_forward_only", Operand((7, 5)), ids, starts, refused=True),
        _view("aten::index_select", Operand(()), 0, Operand((1,), "int64", within=(0, 1))),
        _view("aten::index_select", Operand((7, 5)), 0, Operand((), "int64", within=(0, 7))),
        _view("aten::gather", Operand(()), 0, Operand((), "int64", within=(0, 1))),
        _view("ops.one_hot", Operand((3, 5), "int64", within=(0, 7)), 7, dtypes=("int64",),
              reference=F.one_hot),
        _view("ops.embedding", Operand((7, 5)), Operand((3,), "int64", within=(0, 7)),
              reference=lambda table, at: F.embedding(at, table)),
    ]  # fmt: skip
    return rows


def _functions() -> list[Row]:
    """Rows of functions of ``eqsynth.ops`` that aren't themselves entries, and of Syno's
    primitives."""
    return [
        _view("ops.squeeze", Operand((1, 4, 1)), reference=torch.squeeze),
        _view("ops.gather", Operand((7, 5)), 0, Operand((7, 5), "int64", within=(0, 7)),
              reference=torch.gather),
        _view("ops.syno.split", Operand((3, 6)), 1, 2,
              reference=lambda x, a, b: x.unflatten(a, (-1, b))),
        _view("ops.syno.merge", _X, 0, reference=lambda x, a: x.flatten(a, a + 1)),
        _view("ops.syno.shift", _X, 1, 3, reference=lambda x, a, k: x.roll(-k, a)),
        _view("ops.syno.expand", _X, 1, 6,
              reference=lambda x, a, n: x.unsqueeze(a).expand(3, n, 4, 5)),
        _view("ops.syno.unfold", Operand((3, 6)), 1, 3,
              reference=lambda x, a, k: F.pad(x, (1, 1)).unfold(a, k, 1)),
        _view("ops.syno.stride", Operand((3, 6)), 1, 2, reference=lambda x, a, s: x[:, ::s]),
    ]  # fmt: skip


ROWS: Final = (
    *_slices(), *_orders(), *_shapes(), *_pads(), *_writes(), *_reads(), *_functions(),
)  # fmt: skip
