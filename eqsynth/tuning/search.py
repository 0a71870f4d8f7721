"""A search of a space under a budget: what all tuners share.

    found = tune(space, measure, Budget(trials=200), opevo)

A tuner is a function that asks a `Search` for the scores of points until the search is over. The
search measures each schedule only once, even if several points mean it; it doesn't measure points
that are refused; and it ends the tuner when the budget is used up or all points were tried. Not
here: which points are asked for (``tuners.py``).
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
"""Random draws for a point that wasn't tried; then points are gone through in order."""


@dataclass(frozen=True)
class Budget:
    """The limits of a search, which ends at the first that is reached.

    Attributes:
        trials: number of measurements.
        seconds: seconds since the beginning of the search.
    """

    trials: float = math.inf
    seconds: float = math.inf


@dataclass(frozen=True)
class Trial(Generic[Made]):
    """One measurement.

    Attributes:
        time_s: seconds of one run; None if it failed.
        elapsed_s: seconds since the beginning of the search.
    """

    made: Made
    time_s: float | None
    elapsed_s: float


@dataclass(frozen=True)
class Tuned(Generic[Made]):
    """The result of a search.

    Attributes:
        trials: all measurements, in order.
        stop: why the search ended: ``trials``, ``seconds``, ``all points tried``, or ``the tuner's
            end``.
        measuring_s: those seconds of the search that were spent in measuring.
    """

    trials: tuple[Trial[Made], ...]
    stop: str
    seconds: float
    measuring_s: float

    @property
    def best(self) -> Trial[Made] | None:
        """The fastest trial; None if none worked."""
        worked = [trial for trial in self.trials if trial.time_s is not None]
        return min(worked, key=lambda trial: trial.time_s or 0.0, default=None)

    def best_so_far(self) -> list[float]:
        """The least time after each trial; infinite until a trial has worked."""
        least, found = math.inf, []
        for trial in self.trials:
            least = min(least, math.inf if trial.time_s is None else trial.time_s)
            found.append(least)
        return found


Measure = Callable[[Sequence[Made]], Sequence[float | None]]
"""A function that measures several things; it returns the seconds of each, None if it can't be
built or run."""


class Over(Exception):  # noqa: N818 - the end of a search is no error
    """The search is over. A tuner doesn't catch it."""


@dataclass
class Search(Generic[Made]):
    """The interface of a search to its tuner.

    Attributes:
        watch: called after every measurement.
        scores: the score of each thing that was tried: runs per second, or 0 if it failed.
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
        """Whether a point has a meaning, and one that wasn't tried."""
        made = self.space.made(point)
        return not isinstance(made, Refused) and made not in self.scores

    def anywhere(self, among: Sequence[Point] = ()) -> Point:
        """Return a point that wasn't tried, and that doesn't mean the same as a point of ``among``.

        Raises:
            Over: there is no such point.
        """
        others = {self.space.made(point) for point in among}

        def good(point: Point) -> bool:
            return self.fresh(point) and self.space.made(point) not in others

        for _ in range(TRIES):
            point = self.space.sample(self.rng)
            if good(point):
                return point
        # The iterator isn't restarted: points that it has passed were tried or refused, or were in
        # `among` and will be tried.
        for point in self._left:
            if good(point):
                return point
        if among:
            raise _NoneLeft
        raise Over("all points tried")

    def some(self, count: int, among: Sequence[Point] = ()) -> list[Point]:
        """Return ``count`` points that weren't tried, beginning with ``among``; fewer if there
        aren't so many.

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
        """Return the score of each point, from memory if it was tried. The score of a refused point
        is 0, and it isn't built.

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
        """Measure things, and record their times and scores."""
        begin = time.monotonic()
        times = self.measure(made)
        self.measuring_s += time.monotonic() - begin
        for one, time_s in zip(made, times, strict=True):
            self.trials.append(Trial(one, time_s, self.elapsed_s))
            self.scores[one] = 0.0 if time_s is None else 1.0 / time_s
        self.watch(self)


class _NoneLeft(Exception):  # noqa: N818
    """All points were tried, or are among those that are about to be."""


Tuner = Callable[[Search[Made]], None]


def tune(
    space: Space[Made],
    measure: Measure[Made],
    budget: Budget,
    tuner: Tuner[Made],
    seed: int = 0,
    watch: Callable[[Search[Made]], None] = lambda _search: None,
) -> Tuned[Made]:
    """Search a space by a tuner. The starting points of the space are tried first, whatever the
    tuner.

    With equal seeds, and as long as measured times are the same, the same points are asked for. So
    an interrupted search continues where it was if ``measure`` remembers its results.
    """
    search = Search(space, measure, budget, Random(seed), watch)
    stop = "the tuner's end"
    try:
        search.score(space.starts)
        tuner(search)
    except Over as over:
        stop = str(over)
    return Tuned(tuple(search.trials), stop, search.elapsed_s, search.measuring_s)
