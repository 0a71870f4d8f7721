"""Matrices of bilinear algorithms from points (Toom-Cook, Winograd).

A polynomial of degree m + r - 2 is known by its values at m + r - 1 points, one of which may be
infinity; so a correlation with m outputs and r taps takes as many products. Nothing here is
trusted: the law that uses the matrices checks them (``calculus/bilinear.py``).

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", §4; Blahut, "Fast
Algorithms for Signal Processing", §5; the choice of points: Barabasz et al., "Error Analysis and
Improving the Accuracy of Winograd Convolution for Deep Neural Networks", §6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from math import gcd
from typing import Final

from eqsynth.calculus.bilinear import Algorithm


def toom_cook(outputs: int, taps: int, points: Sequence[Fraction]) -> Algorithm:
    """F(outputs, taps) from finite points, all different, and infinity.

    The matrix of the data has whole numbers without a common divisor in each row; what is left of a
    row's factor goes to the filter, which is transformed once.

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
        scale = _whole(rest)
        data.append(tuple(entry * scale for entry in rest))
        value = sum(entry * point**n for n, entry in enumerate(rest))
        filters.append(tuple(point**k / (value * scale) for k in range(taps)))
        columns.append([point**j for j in range(outputs)])
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
    5: ("0", "1/2", "-1/2", "3/2", "-3/2"),
    7: ("0", "1", "-1", "2", "-2", "1/2", "-1/2"),
}
"""Finite points by how many there are. Zero, then x and -x, whose rows share what is even and what
is odd in them. Of those tried the ones with the least error in float32 (root mean square, in
roundings of a typical result, 128 channels of 3 by 3): F(2, 3) 5.8; F(4, 3) 19 (with 1 and 2 it is
34, with 1 and 1/2 it is 38); F(6, 3) 73 (with 1/2, 1, 3/2 it is 103). A plain loop has 3.6."""


@cache
def sizes() -> frozenset[tuple[int, int]]:
    """Outputs and taps, both more than one, for which there are points."""
    return frozenset(
        (count + 2 - taps, taps) for count in _POINTS for taps in range(2, count + 1)
    )


@cache
def correlation(outputs: int, taps: int) -> Algorithm:
    """F(outputs, taps) at the points whose float32 error was measured to be least.

    Raises:
        ValueError: there are no points for this size.
    """
    count = outputs + taps - 2
    if count not in _POINTS:
        raise ValueError(f"no points for F({outputs}, {taps})")
    return toom_cook(outputs, taps, tuple(map(Fraction, _POINTS[count])))
