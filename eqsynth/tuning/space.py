"""A space: parameters by name, and what the values of a point mean together.

    {"rows": 8, "columns": 32}    ->    Block(8, 32), or Refused("the registers don't hold it")

Not here: the parameters (``parameters.py``), the spaces of kernels (``lower/spaces.py``).
"""

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
    """A point that means nothing in this space, such as a schedule that needs too many
    registers."""

    why: str


@dataclass(frozen=True)
class Space(Generic[Made]):
    """All points, and their meanings.

    Attributes:
        make: returns the meaning of the values, or why they have none. Points that differ only in a
            value which isn't used have the same meaning.
        place: returns a point with this meaning; None if there is none.
        starts: points at which a search begins, the default first.
    """

    parameters: Mapping[str, Parameter]
    make: Callable[[Mapping[str, Any]], Made | Refused]
    place: Callable[[Made], Point | None]
    starts: tuple[Point, ...] = ()

    @property
    def size(self) -> int:
        """The number of points, including those that are refused or mean the same as others."""
        return math.prod(parameter.size for parameter in self.parameters.values())

    def made(self, point: Point) -> Made | Refused:
        """The meaning of a point, or why it has none."""
        return self.make(dict(zip(self.parameters, point, strict=True)))

    def points(self) -> Iterator[Point]:
        """Every point, including refused ones, generated one after another."""
        return _product(tuple(self.parameters.values()))

    def sample(self, rng: Random) -> Point:
        return tuple(parameter.sample(rng) for parameter in self.parameters.values())

    def neighbours(self, point: Point) -> Iterator[Point]:
        """The points that differ in one parameter, by one step."""
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
