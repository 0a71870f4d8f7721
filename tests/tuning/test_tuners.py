"""Tuners on a space with a known best point, and the walk against its exact distribution."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest

from eqsynth.tuning.parameters import Category, Discrete, Factorization, Parameter, Permutation
from eqsynth.tuning.search import Budget, Search, Trial, Tuned, tune
from eqsynth.tuning.space import Refused, Space
from eqsynth.tuning.tuners import TUNERS, at_random, opevo, recombined
from eqsynth.tuning.walk import walked

Made = tuple[tuple[int, int, int], tuple[int, ...], int, str]
BEST: Made = ((4, 2, 8), (2, 0, 1), 8, "b")


def _make(values: Mapping[str, Any]) -> Made | Refused:
    """Of ``c`` the order isn't used; more than 16 innermost are refused."""
    if values["tile"][2] > 16:
        return Refused("more than 16")
    order = (0, 1, 2) if values["kind"] == "c" else values["order"]
    return values["tile"], order, values["width"], values["kind"]


SPACE: Space[Made] = Space(
    {
        "tile": Factorization(64, 3), "order": Permutation(3),
        "width": Discrete((1, 2, 4, 8, 16, 32)), "kind": Category(("a", "b", "c")),
    },
    _make,
    lambda made: made,
    (((64, 1, 1), (0, 1, 2), 1, "a"),),
)  # fmt: skip
DISTINCT = {m for point in SPACE.points() if not isinstance(m := SPACE.made(point), Refused)}


def time_of(made: Made) -> float:
    """Grows with the distance from the best point; one kind doesn't work at all on short tiles."""
    tile, order, width, kind = made
    if kind == "c" and tile[2] == 1:
        return math.inf
    far = sum(abs(math.log2(x / y)) for x, y in zip(tile, BEST[0], strict=True))
    far += 2 * sum(x != y for x, y in zip(order, BEST[1], strict=True))
    far += abs(math.log2(width / BEST[2])) + 2 * (kind != BEST[3])
    return 1.0 + far


class Recorder:
    """Measures, and remembers what it was asked."""

    def __init__(self, stop_after: float = math.inf, stop_at: Made | None = None) -> None:
        self.asked: list[Made] = []
        self.known: dict[Made, float] = {}
        self.stop_after, self.stop_at = stop_after, stop_at

    def __call__(self, made: Sequence[Made]) -> list[float | None]:
        for one in made:
            late = one not in self.known and len(self.known) >= self.stop_after
            if late or one == self.stop_at:
                raise KeyboardInterrupt
            self.known[one] = time_of(one)
        self.asked += made
        return [None if math.isinf(self.known[one]) else self.known[one] for one in made]


GRAPHS: list[tuple[Parameter, Any]] = [
    (Factorization(8, 3), (8, 1, 1)), (Factorization(12, 2), (3, 4)), (Permutation(3), (0, 2, 1)),
    (Discrete((1, 2, 3, 4)), 1), (Category(tuple("abcdef")), "c"), (Category(("one",)), "one"),
]  # fmt: skip


def exactly(parameter: Parameter, start: Any, q: float) -> dict[Any, float]:
    """The distribution of where a walk stops: (1 - q) (I - Q)^-1 p [OpEvo Appendix A]."""
    values = list(parameter.values())
    steps = np.zeros((len(values), len(values)))
    for column, value in enumerate(values):
        others = parameter.neighbours(value)
        for other in others:
            steps[values.index(other), column] = q / len(others)
    ends = (1 - q) * np.linalg.inv(np.eye(len(values)) - steps)[:, values.index(start)]
    # Without neighbours nothing moves: there the column of Q is 0 and not q.
    return dict(zip(values, ends / ends.sum(), strict=True))


@pytest.mark.parametrize("q", [0.0, 0.3, 0.5, 0.7])
@pytest.mark.parametrize(("parameter", "start"), GRAPHS, ids=lambda value: str(value)[:30])
def test_where_walks_stop(parameter: Parameter, start: Any, q: float) -> None:
    rng, draws = Random(1), 4000
    ends = Counter(walked(parameter, start, q, rng) for _ in range(draws))
    for value, probability in exactly(parameter, start, q).items():
        deviation = math.sqrt(draws * probability * (1 - probability))
        assert abs(ends[value] - draws * probability) <= 5 * deviation + 1e-6, value
    assert ends.keys() <= set(parameter.values())


def test_figure_2() -> None:
    """From (8, 1, 1) with q = 0.5: near ones are probable, and (2, 2, 2), which has most
    neighbours, more so than others at its distance; with a larger q the walk goes farther."""
    near, far = (exactly(Factorization(8, 3), (8, 1, 1), q) for q in (0.5, 0.7))
    assert near[8, 1, 1] > near[4, 2, 1] > near[2, 2, 2] > near[2, 4, 1] > near[1, 8, 1]
    assert far[8, 1, 1] < near[8, 1, 1] and far[1, 8, 1] > near[1, 8, 1]


def test_parameters_are_inherited_in_proportion_to_scores() -> None:
    search = Search(SPACE, Recorder(), Budget(), Random(2))
    parents = [(k,) * 4 for k in range(3)]
    scores = [1.0, 3.0, 0.0]
    children = [recombined(parents, scores, search) for _ in range(4000)]
    for k in range(4):
        given = Counter(child[k] for child in children)
        assert given[2] == 0 and abs(given[1] - 3000) < 5 * math.sqrt(4000 * 0.75 * 0.25)
    mixed = sum(len(set(child)) > 1 for child in children)
    assert abs(mixed / 4000 - (1 - 0.25**4 - 0.75**4)) < 0.05


def test_only_the_best_are_parents() -> None:
    """Without mutation each value of a child is one of the best so many's, all of which work."""
    wide = Space({str(k): Discrete(tuple(range(9))) for k in range(6)}, _numbers, lambda m: m)

    def measure(made: Sequence[tuple[int, ...]]) -> list[float | None]:
        return [None if one[0] == 0 else 1.0 + sum(one) for one in made]

    found = tune(wide, measure, Budget(trials=30), partial(opevo, parents=5, children=5, q=1e-12))
    for start in range(5, 15, 5):
        worked = [t for t in found.trials[:start] if t.time_s is not None]
        parents = [t.made for t in sorted(worked, key=lambda t: t.time_s or 0.0)[:5]]
        for trial in found.trials[start : start + 5]:
            assert all(v in {p[k] for p in parents} for k, v in enumerate(trial.made))


def _numbers(values: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(values.values())


@pytest.mark.rotating
@pytest.mark.parametrize("name", TUNERS)
def test_an_exhausted_space_ends_the_search(name: str) -> None:
    recorder = Recorder()
    found = tune(SPACE, recorder, Budget(), TUNERS[name], seed=3)
    assert found.stop == "all points tried"
    assert len(recorder.asked) == len(found.trials) == len(DISTINCT)
    assert set(recorder.asked) == DISTINCT
    assert found.best is not None and found.best.made == BEST and found.best.time_s == 1.0


@pytest.mark.parametrize("name", TUNERS)
def test_a_budget_is_kept(name: str) -> None:
    recorder = Recorder()
    found = tune(SPACE, recorder, Budget(trials=37), TUNERS[name])
    assert found.stop == "trials" and len(found.trials) == len(set(recorder.asked)) == 37
    assert found.trials[0].made == SPACE.made(SPACE.starts[0])
    so_far = found.best_so_far()
    assert found.best is not None and so_far[-1] == found.best.time_s
    assert so_far == sorted(so_far, reverse=True)
    none = tune(SPACE, recorder, Budget(seconds=0.0), TUNERS[name])
    assert none.stop == "seconds" and not none.trials and none.best is None


@pytest.mark.parametrize("name", TUNERS)
def test_a_search_that_was_interrupted_goes_on_where_it_was(name: str) -> None:
    whole = tune(SPACE, Recorder(), Budget(trials=60), TUNERS[name], seed=5)
    recorder = Recorder(stop_after=23)
    with pytest.raises(KeyboardInterrupt):
        tune(SPACE, recorder, Budget(trials=60), TUNERS[name], seed=5)
    recorder.stop_after = math.inf
    again = tune(SPACE, recorder, Budget(trials=60), TUNERS[name], seed=5)
    assert [t.made for t in again.trials] == [t.made for t in whole.trials]
    assert len(recorder.known) == 60


def test_what_never_works() -> None:
    for tuner in TUNERS.values():
        found = tune(SPACE, lambda made: [None] * len(made), Budget(trials=40), tuner)
        assert found.best is None and len(found.trials) == 40
        assert found.best_so_far() == [math.inf] * 40


@pytest.mark.rotating
def test_topologies_find_the_best_sooner_than_luck() -> None:
    """Trials until the best point of a space where near points do about as well."""

    def trials(tuner: Callable[[Search[Made]], None], seed: int) -> int:
        recorder = Recorder(stop_at=BEST)
        with pytest.raises(KeyboardInterrupt):
            tune(SPACE, recorder, Budget(), tuner, seed)
        return len(recorder.known)

    seeds = range(8)
    means = {n: sum(trials(t, s) for s in seeds) / len(seeds) for n, t in TUNERS.items()}
    assert means["opevo"] < means["random"] / 3 and means["g-bfs"] < means["random"] / 3


def test_the_fastest_of_some_trials() -> None:
    trials = (Trial("a", 2.0, 0.0), Trial("b", None, 0.1), Trial("c", 1.0, 0.2))
    found = Tuned(trials, "trials", 1.0, 0.5)
    assert found.best == trials[2] and found.best_so_far() == [2.0, 2.0, 1.0]


def test_points_that_mean_the_same_are_one() -> None:
    assert len(DISTINCT) < sum(not isinstance(SPACE.made(p), Refused) for p in SPACE.points())
    assert SPACE.size == sum(1 for _ in SPACE.points())
    recorder = Recorder()
    search = Search(SPACE, recorder, Budget(), Random(0))
    same = [((64, 1, 1), order, 1, "c") for order in Permutation(3).values()]
    assert len(set(search.score(same))) == 1 and len(recorder.asked) == 1
    assert search.score([((1, 1, 64), (0, 1, 2), 1, "a")]) == [0.0] and len(recorder.asked) == 1
    points = search.some(12)
    assert len({SPACE.made(point) for point in points}) == 12
    assert not {SPACE.made(p) for p in points} & set(recorder.asked)


def test_random_points_have_no_order() -> None:
    first, second = (
        [t.made for t in tune(SPACE, Recorder(), Budget(trials=20), at_random, seed).trials]
        for seed in (0, 1)
    )
    assert first != second and first[0] == second[0]
