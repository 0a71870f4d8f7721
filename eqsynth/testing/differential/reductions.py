"""Rows of reductions: sums, extremes, any and all, variances, norms, softmax, normalizations."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
import torch.nn.functional as F

from eqsynth.ir.types import FLOATS, INTEGERS
from eqsynth.testing.differential.row import ALL, Operand, Row

_X: Final = Operand((13, 67))
_IMAGE: Final = Operand((3, 5, 7))
# All kinds of data but edge values: whether a sum of these overflows depends on its order.
FINITE: Final = (
    "normal", "offset 1e4", "offset 1e6", "mixed", "constant rows", "near equal", "sparse",
)  # fmt: skip
_HALVES: Final = ("float16", "bfloat16")
_SINGLE: Final = ("float32",)
_WHOLE: Final = (*INTEGERS, "bool")


def with_nan(x: torch.Tensor) -> torch.Tensor:
    x[0, 1] = math.nan
    return x


def with_infinities(x: torch.Tensor) -> torch.Tensor:
    """Data with rows of +inf, of -inf, of both, and rows of numbers with one infinity."""
    x[0], x[1] = math.inf, -math.inf
    x[2, 0], x[2, 1], x[3, 4], x[4, 5] = math.inf, -math.inf, math.inf, -math.inf
    return x


def small(x: torch.Tensor) -> torch.Tensor:
    """Data near 1, so that a product of many neither overflows nor underflows."""
    return x % 3 - 1 if not x.is_floating_point() else torch.tanh(x) + 1.2


_SPECIAL: Final = (Operand((13, 67), kind="normal", change=with_nan),
                   Operand((13, 67), kind="normal", change=with_infinities))  # fmt: skip
_AXES: Final[tuple[Any, ...]] = ([-1], [0], [0, 2], [-3, 1], [], None)
_EMPTY: Final = (Operand((0, 3)), Operand((2, 0, 3)))


def _sums() -> list[Row]:
    rows = []
    for name in ("sum", "mean"):
        over = f"aten::{name}.dim_IntList" if name == "sum" else "aten::mean.dim"
        plain = ALL if name == "sum" else FLOATS
        rows += [
            Row(f"aten::{name}", (_X,), dtypes=FLOATS, kinds=FINITE, sensitive=True),
            Row(over, (_X, [-1]), dtypes=plain, kinds=FINITE, sensitive=True),
            Row(over, (_X, [0]), dtypes=FLOATS, kinds=FINITE, sensitive=True),
        ]
        rows += [
            Row(over, (_IMAGE, axes, keep), kinds=("normal",), dtypes=_SINGLE, sensitive=True)
            for axes in _AXES
            for keep in (False, True)
        ]
        rows += [
            Row(over, (_IMAGE, [1]), {"dtype": getattr(torch, kind)}, ALL,
                kinds=("normal", "mixed"), sensitive=True)
            for kind in ("float32", "float64", *(("int64", "uint8", "bool") * (name == "sum")))
        ]  # fmt: skip
        rows += [
            Row(over, (_IMAGE, [1]), {"dtype": torch.float16}, FLOATS, kinds=("normal",),
                sensitive=True),
            *(Row(over, (x, [-1]), kinds=("normal",), sensitive=True) for x in _SPECIAL),
            *(Row(over, (x, axes), dtypes=("float32",), kinds=("normal",))
              for x in _EMPTY for axes in ([0], [1]) if name == "sum"),
        ]  # fmt: skip
        rows.append(Row(over, (Operand(()), [0]), kinds=("normal",)))
    product = Operand((5, 9), kind="normal", change=small)
    rows += [
        Row("aten::prod", (product,), dtypes=ALL, kinds=("normal",), sensitive=True),
        Row("aten::prod.dim_int", (product, -1), dtypes=ALL, kinds=("normal",), sensitive=True),
        Row("aten::prod.dim_int", (product, 0, True), {"dtype": torch.float64}, ALL,
            kinds=("normal",), sensitive=True),
        *(Row("aten::prod.dim_int", (x, -1), kinds=("normal",), dtypes=_SINGLE) for x in _SPECIAL),
        # Sums of integers are modulo 2**64. Torch rounds integers that are summed as floats of 16
        # bits twice, so those are refused.
        Row("aten::prod.dim_int", (_X, 1), dtypes=_WHOLE, kinds=("mixed", "edges")),
        Row("aten::sum", (_X,), dtypes=_WHOLE, kinds=("edges",)),
        Row("aten::sum", (_X,), {"dtype": torch.float16}, _WHOLE, kinds=("normal",), refused=True),
        Row("aten::prod", (product,), {"dtype": torch.bfloat16}, _WHOLE, kinds=("normal",),
            refused=True),
    ]  # fmt: skip
    return rows


def _extremes() -> list[Row]:
    rows = []
    for name in ("amax", "amin"):
        rows += [Row(f"aten::{name}", (_X, [-1]), dtypes=ALL)]
        rows += [
            Row(f"aten::{name}", (_IMAGE, axes, keep), dtypes=("float32", "uint8", "int64"))
            for axes in _AXES
            if axes is not None
            for keep in (False, True)
        ]
        rows += [Row(f"aten::{name}", (x, [0]), dtypes=FLOATS) for x in _SPECIAL]
    for name in ("max", "min"):
        rows += [
            Row(f"aten::{name}", (_X,), dtypes=ALL),
            Row(f"aten::{name}.dim", (_X, -1), dtypes=ALL),
            Row(f"aten::{name}.dim", (_IMAGE, 0, True), dtypes=("float32", "int8")),
        ]
    for name in ("argmax", "argmin"):
        rows += [
            Row(f"aten::{name}", (_X, -1), dtypes=INTEGERS),
            Row(f"aten::{name}", (_IMAGE, 1, True), dtypes=("int8", "int64")),
            Row(f"aten::{name}", (_IMAGE,), dtypes=("int64", "uint8")),
            Row(f"aten::{name}", (_IMAGE, None, True), dtypes=("int32",)),
            Row(f"aten::{name}", (Operand(()), 0), dtypes=("int64",), kinds=("normal",)),
            Row(f"aten::{name}", (_X, -1), dtypes=("float32",), refused=True),
        ]
    for name in ("any", "all"):
        rows += [
            Row(f"aten::{name}", (_X,), dtypes=ALL),
            Row(f"aten::{name}.dim", (_X, -1, True), dtypes=ALL),
            *(Row(f"aten::{name}.dims", (_IMAGE, axes), dtypes=("float32", "uint8", "bool"))
              for axes in (None, [], [0, -1])),
        ]  # fmt: skip
    return rows


def _spread() -> list[Row]:
    """Rows of var, std and var_mean; on float64 they stay opaque (``aten_entries.spread``)."""
    rows = []
    for name in ("var", "std", "var_mean"):
        # In float16, 1e6 is infinite, and torch's mean of infinities is NaN here.
        kinds = ("float32", "bfloat16", *(("float16",) * (name != "var_mean")))
        rows += [
            Row(f"aten::{name}", (_X,), dtypes=kinds, kinds=FINITE),
            Row(f"aten::{name}", (_X, False), dtypes=_SINGLE, kinds=FINITE),
            Row(f"aten::{name}.dim", (_X, [-1]), dtypes=kinds, kinds=FINITE),
            Row(f"aten::{name}.dim", (_X, [0], False, True), dtypes=_SINGLE, kinds=FINITE),
            Row(f"aten::{name}.correction", (_X, [-1]), {"correction": 0}, kinds, kinds=FINITE),
            Row(f"aten::{name}.correction", (_X, [-1]), dtypes=("float64",), refused=True),
            Row(f"aten::{name}", (_X,), dtypes=("float64",), refused=True),
            # A correction larger than the number of elements: the result is NaN or infinite, as in
            # torch.
            *(Row(f"aten::{name}.correction", (_IMAGE, axes), {"correction": n, "keepdim": n == 5},
                  _SINGLE, kinds=FINITE)
              for n in (0, 1, 2, 5, 7, 0.5) for axes in ([-1], [1], None, [0, 2])),
        ]  # fmt: skip
        if name != "var_mean":
            rows += [Row(f"aten::{name}.dim", (x, [-1]), dtypes=kinds) for x in _SPECIAL]
            f = getattr(torch, name)
            rows.append(Row(f"ops.{name}", (_X, -1, 0), reference=_by_correction(f), kinds=FINITE,
                            dtypes=_SINGLE))  # fmt: skip
    rows.append(Row("ops.var_mean", (_X, -1, 0), reference=_by_correction(torch.var_mean),
                    kinds=FINITE, dtypes=_SINGLE))  # fmt: skip
    return rows


def _by_correction(function: Any) -> Any:
    return lambda x, dim, correction: function(x, dim, correction=correction)


def _norms() -> list[Row]:
    rows = [
        Row("aten::linalg_vector_norm", (_X, order, dim, True), {"dtype": dtype}, kinds=FINITE,
            dtypes=_SINGLE if dtype else ("float32", *_HALVES), sensitive=True, roundings=16)
        for order in (1, 2, math.inf) for dim in ([-1], None) for dtype in (None, torch.float64)
    ]  # fmt: skip
    rows += [Row("aten::linalg_vector_norm", (_X, order, [-1]), dtypes=_SINGLE, refused=True)
             for order in (0, 0.5, 3, -math.inf)]  # fmt: skip
    for x in _SPECIAL:
        rows += [Row("aten::linalg_vector_norm", (x, order, [-1]), kinds=("normal",),
                     sensitive=True, roundings=16) for order in (1, 2, math.inf)]  # fmt: skip
    return rows


def _softmaxes() -> list[Row]:
    rows = []
    for name in ("softmax", "log_softmax"):
        rows += [
            Row(f"aten::{name}.int", (_X, -1), kinds=FINITE, sensitive=True),
            Row(f"aten::{name}.int", (_X, 0), kinds=FINITE, sensitive=True),
            Row(f"aten::_{name}", (_X, 1, False), kinds=FINITE, sensitive=True),
            Row(f"aten::{name}.int", (_IMAGE, -2, torch.float32), dtypes=ALL, kinds=("normal",),
                sensitive=True),
            Row(f"aten::{name}.int", (_IMAGE, 1, torch.float64), dtypes=("float32", "int8"),
                kinds=("normal",), sensitive=True),
            *(Row(f"aten::{name}.int", (x, -1), kinds=("normal",), sensitive=True)
              for x in _SPECIAL),
        ]  # fmt: skip
    rows += [
        Row("aten::logsumexp", (_X, [-1]), kinds=FINITE, sensitive=True),
        Row("aten::logsumexp", (_IMAGE, [0, -1], True), kinds=FINITE, sensitive=True),
        *(Row("aten::logsumexp", (x, [-1]), kinds=("normal",), sensitive=True) for x in _SPECIAL),
    ]
    return rows


def positive(x: torch.Tensor) -> torch.Tensor:
    return x.abs() + 0.25


def _norm(entry: str, *args: Any, dtypes: tuple[str, ...] = FLOATS, **options: Any) -> Row:
    """A row of a normalization. For data around 1e6, an error in the last digit of the mean is
    large beside a small variance, so the row is sensitive."""
    rest: dict[str, Any] = {"kinds": FINITE, "sensitive": True, "roundings": 16, **options}
    return Row(entry, args, dtypes=dtypes, **rest)


def _normalizations() -> list[Row]:
    x, row = Operand((3, 6, 5, 4)), Operand((4,), kind="normal")
    w, b = Operand((6,), kind="normal"), Operand((6,), kind="normal", change=positive)
    rows = []
    for scale, shift in ((None, None), (w, b), (w, None), (None, b)):
        last = (None if scale is None else row, None if shift is None else row)
        batch = (scale, shift, w, b)
        rows += [
            _norm("aten::layer_norm", x, [4], *last),
            _norm("aten::native_layer_norm", x, [4], *last, 1e-3),
            _norm("aten::group_norm", x, 3, scale, shift),
            _norm("aten::instance_norm", x, scale, shift, None, None, True, 0.1, 1e-5, False),
            _norm("aten::instance_norm", x, *batch, False, 0.1, 1e-5, False),
            _norm("aten::batch_norm", x, *batch, False, 0.1, 1e-5, False),
            _norm("aten::_native_batch_norm_legit_no_training", x, *batch, 0.1, 1e-5),
        ]
    single: dict[str, Any] = {"dtypes": _SINGLE}
    rows += [_norm("aten::group_norm", x, groups, w, b, **single) for groups in (1, 2, 6)]
    half = Operand((6,), "float32", "normal")
    rows += [
        _norm("aten::layer_norm", x, [5, 4], **single),
        _norm("aten::group_norm", x, 2, half, None, dtypes=_HALVES, kinds=("normal",)),
        _norm("ops.group_norm", x, 2, w, b, 1e-3, **single, reference=F.group_norm),
        _norm("ops.layer_norm", x, (5, 4), **single, reference=F.layer_norm),
        _norm("ops.batch_norm", x, w, b, **single, reference=F.batch_norm),
    ]
    # The variance of a constant row is 0, and so is its normalization, however large its numbers.
    far: dict[str, Any] = {"kinds": ("constant rows",), "dtypes": _SINGLE}
    flat = Operand((3, 2, 201), change=offset)
    rows += [
        Row("aten::layer_norm", (Operand((3, 2, 5, 67), change=offset), [67]), **far),
        Row("aten::group_norm", (flat, 2), **far),
        Row("ops.instance_norm", (flat,), **far, reference=torch.zeros_like),
    ]
    return rows


def offset(x: torch.Tensor) -> torch.Tensor:
    return x + 1e6 / 7


def _sizes(x: torch.Tensor, axis: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The sums of what is added up, without signs: so large are the values that are rounded."""
    return x.double().abs().cumsum(axis)


