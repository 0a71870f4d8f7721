"""The memory of a program's results: it is used again once nobody holds the earlier result.

    y = program(x); del y; z = program(x)            z lies where y lay
    y = program(x); z = program(x)                   z lies elsewhere

Fresh memory costs a page fault for every 4 KB of a large result. For an engine that is told where
to write it costs 7 to 20 us more, since it has to be told a new place.

A result is held as long as anything refers to its memory: the tensor, a view of it, an array over
it, a graph of autograd, its storage. torch counts these references. For each result a program keeps
at most two memories beside those that others hold: the loop ``y = program(x)`` still holds the last
result while it computes the next one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import torch

from eqsynth.lower.places import HOST

_KEPT: Final = 2
"""The most memories of one result that a program keeps."""


class Results:
    """The memory of one result over successive calls. Several threads may take memory at once.

    Args:
        shape: the sizes of the result.
        steps: its strides, in elements.
        dtype: the dtype of its elements.

    >>> results = Results((2, 3), (3, 1), torch.float32)
    >>> first = results.take()
    >>> at = first.data_ptr()
    >>> del first
    >>> results.take().data_ptr() == at
    True
    """

    def __init__(self, shape: Sequence[int], steps: Sequence[int], dtype: torch.dtype) -> None:
        self._shape, self._steps, self._dtype = tuple(shape), tuple(steps), dtype
        self._kept: list[_Memory] = []

    def take(self) -> torch.Tensor:
        """A tensor in memory that nobody else holds; its elements have any values."""
        for _ in range(_KEPT):
            try:
                memory = self._kept.pop(0)
            except IndexError:  # pop is atomic; another thread could take it after a test
                break
            if memory.is_free():
                return self._given(memory)
            self._kept.append(memory)
        return self._given(_Memory(self._shape, self._steps, self._dtype))

    def _given(self, memory: _Memory) -> torch.Tensor:
        # The memory is kept only now that a result refers to it, so that no other thread finds it
        # free.
        result = memory.tensor.detach()
        self._kept.append(memory)
        if len(self._kept) > _KEPT:
            del self._kept[:-_KEPT]
        return result


class _Memory:
    """The memory of one result, and how many references torch counts when nobody else holds it.

    A storage has one object in Python, and torch counts this object as one reference. Somebody who
    holds only this object is therefore seen by the object's own reference count.
    """

    __slots__ = ("_at", "_counted", "_nbytes", "_referred", "_storage", "tensor")

    def __init__(self, shape: tuple[int, ...], steps: tuple[int, ...], dtype: torch.dtype) -> None:
        # The memory is used in several calls, and some of these may run in inference mode, others
        # not.
        with torch.inference_mode(False), torch.no_grad():
            self.tensor = torch.empty_strided(shape, steps, dtype=dtype, device=HOST)
        self._storage = self.tensor.untyped_storage()
        self._at, self._nbytes = self._storage.data_ptr(), self._storage.nbytes()
        self._counted, self._referred = self._held()

    def is_free(self) -> bool:
        """Whether nobody else holds the memory, and it is still the same. A storage can be resized,
        or moved into memory that other processes read, which torch doesn't count."""
        return (
            self._held() == (self._counted, self._referred)
            and self._storage.data_ptr() == self._at
            and self._storage.nbytes() == self._nbytes
        )

    def _held(self) -> tuple[int, int]:
        count: int = torch._C._storage_Use_Count(self._storage._cdata)
        return count, sys.getrefcount(self._storage)
