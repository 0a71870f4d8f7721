"""The conditions that laws share: each is sufficient, and holds up to its edge. What a condition
says of an index is compared with the values of the index."""

from __future__ import annotations

import math
from itertools import product

import pytest

from eqsynth.calculus.conditions import (
    independent,
    is_finite,
    is_product,
    is_view,
    keeps_one_dtype,
    leaves_with,
    neutral_outside,
    support,
    vanishes_outside,
)
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value
from eqsynth.ir.tensor import Scope
from tests.terms import INF, it, leaf

OUTER, INNER = It(0, 4), It(1, 3)
X = Read(leaf("x", 4), (it(0, 4),))
FAR = Read(leaf("x", 4), (it(0, 4),), INF)
BYTE, FLAG = (Read(leaf(dtype, 4, dtype=dtype), (it(0, 4),)) for dtype in ("uint8", "bool"))


@pytest.mark.parametrize(
    ("scope", "holds"),
    [
        (Scope((4,), (), X), True),
        (Scope((4,), (), FAR), True),
        (Scope((4,), (3,), Prod((Num(2), X, X))), True),
        (Scope((4,), (3,), X, "max"), False),
        # A softmax over nothing is read by a sum over nothing.
        (Scope((4,), (0,), X), False),
        (Scope((4,), (), Num(2)), False),
        (Scope((4,), (), Call("exp", (X,))), False),
        (Scope((4,), (), Prod((X, Call("exp", (X,))))), False),
        (Scope((4,), (), Prod((X, Value(it(0, 4))))), False),
        (Scope((4,), (), Prod((X, FAR))), False),
        (Scope((4,), (), Prod((X, Num(INF)))), False),
        (Scope((4,), (), Sum((X, X))), False),
    ],
)
def test_a_product_has_finite_factors(scope: Scope, holds: bool) -> None:
    assert is_product(scope) == holds


@pytest.mark.parametrize(
    ("factor", "holds"),
    [(X, True), (FAR, False), (Num(2), True), (Num(-INF), False), (Num(math.nan), False),
     (Value(it(0, 4)), False), (Cast("float32", X), False)],
)  # fmt: skip
def test_a_fill_counts_even_where_it_is_not_read(factor: Scalar, holds: bool) -> None:
    assert is_finite(factor) == holds


def test_a_view_computes_nothing() -> None:
    assert is_view(Scope((4,), (), X))
    assert not is_view(Scope((4,), (3,), X)) and not is_view(Scope((4,), (), Prod((X, X))))


@pytest.mark.parametrize(
    ("body", "reducer", "neutral"),
    [
        (Prod((X, X)), "sum", 0.0),
        (Read(X.tensor, X.index, -INF), "max", -INF),
        (FAR, "min", INF),
        (Read(X.tensor, X.index, 1.0), "prod", 1.0),
        (X, "max", None),
        (FAR, "max", None),
        (Prod((X, X)), "max", None),
        (Sum((X, X)), "sum", None),
        # The least integer stands for an infinity where integers are read, but is a number.
        (Read(BYTE.tensor, BYTE.index, -INF), "max", None),
    ],
)
def test_what_an_element_outside_may_be(body: Scalar, reducer: str, neutral: float | None) -> None:
    assert neutral_outside(Scope((4,), (3,), body, reducer)) == neutral


# Indices over i < 4 and k < 3, in each direction, with operations, and with gaps.
INDICES = [
    it(0, 4) * a + it(1, 3) * b + c
    for a, b, c in product((-2, -1, 0, 1, 2, 4), (-1, 0, 1, 3), (-3, -1, 0, 1, 3))
] + [
    it(0, 4) // 2,
    (it(0, 4) + 4) // 2,
    (it(0, 4) + it(1, 3) * 4) // 3,
    (it(0, 4) * 2 + it(1, 3)) // 2 // 2,
    it(0, 4) // 2 * 2,
    it(0, 4) // 2 + 1,
    it(0, 4) // 2 + it(1, 3),
    it(0, 4) + it(0, 4) // 2,
    it(0, 4) - it(0, 4) // 4 * 9,
    it(0, 4) % 4,
    it(0, 4) + it(1, 3) % 2,
    (it(0, 4) - 2).maximum(0),
]


def values_at(index: Index, outer: int) -> set[int]:
    """The values of the index at this value of the first iterator, inside of its extent or not."""
    images = ({OUTER: Index(outer), INNER: Index(inner)} for inner in range(INNER.extent))
    return {index.substitute(image.__getitem__).const for image in images}


@pytest.mark.parametrize("sides", [(True, True), (True, False), (False, True)])
def test_an_index_leaves_its_tensor_with_an_iterator(sides: tuple[bool, bool]) -> None:
    places = [i for i in range(-9, 14) if (i < 0 and sides[0]) or (i >= OUTER.extent and sides[1])]
    found = 0
    for index, size in product(INDICES, (1, 2, 3, 4, 6, 12)):
        read = Read(leaf("x", size), (index,))
        apart = all(not 0 <= value < size for i in places for value in values_at(index, i))
        holds = leaves_with(read, OUTER, sides)
        assert apart or not holds, f"{index} of {size}"
        if index.is_affine and abs(index.coefficient(0)) == 1 and not index.coefficient(1):
            # Consecutive numbers: nothing is overlooked.
            assert holds == apart, f"{index} of {size}"
        found += holds
    assert found >= 50


