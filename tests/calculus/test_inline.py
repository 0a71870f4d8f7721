"""The law `inline`: a read becomes the body of the scope that it reads. With directed tests at the
edges of its conditions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eqsynth.calculus.inline import Inline, inline
from eqsynth.errors import LawError
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, reads
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.testing.choices import chance
from eqsynth.testing.expansion_samples import EXPANSIONS
from eqsynth.testing.families import FAMILIES
from eqsynth.testing.scope_samples import any_scope, iterators, nested, read_of, reduced_twice
from eqsynth.testing.world import World
from tests.calculus.proposals import assert_one_value, never_wrong
from tests.terms import INF, it, leaf
from tests.turns import by_turns


def whole(tensor: Tensor) -> Scope:
    """The tensor as a scope: itself, or a scope that reads all of its elements."""
    if isinstance(tensor, Scope):
        return tensor
    own = tuple(it(slot, extent) for slot, extent in enumerate(tensor.shape))
    return Scope(tensor.shape, (), Read(tensor, own))


def propose(world: World, scope: Scope) -> Inline:
    """Propose a read of the scope, or one that doesn't occur; with the scope that it reads, or one
    of another type."""
    found = list(reads(scope.body))
    tensor = world.choices.pick(found).tensor if found else leaf("z", 2)
    if not found or chance(world.choices, 8):
        tensor = tensor if not chance(world.choices, 2) else leaf("z", 2)
        return Inline(read_of(world, tensor, iterators(scope.extents), (0.0, 1.5)), whole(tensor))
    read = world.choices.pick(found)
    if chance(world.choices, 8):
        other = any_scope(world)
        if isinstance(other, Scope) and other.type != read.tensor.type:
            return Inline(read, other)
    return Inline(read, whole(read.tensor), chance(world.choices, 2))


@by_turns
def test_whatever_is_inlined_is_equal(turn: int) -> None:
    # Without the scopes for expanded forms, which are of floats only, so that no sum wraps.
    others = (family for family in FAMILIES if family not in EXPANSIONS)
    families = (nested, nested, reduced_twice, *others)
    refused = ("reads", "type", "outside", "reduces", "wraps")
    never_wrong(inline, propose, families, given_back=25, refused=refused, examples=200, turn=turn)


X = Read(leaf("x", 4), (it(0, 4),))
BIAS = Read(leaf("bias", 1), (Index(0),))
SUMMED = Scope((4,), (2,), Prod((X, Read(leaf("w", 2), (it(1, 2),)))))
SUM = Read(SUMMED, (it(0, 4),))
U8 = Read(leaf("u", 4, dtype="uint8"), (it(0, 4),))
WRAPPED = Scope((4,), (), Sum((U8, U8)))
WRAPS = Read(WRAPPED, (it(0, 4),))
FAR = Read(leaf("f", 3), (it(0, 4),), INF)
# In range, so that its fill doesn't matter before it is read elsewhere.
NEAR = Read(leaf("n", 4), (it(0, 4),), INF)
FLAG = Read(leaf("p", 4, dtype="bool"), (it(0, 4),))
LONG = Read(leaf("i", 4, dtype="int64"), (it(0, 4),))


def reduced(dtype: str, reducer: str = "sum") -> Read:
    """A read of ``L[i<4] sum[k<2] t[i, k]``, or of a maximum."""
    body = Read(leaf(dtype, 4, 2, dtype=dtype), (it(0, 4), it(1, 2)))
    return Read(Scope((4,), (2,), body, reducer), (it(0, 4),))


def plain(body: Scalar) -> Read:
    return Read(Scope((4,), (), body), (it(0, 4),))


TWO, BYTE, EXP = plain(Num(2)), plain(U8), plain(Call("exp", (X,)))
LONGS, BYTES, COUNT = (reduced(dtype) for dtype in ("int64", "uint8", "bool"))
HIGHEST, HIGH_BYTE = (reduced(dtype, "max") for dtype in ("float32", "uint8"))
DOUBLE_LONG = plain(Sum((LONG, LONG)))


def beyond(inner: Scope, fill: float = 0.0) -> tuple[Scope, Inline]:
    """A scope that reads ``inner``, of one axis, one element beyond each end, and the step that
    inlines the read."""
    extent = inner.traversal[0] + 2
    read = Read(inner, (it(0, extent) - 1,), fill)
    return Scope((extent,), (), read), Inline(read, inner)


def bounded(inner: Scope, fill: float = 0.0) -> tuple[Scope, Inline]:
    """The same, with ones that bound the inner body."""
    scope, step = beyond(inner, fill)
    return scope, replace(step, bounded=True)


def broadcast_beyond(factor: Scalar) -> tuple[Scope, Inline]:
    """``sum_k factor * {L_{i,j} x[i]}[i - 1, i + k - 1]``: a window with padding, over what
    broadcasts."""
    inner = Scope((4, 3), (), X)
    read = Read(inner, (it(0, 6) - 1, it(0, 6) + it(1, 3) - 1))
    return Scope((6,), (3,), Prod((factor, read))), Inline(read, inner, bounded=True)


def beyond_both(second: Index) -> tuple[Scope, Inline]:
    """A scope that reads ``L[a<2, b<2] x[a] * y[second]`` one element beyond both axes."""
    factors = Read(leaf("a", 2), (it(0, 2),)), Read(leaf("b", 2), (second,))
    inner = Scope((2, 2), (), Prod(factors))
    read = Read(inner, (it(0, 3), it(1, 3)))
    return Scope((3, 3), (), read), Inline(read, inner)


def on_diagonal(*extents: int) -> tuple[Scope, Inline]:
    """A scope of these extents that reads ``L[a<2, b<2] x[a - b]``, x of one element. That is zero
    if either index is 2, but for both it is x[0] again."""
    inner = Scope((2, 2), (), Read(leaf("one", 1), (it(0, 2) - it(1, 2),)))
    read = Read(inner, tuple(it(n, extent) for n, extent in enumerate(extents)))
    return Scope(extents, (), read), Inline(read, inner)


def over(body: Scalar, read: Read, reducer: str = "sum", reduced: int = 0) -> tuple[Scope, Inline]:
    assert isinstance(read.tensor, Scope)
    extents = ((), (4,)) if reduced else ((4,), ())
    return Scope(*extents, body, reducer), Inline(read, read.tensor)


@pytest.mark.parametrize(
    ("condition", "case"),
    [
        ("reads", (Scope((4,), (), X), Inline(SUM, SUMMED))),
        ("reads", (Scope((4,), (), X), Inline(Read(X.tensor, X.index, 1.0), whole(X.tensor)))),
        ("type", (Scope((4,), (), X), Inline(X, Scope((5,), (), BIAS)))),
        ("type", (Scope((4,), (), X), Inline(X, Scope((4,), (), Cast("float64", X))))),
        ("outside", beyond(Scope((4,), (), Sum((X, BIAS))))),
        ("outside", beyond(Scope((4,), (), Call("exp", (X,))))),
        ("outside", beyond(Scope((4,), (), X), 1.5)),
        ("outside", beyond(Scope((4,), (), Prod((X, FAR))))),
        ("outside", beyond(Scope((4,), (2,), Read(leaf("m", 6), (it(0, 4) + it(1, 2),)), "max"))),
        ("outside", beyond(Scope((4,), (), Prod((X, NEAR))))),
        # x of 6 elements is read beyond the end of the scope; x[i + 1] is read before its begin.
        ("outside", beyond(Scope((4,), (), Read(leaf("x", 6), (it(0, 4),))))),
        ("outside", beyond(Scope((4,), (), Read(leaf("x", 5), (it(0, 4) + 1,))))),
        # A product of two is 1.5 * 1.5 outside, and a sum of two is 1.5 + 1.5.
        *(("outside", beyond(Scope((4,), (2,), Read(leaf("m", 4, 2), (it(0, 4), it(1, 2)), 1.5), r),
                             1.5)) for r in ("prod", "sum")),
        ("outside", beyond(Scope((4,), (), Prod((X, Num(INF)))))),
        ("outside", beyond(Scope((4,), (), Num(2)))),
        ("outside", on_diagonal(3, 3)),
        ("outside", beyond_both(it(0, 2) - it(1, 2))),
        # A fill that isn't 0, what isn't finite outside, what isn't a product, and integers.
        ("outside", bounded(Scope((4,), (), Prod((BIAS, BIAS))), 1.5)),
        ("outside", bounded(Scope((4,), (), Prod((BIAS, NEAR))))),
        ("outside", bounded(Scope((4,), (), Read(leaf("x", 1), (Index(0),), INF)))),
        ("outside", bounded(Scope((4,), (), Sum((X, BIAS))))),
        ("outside", bounded(Scope((4,), (), Call("exp", (BIAS,))))),
        ("outside", bounded(Scope((4,), (), Read(leaf("u", 1, dtype="uint8"), (Index(0),))))),
        ("reduces", over(Call("relu", (SUM,)), SUM)),
        ("reduces", over(Sum((SUM, BIAS)), SUM)),
        ("reduces", over(SUM, SUM, "max", 4)),
        ("reduces", over(Prod((SUM, FAR)), SUM)),
        ("reduces", over(Prod((HIGHEST, BIAS)), HIGHEST)),
        ("reduces", over(HIGHEST, HIGHEST, "min", 4)),
        ("reduces", over(HIGHEST, HIGHEST, "sum", 4)),
        ("reduces", over(Prod((SUM, BIAS)), SUM, "max", 4)),
        ("wraps", over(Sum((WRAPS, X)), WRAPS)),
        ("wraps", over(Cast("uint8", Sum((WRAPS, Num(0.5)))), WRAPS)),
        # 255 + 2.0 is 257, and 255 + 2 is 1; a sum of bools is counted in int64.
        ("wraps", over(Sum((TWO, U8)), TWO)),
        ("wraps", over(COUNT, COUNT)),
        # 4 * 2^62 is 0 in int64, and 2^62 * x + 2^62 * x + 2^62 * x + 2^62 * x isn't.
        ("wraps", over(Prod((LONGS, X)), LONGS)),
        ("wraps", over(Prod((BYTES, LONG)), BYTES)),
    ],
)  # fmt: skip
def test_a_condition_that_fails_is_named(condition: str, case: tuple[Scope, Inline]) -> None:
    with pytest.raises(LawError) as refused:
        inline(*case)
    assert (refused.value.law, refused.value.condition) == ("inline", condition)


@pytest.mark.parametrize(
    "case",
    [
        beyond(Scope((4,), (), Prod((X, BIAS)))),
        beyond(SUMMED),
        bounded(Scope((4,), (), BIAS)),
        bounded(Scope((4,), (2,), Prod((BIAS, Read(leaf("w", 2), (it(1, 2),)))))),
        bounded(Scope((4,), (), Prod((X, BIAS)))),
        broadcast_beyond(Read(leaf("w", 3), (it(1, 3),))),
        on_diagonal(3, 2),
        on_diagonal(2, 3),
        beyond(Scope((4,), (), Read(leaf("x", 4), (it(0, 4),), 1.5)), 1.5),
        over(Prod((SUM, SUM)), SUM),
        over(Prod((SUM, BIAS)), SUM, "sum", 4),
        over(Sum((WRAPS, U8)), WRAPS),
        beyond_both(it(1, 2)),
        over(HIGHEST, HIGHEST),
        over(HIGHEST, HIGHEST, "max", 4),
        over(EXP, EXP, "max", 4),
        over(Prod((Call("relu", (EXP,)), X)), EXP),
        over(Sum((TWO, X)), TWO),
        over(Prod((LONGS, LONG)), LONGS),
        over(Prod((BYTES, FLAG)), BYTES),
        over(Sum((DOUBLE_LONG, X)), DOUBLE_LONG),
        over(Prod((SUM, LONG)), SUM),
        over(Prod((SUM, Read(leaf("d", 4, dtype="float64"), (it(0, 4),)))), SUM),
        over(HIGH_BYTE, HIGH_BYTE),
        over(Sum((BYTE, X)), BYTE),
    ],
)
def test_one_step_before_the_edge_it_is_equal(case: tuple[Scope, Inline]) -> None:
    answer = inline(*case)
    assert answer != case[0]
    assert_one_value(case[0], answer)
