"""The law `pick`, by matrices of numbers: directed tests at its edges, and random arguments."""

from __future__ import annotations

from fractions import Fraction

import pytest

from eqsynth.calculus.pick import Pick, pick
from eqsynth.egraph.tactics.correlating import literal
from eqsynth.errors import LawError
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar
from eqsynth.ir.scopes import bare, reduction_iterators, traversal_iterators
from eqsynth.ir.tensor import Scope
from eqsynth.testing.choices import chance
from eqsynth.testing.world import World
from tests.calculus.proposals import assert_one_value, never_wrong
from tests.terms import INF, it, leaf
from tests.turns import by_turns

MATRICES = (
    (((2, 1), (1, 1)), ((1, -1), (-1, 2))),
    (((0, 1), (1, 0)), ((0, 1), (1, 0))),
    (((4, 0), (2, 1)), ((Fraction(1, 4), 0), (Fraction(-1, 2), 1))),
    (((1, 1), (1, 1)), ((1, 0), (0, 1))),
    (((Fraction(1, 2), 0), (0, Fraction(1, 2))), ((1, 0), (0, 1))),
    (((1, 2, 0), (0, 1, 0), (0, 0, 1)), ((1, -2, 0), (0, 1, 0), (0, 0, 1))),
)
"""Matrices and mostly their inverses."""


def written(rows: object, dtype: str = "float32") -> object:
    return literal(tuple(tuple(map(Fraction, row)) for row in rows), dtype)  # type: ignore


J, P, U = It(0, 4), It(1, 2), It(2, 2)
A, B = (written(rows) for rows in MATRICES[0])
AT, BT = Read(A, (bare(J) % 2, bare(P))), Read(B, (bare(P), bare(U)))  # type: ignore[arg-type]
HALF, ONE = (written(rows) for rows in MATRICES[4])
HALVES = Read(HALF, (bare(J) % 2, bare(P))), Read(ONE, (bare(P), bare(U)))  # type: ignore[arg-type]
X = Read(leaf("x", 4, 2), (it(0, 4), bare(U)))
PICK = Pick(P, U, bare(J) % 2)


def over(*factors: Scalar, reducer: str = "sum") -> Scope:
    return Scope((4,), (2, 2), Prod(factors), reducer)


def test_a_matrix_and_its_inverse_pick_a_row() -> None:
    found = pick(over(AT, BT, X), PICK)
    assert found == Scope((4,), (), Read(leaf("x", 4, 2), (it(0, 4), bare(J) % 2)))
    assert_one_value(over(AT, BT, X), found)


def test_a_matrix_of_fractions_and_its_inverse_pick_a_row() -> None:
    """Entries with different denominators, 1/4 and -1/2, are brought to a common one."""
    whole, parts = (written(rows) for rows in MATRICES[2])
    by_row = Read(whole, (bare(J) % 2, bare(P)))  # type: ignore[arg-type]
    scope = over(by_row, Read(parts, (bare(P), bare(U))), X)  # type: ignore[arg-type]
    assert_one_value(scope, pick(scope, PICK))


