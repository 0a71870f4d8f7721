"""Time the compiled program and the original in turns.

Not here: which of the two is used afterwards (``running.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from eqsynth.extract.timing import Clock, Timing, one_leads, time_interleaved, wall_s


@dataclass(frozen=True)
class Race:
    """The times of the original (``before``) and of the compiled program (``after``)."""

    before: Timing
    after: Timing

    @property
    def won(self) -> bool:
        """Whether the compiled program is faster by more than noise. Either its median is lower and
        the quartiles don't overlap, or its median is lower by 3%, or its median is lower at all and
        its lower quartile, which other busy processes disturb less, is lower by 10%."""
        before, after = self.before, self.after
        return after.median_s < before.median_s and (
            after.q3_s < before.q1_s
            or after.median_s < 0.97 * before.median_s
            or after.q1_s < 0.9 * before.q1_s
        )


LONGEST_S = 1.3
"""Seconds of a race at most, on a quiet machine and with short calls."""

_PAUSE_S = 0.02
# A race ends early if the slowest turn of one program took less than this part of the fastest turn
# of the other; after so many turns of each, if it took less at all.
_CLEAR_RATIO, _CLEAR_TURNS = 0.8, 6


def race(
    original: Callable[[], object],
    compiled: Callable[[], object],
    seconds: float = LONGEST_S,
    clock: Clock = wall_s,
) -> Race:
    """Time both programs in turns for about ``seconds``, or less if it is clear before which one is
    faster."""
    with torch.no_grad():
        original()
        once = clock(original, 1)
        rounds = 9 if once < 0.5 else 3
        turn_s = max(min(seconds, LONGEST_S) / rounds / 2 - _PAUSE_S, 0.005)
        times = time_interleaved(
            {"before": original, "after": compiled},
            repeats=rounds,
            block=max(1, min(50, int(turn_s / max(once, 1e-6)))),
            pause_s=_PAUSE_S,
            # If threads stall, a turn of 50 ms may take seconds.
            turn_s=5 * turn_s,
            limit_s=2 * seconds,
            clock=clock,
            enough=is_clear,
        )
    return Race(times["before"], times["after"])


def is_clear(turns: Mapping[str, Sequence[Sequence[float]]]) -> bool:
    """Whether all turns of one program, by their medians, took less than 0.8 of each turn of the
    other, or after six turns less than each turn of the other.

    Four turns each of two equally fast programs fall into such an order, without the factor, in one
    race of 35. To be a factor of 0.8 apart as well, something would have to disturb every turn of
    one program and no turn of the other, though the turns alternate. Six turns each fall into such
    an order in one race of 462. A race that isn't clear goes on. (VGG-16, 167 to 137 ms: nine turns
    would take 3 s more, and say the same.)

    >>> is_clear({"before": [[2.0, 9.0, 2.1]] * 4, "after": [[1.0]] * 4})
    True
    >>> is_clear({"before": [[2.0], [2.0], [1.2], [2.0]], "after": [[1.0]] * 4})
    False
    """
    return one_leads(turns, _CLEAR_RATIO) or one_leads(turns, least=_CLEAR_TURNS)
