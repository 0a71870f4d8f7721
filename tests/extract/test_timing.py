"""Timing: the order and number of calls, and plausible results. No test asserts how long a call
takes."""

import gc
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle

import pytest

from eqsynth.extract.timing import APART, LONG_S, Timing, one_leads, time_interleaved, time_one


def test_turns_are_taken_in_blocks_and_the_first_place_rotates() -> None:
    calls: list[str] = []
    timings = time_interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")},
        repeats=3, block=2, pause_s=0.0,
    )  # fmt: skip
    # In every turn, one call isn't counted and two are.
    assert "".join(calls) == "aaabbb" + "bbbaaa" + "aaabbb"
    assert {name: timing.samples for name, timing in timings.items()} == {"a": 6, "b": 6}


def test_every_turn_begins_with_a_pause() -> None:
    ends: list[float] = []
    starts: list[float] = []

    def call() -> None:
        starts.append(time.perf_counter())
        ends.append(time.perf_counter())

    time_interleaved({"a": call, "b": call}, repeats=2, block=1, pause_s=0.02)
    # A turn has two calls; two turns are at least the pause apart.
    gaps = [starts[i] - ends[i - 1] for i in range(2, len(starts), 2)]
    assert len(gaps) == 3 and min(gaps) >= 0.02


def test_one_stall_does_not_move_the_median() -> None:
    count = 0

    def stalls_once() -> None:
        nonlocal count
        count += 1
        if count == 8:
            time.sleep(0.3)

    timing = time_interleaved({"a": stalls_once}, repeats=9, block=4, pause_s=0.0)["a"]
    assert count == 9 * 5
    assert timing.median_s < 0.3 / 4


def test_timings_are_positive_and_ordered() -> None:
    for timing in (
        time_one(lambda: None, min_time_s=0.001),
        time_one(lambda: time.sleep(0.002), min_time_s=0.001),
        time_interleaved({"a": lambda: None}, repeats=5, block=1, pause_s=0.0)["a"],
    ):
        assert 0 < timing.q1_s <= timing.median_s <= timing.q3_s
        assert timing.samples >= 3


def test_a_slow_call_is_not_made_more_often_than_needed() -> None:
    calls = 0

    def slow() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.01)

    timing = time_one(slow, min_time_s=0.001, blocks=50, warmup=1)
    assert calls <= 6 and timing.samples == 3


@pytest.mark.parametrize("between", [True, False])
@pytest.mark.parametrize(
    ("took", "samples", "others"),
    [
        # The second call of a warm-up is the first of three samples.
        ([LONG_S], 3, 1),
        # Three samples that are equal, after a warm-up of two calls.
        ([0.02], 3, 2),
        # Unequal samples, up to ten times the least time: 0.2 s.
        ([0.02, 0.03], 7, 2),
        ([0.05, 0.08], 3, 1),
        # Equal samples of shorter calls, up to twice the least time.
        ([0.01], 5, 2),
        ([0.005], 7, 2),
    ],
)
def test_a_long_call_is_made_only_as_often_as_it_needs(
    took: list[float], samples: int, others: int, between: bool
) -> None:
    calls = 0
    seconds = cycle(took)

    def call() -> None:
        nonlocal calls
        calls += 1

    def clock(timed: Callable[[], object], count: int) -> float:
        assert count == 1
        timed()
        return next(seconds)

    timing = time_one(call, between=(lambda: 1.0) if between else None, clock=clock)
    # Without other work in between, one more call says how many calls make a sample.
    asked = not between and others == 2
    assert timing.samples == samples and calls == samples + others + asked


@pytest.mark.parametrize("warmup", [1, 2])
def test_the_first_call_is_never_a_sample(warmup: int) -> None:
    seconds = iter([9.0, *[LONG_S] * 4])
    timing = time_one(lambda: None, warmup=warmup, clock=lambda _call, _count: next(seconds))
    assert timing == Timing(LONG_S, LONG_S, LONG_S, 3)


@pytest.mark.parametrize(
    ("took", "uncounted"),
    [
        (LONG_S, 1),  # in the first turn only: until then nothing is known of the call
        (LONG_S / 2, 4),
    ],
)
def test_later_turns_of_a_long_call_are_all_counted(took: float, uncounted: int) -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    def clock(timed: Callable[[], object], _count: int) -> float:
        timed()
        return took

    found = time_interleaved({"a": call}, 4, 2, 0.0, clock=clock)["a"]
    assert found.samples == 8 and calls == 8 + uncounted


def test_a_call_that_was_once_short_is_not_a_long_one() -> None:
    """A stall makes one call of a short program long; the turn after it is like every other."""
    calls = 0
    seconds = cycle([LONG_S, 0.001])

    def call() -> None:
        nonlocal calls
        calls += 1

    def clock(timed: Callable[[], object], _count: int) -> float:
        timed()
        return next(seconds)

    found = time_interleaved({"a": call}, 4, 2, 0.0, clock=clock)["a"]
    assert found.samples == 8 and calls == 8 + 4


