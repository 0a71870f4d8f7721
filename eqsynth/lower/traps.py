"""Operators of torch that end the process on some integers, and a mode that raises instead.

    torch.div(x, y, rounding_mode="trunc"), x the least int64 and y -1    ->  SIGFPE
    torch.segment_reduce(x, lengths=n, unsafe=True), n too large          ->  SIGSEGV

The check of a program calls its original with integers that the user never gave. ``Guard`` turns
what would end the process into an exception, so that those inputs aren't used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

from eqsynth.lower.operator_modes import OperatorMode, name_of


class Trapped(ArithmeticError):
    """An operator of torch would have ended the process."""


class Guard(OperatorMode):
    """A mode in which operators that would end the process raise ``Trapped``.

    Attributes:
        needed: whether such an operator was called, with whatever values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.needed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        traps = _TRAPS.get(name_of(func))
        if traps is not None:
            self.needed = True
            if traps(args, kwargs or {}):
                raise Trapped(f"{func} would end the process")
        return func(*args, **(kwargs or {}))


def _divides(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a division of integers that rounds to zero has the least integer over -1."""
    if kwargs.get("rounding_mode") != "trunc":
        return False
    over, under = args[0], args[1]
    if not all(_is_integer(x) for x in (over, under)):
        return False
    dtype = torch.result_type(over, under)
    minus = torch.as_tensor(under) == -1
    return bool((minus & (torch.as_tensor(over).to(dtype) == torch.iinfo(dtype).min)).any())


def _has_least(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operand of a least common multiple is the least integer of a signed dtype."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    return any(x.dtype.is_signed and bool((x == torch.iinfo(x.dtype).min).any()) for x in tensors)


def _leaves_segments(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether segments given by unchecked lengths or offsets don't cover the axis."""
    data, axis = args[0], kwargs.get("axis", 0)
    lengths, offsets = kwargs.get("lengths"), kwargs.get("offsets")
    if offsets is not None:
        lengths = offsets.diff(dim=-1)
        if bool((offsets[..., 0] != 0).any()):
            return True
    if lengths is None:
        return False
    return bool((lengths < 0).any() or (lengths.sum(-1) != data.shape[axis]).any())


def _is_integer(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return not x.is_floating_point() and not x.is_complex() and x.dtype != torch.bool
    return isinstance(x, int) and not isinstance(x, bool)


_TRAPS: Final[dict[str, Callable[[Any, dict[str, Any]], bool]]] = {
    "div": _divides,
    "divide": _divides,
    "lcm": _has_least,
    "segment_reduce": _leaves_segments,
}
