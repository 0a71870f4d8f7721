"""Rows of operators that make constants, convert dtypes, or return their operand unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from eqsynth.extract.target import CPU
from eqsynth.ir.types import FLOATS, INTEGERS
from eqsynth.testing.differential.row import ALL, Operand, Row

_X: Final = Operand((65,))
_DTYPES: Final = tuple(getattr(torch, dtype) for dtype in ALL)
_VALUES: Final = (0, 1, -1, 2.5, True, 300, float("inf"), float("nan"), 2**24 + 1, 2**53 + 1)


# ---- dtypes ---------------------------------------------------------------------------------


def _within(dtype: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Data in the range of an integer dtype. Torch's result for other data depends on the
    machine."""
    limits = torch.iinfo(getattr(torch, dtype))

    def held(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        # Half of the largest integer, since 2^31 - 1 would be rounded to 2^31 in float32.
        inside = x.double().nan_to_num(0.5).clamp(limits.min, limits.max // 2)
        return inside.to(x.dtype).nan_to_num()

    held.__name__ = f"held by {dtype}"
    return held


def _conversions() -> Iterator[Row]:
    for target in _DTYPES:
        name = str(target).removeprefix("torch.")
        held = Operand((65,), change=_within(name)) if name in INTEGERS else _X
        yield Row("aten::_to_copy", (held,), {"dtype": target}, ALL)
        yield Row("aten::to.dtype", (held, target), dtypes=ALL)
        yield Row("aten::to.dtype_layout", (held,), {"dtype": target}, ("float32", "int64"))
        yield Row("aten::to.device", (held, torch.device(CPU), target), dtypes=("float32",))
        yield Row("ops.to", (held, target), dtypes=ALL, reference=lambda x, d: x.to(d))
    yield Row("aten::_to_copy", (_X,), {})


# ---- constants ------------------------------------------------------------------------------


def _constants() -> Iterator[Row]:
    one = ("float32",)
    for dtype in (*_DTYPES, None):
        given = {} if dtype is None else {"dtype": dtype}
        for name in ("zeros", "ones"):
            yield Row(f"aten::{name}", ([3, 4],), given, one)
            yield Row(f"aten::{name}_like", (_X,), given, ("float32", "int8", "bool"))
            yield Row(f"aten::new_{name}", (_X, [2, 3]), given, ("float32", "int8", "bool"))
        for value in _VALUES:
            yield Row("aten::full", ([3, 4], value), given, one)
            yield Row("aten::scalar_tensor", (value,), given, one)
        yield Row("aten::full_like", (_X, 3), given, ("float16", "int64"))
        yield Row("aten::new_full", (_X, [2], -1), given, ("float16", "int64"))
        yield Row("aten::eye", (3,), given, one)
        yield Row("aten::eye.m", (3, 5), given, one)
        yield Row("aten::eye.m", (5, 3), given, one)
        for end in (5, 2.5, 0):
            yield Row("aten::arange", (end,), given, one)
        for start, end, step in ((7, 0, -2), (0.5, 2.5, 0.5), (2, 9, 3), (0, 1, 0.1), (-3, 3, 1.5)):
            yield Row("aten::arange.start_step", (start, end, step), given, one)
        yield Row("aten::arange.start", (-3, 4), given, one)
    for value in _VALUES:
        yield Row("aten::fill.Scalar", (_X, value), dtypes=ALL)
        yield Row("aten::full_like", (_X, value), dtypes=ALL)
    for dtype in ("float32", "int64", "bool"):
        value_0 = Operand((), dtype, kind="normal")
        yield Row("aten::fill.Tensor", (_X, value_0), dtypes=ALL)
    yield Row("ops.full", ([3, 4], 2.5), dtypes=one, reference=torch.full)
    yield Row("ops.full", ([3, 4], 2, torch.int8), dtypes=one, reference=_full)
    yield Row("ops.arange", (7, 0, -2), dtypes=one, reference=torch.arange)


def _full(size: list[int], value: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(size, value, dtype=dtype)


# ---- what is there already ------------------------------------------------------------------


def _identities() -> Iterator[Row]:
    for name in ("clone", "detach", "alias", "lift", "lift_fresh", "lift_fresh_copy"):
        yield Row(f"aten::{name}", (_X,), dtypes=ALL)
    yield Row("aten::contiguous", (_X,))
    # An empty tensor has undefined elements; eqsynth's are zeros.
    zeros: dict[str, Any] = {
        "aten::empty": torch.zeros, "aten::empty_like": torch.zeros_like,
        "aten::new_empty": lambda x, size: x.new_zeros(size),
    }  # fmt: skip
    yield Row(
        "aten::empty.memory_format", ([3],), reference=zeros["aten::empty"], dtypes=FLOATS[:1]
    )
    yield Row("aten::empty_like", (_X,), reference=zeros["aten::empty_like"])
    yield Row("aten::new_empty", (_X, [4]), reference=zeros["aten::new_empty"])


ROWS: Final[tuple[Row, ...]] = (*_conversions(), *_constants(), *_identities())
