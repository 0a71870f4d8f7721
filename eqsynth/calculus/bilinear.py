"""Bilinear algorithms for correlations: fewer products, more additions.

    out[j] = sum_k d[j + k] * w[k]                                   m * r products
           = sum_p A[j, p] * (sum_k G[p, k] * w[k]) * (sum_u B[p, u] * d[u])

F(m, r) has m outputs, r taps and three matrices of rational numbers. Whether they are right is one
identity, which the law that uses them checks (``correlate.py``). Not here: how matrices are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product

Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class Algorithm:
    """``out[j] = sum_p output[j, p] * (filter @ w)[p] * (data @ d)[p]``.

    Attributes:
        output: (m, products), A.
        filter: (products, r), G.
        data: (products, m + r - 1), B.
    """

    output: Matrix
    filter: Matrix
    data: Matrix

    @property
    def outputs(self) -> int:
        return len(self.output)

    @property
    def taps(self) -> int:
        return len(self.filter[0])

    @property
    def products(self) -> int:
        return len(self.filter)

    @property
    def inputs(self) -> int:
        return self.outputs + self.taps - 1


@lru_cache(maxsize=256)
def is_exact(algorithm: Algorithm) -> bool:
    """Whether the algorithm is a correlation, whatever is correlated.

    Both sides are linear in the filter and in the data, so they are equal if their coefficients
    are: ``sum_p A[j, p] * G[p, k] * B[p, u]`` is 1 where u = j + k, and 0 elsewhere. Remembered: a
    few algorithms are tried on every window of a program.
    """
    a, g, b = algorithm.output, algorithm.filter, algorithm.data
    widths = {len(row) for row in a}, {len(row) for row in g}, {len(row) for row in b}
    if widths != ({algorithm.products}, {algorithm.taps}, {algorithm.inputs}):
        return False
    if len(b) != algorithm.products:
        return False
    places = product(range(algorithm.outputs), range(algorithm.taps), range(algorithm.inputs))
    return all(
        sum(a[j][p] * g[p][k] * b[p][u] for p in range(algorithm.products)) == (u == j + k)
        for j, k, u in places
    )
