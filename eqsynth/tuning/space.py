"""A space: parameters by name, and what their values mean together, if anything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, TypeVar

from eqsynth.tuning.parameters import Parameter

Made = TypeVar("Made")
Point = tuple[Any, ...]
"""A value of each parameter, in the order of the space."""


@dataclass(frozen=True)
class Refused:
    """A point that means nothing here, such as one that needs more registers than there are."""

    why: str


@dataclass(frozen=True)
class Space(Generic[Made]):
    """All points, and what is made of them.

    Attributes:
        make: what the values mean, or why they mean nothing. Where a value isn't used, points that
            differ in it are the same.
        place: a point that means this; None if there is none.
        starts: points that a search begins with, the default first.
    """

    parameters: Mapping[str, Parameter]
    make: Callable[[Mapping[str, Any]], Made | Refused]
    place: Callable[[Made], Point | None]
    starts: tuple[Point, ...] = ()

    @property
    def size(self) -> int:
        """How many points there are, with those that are refused or the same as others."""
        return math.prod(parameter.size for parameter in self.parameters.values())

    def made(self, point: Point) -> Made | Refused:
        return self.make(dict(zip(self.parameters, point, strict=True)))

    def points(self) -> Iterator[Point]:
        """Every point, with those that are refused; one after the other, however many there are."""
        return _product(tuple(self.parameters.values()))

    def sample(self, rng: Random) -> Point:
        return tuple(parameter.sample(rng) for parameter in self.parameters.values())

    def neighbours(self, point: Point) -> Iterator[Point]:
        """The points that are one step of one parameter away."""
        for k, parameter in enumerate(self.parameters.values()):
            for value in parameter.neighbours(point[k]):
                yield (*point[:k], value, *point[k + 1 :])

    def __contains__(self, point: object) -> bool:
        return isinstance(point, tuple) and all(
            value in parameter
            for value, parameter in itertools.zip_longest(point, self.parameters.values())
        )


def _product(parameters: tuple[Parameter, ...]) -> Iterator[Point]:
    if not parameters:
        yield ()
        return
    for value in parameters[0].values():
        yield from ((value, *rest) for rest in _product(parameters[1:]))
