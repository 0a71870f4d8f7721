"""The law `unclip`: no ReLU of what is never negative. With directed tests at the edges of its
conditions."""

from __future__ import annotations

import pytest

from eqsynth.calculus.sign import Unclip, never_negative, unclip
from eqsynth.errors import LawError
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    composites,
    reads,
    rebuild,
)
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.testing.choices import chance
from eqsynth.testing.scope_samples import any_scope
from eqsynth.testing.world import World
from tests.calculus.proposals import assert_one_value, never_wrong, polynomial
from tests.terms import INF, it, leaf
from tests.turns import by_turns

I = it(0, 4)  # noqa: E741


def squared(part: Scalar, world: World) -> Scalar:
    """The part, or what is seldom negative of it."""
    kind = world.choices.pick(("itself", "square", "exp", "abs", "max", "where", "cube"))
    match kind:
        case "square" | "cube":
            return Prod((part,) * (2 if kind == "square" else 3))
        case "exp" | "abs":
            return Call(kind, (part,))
        case "max":
            return Call("max", (part, Num(world.choices.pick((0.0, -1.0)))))
        case "where":
            return Call("where", (Call("lt", (part, Num(0.0))), Num(1.0), part))
    return part


def clipped(world: World) -> Scope:
    """A random scope whose body is a ReLU or an absolute value, or has one; some of what it reads
    are scopes of squares and the like."""
    pick = world.choices.pick
    inner = pick((any_scope, polynomial))(world)
    assert isinstance(inner, Scope)
    body = squared(inner.body, world)
    made = Scope(inner.traversal, inner.reduction, body, pick(("sum", "max", "min", inner.reducer)))
    its = [Index.iterator(n, extent) for n, extent in enumerate(made.traversal)]
    at = tuple(index - chance(world.choices, 5) for index in its)
    read: Scalar = Read(made, at, pick((0.0, 0.0, 1.0, -1.0, INF)))
    arg = pick((read, body if not made.reduction else read, Sum((read, Num(0.5)))))
    part: Scalar = Call(pick(("relu", "abs")), (arg,))
    return Scope(made.traversal, (), Prod((part, read)) if chance(world.choices, 3) else part)


def propose(world: World, scope: Scope) -> Unclip:
    pick = world.choices.pick
    parts = [part for part in composites(scope.body) if isinstance(part, Call)]
    tensors = {read.tensor for read in reads(scope.body)}
    known = [(tensor, tensor) for tensor in tensors if isinstance(tensor, Scope)]
    return Unclip(pick(parts), tuple(known))


@by_turns
def test_what_is_never_negative_is_its_own_relu(turn: int) -> None:
    never_wrong(unclip, propose, (clipped,), given_back=25, refused=("part", "sign"), examples=400,
                turn=turn)  # fmt: skip


X, Y = (Read(leaf(name, 4), (I,)) for name in "xy")
B, N = (Read(leaf(dtype, 4, dtype=dtype), (I,)) for dtype in ("bool", "int32"))
SQUARE = Prod((X, X))
T = leaf("t", 4)
Known = tuple[tuple[Tensor, Scope | float], ...]
SUMS: Known = ((T, Scope((4,), (3,), Prod((X, X)))),)


def read_of(tensor: Tensor, fill: float = 0.0, at: Index = I) -> Read:
    return Read(tensor, (at,), fill)


def relu(part: Scalar) -> Scope:
    return Scope((4,), (), Call("relu", (part,)))


EMPTY: Known = ((T, Scope((4,), (0,), Prod((X, X)), "max")),)
ITSELF: Known = ((T, Scope((4,), (), read_of(T))),)
U = leaf("u", 4)
CIRCLE: Known = ((T, Scope((4,), (), read_of(U))), (U, Scope((4,), (), read_of(T))))


