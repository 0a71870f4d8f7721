"""A search of a space under a budget: what all tuners share.

    found = tune(space, measure, Budget(trials=200), opevo)

A tuner is a function that asks a `Search` for scores until the search is over. The search measures
each schedule once, whatever points mean it, asks nothing about points that are refused, and ends
the tuner when the budget is used up or all points were tried.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

from eqsynth.tuning.space import Point, Refused, Space

Made = TypeVar("Made", bound=Hashable)

TRIES = 64
"""Points drawn at random before an untried one is looked for in order."""


@dataclass(frozen=True)
class Budget:
    """Whichever is used up first.

    Attributes:
        trials: things that are measured.
        seconds: from the search's beginning.
    """

    trials: float = math.inf
    seconds: float = math.inf


@dataclass(frozen=True)
class Trial(Generic[Made]):
    """What was measured.

    Attributes:
        time_s: what one run took; None if it failed.
        elapsed_s: since the search began.
    """

    made: Made
    time_s: float | None
    elapsed_s: float


@dataclass(frozen=True)
class Tuned(Generic[Made]):
    """What a search has found.

    Attributes:
        trials: in the order in which they were measured.
        stop: why it ended: ``trials``, ``seconds``, ``all points tried``, or ``the tuner's end``.
        measuring_s: of the search's seconds those spent in measuring.
    """

    trials: tuple[Trial[Made], ...]
    stop: str
    seconds: float
    measuring_s: float

    @property
    def best(self) -> Trial[Made] | None:
        """The fastest; None if nothing worked."""
        worked = [trial for trial in self.trials if trial.time_s is not None]
        return min(worked, key=lambda trial: trial.time_s or 0.0, default=None)

    def best_so_far(self) -> list[float]:
        """The least time after each trial; infinite before one has worked."""
        least, found = math.inf, []
        for trial in self.trials:
            least = min(least, math.inf if trial.time_s is None else trial.time_s)
            found.append(least)
        return found


Measure = Callable[[Sequence[Made]], Sequence[float | None]]
"""Seconds of each, None where it can't be built or run."""


class Over(Exception):  # noqa: N818 - the end of a search is no error
    """The search is over: for the tuner to pass on."""


@dataclass
class Search(Generic[Made]):
    """What a tuner sees of its search.

    Attributes:
        watch: is called whenever something was measured.
        scores: of what was tried: runs a second; 0 where it failed.
    """

    space: Space[Made]
    measure: Measure[Made]
    budget: Budget
    rng: Random
    watch: Callable[[Search[Made]], None] = lambda _search: None
    trials: list[Trial[Made]] = field(default_factory=list)
    scores: dict[Made, float] = field(default_factory=dict)
    measuring_s: float = 0.0

    def __post_init__(self) -> None:
        self._begin = time.monotonic()
        self._left: Iterator[Point] = self.space.points()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begin

    def fresh(self, point: Point) -> bool:
        """Whether a point means something that wasn't tried."""
        made = self.space.made(point)
        return not isinstance(made, Refused) and made not in self.scores

    def anywhere(self, among: Sequence[Point] = ()) -> Point:
        """A point that wasn't tried, nor means the same as one of some others.

        Raises:
            Over: there is none.
        """
        others = {self.space.made(point) for point in among}

        def good(point: Point) -> bool:
            return self.fresh(point) and self.space.made(point) not in others

        for _ in range(TRIES):
            point = self.space.sample(self.rng)
            if good(point):
                return point
        # What was passed once is tried, refused, or among the others, who will be tried.
        for point in self._left:
            if good(point):
                return point
        if among:
            raise _NoneLeft
        raise Over("all points tried")

    def some(self, count: int, among: Sequence[Point] = ()) -> list[Point]:
        """So many points that weren't tried, with those that are given; fewer if there are fewer.

        Raises:
            Over: there is none.
        """
        found = list(among)
        while len(found) < count:
            try:
                found.append(self.anywhere(found))
            except _NoneLeft:
                break
        return found

    def score(self, points: Sequence[Point]) -> list[float]:
        """The score of each point, from memory where it was tried; 0 of one that is refused, which
        isn't built.

        Raises:
            Over: the budget is used up.
        """
        made = [self.space.made(point) for point in points]
        new = [m for m in made if not isinstance(m, Refused) and m not in self.scores]
        new = list(dict.fromkeys(new))
        room = self.budget.trials - len(self.trials)
        if new:
            if self.elapsed_s >= self.budget.seconds:
                raise Over("seconds")
            if room <= 0:
                raise Over("trials")
            self._tried(new if len(new) <= room else new[: int(room)])
        if len(new) > room:
            raise Over("trials")
        return [0.0 if isinstance(m, Refused) else self.scores[m] for m in made]

    def _tried(self, made: Sequence[Made]) -> None:
        begin = time.monotonic()
        times = self.measure(made)
        self.measuring_s += time.monotonic() - begin
        for one, time_s in zip(made, times, strict=True):
            self.trials.append(Trial(one, time_s, self.elapsed_s))
            self.scores[one] = 0.0 if time_s is None else 1.0 / time_s
        self.watch(self)


class _NoneLeft(Exception):  # noqa: N818
    """All points were tried, or are about to be."""


Tuner = Callable[[Search[Made]], None]


def tune(
    space: Space[Made],
    measure: Measure[Made],
    budget: Budget,
    tuner: Tuner[Made],
    seed: int = 0,
    watch: Callable[[Search[Made]], None] = lambda _search: None,
) -> Tuned[Made]:
    """Searches a space. What is offered without a search is tried first, whatever the tuner.

    Equal seeds ask for the same points as long as the measured times are the same, so a search that
    was interrupted goes on where it was if ``measure`` remembers.
    """
    search = Search(space, measure, budget, Random(seed), watch)
    stop = "the tuner's end"
    try:
        search.score(space.starts)
        tuner(search)
    except Over as over:
        stop = str(over)
    return Tuned(tuple(search.trials), stop, search.elapsed_s, search.measuring_s)
