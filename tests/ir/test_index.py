"""Index arithmetic against Python's, point by point."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsynth.ir.index import Index, It, row_major
from tests.terms import times

EXTENTS = (3, 1, 4)
POINTS = list(itertools.product(*map(range, EXTENTS)))

Meaning = Callable[[tuple[int, ...]], int]


@st.composite
def indices(draw: st.DrawFn, depth: int = 3) -> tuple[Index, Meaning]:
    """An index, and what Python makes of the same expression."""
    kinds = ["it", "number", "add", "sub", "mul", "div", "mod", "neg", "min", "max"]
    kind = draw(st.sampled_from(kinds))
    if depth == 0 or kind in ("it", "number"):
        slot, number = draw(st.integers(0, 2)), draw(st.integers(-5, 5))
        if kind == "number":
            return Index(number), lambda _: number
        return Index.iterator(slot, EXTENTS[slot]), lambda point: point[slot]
    left, f = draw(indices(depth - 1))
    if kind in ("add", "sub"):
        right, g = draw(indices(depth - 1))
        if kind == "add":
            return left + right, lambda point: f(point) + g(point)
        return left - right, lambda point: f(point) - g(point)
    if kind == "neg":
        return -left, lambda point: -f(point)
    n = draw(st.integers(-4, 4))
    if kind == "mul":
        return n * left, lambda point: n * f(point)
    if kind == "min":
        return left.minimum(n), lambda point: min(f(point), n)
    if kind == "max":
        return left.maximum(n), lambda point: max(f(point), n)
    n = draw(st.integers(1, 5))
    if kind == "div":
        return left // n, lambda point: f(point) // n
    return left % n, lambda point: f(point) % n


def at(index: Index, point: tuple[int, ...]) -> int:
    values = {slot: np.asarray(value, dtype=np.int64) for slot, value in enumerate(point)}
    return int(index.evaluate(values))


@pytest.mark.rotating
@settings(max_examples=times(4))
@given(indices())
def test_arithmetic_is_pythons(case: tuple[Index, Meaning]) -> None:
    """Also below zero: // and % floor."""
    index, meaning = case
    assert [at(index, p) for p in POINTS] == [meaning(p) for p in POINTS]


@pytest.mark.rotating
@settings(max_examples=times(4))
@given(indices())
def test_ranges_hold_every_value(case: tuple[Index, Meaning]) -> None:
    index, meaning = case
    low, high = index.range()
    values = [meaning(p) for p in POINTS]
    assert low <= min(values) and max(values) <= high
    if index.is_affine:
        assert (low, high) == (min(values), max(values))


@given(indices(), indices())
def test_equal_affine_meanings_are_one_index(
    left: tuple[Index, Meaning], right: tuple[Index, Meaning]
) -> None:
    (a, f), (b, g) = left, right
    if a.is_affine and b.is_affine:
        assert (a == b) == all(f(p) == g(p) for p in POINTS)


@given(indices(), st.lists(indices(2), min_size=3, max_size=3))
def test_substitution_is_composition(
    case: tuple[Index, Meaning], images: list[tuple[Index, Meaning]]
) -> None:
    index, meaning = case
    composed = index.substitute(lambda i: images[i.slot][0])
    # An iterator of extent 1 is the number 0 and isn't substituted.
    expected = [meaning((images[0][1](p), 0, images[2][1](p))) for p in POINTS]
    assert [at(composed, p) for p in POINTS] == expected


@given(indices())
def test_its_text_reads_back(case: tuple[Index, Meaning]) -> None:
    index, meaning = case
    for point in POINTS:
        names: Mapping[str, int] = {f"i{slot}": value for slot, value in enumerate(point)}
        assert eval(str(index), {}, dict(names)) == meaning(point)


def test_parts_of_an_index() -> None:
    h, r = Index.iterator(0, 8), Index.iterator(1, 3)
    index = 2 * h - r + 1
    assert (index.coefficient(0), index.coefficient(1), index.coefficient(2)) == (2, -1, 0)
    assert h.bare() == It(0, 8) and index.bare() is None and (2 * h).bare() is None
    assert index.is_affine and not (index // 2).is_affine
    assert set(((index // 2) % 3).iterators()) == {It(0, 8), It(1, 3)}
    assert Index.iterator(5, 1) == Index(0)
    assert Index.iterator(0, 0).range() == (0, 0)
    assert (h - 1).range() == (-1, 6)
    assert ((h - 1) % 4).range() == (0, 3)
    assert (h % 16).range() == (0, 7)


@pytest.mark.parametrize("divisor", [0, -2])
def test_divisors_are_positive(divisor: int) -> None:
    with pytest.raises(ValueError):
        Index.iterator(0, 4) // divisor
    with pytest.raises(ValueError):
        Index(3) % divisor


@given(st.lists(st.integers(1, 4), max_size=4).map(tuple))
def test_row_major_is_numpys(extents: tuple[int, ...]) -> None:
    array = np.empty(extents, dtype=np.int8)
    places = {e * s for e, s in zip(extents, row_major(extents), strict=True) if e > 1}
    assert {e * s for e, s in zip(extents, array.strides, strict=True) if e > 1} == places
    assert row_major((2, 3, 4)) == (12, 4, 1)
