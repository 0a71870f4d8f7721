"""Timing callables on this machine: one alone, or several side by side.

Samples are short, a call or some calls that take 50 us together: where something else runs on the
machine, threads that wait for each other stall for milliseconds, but between stalls short samples
are true, and median and lower quartile are taken over them.

What is measured, and what is kept of it, is decided elsewhere (``profile.py`` stores).
"""

from __future__ import annotations

import fcntl
import gc
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from eqsynth.ir.tensor import Tensor

SAMPLE_S = 50e-6
"""What a sample takes at least, so that the clock doesn't matter."""

Clock = Callable[[Callable[[], object], int], float]
"""Seconds that one of so many calls in a row takes. The host's is `wall_s`; a device that works
while the host goes on has its own."""

APART = 25
"""Samples that are enough of a call that is timed with something else before each."""

ALIKE = 1.1
"""Ratio of the quartiles up to which the least number of such samples is enough. What runs before
each takes longer than most kernels: 0.9 ms where it writes the third cache (ResNet-18, loaded)."""


def wall_s(call: Callable[[], object], calls: int) -> float:
    """Seconds a call by the clock of the host."""
    begin_ns = time.perf_counter_ns()
    for _ in range(calls):
        call()
    # A clock tick is the least that anything takes: zero would make ratios meaningless.
    return max(time.perf_counter_ns() - begin_ns, 1) * 1e-9 / calls


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds a call: median and quartiles over samples.

    Attributes:
        samples: number of samples; each is one call, or a few if a call is very short.
    """

    median_s: float
    q1_s: float
    q3_s: float
    samples: int

    @staticmethod
    def of(seconds: list[float]) -> Timing:
        """Summary of at least one sample.

        >>> Timing.of([3.0, 1.0, 2.0])
        Timing(median_s=2.0, q1_s=1.5, q3_s=2.5, samples=3)
        """
        if len(seconds) == 1:
            return Timing(seconds[0], seconds[0], seconds[0], 1)
        q1, median, q3 = statistics.quantiles(seconds, n=4, method="inclusive")
        return Timing(median, q1, q3, len(seconds))


OVERDUE = Timing(math.inf, math.inf, math.inf, 0)
"""Of a kernel that was not ready in its time, as an engine's region on a loaded machine. It isn't
taken now, and isn't filed as one that fails: another day it may be in time."""


@dataclass(frozen=True)
class OperatorTimes:
    """Seconds of operators in their places, as far as they were measured.

    Attributes:
        before: of the original's operators through torch, one by one.
        after: of what the compiled program computes by one kernel.
        kernels: what runs these.
    """

    before: Mapping[Tensor, float] = field(default_factory=dict)
    after: Mapping[Tensor, float] = field(default_factory=dict)
    kernels: Mapping[Tensor, str] = field(default_factory=dict)

    def __deepcopy__(self, _memo: object) -> OperatorTimes:
        return self  # terms are deeper than Python's stack, and nobody changes them


