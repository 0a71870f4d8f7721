"""The compiled program against the original, timed in turns.

Not here: what is done with the loser (``pipeline.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from eqsynth.extract.timing import Timing, time_interleaved


@dataclass(frozen=True)
class Race:
    """What was timed: the original, and the compiled program."""

    before: Timing
    after: Timing

    @property
    def won(self) -> bool:
        """Faster by more than noise: clearly at the median, or at the lower quartile, which
        another busy process disturbs less."""
        before, after = self.before, self.after
        return after.median_s < before.median_s and (
            after.q3_s < before.q1_s
            or after.median_s < 0.97 * before.median_s
            or after.q1_s < 0.9 * before.q1_s
        )


def race(original: Callable[[], object], compiled: Callable[[], object]) -> Race:
    """Times both, in turns."""
    with torch.no_grad():
        once = _once_s(original)
        times = time_interleaved(
            {"before": original, "after": compiled},
            repeats=9 if once < 0.5 else 3,
            block=max(1, min(50, int(0.05 / max(once, 1e-6)))),
            pause_s=0.02,
            turn_s=0.25,  # where threads stall, what took 50 ms may take seconds
        )
    return Race(times["before"], times["after"])


def _once_s(call: Callable[[], object]) -> float:
    call()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
