"""What the generator found missing about the identity matrix, and what derives it now."""

from __future__ import annotations

import pytest

from eqsynth.egraph.proving import meet
from eqsynth.egraph.schedule import Limits
from eqsynth.generate import worlds_of
from eqsynth.ir.tensor import Op, Tensor
from eqsynth.numerics import rules_of

LEAVES = next(world for world in worlds_of(3) if world.name == "matrices").leaves
IDENTITY, ONES, X, Y = (LEAVES[name] for name in ("I_matmul", "I_ewmul", "x0", "x1"))
RULES = rules_of((), "real", where="a test", proving=True)


def add(x: Tensor, y: Tensor) -> Op:
    return Op("Add", (x, y))


def times(x: Tensor, y: Tensor) -> Op:
    return Op("Mul", (x, y))


def matmul(x: Tensor, y: Tensor) -> Op:
    return Op("Matmul", (x, y))


def above(x: Tensor, y: Tensor) -> Op:
    return Op("Concat", (x, y), (0,))


def relu(x: Tensor) -> Op:
    return Op("Relu", (x,))


def turned(x: Tensor) -> Op:
    return Op("Permute", (x,), ((1, 0),))


TWICE, DIAGONAL = add(IDENTITY, IDENTITY), times(IDENTITY, X)
PAIR = above(IDENTITY, IDENTITY)


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("left", "right"),
    [
        # By the rule `diagonal`, of finite functions too.
        (DIAGONAL, turned(DIAGONAL)),
        (DIAGONAL, times(IDENTITY, turned(X))),
        (relu(DIAGONAL), times(IDENTITY, turned(relu(X)))),
        # By `diagonal-term`, and by `diagonal` before products are computed in part.
        (turned(add(Y, DIAGONAL)), add(turned(Y), DIAGONAL)),
        (turned(add(ONES, DIAGONAL)), add(ONES, DIAGONAL)),
        (times(turned(X), add(IDENTITY, X)), times(X, turned(add(IDENTITY, X)))),
        (times(IDENTITY, matmul(turned(X), Y)), times(IDENTITY, matmul(turned(Y), X))),
        # By expanded forms: the identity is a condition, which is never negative.
        (relu(above(TWICE, IDENTITY)), above(TWICE, IDENTITY)),
        (relu(above(PAIR, PAIR)), above(PAIR, PAIR)),
        (relu(add(X, DIAGONAL)), times(relu(X), add(IDENTITY, ONES))),
        (relu(times(IDENTITY, add(IDENTITY, X))), times(IDENTITY, relu(add(ONES, X)))),
        (relu(add(X, X)), relu(add(X, relu(X)))),
        (times(IDENTITY, times(X, X)), matmul(DIAGONAL, DIAGONAL)),
        # By laws that are asked about constant scopes.
        (add(TWICE, TWICE), times(TWICE, TWICE)),
        (above(IDENTITY, times(X, X)), times(above(IDENTITY, X), above(IDENTITY, X))),
    ],
)
def test_products_with_the_identity_meet(left: Tensor, right: Tensor) -> None:
    meeting = meet((left,), (right,), RULES, Limits(5_000, 60.0))
    assert meeting.proved, meeting.stop


@pytest.mark.rotating
def test_a_diagonal_is_not_the_diagonal_of_another_tensor() -> None:
    other = times(IDENTITY, Y)
    for left, right in (
        (DIAGONAL, turned(other)),
        (add(ONES, DIAGONAL), turned(add(ONES, other))),
        (relu(add(X, DIAGONAL)), times(relu(X), IDENTITY)),
        (turned(add(Y, DIAGONAL)), add(Y, DIAGONAL)),
    ):
        assert not meet((left,), (right,), RULES, Limits(5_000, 60.0)).proved


@pytest.mark.rotating
def test_ones_on_a_diagonal_do_not_pile_up() -> None:
    """``[i = j] * f`` is ``one[i - j] * f`` for a tensor of a single 1. On the diagonal this is
    ``one[0] * one[i - j] * f``, to which the rule waits to be applied until 1 is in the place of
    ``one[0]``."""
    left, right = relu(times(IDENTITY, X)), times(IDENTITY, relu(Y))
    meeting = meet((left,), (right,), RULES, Limits(5_000, 60.0))
    assert (meeting.proved, meeting.stop) == (False, "saturated")
