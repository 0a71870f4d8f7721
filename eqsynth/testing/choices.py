"""The sources of decisions for random terms: a random generator, or hypothesis.

Code that draws a term asks a :class:`Choices` again and again for one of several options, listed
simplest first: ``choices.pick((2, 1, 3))``. By a random generator the same code draws thousands of
samples quickly; by hypothesis it can search for a counterexample and shrink it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Rejected(Exception):
    """The decisions so far lead to no valid sample."""


class Choices(Protocol):
    """A source of decisions."""

    def pick(self, options: Sequence[T]) -> T:
        """One of the options; the first ones are the simplest."""
        ...


class RandomChoices:
    """Decisions of a random generator, which are fast."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, options: Sequence[T]) -> T:
        if not options:
            raise Rejected("nothing to choose from")
        return options[int(self._random.random() * len(options))]


class DrawnChoices:
    """Decisions of hypothesis, which can shrink them towards the first options."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def pick(self, options: Sequence[T]) -> T:
        if not options:
            raise Rejected("nothing to choose from")
        return pick(self._draw, options)


@cache
def _places(count: int) -> st.SearchStrategy[int]:
    """The numbers below ``count``. Making a strategy takes hypothesis as long as drawing from it,
    and a random scope takes some forty decisions."""
    return st.integers(0, count - 1)


def pick(draw: st.DrawFn, options: Sequence[T]) -> T:
    """One of the options, drawn by hypothesis, which shrinks it towards the first."""
    return options[draw(_places(len(options)))] if len(options) != 1 else options[0]


def chance(choices: Choices, one_in: int) -> bool:
    """True with probability ``1 / one_in``; False is the simpler answer."""
    return choices.pick(range(one_in)) == one_in - 1 if one_in > 1 else True


def several(choices: Choices, options: Sequence[T], low: int, high: int) -> list[T]:
    """Between ``low`` and ``high`` of the options; an option may be drawn several times."""
    return [choices.pick(options) for _ in range(choices.pick(range(low, high + 1)))]


def ordering(choices: Choices, length: int) -> tuple[int, ...]:
    """A permutation of ``range(length)``."""
    left = list(range(length))
    return tuple(left.pop(choices.pick(range(len(left)))) for _ in range(length))
