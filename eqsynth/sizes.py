"""A program for each of the sizes that a graph with symbolic sizes is called with, up to a limit.

Sizes that are met once get none, so that the lengths of a growing cache cost no search; nor do
those beyond the limit. Not here: what finds programs, and graphs (``compile_backend.py``).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

Compiled = Callable[..., Any]
Sizes = tuple[int | torch.Size, ...]

# Sizes of which it is known how often they were met.
_REMEMBERED: Final = 4096


@dataclass
class BySize:
    """Called with a graph's inputs, among them its sizes as numbers.

    Attributes:
        find: makes a program for inputs of these sizes; None if there is none worth having.
        other: for every size; what runs where there is no program.
        watched: positions of the inputs that sizes can be read from: numbers, and tensors of which
            an extent varies.
        limit: sizes that programs are looked for at most.
        programs: what was found; ``other`` where nothing was.
    """

    find: Callable[[Sequence[Any]], Compiled | None]
    other: Compiled
    watched: tuple[int, ...]
    limit: int
    programs: dict[Sizes, Compiled] = field(default_factory=dict)
    _met: Counter[Sizes] = field(default_factory=Counter, repr=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def __call__(self, *inputs: Any) -> Any:
        sizes = self._sizes(inputs)
        program = self.programs.get(sizes)
        if program is None:
            program = self._looked_for(sizes, inputs)
        return program(*inputs)

    def _sizes(self, inputs: Sequence[Any]) -> Sizes:
        values = (inputs[n] for n in self.watched)
        return tuple(v.shape if isinstance(v, torch.Tensor) else int(v) for v in values)

    def _looked_for(self, sizes: Sizes, inputs: Sequence[Any]) -> Compiled:
        if len(self.programs) >= self.limit or not self._lock.acquire(blocking=False):
            return self.other  # another thread is at it
        try:
            if len(self._met) >= _REMEMBERED:
                self._met.clear()
            self._met[sizes] += 1
            if self._met[sizes] < 2:
                return self.other
            self.programs[sizes] = self.find(inputs) or self.other
            return self.programs[sizes]
        finally:
            self._lock.release()
