"""The memory of results: fresh for whoever holds them, and used again once nobody does.

    y = program(x); del y; z = program(x)            z lies where y lay
    y = program(x); z = program(x)                   it doesn't

Fresh memory costs what is large a page fault every 4 KB, and an engine that is told where to write
7 to 20 us, since what it wrote into last time is no longer what it has to write into.

A result is held as long as anything refers to its memory: the tensor, a view of it, an array over
it, a graph of autograd, its storage. Torch counts these. A program keeps the memory of at most two
results of one step beside those that others hold: a loop, ``y = program(x)``, holds the last one
while it computes the next.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import torch

from eqsynth.lower.places import HOST

_KEPT: Final = 2


class Results:
    """The memory of one result, of a call after the other. Calls may be made at once.

    Args:
        shape: sizes of the result.
        steps: its strides, in elements.
        dtype: of its elements.

    >>> results = Results((2, 3), (3, 1), torch.float32)
    >>> first = results.take()
    >>> at = first.data_ptr()
    >>> del first
    >>> results.take().data_ptr() == at
    True
    """

    def __init__(
        self, shape: Sequence[int], steps: Sequence[int], dtype: torch.dtype
    ) -> None:
        self._shape, self._steps, self._dtype = tuple(shape), tuple(steps), dtype
        self._kept: list[_Memory] = []

    def take(self) -> torch.Tensor:
        """A tensor whose elements are whatever they are, in memory that nobody else holds."""
        for _ in range(_KEPT):
            try:
                memory = self._kept.pop(0)
            except IndexError:  # a look whether one is there would be wrong between threads
                break
            if memory.is_free():
                return self._given(memory)
            self._kept.append(memory)
        return self._given(_Memory(self._shape, self._steps, self._dtype))

    def _given(self, memory: _Memory) -> torch.Tensor:
        # Another thread finds the memory only when its result refers to it.
        result = memory.tensor.detach()
        self._kept.append(memory)
        if len(self._kept) > _KEPT:
            del self._kept[:-_KEPT]
        return result


class _Memory:
    """Memory of one result, and how often torch counts it when nobody else holds it.

    A storage has one object in Python, which is counted there: who holds nothing but this object
    is seen by its references only.
    """

    __slots__ = ("_at", "_counted", "_nbytes", "_referred", "_storage", "tensor")

    def __init__(
        self, shape: tuple[int, ...], steps: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        # What is made for one call is used in others, which are in another mode perhaps.
        with torch.inference_mode(False), torch.no_grad():
            self.tensor = torch.empty_strided(shape, steps, dtype=dtype, device=HOST)
        self._storage = self.tensor.untyped_storage()
        self._at, self._nbytes = self._storage.data_ptr(), self._storage.nbytes()
        self._counted, self._referred = self._held()

    def is_free(self) -> bool:
        """Whether nobody else holds the memory, and it is what it was: a storage can be resized,
        or moved to where other processes read it, which torch doesn't count."""
        return (
            self._held() == (self._counted, self._referred)
            and self._storage.data_ptr() == self._at
            and self._storage.nbytes() == self._nbytes
        )

    def _held(self) -> tuple[int, int]:
        count: int = torch._C._storage_Use_Count(self._storage._cdata)
        return count, sys.getrefcount(self._storage)
