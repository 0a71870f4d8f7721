"""The precision with which a GPU's libraries multiply float32: in full, or with the 10 bits of
TF32.

torch's switches hold for the whole process. By default TF32 is off for products, and on for
convolutions. Each operator of ``libraries.py`` sets its switch before its call, and resets it
afterwards.

Source: PyTorch, "CUDA semantics", TensorFloat-32; ``torch.backends`` since 2.9.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import torch

T = TypeVar("T")

PRODUCTS: Final[Any] = torch.backends.cuda.matmul
CONVOLUTIONS: Final[Any] = getattr(torch.backends.cudnn, "conv")  # noqa: B009
_REDUCED: Final = "tf32"
# The lock gives each of two threads its own setting, though both share the switches.
_switching: Final = threading.RLock()
_thread: Final = threading.local()


def numerics() -> str:
    """The precision that torch is set to for products, by the names of ``Target.numerics``."""
    return "high" if PRODUCTS.fp32_precision == _REDUCED else "highest"


def is_reduced(told: str) -> bool:
    """Whether a target's numerics allow TF32.

    >>> is_reduced("highest"), is_reduced("high")
    (False, True)
    """
    return told != "highest"


def allowed(reduced: bool) -> bool:
    """Whether an operator whose target allows TF32 may use it now. It may not while a program is
    compared with its original."""
    return reduced and not in_full()


def in_full() -> bool:
    """Whether this thread computes in full float32 now, whatever the target's numerics allow."""
    return getattr(_thread, "full", False)


def called(switch: Any, reduced: bool, function: Callable[..., T], *given: Any) -> T:
    """Call a function with a switch set as ``reduced`` says, and reset the switch afterwards."""
    reduced = allowed(reduced)
    with _switching:
        before = switch.fp32_precision
        if (before == _REDUCED) == reduced:
            return function(*given)
        switch.fp32_precision = _REDUCED if reduced else "ieee"
        try:
            return function(*given)
        finally:
            switch.fp32_precision = before


@contextmanager
def full(told: str) -> Iterator[None]:
    """Compute in full float32 in this block, in which a program is compared with its original. With
    TF32, which torch's convolutions use by default, each element would have an error of 5e-4, which
    would hide other differences.

    The user's code runs in this block. So torch's older switches are set, and torch makes its newer
    switches follow them. If the user has set the newer switches, torch refuses to read the older
    ones, and only the newer ones are set.

    Args:
        told: the target's numerics. If they allow TF32, steps that were recorded with TF32 aren't
            replayed in this block.
    """
    wanted: bool | str
    older = [(PRODUCTS, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")]
    newer = [(PRODUCTS, "fp32_precision"), (CONVOLUTIONS, "fp32_precision")]
    try:
        switches, wanted = [(*at, getattr(*at)) for at in older], False
    except RuntimeError:
        switches, wanted = [(*at, getattr(*at)) for at in newer], "ieee"
    changed = [(home, name, now) for home, name, now in switches if now != wanted]
    before = in_full()
    try:
        with _switching:
            for home, name, _ in changed:
                setattr(home, name, wanted)
        _thread.full = is_reduced(told)
        yield
    finally:
        _thread.full = before
        with _switching:
            for home, name, value in changed:
                setattr(home, name, value)
