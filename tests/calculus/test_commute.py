"""The law `commute`: maxima move into monotone functions. With directed tests at the edges of its
conditions."""

from __future__ import annotations

import pytest

from eqsynth.calculus.commute import Commute, commute
from eqsynth.errors import LawError
from eqsynth.ir.index import It
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, Sum, children, iterators
from eqsynth.ir.tensor import Scope
from eqsynth.testing.algebra_samples import extreme
from eqsynth.testing.choices import chance
from eqsynth.testing.families import FAMILIES
from eqsynth.testing.world import World
from tests.calculus.proposals import assert_one_value, never_wrong, polynomial
from tests.terms import INF, it, leaf
from tests.turns import by_turns


def propose(world: World, scope: Scope) -> Commute:
    """Propose groups of operands that use the reduced iterators; now and then of any operands."""
    pick = world.choices.pick
    operands = list(enumerate(children(scope.body)))
    reduced = {It(slot, e) for slot, e in enumerate(scope.extents) if slot >= len(scope.traversal)}
    if not chance(world.choices, 5):
        operands = [(n, operand) for n, operand in operands if iterators(operand) & reduced]
    apart = chance(world.choices, 2)
    side = {n: n if apart else pick((0, 0, 1)) for n, _ in operands}
    groups = [frozenset(n for n in side if side[n] == which) for which in set(side.values())]
    return Commute(tuple(sorted(groups, key=min)))


@by_turns
def test_whatever_commutes_is_equal(turn: int) -> None:
    families = (*[extreme] * 30, *[polynomial] * 10, *FAMILIES)
    refused = ("extremum", "operands", "dtype", "monotone", "apart")
    never_wrong(commute, propose, families, given_back=40, refused=refused, examples=800, turn=turn)


X = Read(leaf("x", 2, 3), (it(0, 2), it(1, 3)))
Y = Read(leaf("y", 4), (it(2, 4),))
Z = Read(leaf("z", 3), (it(1, 3),))
C = Read(leaf("c", 2), (it(0, 2),))
LOW, HIGH = (Read(leaf("f", 2), (it(1, 3),), fill) for fill in (-INF, INF))
LOG = Call("log", (X,))
FAR = Read(leaf("g", 3), (it(2, 4),), INF)
U, V = (Read(leaf(name, 2, 3, dtype="uint8"), (it(0, 2), it(1, 3))) for name in "uv")


def over(body: Scalar, reducer: str = "max") -> Scope:
    return Scope((2,), (3, 4), body, reducer)


def groups(*parts: tuple[int, ...]) -> Commute:
    return Commute(tuple(map(frozenset, parts)))


@pytest.mark.parametrize(
    ("condition", "scope", "given"),
    [
        ("extremum", over(Sum((X, Y)), "sum"), groups((0,), (1,))),
        ("extremum", Scope((2,), (3, 0), Sum((X, C)), "max"), groups((0,))),
        # A number by itself is a float32, and the sum would be one.
        ("dtype", over(Sum((Read(leaf("x", 2, 3, dtype="float16"), X.index), Num(2)))),
         groups((0,), (1,))),
        ("operands", over(Sum((X, Y))), groups((0,), (2,))),
        ("operands", over(Sum((X, Y))), groups((0,), (0, 1))),
        ("operands", over(Sum((X, Y))), groups((0,))),
        ("operands", over(Sum((X, Y))), groups((0,), (), (1,))),
        ("operands", over(X), groups((0,))),
        ("dtype", over(Sum((U, V))), groups((0, 1))),
        ("monotone", over(Call("sin", (X,))), groups((0,))),
        ("monotone", over(Call("sqrt", (X,))), groups((0,))),
        ("monotone", over(Prod((X, C))), groups((0,))),
        ("monotone", over(Prod((X, Y))), groups((0,), (1,))),
        ("monotone", over(Prod((Num(0), X))), groups((1,))),
        ("monotone", over(Prod((Num(INF), X))), groups((1,))),
        ("monotone", over(Call("max", (X, Z))), groups((0, 1))),
        ("apart", over(Sum((X, Z))), groups((0,), (1,))),
        ("apart", over(Call("min", (X, Z))), groups((0,), (1,))),
        ("finite", over(Sum((LOW, FAR))), groups((0,), (1,))),
        ("finite", over(Sum((Num(-INF), FAR))), groups((1,))),
        ("finite", over(Sum((LOG, Call("reciprocal", (Y,))))), groups((0,), (1,))),
        ("finite", over(Sum((LOG, FAR))), groups((0,), (1,))),
    ],
)
def test_a_condition_that_fails_is_named(condition: str, scope: Scope, given: Commute) -> None:
    with pytest.raises(LawError) as refused:
        commute(scope, given)
    assert (refused.value.law, refused.value.condition) == ("commute", condition)


@pytest.mark.parametrize(
    ("scope", "given"),
    [
        (over(Sum((X, Y))), groups((0,), (1,))),
        (over(Sum((X, Y, C))), groups((0,), (1,))),
        (over(Sum((X, Z, Y)), "min"), groups((0, 1), (2,))),
        (over(Call("relu", (X,))), groups((0,))),
        (over(Prod((Num(-2), X))), groups((1,))),
        (over(Prod((Num(0.5), X, Y)), "min"), groups((1, 2))),
        (over(Call("max", (X, Z))), groups((0,), (1,))),
        (over(Call("min", (X, Y))), groups((0,), (1,))),
        (over(Call("max", (C, X))), groups((1,))),
        (over(Call("max", (LOW, FAR))), groups((0,), (1,))),
        (over(Sum((LOW, Y))), groups((0,), (1,))),
        (over(Sum((LOG, Call("exp", (Y,))))), groups((0,), (1,))),
        # Neither a choice of finite values nor a comparison is infinite.
        (over(Sum((Call("where", (Call("lt", (X, Num(0))), X, Num(2))), FAR))), groups((0,), (1,))),
    ],
)
def test_one_step_before_the_edge_it_is_equal(scope: Scope, given: Commute) -> None:
    answer = commute(scope, given)
    assert answer.reducer == "sum" and not answer.reduction
    assert_one_value(scope, answer)
