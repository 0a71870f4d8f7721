"""Time functions: one alone, or several in turns.

    time_one(lambda: torch.mm(a, b))    ->    Timing(median_s=2.1e-5, q1_s=2.0e-5, q3_s=2.2e-5, …)

Samples are short: one call, or several calls that take 50 us together. If other work runs on the
machine, threads that wait for each other stall for milliseconds. Short samples between the stalls
are true, and the median and the lower quartile over all samples are hardly changed by the stalls.

Not here: which kernels are timed (``search.py``), storing times (``profile.py``).
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
from typing import NamedTuple

from eqsynth.ir.tensor import Tensor

SAMPLE_S = 50e-6
"""The least seconds of a sample, so that the resolution of the clock doesn't matter."""

Clock = Callable[[Callable[[], object], int], float]
"""A function that returns the seconds of one call when a function is called several times in a row.
The host's clock is `wall_s`. A device that runs asynchronously has its own."""

APART = 25
"""The number of samples that is enough for a call that is timed with other work before
each sample."""

LONG_S = 0.05
"""A call that takes at least so many seconds needs no call before it that isn't counted: it reads
what other programs have pushed out of the caches in a few hundredths of its time. (VGG-16 takes
0.15 s a call and reads its 59 MB of weights in 2 ms. Half of the 25 s in which its programs took
turns went into calls that weren't counted.)"""

LEADING_TURNS = 4
"""The fewest turns of each function after which one may lead. Four turns each of two equally fast
functions fall into such an order in one case of 35."""

EQUAL = 1.03
"""If the quartiles of at least three samples that took 0.04 s differ by no more than this factor,
they are enough. (VGG-16 on two threads: the kernels of 10 to 30 ms took a tenth of the seconds of
``optimize``.)"""

ALIKE = 1.1
"""If the quartiles of such samples differ by no more than this factor, the least number of samples
is enough. The other work takes longer than most kernels: 0.9 ms if it overwrites the third cache
(ResNet-18, loaded)."""


def wall_s(call: Callable[[], object], calls: int) -> float:
    """The seconds of one call by the host's clock."""
    begin_ns = time.perf_counter_ns()
    for _ in range(calls):
        call()
    # At least one tick of the clock: a time of zero would make ratios meaningless.
    return max(time.perf_counter_ns() - begin_ns, 1) * 1e-9 / calls


class Ready(NamedTuple):
    """What a kernel that takes long to build has taken: the seconds of building it and about those
    of a call, infinite if it doesn't run."""

    build_s: float
    call_s: float


@dataclass(frozen=True, slots=True)
class Timing:
    """The seconds of a call: median and quartiles over samples.

    Attributes:
        samples: number of samples; each is one call, or several if a call is very short.
        disturbed: whether other processes kept the processors busy meanwhile (``disturbance.py``).
    """

    median_s: float
    q1_s: float
    q3_s: float
    samples: int
    disturbed: bool = False

    @staticmethod
    def of(seconds: list[float]) -> Timing:
        """Summarize one or more samples.

        >>> Timing.of([3.0, 1.0, 2.0])
        Timing(median_s=2.0, q1_s=1.5, q3_s=2.5, samples=3, disturbed=False)
        """
        if len(seconds) == 1:
            return Timing(seconds[0], seconds[0], seconds[0], 1)
        q1, median, q3 = statistics.quantiles(seconds, n=4, method="inclusive")
        return Timing(median, q1, q3, len(seconds))


OVERDUE = Timing(math.inf, math.inf, math.inf, 0)
"""The timing of a kernel that wasn't ready in time, such as an engine's region on a loaded machine.
The kernel isn't used in this run, but isn't stored as a failure: another time it may be ready."""


@dataclass(frozen=True)
class OperatorTimes:
    """Seconds of operators, measured while the whole program runs.

    Attributes:
        before: seconds of the original's operators, each run by torch.
        after: seconds of the terms that the compiled program computes by one kernel each.
        kernels: the kernels of these terms.
        within: terms that a kernel of eqsynth's own computes on the way to one of these terms, as a
            convolution whose bias and activation are computed while its results are in registers.
    """

    before: Mapping[Tensor, float] = field(default_factory=dict)
    after: Mapping[Tensor, float] = field(default_factory=dict)
    kernels: Mapping[Tensor, str] = field(default_factory=dict)
    within: frozenset[Tensor] = frozenset()

    def __deepcopy__(self, _memo: object) -> OperatorTimes:
        return self  # terms are nested deeper than Python's stack allows, and are immutable


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other process of this user on this machine is in such a block: two things that
    are timed at the same time slow each other down. If a process dies, its block ends."""
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
    """Time functions against each other: in each of ``repeats`` rounds, each function has one turn.

    A turn is a pause, one call that isn't counted, and ``block`` calls that are samples; after
    ``turn_s`` seconds no more samples are taken. If all samples of a function have taken at least
    ``LONG_S``, each call of its later turns is a sample. The idle threads of an engine keep
    spinning after a call and slow the next function down; in the pause they go to sleep. Each round
    starts with another function, so that no function always follows the same one. After three
    rounds, no further round begins once ``limit_s`` seconds have passed. After any round the timing
    ends if ``enough``, called with the samples of each turn by name, returns True.

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
            is_long = min(chain(*turns[name]), default=0.0) >= LONG_S
            turns[name].append(take_turn(callables[name], block, turn_s, clock, not is_long))
        if enough(turns):
            break
    return {name: Timing.of([*chain(*samples)]) for name, samples in turns.items()}


