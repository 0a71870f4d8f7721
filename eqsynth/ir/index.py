"""Index expressions of scopes: affine in iterators, with ``//``, ``%``, min and max by numbers.

An :class:`Index` is kept in canonical form: a constant plus a sorted sum of integer multiples of
atoms. An atom is an iterator, which carries its extent and runs over [0, extent), or an operation
``a // n``, ``a % n`` (both floor), ``min(a, n)``, ``max(a, n)`` of an index and a number. Not here:
simplification by ranges, as ``i // 4 = 0`` for i < 4 (``rules/index.egg``, ``indices.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class It(NamedTuple):
    """Iterator number ``slot`` of the surrounding scope, over [0, ``extent``).

    It is a named tuple, like :class:`Index`, because the search compares and hashes millions.
    """

    slot: int
    extent: int


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """``value // divisor``, rounded down."""

    value: Index
    divisor: int


@dataclass(frozen=True, slots=True)
class Mod:
    """``value % divisor``, in [0, divisor)."""

    value: Index
    divisor: int


@dataclass(frozen=True, slots=True)
class Min:
    """The smaller of ``value`` and ``bound``."""

    value: Index
    bound: int


@dataclass(frozen=True, slots=True)
class Max:
    """The larger of ``value`` and ``bound``."""

    value: Index
    bound: int


# The operations on an index and a number.
Operation = FloorDiv | Mod | Min | Max
Atom = It | Operation


def number_of(atom: Operation) -> int:
    """Return the number operand of an operation: 4 for ``i // 4``."""
    return atom.divisor if isinstance(atom, FloorDiv | Mod) else atom.bound


def applied(atom: Operation, value: Index) -> Index:
    """Apply the operation of ``atom``, with its number, to another index."""
    match atom:
        case FloorDiv(divisor=n):
            return value // n
        case Mod(divisor=n):
            return value % n
        case Min(bound=n):
            return value.minimum(n)
    return value.maximum(atom.bound)


_KINDS = (It, FloorDiv, Mod, Min, Max)


@lru_cache(maxsize=65536)
def atom_key(atom: Atom) -> tuple[object, ...]:
    """A total order on atoms that depends on structure only."""
    if isinstance(atom, It):
        return (0, atom.slot, atom.extent)
    return (_KINDS.index(type(atom)), index_key(atom.value), number_of(atom))


def index_key(index: Index) -> tuple[object, ...]:
    """A total order on indices that depends on structure only."""
    return (len(index.terms), tuple((atom_key(a), c) for a, c in index.terms), index.const)


