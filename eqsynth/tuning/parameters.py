"""Parameters with topologies: which values a parameter has, and which values are neighbours.

Neighbours are expected to perform similarly [OpEvo §3]. The graph of each parameter's values is
connected.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol


class Parameter(Protocol):
    """A finite set of values, which are the vertices of an undirected graph."""

    @property
    def size(self) -> int:
        """The number of values."""
        ...

    def values(self) -> Iterator[Any]:
        """Each value once."""
        ...

    def sample(self, rng: Random) -> Any:
        """A random value; all values have the same probability."""
        ...

    def neighbours(self, value: Any) -> tuple[Any, ...]:
        """The neighbours of a value, each once."""
        ...

    def __contains__(self, value: object) -> bool: ...


@dataclass(frozen=True)
class Factorization:
    """``parts`` factors whose product is ``product``, such as the extents of nested loops.

    Two values are neighbours if one prime moves from one factor to another [OpEvo §3, Fig. 1a].

    >>> Factorization(8, 3).size
    10
    >>> sorted(Factorization(8, 2).neighbours((4, 2)))
    [(2, 4), (8, 1)]
    """

    product: int
    parts: int

    @property
    def size(self) -> int:
        counts = primes(self.product).values()
        return math.prod(math.comb(count + self.parts - 1, count) for count in counts)

    def values(self) -> Iterator[tuple[int, ...]]:
        yield from _factorizations(self.product, self.parts)

    def sample(self, rng: Random) -> tuple[int, ...]:
        factors = [1] * self.parts
        for prime, count in primes(self.product).items():
            # Stars and bars: each way of distributing a prime's powers has the same probability.
            bars = sorted(rng.sample(range(count + self.parts - 1), self.parts - 1))
            edges = [-1, *bars, count + self.parts - 1]
            for k, (low, high) in enumerate(itertools.pairwise(edges)):
                factors[k] *= prime ** (high - low - 1)
        return tuple(factors)

    def neighbours(self, value: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        found = []
        for source, target in itertools.permutations(range(self.parts), 2):
            for prime in primes(value[source]):
                moved = list(value)
                moved[source] //= prime
                moved[target] *= prime
                found.append(tuple(moved))
        return tuple(found)

    def __contains__(self, value: object) -> bool:
        return (
            isinstance(value, tuple)
            and len(value) == self.parts
            and all(type(factor) is int and factor > 0 for factor in value)
            and math.prod(value) == self.product
        )


@dataclass(frozen=True)
class Permutation:
    """An order of ``count`` things, such as nested loops. Two values are neighbours if a swap of
    two things leads from one to the other [OpEvo Fig. 1b].

    >>> Permutation(3).neighbours((0, 1, 2))
    ((1, 0, 2), (2, 1, 0), (0, 2, 1))
    """

    count: int

    @property
    def size(self) -> int:
        return math.factorial(self.count)

    def values(self) -> Iterator[tuple[int, ...]]:
        return itertools.permutations(range(self.count))

    def sample(self, rng: Random) -> tuple[int, ...]:
        return tuple(rng.sample(range(self.count), self.count))

    def neighbours(self, value: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        found = []
        for first, second in itertools.combinations(range(self.count), 2):
            swapped = list(value)
            swapped[first], swapped[second] = value[second], value[first]
            found.append(tuple(swapped))
        return tuple(found)

    def __contains__(self, value: object) -> bool:
        return isinstance(value, tuple) and sorted(value) == list(range(self.count))


@dataclass(frozen=True)
class Discrete:
    """One of several numbers that are given in order. Numbers that follow each other are neighbours
    [OpEvo Fig. 1c].

    >>> Discrete((1, 2, 4, 8)).neighbours(4)
    (2, 8)
    """

    numbers: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.numbers)

    def values(self) -> Iterator[int]:
        return iter(self.numbers)

    def sample(self, rng: Random) -> int:
        return rng.choice(self.numbers)

    def neighbours(self, value: int) -> tuple[int, ...]:
        at = self.numbers.index(value)
        return (*self.numbers[max(at - 1, 0) : at], *self.numbers[at + 1 : at + 2])

    def __contains__(self, value: object) -> bool:
        return value in self.numbers


@dataclass(frozen=True)
class Category:
    """One of several things without an order. All of them are neighbours [OpEvo Fig. 1d].

    >>> Category(("a", "b", "c")).neighbours("b")
    ('a', 'c')
    """

    things: Sequence[Any]

    @property
    def size(self) -> int:
        return len(self.things)

    def values(self) -> Iterator[Any]:
        return iter(self.things)

    def sample(self, rng: Random) -> Any:
        return rng.choice(self.things)

    def neighbours(self, value: Any) -> tuple[Any, ...]:
        return tuple(thing for thing in self.things if thing != value)

    def __contains__(self, value: object) -> bool:
        return value in self.things


def smooth(least: int, base: int) -> int:
    """The smallest multiple of ``base`` that is at least ``least`` and whose quotient by ``base``
    has no prime factor above 7, so that it has many factorizations.

    >>> smooth(256, 24)
    288
    """
    times = -(-least // base)
    while max(primes(times), default=1) > 7:
        times += 1
    return times * base


def primes(number: int) -> dict[int, int]:
    """The prime factors of a number, and how often each divides it.

    >>> primes(360)
    {2: 3, 3: 2, 5: 1}
    """
    found: dict[int, int] = {}
    prime = 2
    while prime * prime <= number:
        while number % prime == 0:
            found[prime] = found.get(prime, 0) + 1
            number //= prime
        prime += 1
    if number > 1:
        found[number] = found.get(number, 0) + 1
    return found


def _factorizations(product: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (product,)
        return
    for first in range(1, product + 1):
        if product % first == 0:
            yield from ((first, *rest) for rest in _factorizations(product // first, parts - 1))
