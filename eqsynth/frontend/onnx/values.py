"""Values on their way through a model, and what is known of them while it is captured."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

Tensor = torch.Tensor


class Mode(enum.Enum):
    """How a body is run.

    RUN: on tensors. TRY: on tensors, each operator first without data, to see how large its results
    are. CAPTURE: on tensors that have no values.
    """

    RUN = enum.auto()
    TRY = enum.auto()
    CAPTURE = enum.auto()


@dataclass(frozen=True, slots=True)
class Value:
    """A value on its way.

    Attributes:
        data: a tensor, a list of them, or None where it is missing.
        known: the tensor with its values, where they follow from constants and shapes alone.
        constants: then the names of the constants.
    """

    data: Any
    known: Tensor | None = None
    constants: frozenset[str] = frozenset()


MISSING: Final = Value(None)


def outside() -> Any:
    """Where torch computes, also while it captures."""
    return _Outside()


class _Outside:
    def __enter__(self) -> None:
        self._guards = [torch._C.DisableTorchFunction(), _disable_current_modes()]
        for guard in self._guards:
            guard.__enter__()

    def __exit__(self, *error: Any) -> None:
        for guard in reversed(self._guards):
            guard.__exit__(*error)


def made(mode: Mode, number: int | bool) -> Value:
    """A number as a value whose value is known."""
    tensor = torch.tensor(number)
    if mode is Mode.RUN:
        return Value(tensor)
    with outside():
        return Value(tensor, torch.tensor(number))