@pytest.mark.parametrize(
    ("condition", "scope", "given"),
    [
        ("product", over(AT, BT, Call("exp", (X,))), PICK),
        ("product", over(AT, BT, X, reducer="max"), PICK),
        ("product", over(AT, BT, Read(X.tensor, (it(0, 4), bare(U) + 1), INF)), PICK),
        ("iterators", over(AT, BT, X), Pick(P, P, PICK.value)),
        ("iterators", over(AT, BT, X), Pick(J, U, PICK.value)),
        ("iterators", over(AT, BT, X), Pick(P, J, bare(U))),
        ("iterators", over(AT, BT, X), Pick(P, U, bare(P))),
        ("iterators", over(AT, BT, X), Pick(P, U, bare(It(5, 2)))),
        ("iterators", over(AT, BT, X), Pick(P, U, bare(J))),
        ("iterators", over(AT, BT, X), Pick(P, U, bare(J) % 2 - 1)),
        ("iterators", over(AT, BT, X), Pick(P, U, bare(J) % 2 + 1)),
        ("literals", over(AT, BT, X, Read(leaf("w", 2), (bare(P),))), PICK),
        ("literals", over(X, Num(2.0)), PICK),
        ("literals", over(Read(A, (bare(J) % 2, bare(P) + 1)), BT, X), PICK),  # type: ignore
        ("literals", Scope((4,), (2, 2), Read(A, (bare(J) % 2, bare(P) + 1), INF)), PICK),  # type: ignore
        ("delta", over(AT, Read(A, (bare(P), bare(U))), X), PICK),  # type: ignore[arg-type]
        ("delta", over(AT, BT, X), Pick(P, U, 1 - bare(J) % 2)),
        ("delta", over(AT, BT, BT, X), PICK),
        ("delta", over(*HALVES, X), PICK),
        ("dtype", over(AT, BT, Read(leaf("x", 2, dtype="float16"), (bare(U),))), PICK),
    ],
)
def test_a_condition_that_fails_is_named(condition: str, scope: Scope, given: Pick) -> None:
    with pytest.raises(LawError) as refused:
        pick(scope, given)
    assert (refused.value.law, refused.value.condition) == ("pick", condition)


def test_too_many_numbers_are_not_looked_at() -> None:
    wide = It(0, 1 << 21)
    table = Read(A, (bare(wide) % 2, bare(P)))  # type: ignore[arg-type]
    scope = Scope((1 << 21,), (2, 2), Prod((table, BT, Read(leaf("x", 2), (bare(U),)))))
    with pytest.raises(LawError) as refused:
        pick(scope, Pick(P, U, bare(wide) % 2))
    assert refused.value.condition == "large"


def tables(world: World) -> Scope:
    """A random product of two or three matrices of numbers and other reads. Rows are read at random
    indices, some of them out of range."""
    choose = world.choices.pick
    first, second = choose(MATRICES)
    n, outer, k = len(first), choose((1, 2, 4)), choose((1, 2, 3))
    i, p, u, j = (Index.iterator(s, e) for s, e in enumerate((outer, n, n, k)))
    row = choose((i % n, i % n, i // choose((2, 3)), j, 1 - i % n, Index(0)))
    if chance(world.choices, 6):
        row = row + choose((1, -1))
    column = choose((u, u, u, (u + 1) % n, 0 * u))
    factors: list[Scalar] = [
        Read(written(first), (row, p)),  # type: ignore[arg-type]
        Read(written(second), (p, column)),  # type: ignore[arg-type]
        Read(leaf("x", n, k), (choose((u, u, u, u + 1, 1 - u)), j)),
        Read(leaf("y", outer), (i,)),
    ]
    if chance(world.choices, 6):
        factors.append(Read(leaf("z", n), (choose((p, u)),)))
    if chance(world.choices, 8):
        factors.append(Read(written(first), (p, column)))  # type: ignore[arg-type]
    del factors[choose((len(factors), len(factors), 3, 2)) :]
    return Scope((outer,), (n, n, k), Prod(tuple(factors)), choose(("sum",) * 5 + ("max",)))


def propose(world: World, scope: Scope) -> Pick:
    """Propose, mostly, the row index of the first matrix."""
    choose = world.choices.pick
    reduced = reduction_iterators(scope)
    assert isinstance(scope.body, Prod)
    table = scope.body.factors[0]
    assert isinstance(table, Read)
    value = table.index[0]
    if chance(world.choices, 4):
        n = reduced[1].extent
        value = choose((value + 1, (value + 1) % n, bare(traversal_iterators(scope)[0]), Index(0)))
    both = (reduced[0], reduced[1]) if not chance(world.choices, 8) else (reduced[1], reduced[0])
    return Pick(*both, value)


@by_turns
def test_whatever_is_picked_is_equal(turn: int) -> None:
    refused = ("product", "iterators", "literals", "delta")
    never_wrong(pick, propose, (tables,), given_back=15, refused=refused, examples=200, turn=turn)
