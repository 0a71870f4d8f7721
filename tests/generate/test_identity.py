"""What the generator found missing about the identity matrix, and what derives it now."""

from __future__ import annotations

import pytest

from eqsynth.egraph.proving import meet
from eqsynth.egraph.schedule import Limits
from eqsynth.generate import worlds_of
from eqsynth.ir.tensor import Op, Tensor
from eqsynth.numerics import rules_of

LEAVES = next(world for world in worlds_of(3) if world.name == "matrices").leaves
IDENTITY, X = LEAVES["I_matmul"], LEAVES["x0"]
RULES = rules_of((), "real", where="a test", proving=True)


def add(x: Tensor, y: Tensor) -> Op:
    return Op("Add", (x, y))


def times(x: Tensor, y: Tensor) -> Op:
    return Op("Mul", (x, y))


def above(x: Tensor, y: Tensor) -> Op:
    return Op("Concat", (x, y), (0,))


def turned(x: Tensor) -> Op:
    return Op("Permute", (x,), ((1, 0),))


TWICE, DIAGONAL = add(IDENTITY, IDENTITY), times(IDENTITY, X)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        # By the rule `diagonal`.
        (DIAGONAL, turned(DIAGONAL)),
        (DIAGONAL, times(IDENTITY, turned(X))),
        (times(IDENTITY, times(X, X)), Op("Matmul", (DIAGONAL, DIAGONAL))),
        # By laws that are asked about constant scopes.
        (add(TWICE, TWICE), times(TWICE, TWICE)),
        (above(IDENTITY, times(X, X)), times(above(IDENTITY, X), above(IDENTITY, X))),
    ],
)
def test_products_with_the_identity_meet(left: Tensor, right: Tensor) -> None:
    meeting = meet((left,), (right,), RULES, Limits(5_000, 60.0))
    assert meeting.proved, meeting.stop


def test_a_diagonal_is_not_the_diagonal_of_another_tensor() -> None:
    other = times(IDENTITY, LEAVES["x1"])
    assert not meet((DIAGONAL,), (turned(other),), RULES, Limits(5_000, 60.0)).proved
