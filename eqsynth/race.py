"""The compiled program against the original, timed in turns.

Not here: what is done with the loser (``pipeline.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from eqsynth.extract.timing import Clock, Timing, time_interleaved, wall_s


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


# What a race takes on a quiet machine at most, unless single calls are longer.
_LONGEST_S = 1.3
_PAUSE_S = 0.02
# When a race is over early: after so many turns each, of which the slowest of the one took less
# than the fastest of the other by so much.
_CLEAR_TURNS = 4
_CLEAR_RATIO = 0.8


def race(
    original: Callable[[], object],
    compiled: Callable[[], object],
    seconds: float = _LONGEST_S,
    clock: Clock = wall_s,
) -> Race:
    """Times both, in turns, for about so many seconds; less where it is clear who is faster."""
    with torch.no_grad():
        original()
        once = clock(original, 1)
        rounds = 9 if once < 0.5 else 3
        turn_s = max(min(seconds, _LONGEST_S) / rounds / 2 - _PAUSE_S, 0.005)
        times = time_interleaved(
            {"before": original, "after": compiled},
            repeats=rounds,
            block=max(1, min(50, int(turn_s / max(once, 1e-6)))),
            pause_s=_PAUSE_S,
            # Where threads stall, what took 50 ms may take seconds.
            turn_s=5 * turn_s,
            limit_s=2 * seconds,
            clock=clock,
            enough=is_clear,
        )
    return Race(times["before"], times["after"])


def is_clear(turns: Mapping[str, Sequence[Sequence[float]]]) -> bool:
    """Whether the medians of all turns of the one lie below all of the other's, by a fifth.

    Of programs that take the same time, four turns each fall in such an order in one race of 35. To
    be a fifth apart as well, each turn of the one and no turn of the other would have to be
    disturbed, though they alternate. A race that is less clear goes on.

    >>> is_clear({"before": [[2.0, 9.0, 2.1]] * 4, "after": [[1.0]] * 4})
    True
    >>> is_clear({"before": [[2.0], [2.0], [1.2], [2.0]], "after": [[1.0]] * 4})
    False
    """
    before, after = ([median(turn) for turn in turns[name]] for name in ("before", "after"))
    if len(before) < _CLEAR_TURNS:
        return False
    return max(after) < _CLEAR_RATIO * min(before) or max(before) < _CLEAR_RATIO * min(after)
