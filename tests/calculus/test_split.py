"""Splitting a reduction of a sum into the sums of its terms."""

from __future__ import annotations

import pytest

from eqsynth.calculus.split import Split, split
from eqsynth.errors import LawError
from eqsynth.ir.scalar import Num, Read, Scalar, Sum, terms_of
from eqsynth.ir.tensor import Scope
from eqsynth.testing.choices import chance
from eqsynth.testing.families import FAMILIES
from eqsynth.testing.scope_samples import any_scope, iterators, made_scope, read, scalar
from eqsynth.testing.world import World
from tests.calculus.proposals import assert_one_value, never_wrong
from tests.terms import it, leaf
from tests.turns import by_turns


def sum_of_terms(world: World) -> Scope:
    """``R_y (f + g)`` of any terms."""
    pick = world.choices.pick
    outer, inner = ([world.extent() for _ in range(pick((1, 2, 0)))] for _ in range(2))
    its = iterators((*outer, *inner))
    terms: list[Scalar] = [
        scalar(world, its, 1) if chance(world.choices, 2) else read(world, its)
        for _ in range(pick((2, 3)))
    ]
    return made_scope(outer, inner, Sum(tuple(terms)), pick(("sum", "sum", "sum", "max")))


def propose(world: World, scope: Scope) -> Split:
    """The terms in up to three groups; now and then one too many, or one left out."""
    pick = world.choices.pick
    count = len(terms_of(scope.body)) + (pick((1, -1)) if chance(world.choices, 12) else 0)
    which = [pick((0, 1, 2)) for _ in range(count)]
    groups = [frozenset(n for n, g in enumerate(which) if g == group) for group in range(3)]
    return Split(tuple(filter(None, groups)))


@by_turns
def test_whatever_is_split_is_equal(turn: int) -> None:
    families = (*[sum_of_terms] * 20, any_scope, *FAMILIES)
    refused = ("terms", "linear", "dtype")
    never_wrong(split, propose, families, given_back=10, refused=refused, examples=400, turn=turn)


X = Read(leaf("x", 2, 3), (it(0, 2), it(1, 3)))
Y = Read(leaf("y", 3), (it(1, 3),))
U = Read(leaf("u", 3, dtype="uint8"), (it(1, 3),))
N = Read(leaf("n", 3, dtype="int64"), (it(1, 3),))
P, Q = (Read(leaf(name, 3, dtype="bool"), (it(1, 3),)) for name in "pq")
APART = Split((frozenset({0}), frozenset({1})))


@pytest.mark.parametrize(
    ("condition", "scope", "given"),
    [
        ("terms", Scope((2,), (3,), Sum((X, Y))), Split((frozenset({0}),))),
        ("terms", Scope((2,), (3,), Sum((X, Y))), Split((frozenset({0, 1}), frozenset({1})))),
        ("terms", Scope((2,), (3,), Sum((X, Y))), Split((frozenset({0, 1}), frozenset()))),
        ("linear", Scope((2,), (3,), Sum((X, Y)), "max"), APART),
        ("linear", Scope((2, 3), (), Sum((X, Y))), APART),
        ("linear", Scope((2,), (3,), X), Split((frozenset({0}),))),
        ("dtype", Scope((2,), (3,), Sum((X, U))), APART),
        ("dtype", Scope((2,), (3,), Sum((P, Q))), APART),
        ("dtype", Scope((2,), (3,), Sum((P, Q, N))), Split((frozenset({0, 1}), frozenset({2})))),
    ],
)
def test_a_condition_that_fails_is_named(condition: str, scope: Scope, given: Split) -> None:
    with pytest.raises(LawError) as refused:
        split(scope, given)
    assert (refused.value.law, refused.value.condition) == ("split", condition)


@pytest.mark.parametrize(
    ("scope", "given"),
    [
        (Scope((2,), (3,), Sum((X, Y))), APART),
        (Scope((2,), (3,), Sum((Num(2), X, Y))), Split((frozenset({0}), frozenset({1, 2})))),
        (Scope((2,), (3,), Sum((U, U))), APART),
        (Scope((2,), (0,), Sum((Num(2), Read(leaf("e", 0), (it(1, 0),))))), APART),
    ],
)
def test_one_step_before_the_edge_it_is_equal(scope: Scope, given: Split) -> None:
    answer = split(scope, given)
    assert answer != scope
    assert_one_value(scope, answer)
