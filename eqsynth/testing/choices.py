"""Where random terms get their decisions from: a generator of random numbers, or hypothesis.

What makes terms asks for one of some options, again and again, simplest first. So the same code
draws thousands of samples quickly, and lets hypothesis search and shrink a counterexample.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Rejected(Exception):
    """Raised where the decisions so far lead to no sample."""


class Choices(Protocol):
    """A source of decisions."""

    def pick(self, options: Sequence[T]) -> T:
        """One of the options; the first ones are the simplest."""
        ...


class RandomChoices:
    """Decisions of a random generator: many and fast."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, options: Sequence[T]) -> T:
        if not options:
            raise Rejected("nothing to choose from")
        return options[int(self._random.random() * len(options))]


class DrawnChoices:
    """Decisions that hypothesis makes, and makes simpler where it can."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def pick(self, options: Sequence[T]) -> T:
        if not options:
            raise Rejected("nothing to choose from")
        return options[self._draw(st.integers(0, len(options) - 1))]


def chance(choices: Choices, one_in: int) -> bool:
    """True once in so many times; the simple answer is no."""
    return choices.pick(range(one_in)) == one_in - 1 if one_in > 1 else True


def several(choices: Choices, options: Sequence[T], low: int, high: int) -> list[T]:
    """Between ``low`` and ``high`` options, with repetitions."""
    return [choices.pick(options) for _ in range(choices.pick(range(low, high + 1)))]


def ordering(choices: Choices, length: int) -> tuple[int, ...]:
    """A permutation of ``range(length)``."""
    left = list(range(length))
    return tuple(left.pop(choices.pick(range(len(left)))) for _ in range(length))
