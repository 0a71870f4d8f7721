"""A program for each of the sizes that a graph with symbolic sizes is called with, up to a limit.

    called with sizes 128, 128, 64, 128, 64    ->    programs for 128 and 64, at their second calls

Sizes that are called only once, such as the lengths of a growing cache, get no program, so they
cost no search. Not here: the search for a program (``compile_backend.py``).
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

# Sizes whose calls are counted, at most; then counting starts again.
_REMEMBERED: Final = 4096


@dataclass
class BySize:
    """A graph with symbolic sizes. It is called with the graph's inputs, some of which are sizes.

    Attributes:
        find: searches for a program for the sizes of these inputs; returns None if there is no
            faster one.
        other: runs the graph for all sizes that have no program.
        watched: positions of the inputs that sizes are read from: numbers, and tensors that have an
            extent which varies.
        limit: the most sizes for which programs are searched.
        programs: programs by size; ``other`` if the search found none.
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
        """Count a call with these sizes, and search for a program at the second one."""
        if len(self.programs) >= self.limit or not self._lock.acquire(blocking=False):
            return self.other  # the limit is reached, or another thread is searching
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
