"""Tensors of a known rank with symbolic extents and elements.

    leaf("x", (n, m)).at((i, j))   ->   Read("x", (i, j), (n, m))

Operators on such tensors are in ``operators.py``; elements (values) are in ``values.py``.
"""

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
    """Raised if an operator can't be applied at these ranks: there is no such term."""


@dataclass(frozen=True)
class Symbolic:
    """A tensor with symbolic extents.

    Attributes:
        at: gives the element at an index, which has to be in range.
        flat: gives the element at a row-major position.
    """

    extents: Extents
    at: Element
    flat: Callable[[Any], Value]

    @property
    def rank(self) -> int:
        return len(self.extents)

    def read(self, index: Sequence[Any], fill: float = 0.0) -> Value:
        """The element at ``index``, or ``fill`` if the index is out of range."""
        inside = [c for i, e in zip(index, self.extents, strict=True)
                  for c in (number(i) >= 0, number(i) < e)]  # fmt: skip
        return guarded(z3.And(*inside) if inside else True, self.at(tuple(index)), Number(fill))


Require: TypeAlias = Callable[[Any], None]


def leaf(name: str, extents: Extents) -> Symbolic:
    """A tensor with unknown elements."""
    return Symbolic(
        extents,
        lambda index: Read(name, tuple(index), extents),
        lambda position: Read(name, (position,), extents, True),
    )


def computed(extents: Extents, at: Element) -> Symbolic:
    """A tensor given by its elements at indices, and not by those at row-major positions."""

    def flat(_: Any) -> Value:
        raise Left("the elements in row-major order of what is computed")

    return Symbolic(extents, at, flat)


def same(a: Any, b: Any) -> bool:
    """Whether two integers are written in the same way, which needs no question to Z3."""
    return bool(number(a).eq(number(b)))


def size_of(extents: Extents) -> Any:
    """The product of the extents."""
    size: Any = z3.IntVal(1)
    for extent in extents:
        size = size * extent
    return size


def reciprocal(count: Any) -> Call:
    """The value ``1 / count``, for a number of points that is at least 1."""
    return Call("points", (as_value(count),))


def as_value(x: Any) -> Value:
    """An integer as a value, so that a function can take it as an argument."""
    return Read("integer", (number(x),), (x,), True)
