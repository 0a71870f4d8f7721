"""Reindexing: a scope as a view of one over other iterators. Directed tests stand at the edges."""

from __future__ import annotations

import pytest

from eqsynth.calculus.reindex import Reindex, reindex
from eqsynth.calculus.scopes import (
    bare,
    reduction_iterators,
    renumber,
    scope_over,
    traversal_iterators,
)
from eqsynth.errors import LawError
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Call, Num, Prod, Read, product, substitute
from eqsynth.ir.tensor import Scope
from eqsynth.testing.choices import chance, ordering
from eqsynth.testing.families import FAMILIES
from eqsynth.testing.scope_samples import any_product, any_scope, windows
from eqsynth.testing.world import World
from tests.calculus.proposals import assert_one_value, never_wrong
from tests.terms import INF, it, leaf
from tests.turns import by_turns


def propose(world: World, scope: Scope) -> Reindex:
    """Axes in any order, split, shifted in a wider box or turned round, some reductions outside;
    and one time in three something is off by one."""
    pick = world.choices.pick
    wrong = pick(("", "", "", "", "at", "box", "body", "fill"))
    image: dict[It, Index] = {}
    kept: list[It] = []
    at: list[Index] = []
    for axis in traversal_iterators(scope):
        slot = len(scope.extents) + 2 * axis.slot
        kind = pick(("same", "same", "split", "shift", "turn"))
        if kind == "split" and axis.extent > 1:
            d, offset = pick((2, 3)), pick((0, 0, 1))
            q, r = It(slot, (axis.extent - 1 + offset) // d + 1), It(slot + 1, d)
            image[axis] = bare(q) * d + bare(r) - offset
            kept += [q, r]
            at += [(bare(axis) + offset) // d, (bare(axis) + offset) % d]
            continue
        c = pick((1, 0, 2, -1)) if kind == "shift" else 0
        u = It(slot, max(1, axis.extent + (2 if c else 0) - (wrong == "box")))
        turned = axis.extent - 1 - bare(axis) if kind == "turn" else bare(axis)
        image[axis] = (axis.extent - 1 - bare(u) if kind == "turn" else bare(u)) - c
        kept.append(u)
        at.append(turned + c)
    outer = [r for r in reduction_iterators(scope) if chance(world.choices, 3)]
    inside = [r for r in reduction_iterators(scope) if r not in outer]
    kept, at = [*kept, *outer], [*at, *map(bare, outer)]
    order = ordering(world.choices, len(kept)) if chance(world.choices, 2) else range(len(kept))
    body = substitute(scope.body, lambda it: image.get(it, bare(it)))
    if wrong == "body":
        body = product([Num(2), body])
    if wrong == "at" and at:
        at[0] = at[0] + 1
    inner = scope_over([kept[n] for n in order], inside, body, scope.reducer)
    fill = 1.5 if wrong == "fill" else 0.0
    return Reindex(inner, tuple(at[n] for n in order), tuple(outer), fill)


@by_turns
def test_whatever_is_reindexed_is_equal(turn: int) -> None:
    families = (any_product, any_scope, windows, *FAMILIES)
    never_wrong(reindex, propose, families, given_back=25, refused=("inverse", "outside"),
                examples=200, turn=turn)  # fmt: skip


A, B, C = (It(slot, extent) for slot, extent in enumerate((6, 2, 3)))
X = Read(leaf("x", 8), (bare(A) + bare(B),))
SCOPE = Scope((6,), (2, 3), Prod((X, Read(leaf("w", 3), (bare(C),)))))
Q, R = It(3, 3), It(4, 2)


def split(offset: int = 0, d: int = 2) -> Scope:
    image = {A: bare(Q) * d + bare(R) - offset}
    body = substitute(SCOPE.body, lambda it: image.get(it, bare(it)))
    return scope_over([Q, R], [B, C], body)


QR = (bare(A) // 2, bare(A) % 2)
INNER = Scope((6, 2), (3,), renumber(SCOPE.body, {0: 0, 1: 1, 2: 2}))
EXP = Scope((4,), (), Call("exp", (Read(leaf("y", 4), (it(0, 4),)),)))


@pytest.mark.parametrize(
    ("condition", "scope", "given"),
    [
        ("iterators", SCOPE, Reindex(split(), QR[:1])),
        ("iterators", SCOPE, Reindex(split(), (bare(B), QR[1]))),
        ("iterators", SCOPE, Reindex(INNER, (bare(A), bare(B)), (A,))),
        ("iterators", SCOPE, Reindex(INNER, (bare(A), bare(B)), (B, B))),
        ("inverse", SCOPE, Reindex(split(1), QR)),
        ("inverse", SCOPE, Reindex(split(), (bare(A) % 3, bare(A) // 3))),
        ("inverse", SCOPE, Reindex(split(0, 3), QR)),
        ("inverse", SCOPE, Reindex(INNER, (bare(A), bare(B)), (B, C))),
        ("inverse", SCOPE, Reindex(Scope((6,), (), Read(leaf("i", 6, dtype="int64"), (bare(A),))),
                                   (bare(A),), (B, C))),
        ("outside", EXP, Reindex(EXP, (it(0, 4) + 1,))),
        ("reduces", SCOPE, Reindex(Scope((6, 2), (3,), INNER.body, "max"), (bare(A), bare(B)),
                                   (B,))),
    ],
)  # fmt: skip
def test_a_condition_that_fails_is_named(condition: str, scope: Scope, given: Reindex) -> None:
    with pytest.raises(LawError) as refused:
        reindex(scope, given)
    law = "reindex" if condition in ("iterators", "inverse") else "inline"
    assert (refused.value.law, refused.value.condition) == (law, condition)


FAR = Scope((4,), (), Read(leaf("y", 4), (it(0, 4),), -INF))


@pytest.mark.parametrize(
    ("scope", "given"),
    [
        (SCOPE, Reindex(split(), QR)),
        (SCOPE, Reindex(INNER, (bare(A), bare(B)), (B,))),
        (Scope((6,), (), Read(leaf("y", 4), (it(0, 6) - 1,), -INF)),
         Reindex(FAR, (it(0, 6) - 1,), fill=-INF)),
    ],
)  # fmt: skip
def test_one_step_before_the_edge_it_is_equal(scope: Scope, given: Reindex) -> None:
    answer = reindex(scope, given)
    assert answer != scope
    assert_one_value(scope, answer)
