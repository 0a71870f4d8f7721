"""Changes of variables: each is a bijection, or adds only points at which the body is zero. The
answers equal their scopes."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from eqsynth.egraph.tactics import derivation, substitution
from eqsynth.ir.index import Index
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import Call, Prod, Read, Sum, reads
from eqsynth.ir.scopes import reduction_iterators
from eqsynth.ir.tensor import Scope, Tensor, topological
from eqsynth.testing.strategies import WINDOWS, products, scopes
from tests.egraph.properties import holds, some
from tests.terms import INF, assert_equal, end, it, leaf
from tests.turns import by_turns


def read(name: str, *at: Index, fill: float = 0.0, extra: int = 0) -> Read:
    """A read of a tensor that is just large enough for the indices."""
    shape = [index.range()[1] + 1 + extra for index in at]
    return Read(leaf(name, *shape), at, fill)


def inner(term: Tensor) -> Scope:
    """The innermost scope in the answer of a law."""
    return [t for t in topological([term]) if isinstance(t, Scope)][0]


def substituted(scope: Scope) -> list[Tensor]:
    return some(end(substitution.variable_substitution(canonical(scope))))


def split(scope: Scope) -> list[Tensor]:
    return some(end(substitution.iterator_split(canonical(scope))))


# ---- iterators that only occur together ------------------------------------------------------


@pytest.mark.parametrize("reduction", [(0, 0), (1, 1)])
@by_turns
def test_variable_substitution(turn: int, reduction: tuple[int, int]) -> None:
    strategy = products(
        factors=(1, 2), traversal=(2, 3), reduction=reduction, extents=st.integers(2, 4),
        kinds=WINDOWS,
    )  # fmt: skip
    holds(turn, substituted, strategy, accepted=2)


@by_turns
def test_variable_substitution_under_division(turn: int) -> None:
    kinds = ("divided", "divided", "bare")
    divided = products(traversal=(2, 3), reduction=(0, 1), factors=(1, 2), kinds=kinds)
    holds(turn, substituted, divided, accepted=1, examples=200)
    # Of random scopes, one in 100 has an answer, so a turn may have none.
    holds(turn, substituted, scopes(), accepted=0, examples=200)


def test_substitution_needs_its_iterator_in_one_expression() -> None:
    h, r = it(0, 3), it(1, 2)
    alone = Scope((3, 2), (), Prod((read("x", h + r), read("y", r))))
    (answer,) = substituted(alone)
    assert_equal(alone, answer)
    assert sorted(inner(answer).extents) == [2, 4]
    twice = Scope((3, 2), (), Prod((read("x", h + r), read("y", h, r))))
    assert not substituted(twice)
    # The expression may be inside of // and %. An index h outside of them is another expression.
    under = Scope((3, 2), (), Prod((read("x", (h + r) // 2, (h + r) % 2), read("y", r))))
    (answer,) = substituted(under)
    assert_equal(under, answer)
    outside = Scope((3, 2), (), Prod((read("x", (h + r) // 2, h), read("y", r))))
    assert not substituted(outside)


def test_an_iterator_that_no_index_needs_any_more_is_left_out() -> None:
    h, r, k = it(0, 3), it(1, 2), it(2, 2)
    scope = Scope((3, 2), (2,), Prod((read("x", h + r, k), read("w", k))))
    (answer,) = substituted(scope)
    assert_equal(scope, answer)
    assert inner(answer).traversal == (4,)


def test_an_expression_that_counts_through_takes_all_iterators_along() -> None:
    q, r, j = it(0, 3), it(1, 2), it(2, 2)
    whole = Scope((3, 2, 2), (), Sum((read("x", 2 * q + r), read("y", 2 * q + r, j))))
    (answer,) = substituted(whole)
    assert_equal(whole, answer)
    assert sorted(inner(answer).traversal) == [2, 6]
    # With r alone, or with steps of 3 over 2 values of r, the expression isn't a bijection.
    for other in (read("y", r), read("y", 3 * q + r)):
        scope = Scope((3, 2, 2), (), Prod((read("x", 2 * q + r), other, read("z", j))))
        assert all(sorted(inner(a).traversal) != [2, 6] for a in substituted(scope))


def test_multiples_of_one_expression_are_one_expression() -> None:
    h, r = it(0, 3), it(1, 2)
    scope = Scope((3, 2), (), Prod((read("x", 2 * h + 4 * r), read("y", h + 2 * r))))
    (answer,) = substituted(scope)
    assert_equal(scope, answer)
    assert 5 in inner(answer).traversal


# ---- an iterator as quotient and remainder ---------------------------------------------------


@by_turns
def test_iterator_splitting(turn: int) -> None:
    # Of random scopes, one in 150 is split, so a turn may have none. The other two strategies draw
    # scopes that are split more often.
    holds(turn, split, scopes(), accepted=0, examples=200)
    divided = products(
        factors=(1, 2), traversal=(1, 2), reduction=(0, 1), extents=st.integers(3, 5),
        kinds=("divided", "bare"),
    )  # fmt: skip
    holds(turn, split, divided, accepted=1, examples=200)
    dilated = products(
        factors=(1, 2), traversal=(1, 2), reduction=(1, 1), extents=st.integers(3, 5),
        kinds=("mixed", "divided"),
    )  # fmt: skip
    holds(turn, split, dilated, accepted=1, examples=200)


def test_a_dilated_window_is_a_window_on_rearranged_rows() -> None:
    i, k = it(0, 5), it(1, 3)
    scope = Scope((5,), (3,), Prod((read("x", i + 2 * k), read("w", k))))
    (answer,) = split(scope)
    assert_equal(scope, answer)
    # Rows 0, 2, 4 and rows 1, 3, 5: row 5 is added, so that both halves are equally long.
    assert sorted(inner(answer).traversal) == [2, 3]
    strided = Scope((5,), (3,), Prod((read("x", 2 * i + k), read("w", k))))
    assert not split(strided)


def test_the_remainder_starts_where_the_expression_does() -> None:
    i = it(0, 7)
    scope = Scope((7,), (), Sum((read("x", (i + 3) // 4), read("y", (i + 3) % 4))))
    (answer,) = split(scope)
    assert_equal(scope, answer)
    assert sorted(inner(answer).traversal) == [3, 4]


# ---- what reads a rearrangement ---------------------------------------------------------------


def apart(rows: int, order: tuple[int, int, int]) -> tuple[Scope, Tensor]:
    """The scope ``{g}[i // 2, i % 2, j]`` with the axes of g in the given order, and g."""
    i, j = it(0, rows), it(1, 3)
    of_g = read("g", *[(i // 2, i % 2, j)[n] for n in order])
    return Scope((rows, 3), (), of_g), of_g.tensor


@pytest.mark.parametrize("rows", [6, 5])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 1, 0)])
def test_a_map_takes_a_rearrangement_on(rows: int, order: tuple[int, int, int]) -> None:
    view, g = apart(rows, order)
    i, j = it(0, rows), it(1, 3)
    whole, beside = Read(view, (i, j)), read("b", j)
    for scope in (
        Scope((rows, 3), (), Call("exp", (Sum((whole, beside)),))),
        Scope((rows,), (3,), Call("exp", (whole,)), "max"),
    ):
        scope = canonical(scope)
        (whole,) = [r for r in reads(scope.body) if r.tensor == view]
        answer = end(substitution.operand_split(scope, {whole: view}))
        assert answer is not None
        assert_equal(scope, answer)
        # The traversal has the order of g's axes, and each index is a bare iterator.
        (first,) = [r for r in reads(inner(answer).body) if r.tensor == g]
        its = [index.bare() for index in first.index]
        kept = [it.slot for it in its if it and it.slot < len(inner(answer).traversal)]
        assert None not in its and kept == list(range(len(kept)))


def test_what_is_read_in_order_has_nothing_to_take_on() -> None:
    i, j = it(0, 6), it(1, 3)
    turned = canonical(Scope((6, 3), (), read("g", j, i)))
    scope = canonical(Scope((6, 3), (), Call("exp", (Read(turned, (i, j)),))))
    (whole,) = reads(scope.body)
    assert end(substitution.operand_split(scope, {whole: turned})) is None


def test_inverse_rearrangements_cancel() -> None:
    view, _ = apart(6, (1, 0, 2))
    q, r, k = it(0, 3), it(1, 2), it(2, 3)
    for at, cancels in (
        ((2 * q + r, k), True),
        ((3 * r + q, k), False),
        ((2 * q + r + 1, k), False),
        ((q, k), False),
    ):
        body = Prod((Read(view, at), read("w", k)))
        scope = canonical(Scope((3, 2), (3,), body))
        (whole,) = [x for x in reads(scope.body) if x.tensor == view]
        answer = end(substitution.cancelled(scope, whole, view))
        assert (answer is not None) == cancels
        if answer is not None:
            assert_equal(scope, answer)


# ---- reductions ------------------------------------------------------------------------------


def kernel_split(scope: Scope) -> list[Tensor]:
    scope = canonical(scope)
    found = (end(substitution.reduction_split(scope, k, 2)) for k in reduction_iterators(scope))
    return [answer for answer in found if answer is not None]


@by_turns
def test_reduction_splitting(turn: int) -> None:
    strategy = products(
        factors=(1, 2), traversal=(0, 1), reduction=(1, 2), extents=st.integers(2, 5), kinds=WINDOWS
    )
    holds(turn, kernel_split, strategy, accepted=3)


def taps(factor: Read | Call, reducer: str = "sum", extent: int = 5) -> Scope:
    """A window of ``extent`` taps over x, weighted by ``factor``."""
    i, k = it(0, 3), it(1, extent)
    return Scope((3,), (extent,), Prod((Read(leaf("x", 9), (i + k,)), factor)), reducer)


K = it(1, 5)


@pytest.mark.parametrize(
    "scope",
    [
        taps(read("w", K, extra=1)),
        taps(read("w", K, fill=1.0, extra=-1)),
        taps(read("w", 5 - K, extra=1)),
        taps(read("w", K % 5)),
        taps(read("w", K), "max"),
        taps(read("w", K), "prod"),
        taps(Call("exp", (read("w", K),))),
        Scope((3,), (5,), Sum((read("x", it(0, 3) + K), read("w", K)))),
        Scope((3,), (5,), Prod((read("x", K), read("y", it(0, 3), fill=INF, extra=-1)))),
    ],
    ids=["longer", "fill", "reversed", "modulo", "max", "prod", "exp", "bias", "infinite"],
)  # fmt: skip
def test_a_reduction_is_relaxed_only_where_the_product_is_zero(scope: Scope) -> None:
    """5 taps become 2 x 3 taps only if the product at the sixth is zero without a condition."""
    assert not kernel_split(scope)


def test_a_reduction_is_relaxed_where_the_weight_ends() -> None:
    # In reverse order, the sixth tap is before the first element of the weight, which is 0.
    backward = taps(read("w", 4 - K, extra=1))
    for scope in (taps(read("w", K)), taps(read("w", it(1, 4), extra=2), extent=4), backward):
        (answer,) = kernel_split(scope)
        assert_equal(scope, answer)
        assert isinstance(answer, Scope) and 2 in answer.reduction


def in_parts(scope: Scope) -> list[Tensor]:
    return [path.scope for path in derivation.window_split(canonical(scope))]


def test_a_large_window_is_the_sum_of_small_ones() -> None:
    i, k, c = it(0, 3), it(1, 5), it(2, 2)
    weight = read("w", k, c)
    scope = Scope((3,), (5, 2), Prod((Read(leaf("x", 5, 2), (i + k - 1, c)), weight)))
    (answer,) = in_parts(scope)
    assert_equal(scope, answer)
    assert isinstance(answer, Scope) and answer.reduction == (2,)
    assert sorted(inner(answer).reduction) == [2, 3]


def test_small_windows_and_weights_that_go_on_stay_whole() -> None:
    i, c = it(0, 3), it(2, 2)
    for extent, extra in ((3, 0), (5, 1), (10, 0)):
        k = it(1, extent)
        image = Read(leaf("x", 12, 2), (i + k, c))
        scope = Scope((3,), (extent, 2), Prod((image, read("w", k, c, extra=extra))))
        assert not in_parts(scope)
