"""The state of torch, besides a program and its inputs, that decides what torch computes: autocast,
the default dtype, the precision of float32 products, deterministic algorithms, the number of
threads.

    ambient = Ambient.now()      # in the user's thread
    with ambient.applied():      # in a worker: torch computes as in the user's thread
        ...

A search in another process (``background.py``) applies this state, and a script that reproduces a
failure (``reproducer.py``) sets it by statements.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from eqsynth.extract.target import CPU


@dataclass(frozen=True)
class Ambient:
    """The state of torch in one thread.

    Attributes:
        precision: precision of float32 matrix products, as ``torch.get_float32_matmul_precision``
            gives it. None if the user has set torch's newer switches, one for each library,
            instead: torch then refuses to give one answer, and these switches aren't carried over.
    """

    autocast: bool
    autocast_dtype: torch.dtype
    default_dtype: torch.dtype
    precision: str | None
    deterministic: bool
    threads: int

    @classmethod
    def now(cls) -> Ambient:
        """Read the state of the calling thread."""
        return cls(
            torch.is_autocast_enabled(CPU),
            torch.get_autocast_dtype(CPU),
            torch.get_default_dtype(),
            _precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
        )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the calling thread this state for the length of the block, and restore its own state
        afterwards."""
        before = Ambient.now()
        self._set()
        try:
            with self.autocasting():
                yield
        finally:
            before._set()

    def autocasting(self) -> torch.autocast:
        """Return a context manager for the autocast of this state. Autocast is the only part of the
        state that is local to a thread and that a block sets."""
        return torch.autocast(CPU, self.autocast_dtype, enabled=self.autocast)

    def _set(self) -> None:
        torch.set_default_dtype(self.default_dtype)
        if self.precision is not None:
            torch.set_float32_matmul_precision(self.precision)
        torch.use_deterministic_algorithms(self.deterministic)
        torch.set_num_threads(self.threads)

    def statements(self) -> str:
        """Return Python statements that set this state in a script, one a line. Autocast is
        missing, since it is set by a block: see :meth:`block`."""
        lines = [
            f"torch.set_default_dtype({self.default_dtype})",
            f"torch.use_deterministic_algorithms({self.deterministic})",
            f"torch.set_num_threads({self.threads})",
        ]
        if self.precision is not None:
            lines.append(f"torch.set_float32_matmul_precision({self.precision!r})")
        return "\n".join(lines)

    def block(self) -> str:
        """Return the source text of the context manager that :meth:`autocasting` returns, for a
        ``with`` statement of a script."""
        return f"torch.autocast({CPU!r}, {self.autocast_dtype}, enabled={self.autocast})"


def _precision() -> str | None:
    """Return torch's precision of float32 matrix products, or None if torch can't name one."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # the user has set a precision for each library
        return None
