"""Bounds: a scope on a smaller box. Directed tests stand at the edges."""

from __future__ import annotations

import pytest

from eqsynth.calculus.bound import Bound, bound
from eqsynth.errors import LawError
from eqsynth.ir.index import It
from eqsynth.ir.scalar import Call, Prod, Read, Scalar, Sum
from eqsynth.ir.tensor import Scope
from eqsynth.testing.choices import chance
from eqsynth.testing.families import FAMILIES
from eqsynth.testing.scope_samples import any_product, iterators, leaf, made_scope, windows
from eqsynth.testing.world import World
from tests import terms
from tests.calculus.proposals import assert_one_value, never_wrong
from tests.terms import INF, it
from tests.turns import by_turns


def beyond(world: World) -> Scope:
    """Reads that leave their tensors, under every reduction, with every fill."""
    pick = world.choices.pick
    outer, inner = ([pick((3, 4, 5, 2)) for _ in range(n)] for n in (1, pick((1, 0, 1))))
    its = iterators((*outer, *inner))
    reducer, fill = pick((("sum", 0.0), ("max", -INF), ("min", INF), ("prod", 1.0), ("sum", 1.5)))
    reads: list[Scalar] = []
    for _ in range(pick((1, 1, 2))):
        one, two = pick(its), pick(its)
        index = it(one.slot, one.extent) - pick((0, 1, 2))
        if chance(world.choices, 3):
            index = index + it(two.slot, two.extent)
        reads.append(Read(leaf(world, (pick((1, 2, 3)),)), (index,), fill))
    body = reads[0] if len(reads) == 1 else pick((Prod, Prod, Sum))(tuple(reads))
    return made_scope(outer, inner, body, reducer)


def propose(world: World, scope: Scope) -> Bound:
    """Any box of some iterators, now and then one that isn't in the scope's."""
    pick = world.choices.pick
    box = []
    for one in iterators(scope.extents):
        if one.extent and not chance(world.choices, 3):
            low = pick(range(min(3, one.extent)))
            high = one.extent - pick(range(min(3, one.extent - low)))
            box.append((one, low, high + chance(world.choices, 20)))
    return Bound(tuple(box))


@by_turns
def test_whatever_is_bounded_is_equal(turn: int) -> None:
    families = (*[beyond] * 20, any_product, windows, *FAMILIES)
    refused = ("iterators", "neutral", "support")
    never_wrong(bound, propose, families, given_back=30, refused=refused, examples=1200, turn=turn)


A, B = It(0, 6), It(1, 4)


def over(body: Scalar, reducer: str = "sum") -> Scope:
    return Scope((6,), (4,), body, reducer)


def x(size: int = 3, fill: float = 0.0) -> Read:
    return Read(terms.leaf("x", size), (it(0, 6) - 2,), fill)


Y = Read(terms.leaf("y", 2), (it(1, 4) - 1,))


@pytest.mark.parametrize(
    ("condition", "scope", "box"),
    [
        ("iterators", over(Prod((x(), Y))), ((It(0, 5), 2, 5),)),
        ("iterators", over(Prod((x(), Y))), ((A, 2, 5), (A, 2, 5))),
        ("iterators", over(Prod((x(), Y))), ((A, 2, 7),)),
        ("iterators", over(Prod((x(), Y))), ((A, 3, 3),)),
        ("neutral", over(Sum((x(), Y))), ((A, 2, 5),)),
        ("neutral", over(Call("exp", (x(),))), ((A, 2, 5),)),
        ("neutral", over(x(), "max"), ((A, 2, 5),)),
        ("neutral", over(Prod((x(), Read(Y.tensor, Y.index, INF)))), ((A, 2, 5),)),
        ("support", over(Prod((x(), Y))), ((A, 3, 5),)),
        ("support", over(Prod((x(), Y))), ((A, 2, 4),)),
        ("support", over(Prod((x(), Y))), ((A, 2, 5), (B, 1, 2))),
        ("support", over(Prod((x(4), Y))), ((A, 2, 5),)),
        ("support", over(x(fill=1.5)), ((A, 2, 5),)),
    ],
)
def test_a_condition_that_fails_is_named(
    condition: str, scope: Scope, box: tuple[tuple[It, int, int], ...]
) -> None:
    with pytest.raises(LawError) as refused:
        bound(scope, Bound(box))
    assert (refused.value.law, refused.value.condition) == ("bound", condition)


@pytest.mark.parametrize(
    ("scope", "box"),
    [
        (over(Prod((x(), Y))), ((A, 2, 5), (B, 1, 3))),
        (over(Prod((x(), Y))), ((A, 1, 5),)),
        (over(Prod((x(4), Y))), ((A, 2, 6),)),
        (over(x(fill=-INF), "max"), ((A, 2, 5),)),
        (Scope((6,), (), x()), ((A, 2, 5),)),
    ],
)
def test_one_step_before_the_edge_it_is_equal(
    scope: Scope, box: tuple[tuple[It, int, int], ...]
) -> None:
    answer = bound(scope, Bound(box))
    assert answer != scope
    assert_one_value(scope, answer)
