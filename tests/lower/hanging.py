"""A task of the measuring worker that hangs. A module of its own, since the worker imports it."""

from __future__ import annotations

import time

from eqsynth.lower.backends import Ready
from eqsynth.serving import hand_over

READY = Ready(1.0, 0.5)


def hands_over_and_hangs(*given: object) -> None:
    """In place of ``prepare_kernels``: an engine that doesn't look at the clock, after another."""
    hand_over([(0, READY)])
    time.sleep(600)
