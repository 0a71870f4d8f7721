"""The memory of values that live between a program's steps: one block a call, which the next call
uses again. In it a value lies where others have lain that nobody reads any more.

    a = f(x); b = g(a); c = h(b); return k(c)         a at 0, b behind it, c at 0

Fresh memory costs a call of torch's for each value (1.4 us, where a small kernel takes 0.4), and
what is larger than 32 MB a page fault every 4 KB besides: the operating system gives it anew each
time.

Not here: which values lie in a workspace (``steps.py``), and the memory of the program's results,
which are the user's (``results.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

_ALIGNED: Final = 64
"""Values begin at multiples of so many bytes, as torch's own do."""


@dataclass(frozen=True)
class Value:
    """A value that is dense, from the step that computes it to the last that reads it."""

    first: int
    last: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        size = self.dtype.itemsize
        for extent in self.shape:
            size *= extent
        return size


def places(values: Sequence[Value]) -> tuple[list[int], int]:
    """Where in a block each value begins, and how long the block is: the largest values first, each
    at the lowest place at which nothing lies that lives when it does [Pisarchyk and Lee, Efficient
    Memory Management for Deep Neural Net Inference, 2020: greedy by size].

    >>> value = lambda first, last: Value(first, last, (16,), (1,), torch.float32)
    >>> places([value(0, 1), value(1, 2), value(2, 3)])
    ([0, 64, 0], 128)
    """
    begin: dict[int, int] = {}
    total = 0
    for n in sorted(range(len(values)), key=lambda n: (-values[n].nbytes, n)):
        value = values[n]
        beside = [m for m in begin if _meet(value, values[m])]
        at = 0
        for m in sorted(beside, key=begin.__getitem__):
            if at + value.nbytes <= begin[m]:
                break
            at = max(at, _rounded(begin[m] + values[m].nbytes))
        begin[n] = at
        total = max(total, at + value.nbytes)
    return [begin[n] for n in range(len(values))], total


class Workspaces:
    """Blocks of memory for calls: each call takes one, and gives it back at its end. There are as
    many as calls were ever made at once."""

    def __init__(self, values: Sequence[Value], device: torch.device) -> None:
        self._values, self._device = tuple(values), device
        self._begin, self.nbytes = places(values)
        self._free: list[tuple[Any, ...]] = []

    def take(self) -> tuple[Any, ...]:
        """The values, as tensors of torch, and then the same as tensors of TVM's."""
        try:
            return self._free.pop()
        except IndexError:  # a look whether one is there would be wrong between threads
            return self._made()

    def give(self, workspace: tuple[Any, ...]) -> None:
        self._free.append(workspace)

    def _made(self) -> tuple[Any, ...]:
        import tvm_ffi

        # What is made for one call is used in others, which are in another mode perhaps.
        with torch.inference_mode(False), torch.no_grad():
            block = torch.empty(self.nbytes, dtype=torch.uint8, device=self._device)
            made = []
            for value, begin in zip(self._values, self._begin, strict=True):
                flat = block[begin : begin + value.nbytes].view(value.dtype)
                made.append(flat.as_strided(value.shape, value.strides))
            return (*made, *map(tvm_ffi.from_dlpack, made))


def _meet(one: Value, other: Value) -> bool:
    """Whether two values live at once: a step reads its arguments while it writes its result."""
    return one.first <= other.last and other.first <= one.last


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED
