"""Tuners: which point of a space to measure next.

``opevo`` is the paper's tuner. The other tuners are those that the paper compares it with. N-A2C,
which learns a policy by a network, is in ``actor_critic.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from eqsynth.tuning.actor_critic import actor_critic
from eqsynth.tuning.search import TRIES, Search
from eqsynth.tuning.space import Point
from eqsynth.tuning.walk import mutated

PARENTS: Final = 8
CHILDREN: Final = 8
RATE: Final = 0.5
"""These three are the paper's settings (Appendix B)."""

DRAWN: Final = 5
"""Number of neighbours that G-BFS draws around a point [OpEvo Appendix B]."""

TOGETHER: Final = 8
"""Number of points that are measured together if their order doesn't matter: compiling them
together is cheaper."""


def opevo(
    search: Search[Any], parents: int = PARENTS, children: int = CHILDREN, q: float = RATE
) -> None:
    """Evolution along the topologies of the parameters.

    The best points are the parents. A child takes each parameter from one of the parents, which is
    drawn in proportion to its score (eq. 2). Then each parameter takes a q-random walk (eq. 3),
    which is repeated until the child is a point that wasn't tried. If that fails too often, a
    random point takes the child's place.

    Args:
        parents: number of parents, the paper's lambda.
        children: number of children, the paper's rho.

    Source: OpEvo, Algorithm 1.
    """
    population: dict[Point, float] = {}

    def add(points: Sequence[Point]) -> None:
        population.update(zip(points, search.score(points), strict=True))

    add(search.space.starts)
    add(search.some(parents - len(population)))
    while True:
        best = sorted(population, key=lambda point: -population[point])[:parents]
        alive = [point for point in best if population[point] > 0]
        born: list[Point] = []
        for _ in range(children if alive else 0):
            child = recombined(alive, [population[point] for point in alive], search)
            for _ in range(TRIES):
                child = mutated(search.space, child, q, search.rng)
                if search.fresh(child) and _is_another(search, child, born):
                    born.append(child)
                    break
        add(search.some(children, born))


def recombined(parents: Sequence[Point], scores: Sequence[float], search: Search[Any]) -> Point:
    """Return a point that takes each parameter from a parent drawn in proportion to its score (eq.
    2)."""
    givers = search.rng.choices(parents, scores, k=len(search.space.parameters))
    return tuple(giver[k] for k, giver in enumerate(givers))


def _is_another(search: Search[Any], point: Point, others: Sequence[Point]) -> bool:
    made = search.space.made(point)
    return all(search.space.made(other) != made for other in others)


def at_random(search: Search[Any]) -> None:
    """The tuner that measures random points."""
    while True:
        search.score(search.some(TOGETHER))


def best_first(search: Search[Any]) -> None:
    """Greedy best-first search: measure some neighbours of the best point whose neighbours weren't
    measured yet.

    If no such point is left, the search continues from a random point.

    Source: G-BFS of Zhang et al. 2019, as OpEvo (§2, Appendix B) compares with it.
    """
    scores = search.score(search.space.starts)
    ends = dict(zip(search.space.starts, scores, strict=True))
    while True:
        if not ends:
            point = search.anywhere()
            (ends[point],) = search.score([point])
        best = max(ends, key=lambda point: ends[point])
        del ends[best]
        near = [point for point in search.space.neighbours(best) if search.fresh(point)]
        drawn = search.rng.sample(near, min(DRAWN, len(near)))
        ends.update(zip(drawn, search.score(drawn), strict=True))


def by_coordinates(search: Search[Any]) -> None:
    """Coordinate descent from the default point: measure all neighbours in one parameter after
    another, and move to the best of them if it is better. If no neighbour is better, continue from
    a random point."""
    here = search.space.starts[0] if search.space.starts else search.anywhere()
    while True:
        (score,) = search.score([here])
        k = failed = 0
        parameters = tuple(search.space.parameters.values())
        while failed < len(parameters):
            values = parameters[k].neighbours(here[k])
            near = [(*here[:k], value, *here[k + 1 :]) for value in values]
            found = search.score(near)
            best = max(zip(found, near, strict=True), key=lambda pair: pair[0], default=(0.0, here))
            if best[0] > score:
                (score, here), failed = best, 0
            else:
                failed += 1
            k = (k + 1) % len(parameters)
        here = search.anywhere()


TUNERS: Final[Mapping[str, Callable[[Search[Any]], None]]] = {
    "opevo": opevo,
    "random": at_random,
    "g-bfs": best_first,
    "n-a2c": actor_critic,
    "coordinates": by_coordinates,
}
