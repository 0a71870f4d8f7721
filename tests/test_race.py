"""When a race is over: what is clear ends it early, what isn't goes on."""

from __future__ import annotations

import pytest

from eqsynth import race

# Seconds of each turn of the original, and of the compiled program.
RACES = {
    "won": ([2.0] * 4, [1.0] * 4, True),
    "lost": ([1.0] * 4, [2.0] * 4, True),
    "three turns each": ([2.0] * 3, [1.0] * 3, False),
    "the same": ([1.0] * 9, [1.0] * 9, False),
    "faster by a tenth": ([1.0] * 5, [0.9] * 5, False),
    "faster by a tenth in six turns": ([1.0] * 6, [0.9] * 6, True),
    "slower by a tenth": ([0.9] * 5, [1.0] * 5, False),
    "slower by a tenth in six turns": ([0.9] * 6, [1.0] * 6, True),
    "faster in five of six turns": ([1.0] * 6, [0.9] * 5 + [1.0], False),
    "one turn is as slow as the other's fastest": ([2.0] * 4, [1.0, 1.0, 1.7, 1.0], False),
    "one turn is as fast as the other's slowest": ([2.0, 1.1, 2.0, 2.0], [1.0] * 4, False),
    "the first turns are disturbed": ([9.0, 9.0, 1.0, 1.0], [1.0] * 4, False),
}


def test_a_race_is_clear_when_all_turns_say_the_same() -> None:
    found = {
        name: race.is_clear({"before": [[s] for s in before], "after": [[s] for s in after]})
        for name, (before, after, _) in RACES.items()
    }
    assert found == {name: clear for name, (_, _, clear) in RACES.items()}


def test_a_stall_within_a_turn_decides_nothing() -> None:
    stalled = [[1.0, 1.0, 50.0]] * 4
    assert race.is_clear({"before": [[2.0] * 3] * 4, "after": stalled})
    assert not race.is_clear({"before": stalled, "after": [[0.9] * 3] * 4})


def test_a_race_asks_whether_it_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each round; and no round is begun after it is."""
    asked: list[int] = []

    def clear(turns: dict[str, list[list[float]]]) -> bool:
        asked.append(len(turns["before"]))
        return len(asked) == 2

    monkeypatch.setattr(race, "is_clear", clear)
    race.race(lambda: None, lambda: None)
    assert asked == [1, 2]
