"""By what torch computes besides a program and its inputs: autocast, the default dtype, precision.

A search in another process, and a script that shows a failure, compute by the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from eqsynth.extract.target import CPU


@dataclass(frozen=True)
class Ambient:
    """What holds in the thread that asks.

    Attributes:
        precision: of float32 products; None where torch's newer switches say it, which differ by
            library, and of which nothing is carried.
    """

    autocast: bool
    autocast_dtype: torch.dtype
    default_dtype: torch.dtype
    precision: str | None
    deterministic: bool
    threads: int

    @classmethod
    def now(cls) -> Ambient:
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
        """The same in this thread; at the end of the block it is as before."""
        before = Ambient.now()
        self._set()
        try:
            with self.autocasting():
                yield
        finally:
            before._set()

    def autocasting(self) -> torch.autocast:
        """Autocast as it was asked for; other than the rest, it is of one thread."""
        return torch.autocast(CPU, self.autocast_dtype, enabled=self.autocast)

    def _set(self) -> None:
        torch.set_default_dtype(self.default_dtype)
        if self.precision is not None:
            torch.set_float32_matmul_precision(self.precision)
        torch.use_deterministic_algorithms(self.deterministic)
        torch.set_num_threads(self.threads)

    def statements(self) -> str:
        """What sets the same in a script, but for autocast, which is a block's."""
        lines = [
            f"torch.set_default_dtype({self.default_dtype})",
            f"torch.use_deterministic_algorithms({self.deterministic})",
            f"torch.set_num_threads({self.threads})",
        ]
        if self.precision is not None:
            lines.append(f"torch.set_float32_matmul_precision({self.precision!r})")
        return "\n".join(lines)

    def block(self) -> str:
        """The autocast of :meth:`autocasting`, as a script says it."""
        return f"torch.autocast({CPU!r}, {self.autocast_dtype}, enabled={self.autocast})"


def _precision() -> str | None:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # torch says so where libraries have switches of their own
        return None