@contextmanager
def alone() -> Iterator[None]:
    """Waits until no other process of the user is in such a block on this machine: two things that
    are timed at once slow each other down. A process that dies leaves the block."""
    path = Path(tempfile.gettempdir()) / f"eqsynth-timing-{os.getuid()}.lock"
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def time_interleaved(
    callables: Mapping[str, Callable[[], object]],
    repeats: int = 10,
    block: int = 10,
    pause_s: float = 0.05,
    turn_s: float = math.inf,
    limit_s: float = math.inf,
    clock: Clock = wall_s,
    enough: Callable[[Mapping[str, Sequence[Sequence[float]]]], bool] = lambda _: False,
) -> dict[str, Timing]:
    """Times callables against each other: in every one of ``repeats`` rounds each has one turn.

    A turn is a pause, one call that is not counted, and ``block`` calls that are samples; no more
    of them are made once they have taken ``turn_s``. Engines keep idle threads spinning after a
    call, which slows whoever comes next; the pause lets them sleep. The first place rotates, so
    that no callable always follows the same one. Once ``limit_s`` have passed, no further round is
    begun, but for the first three; nor when ``enough`` is told the samples of each turn so far, by
    name, and says so.

    Raises:
        ValueError: ``repeats`` or ``block`` is less than 1.
    """
    if repeats < 1 or block < 1:
        raise ValueError(f"repeats and block must be at least 1, got {repeats} and {block}")
    turns: dict[str, list[list[float]]] = {name: [] for name in callables}
    begin = time.monotonic()
    for round_ in range(repeats):
        if round_ >= 3 and time.monotonic() - begin > limit_s:
            break
        for name in turn_order(tuple(callables), round_):
            time.sleep(pause_s)
            turns[name].append(take_turn(callables[name], block, turn_s, clock))
        if enough(turns):
            break
    return {name: Timing.of([*chain(*samples)]) for name, samples in turns.items()}


def turn_order(names: Sequence[str], round_: int) -> list[str]:
    """The order of turns in a round: the first place rotates.

    >>> turn_order(("a", "b", "c"), 4)
    ['b', 'c', 'a']
    """
    first = round_ % len(names) if names else 0
    return [*names[first:], *names[:first]]


def take_turn(
    call: Callable[[], object],
    block: int,
    turn_s: float = math.inf,
    clock: Clock = wall_s,
) -> list[float]:
    """Seconds of each of ``block`` calls, after one that is not counted; of fewer, at least one,
    if they have taken ``turn_s`` before."""
    with _no_garbage_collection():
        call()
        samples = [clock(call, 1)]
        while len(samples) < block and sum(samples) < turn_s:
            samples.append(clock(call, 1))
        return samples


def time_one(
    call: Callable[[], object],
    min_time_s: float = 0.02,
    blocks: int = 7,
    warmup: int = 2,
    until: float = math.inf,
    between: Callable[[], object] | None = None,
    clock: Clock = wall_s,
) -> Timing:
    """A quick time of one operator: short samples for ``min_time_s``, at least ``blocks`` of them.

    Once three samples have taken ten times ``min_time_s``, no more are made; nor, after the first,
    when the monotonic clock says ``until``; nor, with ``between``, once they are alike.

    Args:
        between: what runs before each sample, which is then one call, and isn't counted.

    Raises:
        ValueError: ``blocks`` is less than 1.
    """
    if blocks < 1:
        raise ValueError(f"blocks must be at least 1, got {blocks}")
    for number in range(warmup):
        if number == 0 or time.monotonic() < until:
            call()
    with _no_garbage_collection():
        calls = 1 if between is not None else _calls_for(call, SAMPLE_S, clock)
        most = math.inf if between is None else max(APART, blocks)
        samples: list[float] = []
        spent_s = 0.0
        while len(samples) < blocks or (spent_s < min_time_s and len(samples) < most):
            if between is not None:
                between()
            samples.append(clock(call, calls))
            spent_s += samples[-1] * calls
            slow = len(samples) >= 3 and spent_s > 10 * min_time_s
            told = between is not None and len(samples) >= blocks and _are_alike(samples)
            if slow or told or time.monotonic() >= until:
                break
    return Timing.of(samples)


def _are_alike(seconds: list[float]) -> bool:
    timing = Timing.of(seconds)
    return timing.q3_s <= ALIKE * timing.q1_s


def _calls_for(call: Callable[[], object], block_s: float, clock: Clock) -> int:
    """How many calls take about ``block_s``; doubling, since one short call can't be timed."""
    calls = 1
    while True:
        spent_s = clock(call, calls) * calls
        if spent_s >= block_s / 4 or calls >= 1 << 20:
            return max(1, min(1 << 20, round(calls * block_s / spent_s)))
        calls *= 2


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collecting a heap full of e-nodes takes longer than what is timed."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
