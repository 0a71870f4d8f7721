"""What the terms of one sample have in common, so that they fit together often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import Shape, TensorType
from eqsynth.testing.choices import Choices, chance


@dataclass
class World:
    """What the terms of one sample have in common, so that they fit together often.

    Attributes:
        derived: scopes of the sample that are marked as what a derivation made.
    """

    choices: Choices
    dtype: str
    extents: tuple[int, ...]
    derived: list[Scope] = field(default_factory=list)

    def extent(self) -> int:
        return self.choices.pick(self.extents)

    def shape(self, rank: int | None = None) -> Shape:
        rank = self.choices.pick((1, 2, 0, 3, 4)) if rank is None else rank
        return tuple(self.extent() for _ in range(rank))

    def type(self, rank: int | None = None, dtype: str = "") -> TensorType:
        return TensorType(self.shape(rank), dtype or self.dtype)


Types = list[TensorType | None]
Attrs = list[Any]
Fit = Callable[[World, "TensorType | None", Types, Attrs], None]


def draw_world(choices: Choices, dtypes: Sequence[str]) -> World:
    """A dtype and the few extents of a sample: equal ones meet often, 1 and 0 occur."""
    pool = (1, 2, 3, 4, 5, 2, 3, 1, 6, 7)
    extents = [choices.pick(pool) for _ in range(3)]
    if chance(choices, 12):
        extents.append(0)
    return World(choices, choices.pick(dtypes), tuple(extents))


def known_type(types: Types) -> TensorType | None:
    return next((t for t in types if t is not None), None)


def fill(types: Types, position: int, made: Callable[[], TensorType]) -> TensorType:
    found = types[position]
    if found is None:
        found = types[position] = made()
    return found