def one_leads(
    turns: Mapping[str, Sequence[Sequence[float]]],
    ratio: float = 1.0,
    least: int = LEADING_TURNS,
) -> bool:
    """Whether each function has had at least ``least`` turns, and each turn of one of them, by its
    median, took less than ``ratio`` of every turn of the other functions.

    >>> one_leads({"a": [[1.0]] * 4, "b": [[1.1]] * 4, "c": [[1.2, 9.0, 1.2]] * 4})
    True
    >>> one_leads({"a": [[1.0]] * 4, "b": [[1.1], [0.9], [1.1], [1.1]]})
    False
    """
    medians = {
        name: [statistics.median(turn) for turn in samples] for name, samples in turns.items()
    }
    if any(len(own) < least for own in medians.values()):
        return False
    return any(
        all(max(own) < ratio * min(other) for rest, other in medians.items() if rest != name)
        for name, own in medians.items()
    )


def turn_order(names: Sequence[str], round_: int) -> list[str]:
    """The order of turns in a round; each round starts with another name.

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
    warm: bool = True,
) -> list[float]:
    """Return the seconds of each of ``block`` calls, with ``warm`` after one call that isn't
    counted. There are fewer samples, but at least one, if they take ``turn_s`` seconds before."""
    with _no_garbage_collection():
        if warm:
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
    between: Callable[[], float] | None = None,
    clock: Clock = wall_s,
) -> Timing:
    """Time one function quickly: short samples for ``min_time_s``, at least ``blocks`` of them.

    There are fewer samples if three samples have taken ten times ``min_time_s``, or twice that
    time if they are equal but for 3 %; if the monotonic clock passes ``until``, after the first
    sample; or, with ``between``, if ``blocks`` samples are nearly equal. If a call takes
    ``LONG_S``, the last call of the warm-up is the first sample.

    Args:
        between: runs before each sample, and isn't counted. Each sample is then a single call.
            ``between`` returns how many times longer than usual things take at the moment. By the
            lower quartile of what it returns the seconds are divided. (Not each sample by its own:
            a kernel of a millisecond lasts longer than most disturbances.)

    Raises:
        ValueError: ``blocks`` is less than 1.
    """
    if blocks < 1:
        raise ValueError(f"blocks must be at least 1, got {blocks}")
    with _no_garbage_collection():
        samples: list[float] = []
        slowdowns: list[float] = []
        for number in range(warmup):
            if number == 0 or time.monotonic() < until:
                took_s = clock(call, 1)
                # The first call may build what later calls use, so it is never a sample.
                samples = [took_s] if number and took_s >= LONG_S else []
        calls = 1 if between is not None or samples else _calls_for(call, SAMPLE_S, clock)
        most = math.inf if between is None else max(APART, blocks)
        spent_s = sum(samples)
        while len(samples) < blocks or (spent_s < min_time_s and len(samples) < most):
            if between is not None:
                slowdowns.append(between())
            samples.append(clock(call, calls))
            spent_s += samples[-1] * calls
            slow = len(samples) >= 3 and (
                spent_s > 10 * min_time_s
                or (spent_s > 2 * min_time_s and _are_within(samples, EQUAL))
            )
            told = between is not None and len(samples) >= blocks and _are_within(samples, ALIKE)
            if slow or told or time.monotonic() >= until:
                break
    slowdown = Timing.of(slowdowns or [1.0]).q1_s
    return Timing.of([seconds / slowdown for seconds in samples])


def _are_within(seconds: list[float], factor: float) -> bool:
    timing = Timing.of(seconds)
    return timing.q3_s <= factor * timing.q1_s


def _calls_for(call: Callable[[], object], block_s: float, clock: Clock) -> int:
    """The number of calls that take about ``block_s``. It is found by doubling, since one short
    call can't be timed."""
    calls = 1
    while True:
        spent_s = clock(call, calls) * calls
        if spent_s >= block_s / 4 or calls >= 1 << 20:
            return max(1, min(1 << 20, round(calls * block_s / spent_s)))
        calls *= 2


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: collecting a heap full of e-nodes takes longer than the calls
    that are timed."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
