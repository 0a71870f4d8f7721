"""Operators on sequences and optional values: a sequence is a list, a missing value is None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eqsynth.frontend.onnx.table import axis_of, one, op

Tensor = torch.Tensor


@op("SequenceConstruct")
def construct(*xs: Tensor) -> list[Tensor]:
    return list(xs)


@op("SequenceEmpty")
def empty(*, dtype: int = 1) -> list[Tensor]:
    return []


@op("SequenceAt", known=(1,))
def at(xs: Sequence[Tensor], position: int) -> Tensor:
    return xs[_place(position, len(xs))]


@op("SequenceInsert", known=(2,))
def insert(xs: Sequence[Tensor], x: Tensor, position: Any = None) -> list[Tensor]:
    place = len(xs) if position is None else _place(position, len(xs) + 1, len(xs))
    return [*xs[:place], x, *xs[place:]]


@op("SequenceErase", known=(1,))
def erase(xs: Sequence[Tensor], position: Any = None) -> list[Tensor]:
    place = len(xs) - 1 if position is None else _place(position, len(xs))
    if not xs:
        raise IndexError("an empty sequence")
    return [*xs[:place], *xs[place + 1 :]]


def _place(position: Any, count: int, extent: int | None = None) -> int:
    number = int(one(position))
    extent = count if extent is None else extent
    if not -extent <= number < count:
        raise IndexError(f"position {number} of a sequence of {extent}")
    return number + extent if number < 0 else number


@op("SequenceLength")
def length(xs: Sequence[Tensor]) -> Tensor:
    return torch.tensor(len(xs), dtype=torch.int64)


@op("SplitToSequence", known=(1,))
def split_to_sequence(
    x: Tensor, split: Any = None, *, axis: int = 0, keepdims: int = 1
) -> list[Tensor]:
    extent = x.shape[axis_of(axis, x.ndim)]
    if split is None:
        parts = list(x.split(1, axis))
        return parts if keepdims else [part.squeeze(axis) for part in parts]
    if isinstance(split, list):
        if sum(split) != extent:
            raise ValueError(f"parts of {split} for an extent of {extent}")
        return list(x.split(split, axis))
    return list(x.split(int(split), axis))


@op("ConcatFromSequence")
def concat_from_sequence(xs: Sequence[Tensor], *, axis: int, new_axis: int = 0) -> Tensor:
    return torch.stack(list(xs), axis) if new_axis else torch.cat(list(xs), axis)


@op("Optional")
def optional(x: Any = None, *, type: Any = None) -> Any:
    return x


@op("OptionalGetElement")
def get_element(x: Any) -> Any:
    if x is None:
        raise ValueError("an optional value that is missing")
    return x


@op("OptionalHasElement")
def has_element(x: Any = None) -> Tensor:
    return torch.tensor(x is not None)
