"""The table of ONNX operators: each entry computes an operator by torch.

    @op("Reshape", known=(1,))
    def reshape(x: Tensor, shape: Sequence[int], *, allowzero: int = 0) -> Tensor: ...

An entry is a function. Its positional parameters are the operator's inputs, and its keyword-only
parameters the attributes, with ONNX's defaults. If an operator has an attribute that the entry
doesn't name, or the entry raises :class:`Refused`, then the operator runs by ONNX's own definition,
or as a foreign operator (``foreign.py``). No attribute is ever ignored.

Some inputs are needed as numbers during capture, when tensors have no values. Inputs whose
positions are in ``known`` (a shape, axes) arrive as numbers and lists. An input in ``scalar``
arrives as a number if it has rank 0 and follows from constants, else as a tensor. Three names of
keyword-only parameters are no attributes: ``opset`` is the operator's version, ``outputs`` the
number of results of the call, and ``dtypes`` the dtypes of the inputs.
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
    """The function that computes an operator by torch.

    Attributes:
        known: positions of the inputs that the function takes as numbers and lists.
        scalar: positions of the inputs that it takes as a number if one is known.
        shaped: positions of the inputs of which it reads only the shape and dtype.
        told: the names among ``opset``, ``outputs`` and ``dtypes`` that are parameters of it.
        attributes: the operator's attributes that it takes.
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
    """Put a function into the table as the entry of the operator ``name``."""
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
    """Decorate a function as the entry of the operators ``names``; see :class:`Entry`."""

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
    """The single number in ``value``: ``3`` -> ``3``, ``[[3]]`` -> ``3``."""
    while isinstance(value, list):
        (value,) = value
    return value


def many(value: Any) -> list[Any]:
    """The numbers in ``value`` as a list: ``3`` -> ``[3]``, ``(3, 4)`` -> ``[3, 4]``."""
    return list(value) if isinstance(value, list | tuple | range) else [value]
