"""The q-random walk: where a value goes when it mutates."""

from __future__ import annotations

from random import Random
from typing import Any

from eqsynth.tuning.parameters import Parameter
from eqsynth.tuning.space import Point, Space


def walked(parameter: Parameter, value: Any, q: float, rng: Random) -> Any:
    """Where a walk from ``value`` stops: with probability ``q`` it goes on, to any neighbour
    [OpEvo eq. 3]. A value without neighbours stays."""
    while rng.random() < q:
        neighbours = parameter.neighbours(value)
        if not neighbours:
            break
        value = rng.choice(neighbours)
    return value


def mutated(space: Space[Any], point: Point, q: float, rng: Random) -> Point:
    """A walk of each parameter."""
    parameters = space.parameters.values()
    return tuple(walked(p, value, q, rng) for p, value in zip(parameters, point, strict=True))