@pytest.mark.parametrize(
    ("condition", "part", "known"),
    [
        ("sign", X, ()),
        ("sign", Sum((SQUARE, X)), ()),
        ("sign", Sum((SQUARE, Num(-1e-9))), ()),
        ("sign", Prod((X, X, X)), ()),
        ("sign", Prod((X, Y)), ()),
        ("sign", Prod((Num(-1.0), SQUARE)), ()),
        ("sign", Call("max", (X, Y)), ()),
        ("sign", Call("min", (SQUARE, X)), ()),
        ("sign", Call("tanh", (SQUARE,)), ()),
        ("sign", Call("where", (B, SQUARE, X)), ()),
        ("sign", Cast("float32", Sum((Value(I), Num(1.0)))), ()),
        ("sign", Cast("float32", Value(I - 1)), ()),
        # The product of integers comes round: 65536 * 65536 is 0, and 46341 * 46341 is negative.
        ("sign", Cast("float32", Prod((N, N))), ()),
        ("sign", Cast("float32", Call("abs", (N,))), ()),
        ("dtype", Prod((N, N)), ()),
        ("dtype", B, ()),
        ("dtype", Num(1.0), ()),
        ("sign", read_of(T), ()),
        ("sign", read_of(T), ((T, -1.0),)),
        ("sign", read_of(T, -1.0, I - 1), ((T, 1.0),)),
        ("sign", read_of(T, -INF, I - 1), SUMS),
        ("sign", read_of(T), EMPTY),
        ("sign", read_of(T), ITSELF),
        ("sign", read_of(T), CIRCLE),
        ("sign", read_of(T), ((T, Scope((4,), (3,), X)),)),
    ],
)
def test_what_may_be_negative_is_refused(condition: str, part: Scalar, known: Known) -> None:
    with pytest.raises(LawError) as refused:
        unclip(relu(part), Unclip(Call("relu", (part,)), known))
    assert (refused.value.law, refused.value.condition) == ("sign", condition)


@pytest.mark.parametrize("part", [Call("tanh", (SQUARE,)), Call("relu", (SQUARE,))])
def test_only_a_part_that_clips_and_stands_there_goes(part: Call) -> None:
    scope = Scope((4,), (), Call("relu", (Call("exp", (X,)),)))
    with pytest.raises(LawError) as refused:
        unclip(scope, Unclip(part))
    assert refused.value.condition == "part"


@pytest.mark.parametrize(
    ("part", "known"),
    [
        (SQUARE, ()),
        (Sum((SQUARE, Num(0.5), Call("exp", (X,)))), ()),
        (Prod((X, X, Call("sigmoid", (Y,)))), ()),
        (Call("max", (X, Num(0.5))), ()),
        (Call("min", (SQUARE, Call("abs", (Y,)))), ()),
        (Call("where", (B, SQUARE, Num(2.0))), ()),
        (Call("sqrt", (Call("relu", (X,)),)), ()),
        (Cast("float32", Value(I)), ()),
        (Cast("float32", B), ()),
        (Sum((Cast("float32", Call("lt", (X, Y))), SQUARE)), ()),
        (read_of(T, 2.0, I - 1), ((T, 0.0),)),
        (read_of(T, 0.0, I + 1), SUMS),
        (read_of(U), ((U, Scope((4,), (), Call("min", (read_of(T), SQUARE)))), *SUMS)),
    ],
)
def test_what_is_never_negative_stays_as_it_is(part: Scalar, known: Known) -> None:
    for clip in ("relu", "abs"):
        scope = Scope((4,), (), Prod((Call(clip, (part,)), Num(-2.0))))
        answer = unclip(scope, Unclip(Call(clip, (part,)), known))
        assert not [p for p in composites(answer.body) if p == Call(clip, (part,))]
        if not known:
            assert_one_value(scope, answer)


def test_each_known_tensor_is_judged_by_what_it_equals() -> None:
    reading = rebuild(SQUARE, [read_of(T), read_of(T)])
    assert never_negative(reading, {}) and not never_negative(read_of(T), {})
    assert never_negative(read_of(T), {T: 0.0}) and not never_negative(read_of(T), {T: -0.5})
