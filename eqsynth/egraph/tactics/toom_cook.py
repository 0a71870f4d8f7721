"""Matrices of bilinear algorithms from points (Toom-Cook, Winograd).

A polynomial of degree m + r - 2 is determined by its values at m + r - 1 points, one of which may
be infinity. So a correlation with m outputs and r taps takes m + r - 1 products instead of m * r:
F(2, 3) takes 4 instead of 6. Nothing here is trusted: the law that removes the matrices from a
scope again computes their sums itself (``calculus/pick.py``).

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", §4; Blahut, "Fast
Algorithms for Signal Processing", §5; the choice of points: Barabasz et al., "Error Analysis and
Improving the Accuracy of Winograd Convolution for Deep Neural Networks", §6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import gcd, sqrt
from typing import Final

Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class Algorithm:
    """F(m, r), a correlation of m outputs and r taps by fewer products and more additions.

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

    def backward(self) -> Algorithm:
        """The algorithm of the same outputs for a filter in reverse order:
        ``out[j] = sum_k d[j + taps - 1 - k] * w[k]``."""
        return replace(self, filter=tuple(row[::-1] for row in self.filter))


def toom_cook(outputs: int, taps: int, points: Sequence[Fraction]) -> Algorithm:
    """F(outputs, taps) from finite points, all different, and infinity.

    Rows of the data's matrix and columns of the outputs' matrix are scaled to whole numbers without
    a common divisor, so both matrices are exact in floats. The filter's matrix takes the inverse of
    these scales, since a filter is transformed only once.

    Args:
        points: ``outputs + taps - 2`` different numbers.

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
    """The coefficients of ``(x - roots[0]) * (x - roots[1]) * …``, constant first, with zeros up to
    ``width``."""
    found = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *found], [*(entry * root for entry in found), Fraction(0)]
        found = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return found + [Fraction(0)] * (width - len(found))


def _whole(row: Sequence[Fraction]) -> Fraction:
    """The positive number that scales a row to whole numbers without a common divisor."""
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
"""Number of finite points -> the points: zero, then pairs x and -x, whose rows share their even and
their odd terms. Among pairs of the numbers n/1, n/2, n/3, n/4 these have the least growth of
rounding errors (``growth``, along one axis): F(2, 3) 1.3; F(4, 3) 2.7 (3.9 with 1/2 and 3/2, 5.6
with 1 and 2); F(2, 5) 2.3; F(6, 3) 6.8; F(4, 5) 5.5."""


@cache
def sizes() -> frozenset[tuple[int, int]]:
    """The pairs (outputs, taps), both more than one, for which there are points."""
    return frozenset((count + 2 - taps, taps) for count in _POINTS for taps in range(2, count + 1))


@cache
def correlation(outputs: int, taps: int) -> Algorithm:
    """F(outputs, taps) at the points with the least growth of rounding errors.

    Raises:
        ValueError: there are no points for this size.
    """
    count = outputs + taps - 2
    if count not in _POINTS:
        raise ValueError(f"no points for F({outputs}, {taps})")
    return toom_cook(outputs, taps, tuple(map(Fraction, _POINTS[count])))


def growth(algorithm: Algorithm) -> float:
    """How many times larger rounding errors are than those of the direct sum, for random inputs.

    Errors are root mean squares, at the output where they are largest.

        sqrt(sum_p A[j, p]**2 * |G[p]|**2 * |B[p]|**2 / taps)

    Product p is about ``|G[p]| * |B[p]|``; its rounding error is that times eps, and adds to output
    j times ``A[j, p]``. The result is about ``sqrt(taps)``. Moving a factor from one matrix to
    another doesn't change the growth. Along several axes growths multiply, as norms of Kronecker
    products do.

    Source: Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd Convolution for
    Deep Neural Networks", §4.
    """
    sizes = _norms(algorithm, lambda row: sum(float(e) ** 2 for e in row))
    return max(
        sqrt(sum(float(a) ** 2 * size for a, size in zip(row, sizes, strict=True)) / algorithm.taps)
        for row in algorithm.output
    )


def worst_growth(algorithm: Algorithm) -> float:
    """A bound on the growth for any data and filters whose elements are at most 1 in size.

    The result is at most ``taps``. If each of its terms passes n operations in a row, the
    error is at most ``n * eps / 2 * taps`` times this growth (plus terms of order ``eps**2``).
    """
    sizes = _norms(algorithm, lambda row: float(sum(map(abs, row))))
    return max(
        sum(abs(float(a)) * size for a, size in zip(row, sizes, strict=True)) / algorithm.taps
        for row in algorithm.output
    )


def _norms(algorithm: Algorithm, norm: Callable[[Sequence[Fraction]], float]) -> list[float]:
    """For each product, the norm of its row of ``filter`` times that of its row of ``data``."""
    rows = zip(algorithm.filter, algorithm.data, strict=True)
    return [norm(g) * norm(b) for g, b in rows]
