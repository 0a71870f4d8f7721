"""Extents that are monomials of named variables, such as ``H/s``, for shape distance and synthesis.

The e-graph works on integer extents only; named extents get numbers before a program is encoded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Monomial:
    """A positive integer times a product of powers of named variables: ``3*C*k**-1``.

    Powers may be negative, as in Syno's ``H/s``; :meth:`evaluate` raises if a division isn't exact.

    >>> h, s = Monomial.variable("H"), Monomial.variable("s")
    >>> str(h * s / s), (h / s).evaluate({"H": 12, "s": 4})
    ('H', 3)
    """

    coefficient: int
    powers: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def variable(name: str) -> Monomial:
        return Monomial(1, ((name, 1),))

    def _combine(self, other: Monomial | int, sign: int) -> Monomial:
        right = other if isinstance(other, Monomial) else Monomial(other)
        powers = dict(self.powers)
        for name, power in right.powers:
            powers[name] = powers.get(name, 0) + sign * power
        if sign > 0:
            coefficient = self.coefficient * right.coefficient
        else:
            coefficient, rest = divmod(self.coefficient, right.coefficient)
            if rest:
                raise ValueError(f"{self} is not divisible by {right}")
        return Monomial(coefficient, tuple(sorted((n, p) for n, p in powers.items() if p)))

    def __mul__(self, other: Monomial | int) -> Monomial:
        return self._combine(other, 1)

    __rmul__ = __mul__

    def __truediv__(self, other: Monomial | int) -> Monomial:
        return self._combine(other, -1)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The integer at the given values of the variables.

        Raises:
            ValueError: the quotient is not exact.
        """
        # int(): mypy infers Any for a power of integers.
        top = self.coefficient * math.prod(int(values[n] ** p) for n, p in self.powers if p > 0)
        below = math.prod(int(values[n] ** -p) for n, p in self.powers if p < 0)
        quotient, rest = divmod(top, below)
        if rest:
            raise ValueError(f"{self} is no integer at {dict(values)}")
        return quotient

    def __str__(self) -> str:
        parts = [n if p == 1 else f"{n}**{p}" for n, p in self.powers]
        if self.coefficient != 1 or not parts:
            parts.insert(0, str(self.coefficient))
        return "*".join(parts)
