"""The table of ONNX operators: what each of them is in torch.

An entry is a function of the operator's inputs, in their order, and of its attributes by name, with
ONNX's defaults. An attribute that an entry doesn't name is one that it doesn't treat: then, and
where it raises :class:`Refused`, the operator is taken apart by ONNX's own definition, or runs as a
foreign one (``foreign.py``). Nothing is ever dropped.

Some inputs say what is computed (a shape, axes): an entry names them as ``known``, and gets them
as numbers and lists. Of those that it names as ``scalar`` it gets the number, where the input is
one that follows from constants, else the tensor. ``opset``, ``outputs`` and ``dtypes`` are no
attributes: an entry that has them among its arguments is told the opset, how many results are
asked for, and the inputs' dtypes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

from eqsynth.lower.onnx_operator import DTYPES


class Refused(Exception):
    """An entry doesn't treat the case at hand."""


@dataclass(frozen=True)
class Entry:
    """An operator's function.

    Attributes:
        known: positions of the inputs that it takes as numbers.
        scalar: of those that it takes as a number where there is one.
        shaped: of those of which it reads the shape and dtype only.
        told: which of ``opset``, ``outputs`` and ``dtypes`` it is told.
        attributes: those that it treats.
    """

    function: Callable[..., Any]
    known: frozenset[int]
    scalar: frozenset[int]
    shaped: frozenset[int]
    told: frozenset[str]
    attributes: frozenset[str]


TABLE: Final[dict[str, Entry]] = {}

_TOLD: Final = frozenset({"opset", "outputs", "dtypes"})


def enter(
    name: str,
    function: Callable[..., Any],
    known: Sequence[int] = (),
    scalar: Sequence[int] = (),
    shaped: Sequence[int] = (),
) -> None:
    parameters = inspect.signature(function).parameters.values()
    named = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    places = frozenset(known), frozenset(scalar), frozenset(shaped)
    TABLE[name] = Entry(function, *places, named & _TOLD, named - _TOLD)


_F = TypeVar("_F", bound=Callable[..., Any])


def op(
    *names: str,
    known: Sequence[int] = (),
    scalar: Sequence[int] = (),
    shaped: Sequence[int] = (),
) -> Callable[[_F], _F]:
    def entered(function: _F) -> _F:
        for name in names:
            enter(name, function, known, scalar, shaped)
        return function

    return entered


def dtype_of(number: int) -> torch.dtype:
    found = DTYPES.get(number)
    if found is None:
        raise Refused(f"element type {number}")
    return found


def axis_of(axis: int, rank: int) -> int:
    """The axis counted from the front.

    Raises:
        IndexError: there is no such axis.
    """
    if not -rank <= axis < max(rank, 1):
        raise IndexError(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank if rank else 0


def one(value: Any) -> Any:
    """A number that stands alone, or as the one element of a tensor of any rank."""
    while isinstance(value, list):
        (value,) = value
    return value


def many(value: Any) -> list[Any]:
    """Numbers in a row, or one that stands alone."""
    return list(value) if isinstance(value, list | tuple | range) else [value]
