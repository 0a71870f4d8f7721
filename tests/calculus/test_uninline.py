"""Inlining, back: a read of a part in the place of a read of the whole, by any two maps."""

from __future__ import annotations

import pytest

from eqsynth.calculus.inline import Uninline, uninline
from eqsynth.calculus.scopes import scope_over
from eqsynth.errors import LawError
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Call, Prod, Read, Scalar, Sum, reads
from eqsynth.ir.tensor import Scope
from eqsynth.testing.algebra_samples import part_of_sum
from eqsynth.testing.choices import Rejected, chance
from eqsynth.testing.families import FAMILIES
from eqsynth.testing.world import World
from tests.calculus.proposals import assert_one_value, never_wrong
from tests.terms import INF, it, leaf
from tests.turns import by_turns


def propose(world: World, scope: Scope) -> Uninline:
    """Every ``step``-th place from a first one along each axis, and where those are read."""
    pick = world.choices.pick
    found = list(reads(scope.body))
    if not found:
        raise Rejected("nothing is read")
    read = pick(found)
    inside, outside, extents = [], [], []
    for slot, (index, size) in enumerate(zip(read.index, read.tensor.shape, strict=True)):
        step = pick((1, 1, 2, *(c for _, c in index.terms if c > 0)))
        low, high = index.range()
        first, last = (max(low, 0), min(high, size - 1)) if pick((0, 1)) else (0, size - 1)
        first += chance(world.choices, 8)
        extents.append(max((last - first) // step + 1, 1))
        inside.append(Index.iterator(slot, extents[-1]) * step + first)
        exact = all(c % step == 0 for _, c in index.terms) and (index.const - first) % step == 0
        fewer = Index((index.const - first) // step,
                      tuple((atom, c // step) for atom, c in index.terms if c // step))  # fmt: skip
        outside.append(fewer if exact or chance(world.choices, 3) else (index - first) // step)
    kept = [It(slot, extent) for slot, extent in enumerate(extents)]
    part = scope_over(kept, [], Read(read.tensor, tuple(inside), read.fill))
    return Uninline(read, Read(part, tuple(outside), pick((read.fill, read.fill, 0.0))))


@by_turns
def test_whatever_part_is_read_is_equal(turn: int) -> None:
    refused = ("inverse", "outside")
    never_wrong(uninline, propose, (*[part_of_sum] * 9, *FAMILIES), given_back=30, refused=refused,
                examples=300, turn=turn)  # fmt: skip


WHOLE = leaf("t", 9)
READ = Read(WHOLE, (it(0, 3) * 2 + 1,))
U = it(0, 3)


def part(index: Index, extent: int, fill: float = 0.0) -> Scope:
    return Scope((extent,), (), Read(WHOLE, (index,), fill))


def over(body: Scalar) -> Scope:
    return Scope((3,), (2,), body)


@pytest.mark.parametrize(
    ("condition", "by"),
    [
        ("reads", Read(WHOLE, (U * 2 + 1,))),
        ("reads", Read(part(U * 2 + 1, 3), (it(1, 3),))),
        ("reads", Read(part(U * 2 + 1, 3), (it(0, 4),))),
        ("reads", Read(Scope((3,), (), Read(leaf("t", 9, dtype="int32"), (U,))), (U,))),
        ("inverse", Read(part(U * 2, 3), (U,))),
        ("inverse", Read(part(U * 2 + 1, 3), (U * -1 + 2,))),
        ("inverse", Read(Scope((3,), (), Read(leaf("s", 9), (U * 2 + 1,))), (U,))),
        ("outside", Read(part(it(0, 2) * 2 + 1, 2), (U,))),
    ],
)
def test_a_condition_that_fails_is_named(condition: str, by: Read) -> None:
    with pytest.raises(LawError) as refused:
        uninline(over(Call("exp", (READ,))), Uninline(READ, by))
    assert (refused.value.law, refused.value.condition) == ("inline", condition)


@pytest.mark.parametrize("body", [READ, Prod((READ, READ)), Call("exp", (Sum((READ, READ)),))])
@pytest.mark.parametrize(
    "by", [Read(part(U * 2 + 1, 3), (U,)), Read(part(it(0, 6), 6), (U * 2 + 1,))]
)
def test_every_occurrence_is_replaced(body: Scalar, by: Read) -> None:
    answer = uninline(over(body), Uninline(READ, by))
    assert {read.tensor for read in reads(answer.body)} != {WHOLE}
    assert WHOLE not in {read.tensor for read in reads(answer.body)}
    assert_one_value(over(body), answer)


def test_what_is_read_outside_stays_what_it_was() -> None:
    window = Read(WHOLE, (it(0, 3) + it(1, 2) - 1,), -INF)
    scope = Scope((3,), (2,), window, "max")
    answer = uninline(scope, Uninline(window, Read(part(it(0, 3), 3), window.index, -INF)))
    assert_one_value(scope, answer)
    with pytest.raises(LawError):
        uninline(scope, Uninline(window, Read(part(it(0, 3), 3), window.index, 0.0)))
