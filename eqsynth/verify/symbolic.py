"""Tensors of symbolic extents: their extents, and their elements as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import z3

from eqsynth.verify.integers import number
from eqsynth.verify.values import Call, Number, Read, Value, guarded
from eqsynth.verify.verdict import Left

Extents: TypeAlias = tuple[Any, ...]
Element: TypeAlias = Callable[[Extents], Value]


class IllTyped(Exception):
    """Raised where no term is made at these ranks."""


@dataclass(frozen=True)
class Symbolic:
    """A tensor of symbolic extents.

    Attributes:
        at: its element at an index that is in range.
        flat: its element at a row-major position.
    """

    extents: Extents
    at: Element
    flat: Callable[[Any], Value]

    @property
    def rank(self) -> int:
        return len(self.extents)

    def read(self, index: Sequence[Any], fill: float = 0.0) -> Value:
        """The element, or the fill where the index lies outside."""
        inside = [c for i, e in zip(index, self.extents, strict=True)
                  for c in (number(i) >= 0, number(i) < e)]  # fmt: skip
        return guarded(z3.And(*inside) if inside else True, self.at(tuple(index)), Number(fill))


Require: TypeAlias = Callable[[Any], None]


def leaf(name: str, extents: Extents) -> Symbolic:
    """A tensor of which nothing is known."""
    return Symbolic(
        extents,
        lambda index: Read(name, tuple(index), extents),
        lambda position: Read(name, (position,), extents, True),
    )


def computed(extents: Extents, at: Element) -> Symbolic:
    def flat(_: Any) -> Value:
        raise Left("the elements in row-major order of what is computed")

    return Symbolic(extents, at, flat)


def same(a: Any, b: Any) -> bool:
    return bool(number(a).eq(number(b)))


def size_of(extents: Extents) -> Any:
    size: Any = z3.IntVal(1)
    for extent in extents:
        size = size * extent
    return size


def reciprocal(count: Any) -> Call:
    """One over a number of points, of which there is at least one."""
    return Call("points", (as_value(count),))


def as_value(x: Any) -> Value:
    """An integer as an argument of a function."""
    return Read("integer", (number(x),), (x,), True)