def _running_sums() -> list[Row]:
    def row(x: Operand, axis: int, dtypes: tuple[str, ...], *kinds: str, **options: Any) -> Row:
        return Row("aten::cumsum", (x, axis), options, dtypes, kinds=kinds, sensitive=True,
                   scale=_sizes, roundings=16)  # fmt: skip

    rows = [row(_X, axis, FLOATS, *FINITE) for axis in (0, -1)]
    rows += [row(_IMAGE, axis, _SINGLE, "normal") for axis in (0, 1, -1)]
    rows += [row(_IMAGE, 1, ALL, "normal", "mixed", dtype=getattr(torch, kind))
             for kind in ("float32", "float64")]  # fmt: skip
    rows += [row(x, axis, _SINGLE, "normal") for x in (*_EMPTY, *_SPECIAL) for axis in (0, 1)]
    # Torch adds integers up as int64, for which the IR has no operator.
    return [
        *rows,
        Row("aten::cumsum", (Operand(()), 0), kinds=("normal",)),
        Row("aten::cumsum", (_X, 0), dtypes=_WHOLE, kinds=("normal",), refused=True),
        Row("aten::cumsum", (_X, 0), {"dtype": torch.int64}, ("float32", "int64"),
            kinds=("normal",), refused=True),
    ]  # fmt: skip


ROWS: Final = (
    *_sums(), *_running_sums(), *_extremes(), *_spread(), *_norms(), *_softmaxes(),
    *_normalizations(),
)  # fmt: skip