def test_one_axis_that_is_left_is_enough() -> None:
    both = Read(leaf("m", 9, 4), (it(1, 3), it(0, 4)))
    assert leaves_with(both, OUTER) and not leaves_with(both, INNER)
    quotients = [it(0, 4) // 2, it(0, 4) // 2 + it(1, 3) * 0 + 1, it(0, 4) // 2 * 2]
    assert [leaves_with(Read(leaf("x", 2), (q,)), OUTER) for q in quotients] == [True, False, False]


@pytest.mark.parametrize(
    ("body", "fill", "holds"),
    [
        (X, 0.0, True),
        (X, 1.5, False),
        (Read(X.tensor, X.index, 1.5), 1.5, True),
        (Prod((Num(2), X)), 0.0, True),
        (Read(leaf("x", 5), (it(0, 4),)), 0.0, False),
        (Prod((Read(leaf("y", 9), (it(0, 4),)), X)), 0.0, True),
        (Prod((Read(X.tensor, X.index, 1.5), X)), 1.5, False),
        (Prod((Read(X.tensor, X.index, 1.5), Read(leaf("y", 9), (it(0, 4),)))), 0.0, False),
        (Call("relu", (X,)), 0.0, False),
        (Sum((X, X)), 0.0, True),
        (Sum((X, Prod((Num(2), X)))), 0.0, True),
        (Sum((X, Num(1))), 0.0, False),
        (Sum((X, Call("relu", (X,)))), 0.0, False),
        (Sum((Read(X.tensor, X.index, 1.5),) * 2), 1.5, False),
    ],
)
def test_a_scope_vanishes_with_one_factor(body: Scalar, fill: float, holds: bool) -> None:
    assert vanishes_outside(Scope((4,), (), body), 0, fill) == holds


def test_each_term_of_a_sum_has_to_vanish() -> None:
    z, k = it(0, 4), it(1, 3)
    summed = Scope((4,), (3,), Sum((X, Read(leaf("y", 4, 3), (z, k)))))
    assert vanishes_outside(summed, 0, 0.0)
    assert not vanishes_outside(Scope((4,), (3,), summed.body, "max"), 0, 0.0)
    assert not vanishes_outside(Scope((4,), (3,), Sum((X, Read(leaf("y", 3), (k,))))), 0, 0.0)


def test_two_iterators_in_one_index_may_come_back() -> None:
    scope = Scope((4, 3), (), Prod((X, Read(leaf("y", 9), (it(0, 4) - it(1, 3),)))))
    assert independent(scope, [0]) and independent(scope, [1]) and not independent(scope, [0, 1])
    added = Sum((X, Read(leaf("y", 9), (it(0, 4) - it(1, 3),))))
    assert not independent(Scope((4, 3), (), added), [0, 1])
    assert independent(
        Scope((4, 3), (), Prod((Num(2), X, Read(leaf("y", 3), (it(1, 3),))))), [0, 1]
    )


def test_a_body_is_its_outside_beyond_its_support() -> None:
    narrowed = 0
    for index, size, fill in product(INDICES, (1, 2, 3, 6), (0.0, 1.0)):
        low, high = support(Read(leaf("x", size), (index,), fill), OUTER)
        met = [i for i in range(OUTER.extent)
               if fill or any(0 <= value < size for value in values_at(index, i))]  # fmt: skip
        assert all(low <= i < high for i in met), f"{index} of {size}"
        if index.is_affine and index.coefficient(0) and not index.coefficient(1) and met:
            assert (low, high) == (met[0], met[-1] + 1), f"{index} of {size}"
        narrowed += high - low < OUTER.extent
    assert narrowed >= 50
    # The factors' supports meet; one factor with another fill has none.
    early, late = (Read(leaf("x", 3), (it(0, 4) - n,)) for n in (0, 2))
    assert support(Prod((Num(2), early, late)), OUTER) == (2, 3)
    assert support(Prod((early, Read(leaf("x", 3), late.index, 1.0))), OUTER) == (0, 3)
    assert support(Read(leaf("x", 3), (it(0, 4) - 2,), -INF), OUTER, -INF) == (2, 4)


@pytest.mark.parametrize(
    ("scalar", "dtype", "holds"),
    [
        (Sum((X, Num(2))), "float32", True),
        (Sum((X, BYTE)), "float32", False),
        (Sum((BYTE, Num(2))), "uint8", True),
        (Sum((BYTE, Num(0.5))), "uint8", False),
        (Sum((FLAG, Num(2))), "bool", False),
        (Call("where", (FLAG, X, X)), "float32", False),
        (Cast("float32", BYTE), "float32", False),
        (Call("gt", (X, X)), "float32", False),
        (Num(2), "uint8", True),
    ],
)
def test_a_number_has_the_dtype_of_the_rest(scalar: Scalar, dtype: str, holds: bool) -> None:
    assert keeps_one_dtype(scalar, dtype) == holds
