"""The q-random walk, by which a value mutates [OpEvo eq. 3]."""

from __future__ import annotations

from random import Random
from typing import Any

from eqsynth.tuning.parameters import Parameter
from eqsynth.tuning.space import Point, Space


def walked(parameter: Parameter, value: Any, q: float, rng: Random) -> Any:
    """Return the value at which a random walk from ``value`` ends. With probability ``q`` the walk
    goes on to a random neighbour [OpEvo eq. 3]. A value without neighbours is returned unchanged.
    """
    while rng.random() < q:
        neighbours = parameter.neighbours(value)
        if not neighbours:
            break
        value = rng.choice(neighbours)
    return value


def mutated(space: Space[Any], point: Point, q: float, rng: Random) -> Point:
    """Return the point whose every parameter has taken a walk."""
    parameters = space.parameters.values()
    return tuple(walked(p, value, q, rng) for p, value in zip(parameters, point, strict=True))
