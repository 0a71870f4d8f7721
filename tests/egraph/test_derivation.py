"""Splitting a summation, tightening its boundaries, and the order of its traversal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsynth.calculus.conditions import is_product
from eqsynth.egraph.tactics import derivation
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import CANONICAL, canonical
from eqsynth.ir.scalar import Call, Num, Prod, Sum, substitute
from eqsynth.ir.tensor import Scope, Tensor, topological
from eqsynth.testing.strategies import (
    WINDOWS,
    products,
    scopes,
)
from tests.egraph.properties import BIAS, Law, contractions, holds, some, x
from tests.terms import INF, assert_equal, end, it, times
from tests.turns import by_turns, in_turns

_MIXED = products(factors=(1, 3), reduction=(1, 3), fills=(0.0, 0.0, 0.0, -INF))
_WINDOWED = products(
    factors=(1, 2), traversal=(1, 3), reduction=(1, 3), extents=st.integers(2, 4), kinds=WINDOWS
)


@by_turns
def test_summation_splitting(turn: int) -> None:
    two = products(
        factors=(1, 2), traversal=(1, 2), reduction=(2, 3), extents=st.integers(2, 3), kinds=WINDOWS
    )
    holds(turn, derivation.sum_split, st.one_of(two, _MIXED), accepted=2)


@by_turns
def test_boundary_tightening(turn: int) -> None:
    def law(scope: Scope) -> list[Tensor]:
        return some(end(derivation.tighten(scope)))

    holds(turn, law, _MIXED, accepted=3)


# x[i - 1] is zero at i = 0 and from i = 4 on.
PADDED = x(it(0, 6) - 1, shape=(3,))


@pytest.mark.parametrize(
    "scope",
    [
        Scope((6,), (), Sum((PADDED, BIAS))),
        Scope((6,), (), Call("max", (PADDED, BIAS))),
        Scope((6,), (), Call("exp", (PADDED,))),
        Scope((), (6,), PADDED, "max"),
        Scope((), (6,), PADDED, "prod"),
        Scope((6,), (), x(it(0, 6) - 1, shape=(3,), fill=1.0)),
        Scope((6,), (), Prod((PADDED, x(it(0, 6), shape=(2,), name="y", fill=INF)))),
    ],
    ids=["bias", "max", "exp", "max-reduced", "prod-reduced", "fill", "infinite"],
)
def test_only_what_is_zero_is_cut_off(scope: Scope) -> None:
    assert end(derivation.tighten(canonical(scope))) is None


def test_what_is_zero_is_cut_off() -> None:
    mirrored = x(3 - it(0, 6), shape=(3,))
    for scope in (
        Scope((6,), (), PADDED), Scope((), (6,), Prod((PADDED, BIAS))),
        Scope((), (6,), Prod((mirrored, BIAS))),
    ):  # fmt: skip
        tightened = end(derivation.tighten(scope))
        assert tightened is not None
        assert_equal(scope, tightened)
        inner = [t for t in topological([tightened]) if isinstance(t, Scope)][0]
        assert inner.extents == (3,)


def test_what_is_zero_is_cut_off_in_any_order_of_axes_and_factors() -> None:
    """Without canonical forms, as a benchmark measures them, axes and factors keep their order. The
    check of a step still compares canonical forms, so the step is found."""
    padded = x(it(1, 6) - 1, it(2, 2), shape=(3, 2))
    scope = Scope((3, 6), (2,), Prod((padded, x(it(0, 3), it(2, 2), shape=(3, 2), name="w"))))
    token = CANONICAL.set(False)
    try:
        tightened = end(derivation.tighten(scope))
    finally:
        CANONICAL.reset(token)
    assert tightened is not None
    assert_equal(scope, tightened)


@in_turns
@settings(max_examples=times(1))
@given(_MIXED)
def test_the_support_holds_every_point_that_is_not_zero(drawn: Scope) -> None:
    """Outside of the support of an iterator, the values of the body are zero."""
    scope = canonical(drawn)
    if not is_product(scope) or 0 in scope.extents:
        return
    for slot, extent in enumerate(scope.extents):
        low, high = derivation.support(scope.body, It(slot, extent))
        for outside in [*range(0, low), *range(high, extent)]:

            def at(i: It, slot: int = slot, outside: int = outside) -> Index:
                return Index(outside) if i.slot == slot else it(i.slot, i.extent)

            body = substitute(scope.body, at)
            zero = Prod((Num(0), body))
            assert_equal(Scope(scope.extents, (), body), Scope(scope.extents, (), zero))


@by_turns
def test_the_order_of_the_traversal(turn: int) -> None:
    strategy = st.one_of(_WINDOWED, contractions(), scopes())
    law: Law = lambda s: some(end(derivation.traversal_order(s)))  # noqa: E731
    # The law answers for few scopes: in one of the turns, for one in 50.
    holds(turn, law, strategy, accepted=3, examples=150)
