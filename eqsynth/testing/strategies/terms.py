"""Small functions for the builders of random programs: operators, leaves, numbers, axes."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from eqsynth.ir.operators import Attr
from eqsynth.ir.tensor import Input, Op, Tensor, Weight
from eqsynth.ir.types import TensorType

Build = Callable[[st.DrawFn, Tensor], Op]
"""Draws an operator over a tensor; if the operator can't take this tensor, ``simple(x)``."""


def op(name: str, *args: Tensor, attrs: tuple[Attr, ...] = ()) -> Op:
    return Op(name, args, attrs)


def leaf(name: str, *shape: int, dtype: str = "float32", constant: bool = False) -> Input | Weight:
    """An input or weight whose name contains its type, so that a name has only one type."""
    full = name + "x".join(map(str, shape)) + ("" if dtype == "float32" else f"_{dtype}")
    return (Weight if constant else Input)(full, TensorType(shape, dtype))


def simple(x: Tensor) -> Op:
    """The simplest operator on a tensor: ``Relu``, or ``LogicalNot`` of bools."""
    return op("LogicalNot" if x.dtype == "bool" else "Relu", x)


def number(draw: st.DrawFn, low: int, high: int) -> int:
    return draw(st.integers(low, high))


def axis_of(draw: st.DrawFn, x: Tensor) -> int:
    return number(draw, 0, len(x.shape) - 1)
