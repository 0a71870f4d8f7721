"""Merging a scope into the scope that reads it. Scopes aren't merged where a fill or a dtype would
be lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from eqsynth.calculus.conditions import is_product, vanishes_outside
from eqsynth.egraph.tactics.merging import is_broadcast, is_permutation, merge, repeats_nothing
from eqsynth.ir.index import Index
from eqsynth.ir.normal import CANONICAL, canonical
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, Sum, reads
from eqsynth.ir.tensor import Scope
from eqsynth.testing.strategies import (
    BARE,
    nested_scopes,
    products,
    scopes,
)
from tests.egraph.properties import BIAS, x
from tests.terms import INF, assert_equal, it, leaf, times
from tests.turns import by_turns

_INNERS = st.one_of(
    products(reduction=(0, 0)),
    products(reduction=(1, 2), fills=(0.0, 0.0, 0.0, -INF)),
    products(reduction=(1, 2), kinds=BARE),
    products(reduction=(0, 0), factors=(1, 1), fills=(0.0, -INF, 1.5)),
    scopes(),
)


@by_turns
def test_merging(turn: int) -> None:
    counts: Counter[str] = Counter()

    @seed(turn)
    @settings(max_examples=times(6))
    @given(nested_scopes(_INNERS))
    def check(case: tuple[Scope, Read, Scope]) -> None:
        outer, read, drawn = case
        inner = canonical(drawn)
        merged = merge(outer, read, inner)
        padded = not read.in_range()
        kind = "merged" if merged is not None else "refused"
        counts[kind, "padded" if padded else "inside"] += 1
        counts[kind, "reduced" if inner.reduction else "mapped"] += 1
        if merged is not None:
            assert_equal(outer, merged)

    check()
    for kind in ("inside", "padded", "reduced", "mapped"):
        assert min(counts["merged", kind], counts["refused", kind]) >= 1, counts


def shifted(inner: Scope, fill: float = 0.0) -> tuple[Scope, Read, Scope]:
    """A scope whose read of ``inner``, of one axis, goes one element beyond each end; the read; and
    ``inner``."""
    extent = inner.traversal[0] + 2
    read = Read(inner, (it(0, extent) - 1,), fill)
    return Scope((extent,), (), read), read, inner


X4 = x(it(0, 4), shape=(4,))


@pytest.mark.parametrize(
    "body",
    [
        Sum((X4, BIAS)),
        Call("max", (X4, BIAS)),
        Call("exp", (X4,)),
        x(it(0, 4), shape=(5,)),
        x(it(0, 4), shape=(4,), fill=-INF),
        x(Index(2) - it(0, 4), shape=(4,)),
        Prod((x(it(0, 4) % 4, shape=(4,)), BIAS)),
    ],
    ids=["bias", "max", "exp", "larger", "fill", "reversed", "modulo"],
)
def test_a_padded_read_is_not_merged_into_what_is_not_zero_outside(body: Scalar) -> None:
    inner = Scope((4,), (), body)
    assert merge(*shifted(inner)) is None
    inside = Scope((4,), (), Read(inner, (it(0, 4),)))
    merged = merge(inside, next(reads(inside.body)), inner)
    assert merged is not None
    assert_equal(inside, merged)


@pytest.mark.parametrize(
    "inner",
    [
        Scope((4,), (), X4),
        Scope((4,), (), Prod((X4, BIAS))),
        Scope((4,), (2,), Prod((X4, x(it(1, 2), shape=(2,), name="w")))),
        Scope((4,), (), x(2 * it(0, 4), shape=(7,))),
    ],
    ids=["view", "product", "sum", "strided"],
)
def test_a_padded_read_is_merged_into_what_is_zero_outside(inner: Scope) -> None:
    outer, read, _ = shifted(inner)
    merged = merge(outer, read, inner)
    assert merged is not None
    assert_equal(outer, merged)


def test_a_fill_is_kept_by_the_same_fill_alone() -> None:
    view = Scope((4,), (), x(it(0, 4), shape=(4,), fill=-INF))
    assert vanishes_outside(view, 0, -INF) and not vanishes_outside(view, 0, 0.0)
    merged = merge(*shifted(view, -INF))
    assert merged is not None
    assert_equal(shifted(view, -INF)[0], merged)
    twice = Scope((4,), (), Prod((Num(2), X4)))
    assert merge(*shifted(twice, 1.5)) is None


def test_rows_of_a_flattened_axis_end_where_it_does() -> None:
    """x[z // 4, z % 4] is out of range exactly where z is; z % 4 alone never is."""
    z = it(0, 12)
    assert vanishes_outside(Scope((12,), (), x(z // 4, z % 4, shape=(3, 4))), 0, 0.0)
    for index, size in ((z % 4, 4), (z // 4 - 1, 3), (z // 4, 4), (z // 5, 3)):
        assert not vanishes_outside(Scope((12,), (), x(index, shape=(size,))), 0, 0.0)


def test_a_mirrored_axis_ends_where_it_does() -> None:
    """x[3 - z] is out of range where z is, on either side; x[2 - z] is x[3] at z = -1."""
    z = it(0, 4)
    for index, size in ((3 - z, 4), (3 - z, 3), (6 - 2 * z, 7)):
        inner = Scope((4,), (), x(index, shape=(size,)))
        outer, read, _ = shifted(inner)
        merged = merge(outer, read, inner)
        assert merged is not None
        assert_equal(outer, merged)
    for index, size in ((2 - z, 4), (4 - z, 4), (6 - 2 * z, 9)):
        assert not vanishes_outside(Scope((4,), (), x(index, shape=(size,))), 0, 0.0)


def test_zero_times_infinity_is_no_zero() -> None:
    """Out of range, x[z] is 0, but the other factor is -inf."""
    body = Prod((X4, x(it(0, 4), shape=(3,), name="y", fill=-INF)))
    assert not is_product(Scope((4,), (), body))
    assert merge(*shifted(Scope((4,), (), body))) is None
    assert not is_product(Scope((4,), (), Prod((X4, Num(INF)))))
    assert is_product(Scope((4,), (), x(it(0, 4), shape=(3,), fill=-INF)))


def test_two_axes_that_share_an_index_are_not_judged_one_by_one() -> None:
    """x[4*i + j] * y[4*j + i] is zero if only i or only j is out of range. With i = -1 and j = 4,
    4*i + j is 0, which is in range."""
    i, j = it(0, 4), it(1, 4)
    for a, b in ((4 * i + j, 4 * j + i), ((8 * i + 2 * j) // 2, (8 * j + 2 * i) // 2)):
        inner = Scope((4, 4), (), Prod((x(a, shape=(16,)), x(b, shape=(16,), name="y"))))
        assert vanishes_outside(inner, 0, 0.0) and vanishes_outside(inner, 1, 0.0)
        read = Read(inner, (it(0, 6) - 1, it(1, 6) - 1))
        assert merge(Scope((6, 6), (), read), read, inner) is None


def test_a_merged_scope_is_remembered_under_whether_forms_are_made() -> None:
    """The cache of merged scopes tells whether canonical forms were made. Without them (as in a
    benchmark), no scope comes back that was made with them."""
    own = (it(0, 4), it(1, 5))
    read, other = Read(leaf("t", 4, 5), own), Read(leaf("s", 4, 5), own)
    inner = Scope((4, 5), (), Read(leaf("u", 4, 5), own))
    outers = [Scope((4,), (5,), Prod(factors)) for factors in ((read, other), (other, read))]
    made = [merge(outer, read, inner) for outer in outers]
    token = CANONICAL.set(False)
    try:
        bare = [merge(outer, read, inner) for outer in outers]
    finally:
        CANONICAL.reset(token)
    assert made[0] == made[1] and bare[0] != bare[1]
    assert [merge(outer, read, inner) for outer in outers] == made


def test_sums_are_merged_into_sums_only_once() -> None:
    inner = Scope((4,), (2,), Prod((X4, x(it(1, 2), shape=(2,), name="w"))))
    read = Read(inner, (it(0, 4),))
    for body in (Prod((read, read)), Call("relu", (read,)), Sum((read, BIAS))):
        assert merge(Scope((4,), (), body), read, inner) is None
    assert merge(Scope((), (4,), read, "max"), read, inner) is None
    merged = merge(Scope((), (4,), Prod((read, BIAS))), read, inner)
    assert merged is not None
    assert_equal(Scope((), (4,), Prod((read, BIAS))), merged)


def test_a_square_of_a_sum_is_merged_where_that_is_less_work() -> None:
    """``sum_j s[i, j]^2 v[j]`` of s = q k', whose square alone is never opened."""

    def outer(rows: int, columns: int) -> tuple[Scope, Read, Scope]:
        i, j = it(0, rows), it(1, rows)
        q = x(i, it(2, columns), shape=(rows, columns), name="q")
        k = x(j, it(2, columns), shape=(rows, columns), name="k")
        scores = Scope((rows, rows), (columns,), Prod((q, k)))
        read = Read(scores, (i, j))
        v = x(j, shape=(rows,), name="v")
        return Scope((rows,), (rows,), Prod((read, read, v))), read, scores

    given = outer(20, 2)
    once = merge(*given)
    assert once is not None and len(once.reduction) == 2
    (left,) = (read for read in reads(once.body) if read.tensor == given[2])
    twice = merge(once, left, given[2])
    assert twice is not None and len(twice.reduction) == 3
    for answer in (once, twice):
        assert_equal(given[0], answer)
    assert merge(*outer(20, 8)) is None
    whole, read, scores = given
    assert merge(Scope((20, 20), (), Prod((read, read))), read, scores) is None
    assert merge(replace(whole, body=Prod((read, read, read))), read, scores) is None


@pytest.mark.parametrize("dtype", ["uint8", "bool"])
def test_integers_that_wrap_are_not_taken_into_floats(dtype: str) -> None:
    u = Read(leaf("u", 4, dtype=dtype), (it(0, 4),))
    v = Read(leaf("v", 4, dtype=dtype), (it(0, 4),))
    inner = Scope((4,), (), Sum((u, v)))
    read = Read(inner, (it(0, 4),))
    assert inner.dtype == dtype
    assert merge(Scope((4,), (), Sum((read, X4))), read, inner) is None
    same = Scope((4,), (), Sum((read, u)))
    merged = merge(same, read, inner)
    assert merged is not None
    assert_equal(same, merged)


def test_a_broadcast_reads_the_whole_tensor_and_a_permutation_reads_it_once() -> None:
    i, j, one = it(0, 3), it(1, 2), it(1, 1)
    views = {
        "permuted": (Scope((3, 2), (), x(j, i, shape=(2, 3))), True, True),
        "repeated": (Scope((3, 2), (), x(i, shape=(3,))), True, False),
        "axis of extent 1 added": (Scope((3, 1), (), x(i, shape=(3,))), True, True),
        "axis of extent 1 dropped": (Scope((3,), (), x(i, Index(0), shape=(3, 1))), True, True),
        # As many elements as the tensor, but those of column 0, twice.
        "one column": (Scope((3, 2), (), x(i, Index(0), shape=(3, 2))), False, False),
        "one column of one": (Scope((3, 1), (), x(i, one, shape=(3, 2))), False, False),
        "diagonal": (Scope((3,), (), x(i, i, shape=(3, 3))), False, False),
        "shifted": (Scope((3, 2), (), x(i + 1, j, shape=(3, 2))), False, False),
        "scaled": (Scope((3,), (), Prod((Num(2.0), x(i, shape=(3,))))), False, False),
    }
    found = {name: (is_broadcast(s), is_permutation(s)) for name, (s, _, _) in views.items()}
    assert found == {name: tuple(expected) for name, (_, *expected) in views.items()}
    assert not repeats_nothing(views["repeated"][0]) and not repeats_nothing(views["scaled"][0])
    assert repeats_nothing(views["permuted"][0]) and repeats_nothing(views["diagonal"][0])


def test_a_sum_that_is_read_beyond_its_end_is_inlined_on_demand() -> None:
    """``pad(x - y)``: of rows picked by data it is opened, of products it isn't."""
    z = it(0, 4)
    inner = Scope((4,), (), Sum((Read(leaf("x", 4), (z,)), Read(leaf("y", 4), (z,)))))
    read = Read(inner, (it(0, 8) - 4,))
    outer = Scope((8,), (), Call("relu", (read,)))
    assert merge(outer, read, inner) is None
    assert merge(outer, read, inner, padded=True) is not None
    inside = Read(inner, (it(0, 4),))
    assert merge(Scope((4,), (), Call("relu", (inside,))), inside, inner) is not None
