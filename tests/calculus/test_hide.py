"""The law `hide`: scores under a known mask, in whichever form, are a choice by one condition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from eqsynth.calculus.deriving import derive
from eqsynth.calculus.restrict import Hide, Mask, hide
from eqsynth.errors import LawError
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value, reads, rewrite_leaves
from eqsynth.ir.scopes import reduction_iterators, same_scope
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.ir.types import MOST
from eqsynth.testing.mask_samples import masked_weights
from eqsynth.testing.world import World
from tests.calculus.proposals import assert_one_value, never_wrong
from tests.calculus.test_restrict import mask_of
from tests.terms import INF, it, leaf, op
from tests.turns import by_turns


def softmax_of(scope: Scope) -> tuple[Read, Op, Scope]:
    read = next(read for read in reads(scope.body) if isinstance(read.tensor, Op))
    assert isinstance(read.tensor, Op) and isinstance(read.tensor.args[0], Scope)
    return read, read.tensor, read.tensor.args[0]


def inside(scope: Scope, given: Hide) -> Scope:
    """The scope with the law applied to the softmax that it reads."""
    read, softmax, _ = softmax_of(scope)
    other = hide(softmax, given)
    body = rewrite_leaves(
        scope.body, lambda leaf: replace(read, tensor=other) if leaf == read else leaf
    )
    return same_scope(scope, body, reduction_iterators(scope))


def condition(world: World, scope: Scope) -> Hide:
    """Propose the mask, and where it hides nothing, or the same place moved, as the condition."""
    _, _, scores = softmax_of(scope)
    mask = mask_of(world, scores.body)
    row, key = (it(axis, extent) for axis, extent in enumerate(scores.shape))
    at = tuple(index + world.choices.pick((0, 0, 0, 1)) for index in mask.read.index)
    seen, below = Read(mask.holds, at), Call("le", (Value(key), Value(row)))
    shows = world.choices.pick((seen, seen, Call("not", (seen,)), below))
    return Hide(scores, mask, Scope(scores.shape, (), shows))


@by_turns
def test_what_is_hidden_is_hidden_by_the_condition(turn: int) -> None:
    never_wrong(inside, condition, (masked_weights,), given_back=25,
                refused=("hides", "places", "rows"), examples=600, turn=turn)  # fmt: skip


# ---- the edges -----------------------------------------------------------------------------------

ROW, KEY = it(0, 4), it(1, 6)
LOW = -MOST["float32"]
BELOW = Call("le", (Value(KEY), Value(ROW)))
X = Read(leaf("x", 4, 6), (ROW, KEY))
CAUSAL = op("GreaterEqual", *(op("Iota", attrs=((4, 6), axis, "int64")) for axis in (0, 1)))


def known(body: Scalar) -> Read:
    return Read(Scope((4, 6), (), body), (ROW, KEY))


SEEN, LATER = known(BELOW), known(Call("not", (BELOW,)))
ONES = known(Cast("float32", BELOW))
ADDED = known(Call("where", (BELOW, Num(0), Num(-INF))))
LOWERED = known(Call("where", (BELOW, Num(0), Num(LOW))))
NONE_FIRST = known(Call("lt", (Value(KEY), Value(ROW))))
BANDED = known(Call("le", (Call("abs", (Value(KEY - ROW),)), Num(1))))
SEVERAL = known(Call("where", (BELOW, Value(KEY), Num(-INF))))
PADDED = Read(leaf("x", 4, 6), (ROW, KEY + 1), INF)
DATA = Read(Scope((4, 6), (), Call("lt", (X, Num(0)))), (ROW, KEY))


def where(seen: Read, shown: Scalar = X, least: float = -INF) -> Scalar:
    return Call("where", (seen, shown, Num(least)))


def asked(body: Scalar, mask: Read, hides: float, shows: Tensor = CAUSAL, **changed: Any) -> Any:
    """The softmax of some scores, and the arguments of the law."""
    scores = changed.pop("scores", Scope((4, 6), (), body))
    holds = mask.tensor
    assert isinstance(holds, Scope)
    return Op("Softmax", (scores,), (changed.pop("axis", 1),)), Hide(
        scores, Mask(mask, holds, hides), shows
    )


@pytest.mark.parametrize(
    ("body", "mask", "hides"),
    [
        (where(SEEN), SEEN, 0.0),
        (Call("where", (LATER, Num(-INF), X)), LATER, 1.0),
        (Call("where", (Call("eq", (ONES, Num(0))), Num(-INF), X)), ONES, 0.0),
        (Sum((X, ADDED)), ADDED, -INF),
        (Sum((Prod((Num(0.5), X)), ADDED)), ADDED, -INF),
        (where(SEEN, least=LOW), SEEN, 0.0),
        (Sum((X, LOWERED)), LOWERED, LOW),
        # A row that is hidden whole is NaN on both sides.
        (where(NONE_FIRST), NONE_FIRST, 0.0),
    ],
)
def test_a_mask_in_any_form_is_a_choice(body: Scalar, mask: Read, hides: float) -> None:
    shows = CAUSAL if mask != NONE_FIRST else mask.tensor
    softmax, given = asked(body, mask, hides, shows)
    answer = derive(softmax, (given,))
    assert isinstance(answer, Op) and isinstance(answer.args[0], Op)
    chosen = answer.args[0]
    assert chosen.name == "Where" and chosen.args[0] == shows
    assert chosen.args[1] == leaf("x", 4, 6) or isinstance(body, Sum)
    if mask != NONE_FIRST:
        assert_one_value(softmax, answer)


ELSEWHERE = op("GreaterEqual", *(op("Iota", attrs=((4, 6), axis, "int64")) for axis in (1, 0)))
SMALL = op("GreaterEqual", *(op("Iota", attrs=((4, 5), axis, "int64")) for axis in (0, 1)))
COUNTED = op("Iota", attrs=((4, 6), 0, "int64"))
SQUARE = Scope((4, 6), (2,), X)
HALVED = Read(Scope((4, 3), (), Call("le", (Value(it(1, 3)), Value(ROW)))), (ROW, KEY // 2))
BEFORE = Read(SEEN.tensor, (ROW, KEY - 1))


@pytest.mark.parametrize(
    ("condition", "softmax", "given"),
    [
        ("softmax", op("Relu", Scope((4, 6), (), where(SEEN))), asked(where(SEEN), SEEN, 0.0)[1]),
        ("softmax", op("Softmax", leaf("x", 4, 5), attrs=(1,)), asked(where(SEEN), SEEN, 0.0)[1]),
        ("softmax", *asked(where(SEEN), SEEN, 0.0, scores=SQUARE)),
        ("mask", *asked(where(DATA), DATA, 0.0)),
        ("mask", *asked(where(BEFORE), BEFORE, 0.0)),
        ("mask", *asked(Sum((X, SEVERAL)), SEVERAL, -INF)),
        ("hides", *asked(where(SEEN, least=-1e4), SEEN, 0.0)),
        ("hides", *asked(where(SEEN), SEEN, 1.0)),
        ("places", *asked(where(BANDED), BANDED, 0.0)),
        ("places", *asked(where(HALVED), HALVED, 0.0)),
        ("places", *asked(where(SEEN), SEEN, 0.0, ELSEWHERE)),
        ("places", *asked(where(SEEN), SEEN, 0.0, SMALL)),
        ("places", *asked(where(SEEN), SEEN, 0.0, COUNTED)),
        ("places", *asked(where(SEEN), SEEN, 0.0, leaf("m", 4, 6, dtype="bool"))),
        ("rows", *asked(where(NONE_FIRST, least=LOW), NONE_FIRST, 0.0, NONE_FIRST.tensor)),
        ("rows", *asked(where(SEEN, least=LOW), SEEN, 0.0, axis=0)),
        ("finite", *asked(where(SEEN, PADDED, LOW), SEEN, 0.0)),
        ("shown", *asked(Call("where", (SEEN, Prod((X, Cast("float32", SEEN))), Num(-INF))),
                         SEEN, 0.0)),
    ],
)  # fmt: skip
def test_a_condition_that_fails_is_named(condition: str, softmax: Op, given: Hide) -> None:
    with pytest.raises(LawError) as refused:
        hide(softmax, given)
    assert (refused.value.law, refused.value.condition) == ("restrict", condition)


def test_a_condition_may_be_along_the_last_axes() -> None:
    b, row, key = it(0, 2), it(1, 4), it(2, 6)
    seen = Read(SEEN.tensor, (row, key))
    x = Read(leaf("x", 2, 4, 6), (b, row, key))
    scores = Scope((2, 4, 6), (), Call("where", (seen, x, Num(-INF))))
    softmax = Op("Softmax", (scores,), (2,))
    assert isinstance(seen.tensor, Scope)
    answer = hide(softmax, Hide(scores, Mask(seen, seen.tensor, 0.0), CAUSAL))
    assert_one_value(softmax, answer)
    by_batch = Read(Scope((2, 6), (), Call("le", (Value(it(1, 6)), Value(it(0, 2))))), (b, key))
    other = Scope((2, 4, 6), (), Call("where", (by_batch, x, Num(-INF))))
    assert isinstance(by_batch.tensor, Scope)
    given = Hide(other, Mask(by_batch, by_batch.tensor, 0.0), CAUSAL)
    with pytest.raises(LawError):
        hide(Op("Softmax", (other,), (2,)), given)
