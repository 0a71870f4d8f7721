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


def numerics() -> str:
    """How torch is asked to multiply now, in the words of ``Target.numerics``."""
    return "high" if PRODUCTS.fp32_precision == _REDUCED else "highest"


def is_reduced(told: str) -> bool:
    """Whether a target's numerics allow TF32.

    >>> is_reduced("highest"), is_reduced("high")
    (False, True)
    """
    return told != "highest"


def called(switch: Any, reduced: bool, function: Callable[..., T], *given: Any) -> T:
    """A call under one switch, as it has to be, and as it was afterwards."""
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
def as_planned(told: str) -> Iterator[None]:
    """What torch computes is as precise as a target's numerics say: the original, too, which a
    program is held against. Under TF32 each element of a convolution is off by 5e-4.

    The user's code runs meanwhile. So torch's older switches are set, which its newer ones follow;
    the newer ones alone where the user has set these, since torch then refuses to read the older.
    """
    wanted: bool | str
    older = [(PRODUCTS, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")]
    newer = [(PRODUCTS, "fp32_precision"), (CONVOLUTIONS, "fp32_precision")]
    reduced = is_reduced(told)
    try:
        switches, wanted = [(*at, getattr(*at)) for at in older], reduced
    except RuntimeError:
        switches, wanted = [(*at, getattr(*at)) for at in newer], _REDUCED if reduced else "ieee"
    changed = [(home, name, now) for home, name, now in switches if now != wanted]
    try:
        with _switching:
            for home, name, _ in changed:
                setattr(home, name, wanted)
        yield
    finally:
        with _switching:
            for home, name, before in changed:
                setattr(home, name, before)