class Index(NamedTuple):
    """``const + sum(coefficient * atom)``, canonical.

    >>> h, r = Index.iterator(0, 8), Index.iterator(1, 3)
    >>> str(2 * h + r - 1), (2 * h + r - 1).range()
    ('2*i0 + i1 - 1', (-1, 15))
    """

    const: int
    terms: tuple[tuple[Atom, int], ...] = ()

    @staticmethod
    @lru_cache(maxsize=1 << 14)
    def iterator(slot: int, extent: int) -> Index:
        """Return the index that is one iterator; for extent 1 it is the constant 0."""
        return Index(0) if extent == 1 else Index(0, ((It(slot, extent), 1),))

    @staticmethod
    def _from(const: int, terms: Mapping[Atom, int]) -> Index:
        kept = [(atom, c) for atom, c in terms.items() if c]
        if len(kept) > 1:
            kept.sort(key=_term_key)
        return Index(const, tuple(kept))

    def __add__(self, other: Index | int) -> Index:  # type: ignore[override]
        if isinstance(other, int):
            return Index(self.const + other, self.terms)
        if not other.terms:
            return Index(self.const + other.const, self.terms)
        terms = dict(self.terms)
        for atom, c in other.terms:
            terms[atom] = terms.get(atom, 0) + c
        return Index._from(self.const + other.const, terms)

    def __radd__(self, other: int) -> Index:
        return self + other

    def __mul__(self, factor: int) -> Index:  # type: ignore[override]
        if factor in (0, 1):
            return self if factor else Index(0)
        return Index(self.const * factor, tuple((a, c * factor) for a, c in self.terms))

    def __rmul__(self, factor: int) -> Index:  # type: ignore[override]
        return self * factor

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index | int) -> Index:
        return self + (-other)

    def __rsub__(self, other: int) -> Index:
        return (-self) + other

    def __floordiv__(self, divisor: int) -> Index:
        if divisor <= 0:
            raise ValueError(f"an index is divided by {divisor}; divisors are positive")
        if not self.terms:
            return Index(self.const // divisor)
        return self if divisor == 1 else Index(0, ((FloorDiv(self, divisor), 1),))

    def __mod__(self, divisor: int) -> Index:
        if divisor <= 0:
            raise ValueError(f"an index is taken modulo {divisor}; moduli are positive")
        if not self.terms:
            return Index(self.const % divisor)
        return Index(0) if divisor == 1 else Index(0, ((Mod(self, divisor), 1),))

    def minimum(self, bound: int) -> Index:
        """Return ``min(index, bound)``. ``b + (a - b).minimum(0)`` is ``min(a, b)``."""
        if not self.terms:
            return Index(min(self.const, bound))
        return Index(0, ((Min(self, bound), 1),))

    def maximum(self, bound: int) -> Index:
        """Return ``max(index, bound)``."""
        if not self.terms:
            return Index(max(self.const, bound))
        return Index(0, ((Max(self, bound), 1),))

    def range(self) -> tuple[int, int]:
        """Return the smallest and largest value; exact for affine indices, otherwise bounds."""
        low = high = self.const
        for atom, c in self.terms:
            a, b = _atom_range(atom)
            low += min(a * c, b * c)
            high += max(a * c, b * c)
        return low, high

    def iterators(self) -> Iterator[It]:
        """Yield the iterators that occur, also inside of operations, with repetitions."""
        for atom, _ in self.terms:
            if isinstance(atom, It):
                yield atom
            else:
                yield from atom.value.iterators()

    @property
    def is_affine(self) -> bool:
        return all(isinstance(atom, It) for atom, _ in self.terms)

    def bare(self) -> It | None:
        """Return the iterator if the index is just one iterator; otherwise None."""
        if self.const == 0 and len(self.terms) == 1 and self.terms[0][1] == 1:
            atom = self.terms[0][0]
            return atom if isinstance(atom, It) else None
        return None

    def coefficient(self, slot: int) -> int:
        return sum(c for atom, c in self.terms if isinstance(atom, It) and atom.slot == slot)

    def substitute(self, image: Callable[[It], Index]) -> Index:
        """Return the index with every iterator replaced by its image."""
        const, terms = self.const, dict[Atom, int]()
        for atom, c in self.terms:
            part = image(atom) if isinstance(atom, It) else None
            if part is None:
                assert not isinstance(atom, It)
                part = applied(atom, atom.value.substitute(image))
            const += part.const * c
            for inner, d in part.terms:
                terms[inner] = terms.get(inner, 0) + c * d
        return Index._from(const, terms)

    def evaluate(self, values: Mapping[int, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
        """Evaluate the index for given values of the iterators (slot -> broadcastable array)."""
        total: npt.NDArray[np.int64] = np.asarray(self.const, dtype=np.int64)
        for atom, c in self.terms:
            if isinstance(atom, It):
                part = values[atom.slot]
            else:
                part = _FUNCTIONS[type(atom)](atom.value.evaluate(values), number_of(atom))
            total = total + c * part
        return total

    def __str__(self) -> str:
        return self.render(lambda it: f"i{it.slot}")

    def render(self, name: Callable[[It], str]) -> str:
        """Return the index as text, with iterators named by ``name``."""
        parts: list[str] = []
        for atom, c in self.terms:
            if isinstance(atom, It):
                text = name(atom)
            elif isinstance(atom, FloorDiv | Mod):
                sign = "//" if isinstance(atom, FloorDiv) else "%"
                inner = atom.value.render(name)
                inner = inner if atom.value.bare() else f"({inner})"
                text = f"{inner} {sign} {atom.divisor}"
                text = text if self == Index(0, ((atom, 1),)) else f"({text})"
            else:
                text = f"{type(atom).__name__.lower()}({atom.value.render(name)}, {atom.bound})"
            text = text if abs(c) == 1 else f"{abs(c)}*{text}"
            parts.append((" - " if c < 0 else " + ") + text)
        if self.const or not parts:
            parts.append((" - " if self.const < 0 else " + ") + str(abs(self.const)))
        line = "".join(parts)
        return line[3:] if line.startswith(" + ") else "-" + line[3:]


def _term_key(term: tuple[Atom, int]) -> tuple[object, ...]:
    return atom_key(term[0])


_FUNCTIONS: dict[type, Callable[..., npt.NDArray[np.int64]]] = {
    FloorDiv: np.floor_divide, Mod: np.mod, Min: np.minimum, Max: np.maximum,
}  # fmt: skip


@lru_cache(maxsize=65536)
def _atom_range(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, It):
        return 0, max(atom.extent - 1, 0)
    low, high = atom.value.range()
    if isinstance(atom, FloorDiv):
        return low // atom.divisor, high // atom.divisor
    if isinstance(atom, Min):
        return min(low, atom.bound), min(high, atom.bound)
    if isinstance(atom, Max):
        return max(low, atom.bound), max(high, atom.bound)
    if low // atom.divisor == high // atom.divisor:
        return low % atom.divisor, high % atom.divisor
    return 0, atom.divisor - 1


def row_major(extents: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous tensor.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(math.prod(extents[axis + 1 :]) for axis in range(len(extents)))
