"""The law `restrict`: scores that a mask hides aren't computed. With directed tests at the edges of
its conditions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from eqsynth.calculus.restrict import (
    Mask,
    Reach,
    Restrict,
    guarded,
    known_where,
    reach,
    restrict,
    stays_finite,
)
from eqsynth.errors import LawError
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value, composites, reads
from eqsynth.ir.scopes import renumber
from eqsynth.ir.tensor import Op, Scope
from eqsynth.ir.types import MOST
from eqsynth.testing.mask_samples import guarded_rows, masked_reduction, masked_weights
from eqsynth.testing.world import World
from tests.calculus.proposals import assert_one_value, never_wrong
from tests.terms import INF, it, leaf
from tests.turns import by_turns


def mask_of(world: World, body: Scalar) -> Mask:
    """Propose a read in the body as the mask, if possible a read of a scope."""
    pick = world.choices.pick
    found = [read for read in reads(body) if isinstance(read.tensor, Scope)]
    read = pick(found or list(reads(body)))
    holds = read.tensor if isinstance(read.tensor, Scope) else Scope(read.tensor.shape, (), Num(0))
    return Mask(read, holds, pick((0.0, 1.0, 0.0, 1.0, -INF)))


def places(world: World, scope: Scope) -> Restrict:
    """Propose the weights that the scope reads, and a random range of places."""
    pick = world.choices.pick
    weights = next(read for read in reads(scope.body) if isinstance(read.tensor, Op | Scope))
    softmax = weights.tensor if isinstance(weights.tensor, Op) else None
    scores = softmax.args[0] if softmax else weights.tensor
    assert isinstance(scores, Scope)
    axis = 1 if softmax else pick((1, 0, 1))
    row = it(1 - axis, scores.traversal[1 - axis])
    start = pick((Index(0), row, row // 2 * 2, row // 3 * 3, row % 2, -row))
    start += pick((0, -1, -2, -4, 1))
    count = pick((1, 2, 3, 5, 9))
    mask = mask_of(world, scores.body)
    return Restrict(weights, softmax, axis, scores, mask, start, pick((1, 1, 2)), count)


def question(world: World, scope: Scope) -> Reach:
    (guard,) = (part for part in composites(scope.body) if guarded(part))
    asked = guarded(guard)
    assert asked and isinstance(asked.tensor, Scope) and isinstance(guard, Call)
    return Reach(guard, asked.tensor, mask_of(world, asked.tensor.body))


@by_turns
def test_whatever_is_left_out_counts_for_nothing(turn: int) -> None:
    never_wrong(restrict, places, (masked_weights, masked_reduction), given_back=40,
                refused=("hides", "places"), examples=1200, turn=turn)  # fmt: skip


@by_turns
def test_a_guard_that_goes_guarded_nothing(turn: int) -> None:
    never_wrong(reach, question, (guarded_rows,), given_back=20,
                refused=("rows", "finite"), examples=300, turn=turn)  # fmt: skip


# ---- the edges -----------------------------------------------------------------------------------

ROW, KEY = it(0, 6), it(1, 6)
APART = Value(KEY - ROW)
NEAR = Call("le", (Call("abs", (APART,)), Num(1)))
BAND = Scope((6, 6), (), NEAR)
SEEN = Read(BAND, (ROW, KEY))
X = Read(leaf("x", 6, 6), (ROW, KEY))
VALUES = Read(leaf("v", 6), (it(1, 6),))


def scores(body: Scalar) -> Scope:
    return Scope((6, 6), (), body)


MASKED = scores(Call("where", (SEEN, X, Num(-INF))))


def weighted(inner: Scope, *, at: Index = KEY, values: Scalar = VALUES, axis: int = 1) -> Scope:
    weights = Op("Softmax", (inner,), (axis,))
    return Scope((6,), (6,), Prod((Read(weights, (ROW, at)), values)))


def given(scope: Scope, **changed: Any) -> Restrict:
    weights = next(read for read in reads(scope.body) if isinstance(read.tensor, Op | Scope))
    softmax = weights.tensor if isinstance(weights.tensor, Op) else None
    inner, axis = (softmax.args[0], softmax.attrs[0]) if softmax else (weights.tensor, 1)
    assert isinstance(inner, Scope) and isinstance(axis, int)
    masks = [read for read in reads(inner.body) if isinstance(read.tensor, Scope)]
    mask = Mask(masks[0] if masks else SEEN, BAND, 0.0)
    whole = Restrict(weights, softmax, axis, inner, mask, ROW - 1, 1, 3)
    return replace(whole, **changed)


PLAIN = weighted(MASKED)


def test_a_band_is_summed_over_its_places() -> None:
    answer = restrict(PLAIN, given(PLAIN))
    assert answer.reduction == (3,)
    assert_one_value(PLAIN, answer)


def test_what_else_is_summed_stays_so() -> None:
    weights = Read(Op("Softmax", (MASKED,), (1,)), (ROW, KEY))
    scope = Scope((6,), (6, 2), Prod((weights, Read(leaf("w", 6, 2), (KEY, it(2, 2))))))
    answer = restrict(scope, given(scope))
    assert sorted(answer.reduction) == [2, 3]
    assert_one_value(scope, answer)


def reduced(body: Scalar, reducer: str = "sum", *others: Scalar) -> Scope:
    weights = Read(scores(body), (ROW, KEY))
    return Scope((6,), (6,), Prod((weights, *others)) if others else weights, reducer)


KEPT = Call("where", (SEEN, X, Num(0)))
SQUARE = reduced(Call("relu", (KEPT,)), "sum", VALUES)
SQUARE = replace(SQUARE, body=Prod((*reads(SQUARE.body), *list(reads(SQUARE.body))[:1])))


@pytest.mark.parametrize(
    "scope",
    [
        reduced(KEPT, "sum", VALUES),
        reduced(KEPT),
        reduced(Prod((Cast("float32", SEEN), X)), "sum", VALUES),
        reduced(Call("sigmoid", (Call("where", (SEEN, X, Num(-INF))),)), "sum", VALUES),
        SQUARE,
        reduced(Call("where", (SEEN, X, Num(-INF))), "max"),
        reduced(Call("where", (SEEN, X, Num(INF))), "min"),
        reduced(Call("where", (SEEN, X, Num(1))), "prod"),
    ],
)  # fmt: skip
def test_a_reduction_leaves_out_what_the_mask_hides(scope: Scope) -> None:
    answer = restrict(scope, given(scope))
    assert answer.reduction == (3,) and answer.reducer == scope.reducer
    assert all(read.tensor.shape != (6, 6) for read in reads(answer.body))
    assert_one_value(scope, answer)


LOW = Num(-MOST["float32"])


def lowest(seen: Scalar = SEEN, x: Scalar = X, least: Num = LOW) -> tuple[Scope, Restrict]:
    """Attention whose scores are the lowest number where ``seen`` is False."""
    scope = weighted(scores(Call("where", (seen, x, least))))
    assert isinstance(seen, Read) and isinstance(seen.tensor, Scope)
    return scope, given(scope, mask=Mask(seen, seen.tensor, 0.0))


# Each row sees a key; the row 0 of LATER sees none.
LATER = Read(Scope((6, 6), (), Call("lt", (Value(KEY), Value(ROW)))), (ROW, KEY))
HALF_FLOAT = Read(leaf("x", 6, 6, dtype="float16"), (ROW, KEY))
MASKED_LOW = Call("where", (SEEN, X, LOW))
# What is added to the lowest number at hidden places may be infinite.
LOW_OR_INF = Call("where", (SEEN, X, Sum((LOW, Read(leaf("x", 6, 6), (ROW, KEY - 1), INF)))))
PADDED = Call("where", (Call("lt", (X, Num(0))), X, LOW))


FINITE = weighted(scores(Call("where", (SEEN, X, Num(-1e30)))))
FAR = weighted(scores(Sum((Read(leaf("x", 6, 6), (ROW, KEY), INF),
                           Call("where", (SEEN, Num(0), Num(-INF)))))))  # fmt: skip
READS = Scope((6, 6), (), Call("lt", (X, Num(0))))
HALF = Scope((6, 3), (), Call("le", (Value(it(1, 3)), Num(1))))
HALVES = weighted(scores(Call("where", (Read(HALF, (ROW, KEY // 2)), X, Num(-INF)))))


def under(mask: Scope, *at: Index) -> tuple[Scope, Restrict]:
    """Attention under a mask that is read at other places, and the arguments for a band of it."""
    read = Read(mask, at)
    scope = weighted(scores(Call("where", (read, X, Num(-INF)))))
    return scope, given(scope, mask=Mask(read, mask, 0.0))


# Masks that are read at every second place, from a mask wider than the scores, at a place before.
WIDE = Scope((6, 8), (), Call("le", (Call("abs", (Value(it(1, 8) - ROW),)), Num(1))))
COLUMN = Scope((6,), (), Call("le", (Value(ROW), Num(1))))
NOTHING = Scope((6, 6), (), Call("lt", (Value(KEY), Num(0))))
TALL = Scope((7, 6), (), Call("le", (Call("abs", (Value(KEY - it(0, 7)),)), Num(1))))
TALLER = Scope((7, 6), (), Call("where", (Read(TALL, (it(0, 7), KEY)), Num(1), Num(-INF))))
SHIFTED = Scope((6,), (6,), Prod((Read(Op("Softmax", (MASKED,), (1,)), (ROW - 1, KEY), 1.0),
                                  VALUES)))  # fmt: skip
PARTLY = Scope((6,), (4,), Prod((Read(Op("Softmax", (MASKED,), (1,)), (ROW, it(1, 4))),
                                 Read(leaf("v", 4), (it(1, 4),)))))  # fmt: skip
SUMMED = weighted(Scope((6, 6), (2,), Sum((Read(leaf("x", 6, 6, 2), (ROW, KEY, it(2, 2))),
                                           Call("where", (SEEN, Num(0), Num(-INF)))))))  # fmt: skip
ALWAYS = weighted(scores(Num(-INF)))
LARGE = Scope((6,), (1 << 22,), COLUMN.body, "max")
FEW, MANY = it(1, 6), it(0, 1 << 22)
HUGE = Scope((1 << 22, 6), (), Call("where", (
    Read(COLUMN, (FEW,)), Read(leaf("x", 1 << 22, 6), (MANY, FEW)), Num(-INF))))  # fmt: skip
LONG = Scope((1 << 22,), (6,), Prod((Read(Op("Softmax", (HUGE,), (1,)), (MANY, FEW)), VALUES)))
# The scores that a mask hides aren't -inf: numbers take the dtype of bools beside them, and
# 1 / -0 is -inf.
WRAPPED = Sum((X, Call("log", (Sum((Call("min", (SEEN, Num(-1))), Num(1))),))))
TRUE = Sum((X, Call("log", (Call("max", (SEEN, Num(-1))),))))
FLOATS = Scope((6, 6), (), Cast("float32", NEAR))
FLOAT = Read(FLOATS, (ROW, KEY))
NEGATIVE = Sum((X, Call("reciprocal", (FLOAT,))))
SIGNED = Sum((X, Prod((Num(-1), Call("reciprocal", (Prod((Num(-1), FLOAT)),))))))


# Both axes of the weights are summed over.
BOTH = Scope((), (6, 6), Prod((Read(Op("Softmax", (MASKED,), (1,)), (ROW, KEY)), VALUES)))


@pytest.mark.parametrize(
    ("condition", "scope", "arguments"),
    [
        ("softmax", BOTH, given(BOTH, axis=0, start=KEY - 1)),
        ("product", Scope((6,), (6,), PLAIN.body, "max"), given(PLAIN)),
        ("product", weighted(MASKED, values=Read(leaf("v", 6), (KEY,), INF)),
         given(weighted(MASKED, values=Read(leaf("v", 6), (KEY,), INF)))),
        ("softmax", PLAIN, given(PLAIN, weights=X)),
        ("softmax", PLAIN, given(PLAIN, softmax=Op("Relu", (MASKED,)))),
        ("softmax", PLAIN, given(PLAIN, scores=Scope((6, 6, 1), (), X))),
        ("softmax", weighted(MASKED, axis=0), given(weighted(MASKED, axis=0))),
        ("softmax", weighted(MASKED, at=KEY - 1), given(weighted(MASKED, at=KEY - 1))),
        ("mask", PLAIN, given(PLAIN, mask=Mask(X, BAND, 0.0))),
        ("mask", PLAIN, given(PLAIN, mask=Mask(SEEN, READS, 0.0))),
        ("mask", HALVES, given(HALVES, mask=Mask(Read(HALF, (ROW, KEY // 2)), HALF, 0.0))),
        ("mask", PLAIN, given(PLAIN, mask=Mask(SEEN, BAND, -INF))),
        ("softmax", PLAIN, given(PLAIN, softmax=Op("Softmax", (TALLER,), (1,)), scores=TALLER,
                                 mask=Mask(Read(TALL, (it(0, 7), KEY)), TALL, 0.0),
                                 start=it(0, 7) - 1)),
        ("softmax", SHIFTED, given(SHIFTED)),
        ("softmax", PARTLY, given(PARTLY)),
        ("softmax", SUMMED, given(SUMMED)),
        ("mask", ALWAYS, given(ALWAYS)),
        ("mask", *under(BAND, ROW - 1, KEY)),
        ("mask", *under(BAND, ROW, KEY // 2)),
        ("mask", *under(BAND, ROW, ROW)),
        ("mask", *under(WIDE, ROW, KEY)),
        ("mask", PLAIN, given(PLAIN, mask=Mask(SEEN, TALL, 0.0))),
        ("mask", LONG, given(LONG, mask=Mask(Read(COLUMN, (FEW,)), LARGE, 0.0))),
        ("places", LONG, given(LONG, mask=Mask(Read(COLUMN, (FEW,)), COLUMN, 0.0), start=-MANY,
                               count=1 << 23)),
        ("places", PLAIN, given(PLAIN, start=-it(2, 6), count=20)),
        ("places", under(NOTHING, ROW, KEY)[0], replace(under(NOTHING, ROW, KEY)[1], count=0)),
        ("hides", weighted(scores(WRAPPED)), given(weighted(scores(WRAPPED)))),
        ("hides", weighted(scores(TRUE)), given(weighted(scores(TRUE)))),
        ("hides", weighted(scores(SIGNED)),
         given(weighted(scores(SIGNED)), mask=Mask(FLOAT, FLOATS, 0.0))),
        ("hides", weighted(scores(NEGATIVE)),
         given(weighted(scores(NEGATIVE)), mask=Mask(FLOAT, FLOATS, -0.0))),
        ("hides", PLAIN, given(PLAIN, mask=Mask(SEEN, BAND, 1.0))),
        # The reduction takes what is hidden for a value; a logarithm of a product may be infinite,
        # and 0 times it no number.
        ("hides", reduced(KEPT, "max"), given(reduced(KEPT, "max"))),
        ("hides", reduced(MASKED.body, "min"), given(reduced(MASKED.body, "min"))),
        ("hides", reduced(KEPT, "prod"), given(reduced(KEPT, "prod"))),
        ("hides", reduced(MASKED.body), given(reduced(MASKED.body))),
        ("hides", reduced(Prod((FLOAT, Call("log", (X,))))),
         given(reduced(Prod((FLOAT, Call("log", (X,))))), mask=Mask(FLOAT, FLOATS, 0.0))),
        ("hides", reduced(Prod((FLOAT, Read(leaf("x", 6, 6), (ROW, KEY - 1), INF)))),
         given(reduced(Prod((FLOAT, Read(leaf("x", 6, 6), (ROW, KEY - 1), INF)))),
               mask=Mask(FLOAT, FLOATS, 0.0))),
        ("product", reduced(KEPT, "max", VALUES), given(reduced(KEPT, "max", VALUES))),
        ("softmax", PLAIN, given(PLAIN, axis=0)),
        ("softmax", reduced(KEPT), given(reduced(KEPT), axis=0)),
        ("softmax", reduced(KEPT), given(reduced(KEPT), axis=2)),
        ("softmax", reduced(KEPT), given(reduced(KEPT), scores=scores(X), axis=-1)),
        ("hides", FINITE, given(FINITE)),
        # A row whose scores all are the lowest number has equal weights. So each must show a score
        # that is known to be larger.
        ("rows", *lowest(LATER)),
        ("finite", *lowest(x=PADDED)),
        ("finite", *lowest(x=Sum((X, Prod((Call("relu", (X,)), LOW)))))),
        ("hides", weighted(scores(LOW_OR_INF)), given(weighted(scores(LOW_OR_INF)))),
        ("hides", *lowest(x=HALF_FLOAT, least=Num(-MOST["float16"]))),
        ("hides", reduced(MASKED_LOW, "max"), given(reduced(MASKED_LOW, "max"))),
        ("hides", FAR, given(FAR)),
        ("places", PLAIN, given(PLAIN, step=0)),
        ("places", PLAIN, given(PLAIN, start=KEY)),
        ("places", PLAIN, given(PLAIN, start=it(2, 6))),
        ("places", PLAIN, given(PLAIN, count=2)),
        ("places", PLAIN, given(PLAIN, start=ROW)),
        ("places", PLAIN, given(PLAIN, step=2)),
    ],
)  # fmt: skip
def test_a_condition_that_fails_is_named(condition: str, scope: Scope, arguments: Restrict) -> None:
    with pytest.raises(LawError) as refused:
        restrict(scope, arguments)
    assert (refused.value.law, refused.value.condition) == ("restrict", condition)


WHOLE = Scope((6, 6), (), Cast("int64", NEAR))
ADDED = Scope((6, 6), (), Call("where", (NEAR, Num(0), Num(-INF))))
LEAST = Scope((6, 6), (), Cast("float32", Call("where", (NEAR, Num(0), LOW))))


@pytest.mark.parametrize(
    ("body", "mask", "hides"),
    [
        # A mask of floats or integers; a logarithm of it; numbers that are added to the scores; a
        # read that is infinite outside.
        (Call("where", (FLOAT, X, Num(-INF))), FLOATS, 0.0),
        (Sum((X, Call("log", (FLOAT,)))), FLOATS, 0.0),
        (Call("where", (Read(WHOLE, (ROW, KEY)), X, Num(-INF))), WHOLE, 0.0),
        (Sum((X, Read(ADDED, (ROW, KEY)))), ADDED, -INF),
        (Call("where", (SEEN, Read(leaf("x", 6, 6), (ROW, KEY - 1), INF), Num(-INF))), BAND, 0.0),
        (Call("where", (SEEN, X, Num(-INF))), BAND, 0.0),
        # The lowest number, in place of a score or added to it.
        (Call("where", (SEEN, X, LOW)), BAND, 0.0),
        (Sum((X, Call("where", (SEEN, Num(0), LOW)))), BAND, 0.0),
        (Sum((X, Num(1), Read(LEAST, (ROW, KEY)))), LEAST, LOW.value),
    ],
)  # fmt: skip
def test_scores_that_a_mask_hides(body: Scalar, mask: Scope, hides: float) -> None:
    scope = weighted(scores(body))
    answer = restrict(scope, given(scope, mask=Mask(Read(mask, (ROW, KEY)), mask, hides)))
    assert answer.reduction == (3,)
    assert_one_value(scope, answer)


# ---- guards --------------------------------------------------------------------------------------


def guarding(body: Scalar) -> tuple[Scope, Reach]:
    peak = Scope((6,), (6,), body, "max")
    hidden = Call("eq", (Num(-INF), Read(peak, (ROW,))))
    guard = Call("where", (hidden, Num(0), Read(leaf("y", 6), (ROW,))))
    masks = [read for read in reads(body) if isinstance(read.tensor, Scope)]
    mask = masks[0] if masks else SEEN
    assert isinstance(mask.tensor, Scope)
    return Scope((6,), (), guard), Reach(guard, peak, Mask(mask, mask.tensor, 0.0))


def test_a_guard_goes_where_each_row_sees_something() -> None:
    scope, arguments = guarding(MASKED.body)
    answer = reach(scope, arguments)
    assert isinstance(answer.body, Read)
    assert_one_value(scope, answer)


UNKNOWN = Read(READS, (ROW, KEY))


@pytest.mark.parametrize(
    ("condition", "body"),
    [
        ("rows", Call("where", (LATER, X, Num(-INF)))),
        ("mask", Call("where", (UNKNOWN, X, Num(-INF)))),
        ("finite", Call("where", (SEEN, Call("log", (X,)), Num(-INF)))),
        ("finite", Call("where", (SEEN, Read(leaf("x", 6, 6), (ROW, KEY), -INF), Num(-INF)))),
    ],
)
def test_a_guard_that_is_needed_stays(condition: str, body: Scalar) -> None:
    with pytest.raises(LawError) as refused:
        reach(*guarding(body))
    assert (refused.value.law, refused.value.condition) == ("restrict", condition)


PEAK = Scope((6,), (6,), MASKED.body, "max")
ASKED, ZERO = Read(PEAK, (ROW,)), Num(0)
REST = Read(leaf("y", 6), (ROW,))
FIRST = Read(COLUMN, (ROW,))
NONE = Scope((6,), (0,), Call("where", (FIRST, REST, Num(-INF))), "max")
BYTE, FLAG = (Read(leaf(dtype, 6, dtype=dtype), (ROW,)) for dtype in ("uint8", "bool"))


def asks(read: Scalar, number: float = -INF, *, no: Scalar = ZERO, yes: Scalar = REST) -> Call:
    return Call("where", (Call("eq", (Num(number), read)), no, yes))


@pytest.mark.parametrize(
    ("condition", "guard", "changed"),
    [
        ("guard", asks(ASKED), {"peak": Scope((6,), (6,), MASKED.body, "min")}),
        ("guard", asks(ASKED), {"peak": Scope((6, 1), (6,), renumber(MASKED.body, {0: 0, 1: 2}),
                                              "max")}),
        ("guard", asks(ASKED), {"guard": asks(ASKED, yes=Num(1))}),
        ("guard", asks(ASKED), {"guard": Call("relu", (REST,))}),
        ("guard", asks(ASKED, 0.0), {}),
        ("guard", asks(Call("exp", (ASKED,))), {}),
        ("guard", asks(Read(PEAK, (ROW - 1,), -INF)), {}),
        ("guard", asks(Read(NONE, (ROW,))), {"peak": NONE, "mask": Mask(FIRST, COLUMN, 0.0)}),
        # 400 as an int64 would become 144 as a uint8, and True or True would become 1 + 1.
        ("dtype", asks(ASKED, no=Value(ROW), yes=BYTE), {}),
        ("dtype", asks(ASKED, yes=Num(1)), {}),
    ],
)  # fmt: skip
def test_a_guard_of_something_else_stays(
    condition: str, guard: Call, changed: dict[str, Any]
) -> None:
    body = Cast("float32", Sum((guard, FLAG if guard.args[2] == Num(1) else BYTE)))
    arguments = Reach(guard, PEAK, Mask(SEEN, BAND, 0.0))
    with pytest.raises(LawError) as refused:
        reach(Scope((6,), (), body), replace(arguments, **changed))
    assert refused.value.condition == condition


def test_all_that_a_mask_shows_has_one_value() -> None:
    several = Scope((6, 6), (), Call("where", (NEAR, Value(APART.index), Num(-INF))))
    read = Read(several, (ROW, KEY))
    scope, arguments = guarding(Sum((X, read)))
    with pytest.raises(LawError) as refused:
        reach(scope, replace(arguments, mask=Mask(read, several, -INF)))
    assert refused.value.condition == "finite"


@pytest.mark.parametrize(
    ("body", "known", "finite"),
    [
        (Call("where", (SEEN, X, Num(-INF))), -INF, False),
        (Call("where", (Call("not", (SEEN,)), X, Num(-INF))), None, True),
        (Sum((X, Call("where", (SEEN, Num(0), Num(-INF))))), -INF, False),
        (Sum((Call("reciprocal", (X,)), Call("where", (SEEN, Num(0), Num(-INF))))), None, False),
        (Sum((Num(INF), Call("where", (SEEN, Num(0), Num(-INF))))), None, False),
        (Prod((X, Num(-INF))), None, False),
        (Call("div", (X, Num(2))), None, True),
        (Call("div", (X, Num(0))), None, False),
        (Call("where", (SEEN, X, Num(1000.5))), None, True),
        (Call("div", (X, Num(math.nan))), None, False),
        (Call("div", (Call("log", (X,)), Num(2))), None, False),
        (Call("where", (Call("eq", (Num(0.1), Num(0.1))), Num(-INF), X)), None, False),
        (Call("where", (Call("eq", (Num(101), Num(101))), Num(-INF), X)), None, False),
        (Call("where", (Call("eq", (Num(100), Num(100))), Num(-INF), X)), -INF, False),
        (Sum((X, Num(1))), None, True),
        (Call("tanh", (X,)), None, True),
        (Call("exp", (X,)), None, True),
        (Call("gelu", (X,)), None, True),
        (Call("log", (X,)), None, False),
        (Call("sqrt", (X,)), None, False),
        (Call("pow", (X, Num(-1))), None, False),
        (Cast("float32", X), None, False),
        (APART, None, True),
    ],
)
def test_what_a_body_is_where_a_mask_hides(body: Scalar, known: float | None, finite: bool) -> None:
    assert known_where(body, SEEN, 0.0) == known
    assert stays_finite(body, SEEN, 0.0) == finite
    assert known is None or math.isinf(known)


def test_a_body_of_known_parts_is_computed() -> None:
    seen = Cast("float32", SEEN)
    assert known_where(Sum((seen, Num(3))), SEEN, 1.0) == 4
    assert known_where(Prod((seen, Num(3))), SEEN, 1.0) == 3
