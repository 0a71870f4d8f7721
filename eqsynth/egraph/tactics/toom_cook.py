"""Matrices of bilinear algorithms from points (Toom-Cook, Winograd).

A polynomial of degree m + r - 2 is known by its values at m + r - 1 points, one of which may be
infinity; so a correlation with m outputs and r taps takes as many products. Nothing here is
trusted: the law by which the matrices go again computes what they sum up to (``calculus/pick.py``).

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", §4; Blahut, "Fast
Algorithms for Signal Processing", §5; the choice of points: Barabasz et al., "Error Analysis and
Improving the Accuracy of Winograd Convolution for Deep Neural Networks", §6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import gcd, sqrt
from typing import Final

Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class Algorithm:
    """F(m, r): fewer products, more additions.

        out[j] = sum_k d[j + k] * w[k]                                   m * r products
               = sum_p A[j, p] * (sum_k G[p, k] * w[k]) * (sum_u B[p, u] * d[u])

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


def toom_cook(outputs: int, taps: int, points: Sequence[Fraction]) -> Algorithm:
    """F(outputs, taps) from finite points, all different, and infinity.

    The matrix of the data has whole numbers without a common divisor in each row, and the matrix of
    the outputs in each column: both are exact in floats. What is left of these factors goes to the
    filter, which is transformed once.

    Args:
        points: ``outputs + taps - 2`` of them.

    >>> two = toom_cook(2, 3, [Fraction(0), Fraction(1), Fraction(-1)])
    >>> [[str(entry) for entry in row] for row in two.data]
    [['-1', '0', '1', '0'], ['0', '1', '1', '0'], ['0', '-1', '1', '0'], ['0', '-1', '0', '1']]
    """
    if len(set(points)) != len(points) or len(points) != outputs + taps - 2:
        raise ValueError(f"F({outputs}, {taps}) has {outputs + taps - 2} different finite points")
    width = outputs + taps - 1
    data, filters, columns = [], [], []
    for point in points:
        others = [other for other in points if other != point]
        rest = _with_roots(others, width)
        scale, powers = _whole(rest), [point**j for j in range(outputs)]
        data.append(tuple(entry * scale for entry in rest))
        value = sum(entry * point**n for n, entry in enumerate(rest))
        value *= scale * _whole(powers)
        filters.append(tuple(point**k / value for k in range(taps)))
        columns.append([power * _whole(powers) for power in powers])
    last = _with_roots(points, width)
    scale = _whole(last)
    data.append(tuple(entry * scale for entry in last))
    filters.append(tuple(Fraction(k == taps - 1) / scale for k in range(taps)))
    columns.append([Fraction(j == outputs - 1) for j in range(outputs)])
    rows = tuple(tuple(column[j] for column in columns) for j in range(outputs))
    return Algorithm(rows, tuple(filters), tuple(data))


def _with_roots(roots: Sequence[Fraction], width: int) -> list[Fraction]:
    """The coefficients of ``(x - roots[0]) * (x - roots[1]) * …``, from the constant on."""
    found = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *found], [*(entry * root for entry in found), Fraction(0)]
        found = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return found + [Fraction(0)] * (width - len(found))


def _whole(row: Sequence[Fraction]) -> Fraction:
    """The positive number that makes a row whole, without a common divisor."""
    scale = 1
    for entry in row:
        scale = scale * entry.denominator // gcd(scale, entry.denominator)
    divisor = 0
    for entry in row:
        divisor = gcd(divisor, int(entry * scale))
    return Fraction(scale, divisor or 1)


_POINTS: Final[Mapping[int, tuple[str, ...]]] = {
    3: ("0", "1", "-1"),
    5: ("0", "3/2", "-3/2", "2/3", "-2/3"),
    7: ("0", "1", "-1", "2", "-2", "1/2", "-1/2"),
}
"""Finite points by how many there are. Zero, then x and -x, whose rows share what is even and what
is odd in them. Of the pairs among n/1, n/2, n/3, n/4 the ones whose matrices make roundings grow
least (``growth``): F(2, 3) 1.3 times along an axis; F(4, 3) 2.7 (with 1/2 and 3/2 it is
3.9, with 1 and 2 it is 5.6); F(2, 5) 2.3; F(6, 3) 6.8; F(4, 5) 5.5."""


@cache
def sizes() -> frozenset[tuple[int, int]]:
    """Outputs and taps, both more than one, for which there are points."""
    return frozenset(
        (count + 2 - taps, taps) for count in _POINTS for taps in range(2, count + 1)
    )


@cache
def correlation(outputs: int, taps: int) -> Algorithm:
    """F(outputs, taps) at the points that make roundings grow least.

    Raises:
        ValueError: there are no points for this size.
    """
    count = outputs + taps - 2
    if count not in _POINTS:
        raise ValueError(f"no points for F({outputs}, {taps})")
    return toom_cook(outputs, taps, tuple(map(Fraction, _POINTS[count])))


def growth(algorithm: Algorithm) -> float:
    """How many times larger roundings are than where the correlation is summed as it is, for data
    and filters that are random: root mean squares, at the output where it is most.

        sqrt(sum_p A[j, p]**2 * |G[p]|**2 * |B[p]|**2 / taps)

    A product with number p is about ``|G[p]| * |B[p]|``, so its roundings are so many times eps,
    and reach output j times ``A[j, p]``; the result is about ``sqrt(taps)``. Factors that go from
    one matrix to another change nothing. Along several axes growths multiply, as norms of
    Kronecker products do.

    Source: Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd Convolution for
    Deep Neural Networks", §4.
    """
    sizes = _norms(algorithm, lambda row: sum(float(e) ** 2 for e in row))
    return max(
        sqrt(sum(float(a) ** 2 * size for a, size in zip(row, sizes, strict=True)) / algorithm.taps)
        for row in algorithm.output
    )


def worst_growth(algorithm: Algorithm) -> float:
    """The same for whatever data and filters, none larger than 1: sums of absolute values.

    The result is ``taps`` at most. Each of its terms passes n operations one after the other, so it
    is off by ``n * eps / 2 * taps`` times this at most (and terms of the order of ``eps**2``).
    """
    sizes = _norms(algorithm, lambda row: float(sum(map(abs, row))))
    return max(
        sum(abs(float(a)) * size for a, size in zip(row, sizes, strict=True)) / algorithm.taps
        for row in algorithm.output
    )


def _norms(algorithm: Algorithm, norm: Callable[[Sequence[Fraction]], float]) -> list[float]:
    """Of each product: that of its filter's row times that of its data's."""
    rows = zip(algorithm.filter, algorithm.data, strict=True)
    return [norm(g) * norm(b) for g, b in rows]
