"""In how many digits a GPU's libraries multiply numbers of float32: all, or the 10 bits of TF32.

torch's switches are the process's: products have TF32 off until somebody asks for it, convolutions
have it on. Each operator of ``libraries.py`` sets the switch that it goes by, and puts it back.

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
# Of two threads, each sees its own setting: the switches are the same for both.
_switching: Final = threading.RLock()
_thread: Final = threading.local()


def numerics() -> str:
    """How torch is asked to multiply now, in the words of ``Target.numerics``."""
    return "high" if PRODUCTS.fp32_precision == _REDUCED else "highest"


def is_reduced(told: str) -> bool:
    """Whether a target's numerics allow TF32.

    >>> is_reduced("highest"), is_reduced("high")
    (False, True)
    """
    return told != "highest"


def allowed(reduced: bool) -> bool:
    """Whether an operator whose target allows TF32 may use it now: not while a program is held
    against its original."""
    return reduced and not in_full()


def in_full() -> bool:
    """Whether this thread computes in float32, whatever the target's numerics allow."""
    return getattr(_thread, "full", False)


def called(switch: Any, reduced: bool, function: Callable[..., T], *given: Any) -> T:
    """A call under one switch, as it has to be, and as it was afterwards."""
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
    """The program and the original that it is held against compute in float32. Under TF32, which
    torch's convolutions use unless somebody says otherwise, each element is off by 5e-4, so that
    nothing else could be seen.

    The user's code runs meanwhile. So torch's older switches are set, which its newer ones follow;
    the newer ones alone where the user has set these, since torch then refuses to read the older.

    Args:
        told: the target's numerics. If they allow TF32, what was recorded under it isn't replayed.
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
