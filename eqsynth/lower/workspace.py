"""The memory of the values between a program's steps: one block for a call, used again by the next.

Within a block, values that don't live at the same time may lie in the same place:

    a = f(x); b = g(a); c = h(b); return k(c)         a at 0, b behind it, c at 0

Allocating each value by torch takes 1.4 us, where a small kernel takes 0.4; and for more than 32 MB
the operating system gives fresh memory each time, at the cost of a page fault every 4 KB.

Not here: which values lie in a workspace (``steps.py``), the memory of the program's results, which
belong to the user (``results.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from eqsynth.lower.launches import Launch

_ALIGNED: Final = 64
"""Values begin at multiples of this many bytes, as torch's own tensors do."""


@dataclass(frozen=True)
class View:
    """A view of a dense value: the value's name or number, and the view's sizes, strides, and
    offset into the value in elements."""

    source: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Value:
    """A dense value that lives from step ``first``, which computes it, to step ``last``, the last
    one that reads it."""

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
    """Where each value begins in a block, and the block's length in bytes. The largest values are
    placed first, each at the lowest place that is free during its life [Pisarchyk and Lee,
    Efficient Memory Management for Deep Neural Net Inference, 2020: greedy by size].

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
    """Blocks of memory for calls. A call takes a block, and gives it back at its end; there are as
    many blocks as there ever were calls at the same time."""

    def __init__(
        self,
        values: Sequence[Value],
        device: torch.device,
        views: Sequence[View] = (),
        launches: Sequence[Sequence[tuple[Any, Sequence[Any]]]] = (),
    ) -> None:
        """
        Args:
            views: views of values, which are numbered as in ``values``. They are made once for each
                block: a view takes 1.2 us in a call.
            launches: for each ``Launch``, functions of kernels with their arguments; a number
                stands for a value, or behind the values for a view.
        """
        self._values, self._device, self._views = tuple(values), device, tuple(views)
        self._launches = tuple(launches)
        self._begin, self.nbytes = places(values)
        self._free: list[tuple[Any, ...]] = []

    def take(self) -> tuple[Any, ...]:
        """The values of a block and the views of them, as tensors of torch, followed by the same as
        tensors of TVM, and by the launches of kernels on them."""
        try:
            return self._free.pop()
        except IndexError:  # pop is atomic; another thread could take the block after a test
            return self._made()

    def give(self, workspace: tuple[Any, ...]) -> None:
        """Take a block back at the end of a call."""
        self._free.append(workspace)

    def _made(self) -> tuple[Any, ...]:
        import tvm_ffi

        # A block is used in several calls, and some of these may run in inference mode, others not.
        with torch.inference_mode(False), torch.no_grad():
            block = torch.empty(self.nbytes, dtype=torch.uint8, device=self._device)
            made = []
            for value, begin in zip(self._values, self._begin, strict=True):
                flat = block[begin : begin + value.nbytes].view(value.dtype)
                made.append(flat.as_strided(value.shape, value.strides))
            for view in self._views:
                value = made[view.source]
                begin = value.storage_offset() + view.offset
                made.append(value.as_strided(view.shape, view.strides, begin))
            own = list(map(tvm_ffi.from_dlpack, made))
            launches = (
                Launch([(function, [own[a] if isinstance(a, int) else a for a in args])
                        for function, args in calls])
                for calls in self._launches
            )  # fmt: skip
            return (*made, *own, *launches)


def _meet(one: Value, other: Value) -> bool:
    """Whether two values live at the same time. A step reads its arguments while it writes its
    result, so these two do."""
    return one.first <= other.last and other.first <= one.last


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED
