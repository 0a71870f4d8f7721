"""The values that a model's operators pass on, and the modes in which a model runs.

During capture a tensor has no values. A :class:`Value` therefore also holds the tensor's known
values, if they follow from constants and shapes alone, as those of a shape input do.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

Tensor = torch.Tensor


class Mode(enum.Enum):
    """How a body runs.

    RUN: on tensors with values. TRY: the same, but each operator runs first on tensors without
    data, to see how large its results will be. CAPTURE: on tensors without values.
    """

    RUN = enum.auto()
    TRY = enum.auto()
    CAPTURE = enum.auto()


@dataclass(frozen=True, slots=True)
class Value:
    """An input or result of an operator.

    Attributes:
        data: a tensor, a list of tensors (a sequence), or None if the input is left out.
        known: the tensor with its values, if they follow from constants and shapes alone.
        constants: if ``known`` is given, the keys of the constants that it follows from.
    """

    data: Any
    known: Tensor | None = None
    constants: frozenset[str] = frozenset()


MISSING: Final = Value(None)


def outside() -> Any:
    """A context in which torch computes with values, during capture, too."""
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
    """The number as a rank-0 :class:`Value`, whose values are known unless the mode is RUN."""
    tensor = torch.tensor(number)
    if mode is Mode.RUN:
        return Value(tensor)
    with outside():
        return Value(tensor, torch.tensor(number))
