"""Monomial extents against the integers that they stand for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqsynth.ir.extent import Monomial

VALUES = {"H": 12, "W": 5, "s": 4}


@st.composite
def monomials(draw: st.DrawFn) -> tuple[Monomial, int]:
    """A product, and its value at VALUES."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=4))
    number = draw(st.integers(1, 6))
    result = Monomial(number)
    for name in names:
        result = result * Monomial.variable(name)
    return result, number * math.prod(VALUES[name] for name in names)


@given(monomials(), monomials())
def test_products_are_products_of_the_values(
    left: tuple[Monomial, int], right: tuple[Monomial, int]
) -> None:
    (a, x), (b, y) = left, right
    assert (a * b).evaluate(VALUES) == x * y
    assert a * b == b * a
    assert (a * b) / b == a


def test_quotients_are_exact_or_refused() -> None:
    h, s = Monomial.variable("H"), Monomial.variable("s")
    assert (h / s).evaluate(VALUES) == 3
    assert str(3 * h / s) == "3*H*s**-1" and str(h * s / s) == "H" and str(Monomial(1)) == "1"
    assert (h / s * s) == h
    with pytest.raises(ValueError):
        (s / h).evaluate(VALUES)
    with pytest.raises(ValueError):
        h / 2
