"""Samples of the weights' memory, which show changes that torch doesn't count.

    weight.data.mul_(0.9)        neither its version nor its address changes

Not here: changes that torch counts (``weights.Watch``, ``compile_backend.Program``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Final

import numpy as np
import torch

# How many words of eight bytes are compared: at least so many of each tensor, and about so many of
# all tensors together.
_LEAST_WORDS: Final = 4
_MOST_WORDS: Final = 2048


class Samples:
    """The contents of the tensors' memory: all of it if that is little, else words at even
    distances in each tensor. So a write of a whole tensor is seen; a write of single elements of a
    large tensor may not be.

    A comparison is one gather over the span of memory that holds the tensors, of which only the
    sampled words are read; it takes some microseconds. The caller must have checked that the
    tensors are alive and haven't moved.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._spans = spans = [_span(x) for x in tensors if is_in_memory(x)]
        each = max(_LEAST_WORDS, _MOST_WORDS // max(len(spans), 1))
        rows = [np.linspace(at // 8, (end - 1) // 8, each, dtype=np.int64) for at, end in spans]
        places = np.unique(np.concatenate(rows)) if rows else np.zeros(0, np.int64)
        first = int(places[0]) if rows else 0
        self._first = first * 8
        self._places = places - first
        size = int(self._places[-1]) + 1 if rows else 0
        held = (ctypes.c_int64 * size).from_address(first * 8) if rows else (ctypes.c_int64 * 1)()
        self._memory = np.frombuffer(memoryview(held).cast("B"), np.dtype(np.int64))
        self._seen = self._read()

    def _read(self) -> bytes:
        return bytes(self._memory.take(self._places, mode="clip").data)

    def changed(self) -> bool:
        """Whether a sampled word has changed."""
        return self._read() != self._seen

    def which(self) -> int:
        """The position, among the tensors that are in memory, of a tensor that has changed."""
        was = np.frombuffer(self._seen, np.int64)
        now = self._memory.take(self._places, mode="clip")
        at = self._first + 8 * int(self._places[np.flatnonzero(was != now)[0]])
        return next(n for n, (begin, end) in enumerate(self._spans) if begin < at + 8 and at < end)


def version_of(x: torch.Tensor) -> int:
    """How often torch has counted a write of the tensor; 0 for a tensor of inference mode, where it
    doesn't count."""
    return 0 if x.is_inference() else x._version


def _span(x: torch.Tensor) -> tuple[int, int]:
    """The addresses at which the tensor's elements begin and end."""
    begin = x.data_ptr()
    last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return begin, begin + (last + 1) * x.element_size()


def is_in_memory(x: torch.Tensor) -> bool:
    """Whether the tensor has elements that lie densely laid out in the CPU's memory."""
    return x.layout == torch.strided and x.device.type == "cpu" and x.numel() > 0
