"""The world of a sample: the dtype and the few extents that its terms share.

Terms with random shapes would seldom fit together; with three extents for all, they often do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import Shape, TensorType
from eqsynth.testing.choices import Choices, chance
from eqsynth.testing.literals import Literals

MAX_ELEMENTS: Final = 400
"""The most elements of a tensor of a sample."""

# Extents, amounts and constants that are drawn seldom, in case a rule is wrong only there.
_NOTHING: Final = Literals()
_WIDE: Final = (8, 9, 12, 13, 16, 17)
_AMOUNTS: Final = (5, 7, 12, -5)
_REALS: Final = (3.0, -2.0, 0.1, -0.3, 7.0, 1 / 3, 4.0, 0.25, 37.5, 1e-3, -1000.0, 1e5)


@dataclass
class World:
    """What the terms of one sample share.

    Attributes:
        choices: the source of decisions.
        dtype: the dtype of most terms.
        extents: the extents of axes.
        derived: the scopes of the sample that are marked as made by a derivation.
        literals: the numbers and dtypes that the rule names.
    """

    choices: Choices
    dtype: str
    extents: tuple[int, ...]
    derived: list[Scope] = field(default_factory=list)
    literals: Literals = Literals()

    def extent(self) -> int:
        return self.choices.pick(self.extents)

    def shape(self, rank: int | None = None) -> Shape:
        rank = self.choices.pick((1, 2, 0, 3, 4, 2, 3, 5)) if rank is None else rank
        shape: list[int] = []
        # Tensors made from this one, such as a concatenation, must be small enough, too.
        room = MAX_ELEMENTS // (4 if rank > 2 else 1)
        for _ in range(rank):
            extent = self.extent()
            # Only one axis of a tensor of many axes may be long.
            shape.append(extent if extent <= room else min(room, self.choices.pick((1, 2))))
            room //= max(shape[-1], 1)
        return tuple(shape)

    def type(self, rank: int | None = None, dtype: str = "") -> TensorType:
        return TensorType(self.shape(rank), dtype or self.dtype)

    def number(self, options: Sequence[int], least: int | None = None) -> int:
        """One of the options; sometimes a number that the rule names, or an unusual one.

        Args:
            least: the least number that is allowed.
        """
        for one_in, others in ((3, self.literals.integers), (12, _AMOUNTS)):
            fitting = [n for n in others if least is None or n >= least]
            if fitting and chance(self.choices, one_in):
                return self.choices.pick(fitting)
        return self.choices.pick(options)

    def real(self, options: Sequence[float]) -> float:
        """As `number`, for floats."""
        for one_in, others in ((3, self.literals.reals), (3, _REALS)):
            if others and chance(self.choices, one_in):
                return self.choices.pick(others)
        return self.choices.pick(options)


_DTYPES: Final = ("float32",) * 4 + (
    "int64", "float16", "float64", "int32", "bool", "uint8", "bfloat16", "int8", "int16",
)  # fmt: skip
# Laws of scopes are mostly about sums of floats.
_SCOPE_DTYPES: Final = ("float32",) * 6 + ("int64", "float64", "int32", "bool", "uint8", "float16")
# One in this many samples of a law of scopes has a large extent (and so many points), or one of 0.
_WIDE_SCOPES, _EMPTY_SCOPES = 8, 12


Types = list[TensorType | None]
Attrs = list[Any]
Fit = Callable[[World, "TensorType | None", Types, Attrs], None]


def draw_world(
    choices: Choices, dtypes: Sequence[str], literals: Literals = _NOTHING, wide: int = 3,
    empty: int = 6,
) -> World:  # fmt: skip
    """Draw a world: a dtype, and three or four extents.

    Args:
        wide: one in this many worlds has an extent that the rule names, and one in this many of the
            others an extent above 7.
        empty: one in this many worlds has an extent of 0.
    """
    pool = (1, 2, 3, 4, 5, 2, 3, 1, 6, 7)
    extents = [choices.pick(pool) for _ in range(3)]
    if literals.extents and chance(choices, wide):
        extents[0] = choices.pick(literals.extents)
    elif chance(choices, wide):
        extents[0] = choices.pick(_WIDE)
    if chance(choices, empty):
        extents.append(0)
    named = literals.dtypes
    dtype = choices.pick(named if named and chance(choices, 2) else dtypes)
    return World(choices, dtype, tuple(extents), literals=literals)


def world_of_rule(choices: Choices, literals: Literals, scopes: bool) -> World:
    """The world of a sample of a rule.

    Args:
        scopes: whether the rule is about scopes, whose worlds are smaller.
    """
    if scopes:
        return draw_world(choices, _SCOPE_DTYPES, literals, _WIDE_SCOPES, _EMPTY_SCOPES)
    return draw_world(choices, _DTYPES, literals)


def known_type(types: Types) -> TensorType | None:
    return next((t for t in types if t is not None), None)


def fill(types: Types, position: int, made: Callable[[], TensorType]) -> TensorType:
    found = types[position]
    if found is None:
        found = types[position] = made()
    return found
