"""The law `close`: operands become a scope of their own. With directed tests at the edges of its
conditions."""

from __future__ import annotations

import pytest

from eqsynth.calculus.close import Close, Part, close, operands_of
from eqsynth.errors import LawError
from eqsynth.ir.index import It
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, Sum
from eqsynth.ir.tensor import Scope
from eqsynth.testing.choices import chance
from eqsynth.testing.families import FAMILIES
from eqsynth.testing.scope_samples import any_product, any_scope, constants, iterators
from eqsynth.testing.world import World
from tests.calculus.proposals import assert_one_value, never_wrong, polynomial
from tests.terms import INF, it, leaf
from tests.turns import by_turns


def propose(world: World, scope: Scope) -> Close:
    """Propose one or two parts of random operands, each with random iterators reduced inside."""
    pick = world.choices.pick
    count = len(operands_of(scope.body)) + chance(world.choices, 20)
    own = iterators(scope.extents)
    reduced = own[0 if chance(world.choices, 8) else len(scope.traversal) :]
    sides = [pick((0, 0, 1, 2)) for _ in range(count)]
    inside = [pick((0, 0, 1, 2)) for _ in reduced]
    parts = [
        Part(
            frozenset(n for n, side in enumerate(sides) if side == which),
            frozenset(it for it, side in zip(reduced, inside, strict=True) if side == which),
        )
        for which in (0, 1)
    ]
    return Close(tuple(part for part in parts if part.operands or chance(world.choices, 4)))


@by_turns
def test_whatever_is_closed_is_equal(turn: int) -> None:
    families = (*[polynomial] * 20, any_product, any_scope, constants, *FAMILIES)
    refused = ("operands", "iterators", "linear", "shared", "dtype")
    never_wrong(close, propose, families, given_back=50, refused=refused, examples=300, turn=turn)


ROW, J, K = (It(slot, extent) for slot, extent in enumerate((2, 3, 4)))
X = Read(leaf("x", 2, 3), (it(0, 2), it(1, 3)))
Y = Read(leaf("y", 2, 4), (it(0, 2), it(2, 4)))
Z = Read(leaf("z", 4), (it(2, 4),))
FAR = Read(leaf("f", 1), (it(0, 2),), INF)
U, V, W = (Read(leaf(name, 2, 4, dtype="uint8"), (it(0, 2), it(2, 4))) for name in "uvw")
HALF = Read(leaf("h", 2, 4, dtype="float16"), (it(0, 2), it(2, 4)))
DOUBLE = Read(leaf("d", 2, 4, dtype="float64"), (it(0, 2), it(2, 4)))
P, Q = (Read(leaf(name, 2, 4, dtype="bool"), (it(0, 2), it(2, 4))) for name in "pq")


def over(body: Scalar, reducer: str = "sum") -> Scope:
    return Scope((2,), (3, 4), body, reducer)


def part(*operands: int, reduced: tuple[It, ...] = ()) -> Part:
    return Part(frozenset(operands), frozenset(reduced))


@pytest.mark.parametrize(
    ("condition", "scope", "parts"),
    [
        ("operands", over(Prod((X, Y))), (part(2),)),
        ("operands", over(Prod((X, Y))), (part(0), part(0, 1))),
        ("operands", over(Prod((X, Y))), (part(),)),
        ("iterators", over(Prod((X, Y))), (part(0, reduced=(ROW,)),)),
        ("iterators", over(Prod((X, Y))), (part(0, reduced=(It(1, 5),)),)),
        ("iterators", over(Prod((X, Y))), (part(0, reduced=(J,)), part(1, reduced=(J,)))),
        ("linear", over(Prod((X, Y)), "max"), (part(0, reduced=(J,)),)),
        ("linear", over(Sum((X, Y))), (part(0, reduced=(J,)),)),
        ("linear", over(Prod((X, Call("exp", (Y,))))), (part(0, reduced=(J,)),)),
        ("linear", over(Prod((X, FAR))), (part(0, reduced=(J,)),)),
        ("shared", over(Prod((Y, Z))), (part(0, reduced=(K,)),)),
        ("dtype", over(Sum((X, U, V))), (part(1, 2),)),
        ("dtype", over(Prod((X, U, V))), (part(1, 2, reduced=(K,)),)),
        # By itself it would be summed in float16.
        ("dtype", over(Prod((X, HALF))), (part(1, reduced=(K,)),)),
        ("dtype", over(Prod((P, Q, P))), (part(0, 1),)),
        # By itself 0.1 would be a float32, beside a float64 it is a float64.
        ("dtype", over(Prod((Num(0.1), DOUBLE))), (part(0),)),
    ],
)
def test_a_condition_that_fails_is_named(
    condition: str, scope: Scope, parts: tuple[Part, ...]
) -> None:
    with pytest.raises(LawError) as refused:
        close(scope, Close(parts))
    assert (refused.value.law, refused.value.condition) == ("close", condition)


@pytest.mark.parametrize(
    ("scope", "parts"),
    [
        (over(Prod((X, Y))), (part(0, reduced=(J,)), part(1, reduced=(K,)))),
        (over(Prod((X, Y, Z))), (part(1, 2, reduced=(K,)),)),
        (over(Prod((Num(2), X, Y))), (part(0, 2, reduced=(K,)),)),
        (over(Sum((X, Y)), "max"), (part(0, 1, reduced=(K,)),)),
        (over(Sum((X, Y, Z))), (part(1, 2),)),
        (over(Sum((U, V, W))), (part(0, 1), part(2))),
        (over(Prod((X, FAR))), (part(0, 1, reduced=(J, K)),)),
        (over(P), (part(0, reduced=(K,)),)),
        (over(Prod((P, Q))), (part(0),)),
        (over(Prod((Num(0.1), X))), (part(0),)),
        (over(Prod((Num(0.1), DOUBLE))), (part(1),)),
    ],
)
def test_one_step_before_the_edge_it_is_equal(scope: Scope, parts: tuple[Part, ...]) -> None:
    answer = close(scope, Close(parts))
    assert answer != scope
    assert_one_value(scope, answer)


def test_nothing_that_is_reduced_is_reduced_inside_as_a_whole() -> None:
    scope = over(Call("exp", (Prod((X, Y)),)), "max")
    answer = close(scope, Close((Part(frozenset({0}), frozenset((J, K))),)))
    assert not answer.reduction
    assert_one_value(scope, answer)