@pytest.mark.parametrize(("scatter", "samples"), [(1e-6, APART), (1e-8, 7)])
def test_something_else_runs_before_each_sample_and_is_not_counted(
    scatter: float, samples: int
) -> None:
    """If the samples scatter, ``APART`` of them are taken; if they agree, the least number, 7."""
    calls: list[str] = []
    took = cycle([1e-6, 1e-6 + scatter])

    def clock(call: Callable[[], object], count: int) -> float:
        assert count == 1
        call()
        return next(took)

    def other() -> float:
        calls.append("other")
        return 1.0

    timing = time_one(lambda: calls.append("call"), warmup=2, between=other, clock=clock)
    assert calls[:2] == ["call", "call"]
    assert calls[2:] == ["other", "call"] * samples and timing.samples == samples
    assert timing.q3_s <= 1e-6 + scatter


@pytest.mark.parametrize(
    ("slowdowns", "median_s"),
    [
        ([1.0], 0.01),
        ([2.0], 0.005),  # a neighbour has half of the machine all the time
        ([1.0, 9.0], 0.01),  # for single moments, which a long call hardly notices
    ],
)
def test_seconds_are_those_at_the_usual_pace(slowdowns: list[float], median_s: float) -> None:
    pace = cycle(slowdowns)
    timing = time_one(lambda: None, between=lambda: next(pace), clock=lambda _call, _count: 0.01)
    assert timing.median_s == timing.q1_s == timing.q3_s == median_s


def test_a_long_call_of_the_warm_up_needs_no_pace() -> None:
    timing = time_one(lambda: None, blocks=1, between=lambda: 2.0, clock=lambda *_: LONG_S)
    assert timing == Timing(LONG_S, LONG_S, LONG_S, 1)


def test_a_turn_ends_when_it_has_taken_too_long() -> None:
    counts = {"stalling": 0, "quick": 0}

    def stalling() -> None:
        counts["stalling"] += 1
        time.sleep(0.02)

    def quick() -> None:
        counts["quick"] += 1

    found = time_interleaved({"stalling": stalling, "quick": quick}, 3, 50, 0.0, turn_s=0.05)
    assert 3 <= found["stalling"].samples <= 9
    assert counts["stalling"] == found["stalling"].samples + 3  # one a turn isn't counted
    assert time_interleaved({"stalling": stalling}, 2, 5, 0.0, turn_s=0.0)["stalling"].samples == 2
    # A kernel that is in time makes all its calls.
    assert time_interleaved({"quick": quick}, 3, 50, 0.0, turn_s=600.0)["quick"].samples == 150


@pytest.mark.parametrize("rounds", [1, 4])
def test_no_round_is_begun_after_enough(rounds: int) -> None:
    calls: list[str] = []
    found = time_interleaved(
        {name: partial(calls.append, name) for name in "ab"}, 9, 5, 0.0,
        enough=lambda turns: len(turns["a"]) == len(turns["b"]) == rounds,
    )  # fmt: skip
    assert found["a"].samples == found["b"].samples == 5 * rounds
    assert len(calls) == 2 * 6 * rounds  # one a turn isn't counted


@pytest.mark.parametrize(
    ("turns", "leads"),
    [
        ({"a": [1.0] * 4, "b": [1.01] * 4}, True),
        ({"a": [1.0] * 4, "b": [1.01] * 4, "c": [1.0] * 4}, False),
        ({"a": [1.0] * 4, "b": [1.01] * 4, "c": [5.0, 9.0, 5.0, 5.0]}, True),
        ({"a": [1.0, 1.0, 1.02, 1.0], "b": [1.01] * 4}, False),
        ({"a": [1.0] * 3, "b": [2.0] * 3}, False),
        ({"a": [1.0] * 4, "b": [2.0] * 3}, False),
    ],
)
def test_one_leads_when_it_was_the_fastest_in_every_turn(
    turns: dict[str, list[float]], leads: bool
) -> None:
    # The median of a turn counts, so one stall within it says nothing.
    assert one_leads({name: [[s, s, 99.0] for s in own] for name, own in turns.items()}) == leads


def test_quartiles() -> None:
    assert Timing.of([4.0, 1.0, 2.0, 3.0, 5.0]) == Timing(3.0, 2.0, 4.0, 5)
    assert Timing.of([2.0]) == Timing(2.0, 2.0, 2.0, 1)


def test_garbage_collection_rests_and_returns_even_after_an_error() -> None:
    seen: list[bool] = []
    time_interleaved({"a": lambda: seen.append(gc.isenabled())}, 1, 1, 0.0)

    def fails() -> None:
        raise KeyError("from the callable")

    with pytest.raises(KeyError):
        time_interleaved({"a": fails}, 1, 1, 0.0)
    assert not any(seen) and gc.isenabled()


@pytest.mark.parametrize(("repeats", "block"), [(0, 1), (1, 0)])
def test_counts_must_be_positive(repeats: int, block: int) -> None:
    with pytest.raises(ValueError):
        time_interleaved({"a": lambda: None}, repeats, block)
    with pytest.raises(ValueError):
        time_one(lambda: None, blocks=0)
