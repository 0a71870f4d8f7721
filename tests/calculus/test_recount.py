"""The laws `recount` and `cover`: a reduction over other iterators, a maximum over other places.
With directed tests at the edges of their conditions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eqsynth.calculus.deriving import Match, match
from eqsynth.calculus.recount import Count, Cover, Recount, cover, recount
from eqsynth.errors import LawError
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, product, reads
from eqsynth.ir.scopes import bare, reduction_iterators, traversal_iterators
from eqsynth.ir.tensor import Scope
from eqsynth.testing.algebra_samples import running
from eqsynth.testing.choices import Rejected, chance
from eqsynth.testing.families import FAMILIES
from eqsynth.testing.scope_samples import any_product, any_scope, windows
from eqsynth.testing.scope_samples import leaf as drawn
from eqsynth.testing.world import World
from tests.calculus.proposals import assert_one_value, never_wrong, polynomial
from tests.terms import INF, it, leaf
from tests.turns import by_turns


def propose(world: World, scope: Scope) -> Recount:
    """Propose two digits for an iterator, of any base and in either direction. Some overlap, leave
    gaps or go beyond the iterator."""
    pick = world.choices.pick
    counts = []
    slot = len(scope.extents) - chance(world.choices, 30)
    for old in reduction_iterators(scope):
        if chance(world.choices, 3):
            continue
        base = pick((1, 2, 3, 2, old.extent or 1))
        blocks = max(1, -(-old.extent // base) - chance(world.choices, 8))
        digits = It(slot, blocks), It(slot + 1, base)
        slot += 2
        step = base + (pick((1, -1)) if chance(world.choices, 4) else 0)
        value = bare(digits[0]) * step + bare(digits[1])
        if chance(world.choices, 4):
            value = value.range()[1] - value  # backward
        value = value + (pick((1, -1)) if chance(world.choices, 8) else 0)
        if scope.traversal and chance(world.choices, 4):
            # The lower digit is given by an iterator of the traversal (its phase).
            at = bare(pick(tuple(traversal_iterators(scope)))) * pick((1, -1)) + pick((0, 1))
            value, digits = bare(digits[0]) * step + at % base, digits[:1]
        counts.append(Count(old, value, digits[: 1 if chance(world.choices, 20) else 2]))
    return Recount(tuple(counts))


@by_turns
def test_whatever_is_recounted_is_equal(turn: int) -> None:
    families = (*[polynomial] * 5, *[any_product] * 10, any_scope, windows, *FAMILIES)
    refused = ("iterators", "values", "beyond")
    never_wrong(recount, propose, families, given_back=25, refused=refused, examples=300, turn=turn)


def propose_down(world: World, scope: Scope) -> Recount:
    """Propose to count an iterator down from an index at which a factor's read begins. Some counts
    end too early, or begin one place beside it."""
    pick, reduced = world.choices.pick, reduction_iterators(scope)
    if not reduced:
        raise Rejected("nothing is reduced")
    old = pick(reduced)
    ends = [index + bare(old) for read in reads(scope.body) for index in read.index
            if index.coefficient(old.slot) == -1]  # fmt: skip
    end = pick(ends) if ends else Index(old.extent - 1)
    end = end + (pick((1, -1)) if chance(world.choices, 6) else 0)
    new = It(len(scope.extents), max(1, end.range()[1] + 1 + pick((0, 0, 0, 1, -1))))
    return Recount((Count(old, end - bare(new), (new,)),))


@by_turns
def test_whatever_is_counted_down_is_equal(turn: int) -> None:
    never_wrong(recount, propose_down, (*[running] * 20, *FAMILIES), given_back=10,
                refused=("values", "beyond"), examples=300, turn=turn)  # fmt: skip


def propose_met(world: World, scope: Scope) -> Recount:
    """Propose to count an iterator by its sum with another one. Some counts leave out a value."""
    pick, reduced = world.choices.pick, reduction_iterators(scope)
    if len(reduced) < 2:
        raise Rejected("no two iterators are reduced")
    old, other = pick(((0, 1), (1, 0)))
    old, other = reduced[old], reduced[other]
    part = bare(other) * pick((1, 1, 2, -1)) + pick((0, 0, 0, 1))
    low, high = (bare(old) + part).range()
    new = It(len(scope.extents), max(1, high - low + 1 + pick((0, 0, 0, 1, -1))))
    return Recount((Count(old, bare(new) + low - part, (new,)),))


@by_turns
def test_whatever_is_counted_by_a_sum_is_equal(turn: int) -> None:
    families = (*[taps] * 20, *FAMILIES)
    never_wrong(recount, propose_met, families, given_back=40, refused=("values", "beyond"),
                examples=300, turn=turn)  # fmt: skip


def taps(world: World) -> Scope:
    """``[i] = sum_{k,l} x[i + k + l] w[k] v[l]``, or without one of the factors."""
    pick = world.choices.pick
    outer, inner = (pick((3, 2, 4)),), (pick((3, 2, 1)), pick((2, 3)))
    i, k, h = it(0, outer[0]), it(1, inner[0]), it(2, inner[1])
    at = i + k + h * pick((1, 1, 2))
    factors = [Read(drawn(world, (extent,), name), (index,)) for extent, index, name in (
        (at.range()[1] + 1, at, "x"), (inner[0] + chance(world.choices, 6), k, "w"),
        (inner[1], h, "v"))]  # fmt: skip
    return Scope(outer, inner, product(factors[chance(world.choices, 8):]))


K = It(1, 6)
Q, R = It(2, 3), It(3, 2)
Q4 = It(2, 4)
QR = bare(Q) * 2 + bare(R)


def over(body: Scalar, reducer: str = "sum") -> Scope:
    return Scope((4,), (6,), body, reducer)


X = Read(leaf("x", 9), (it(0, 4) + it(1, 6),))
W = Read(leaf("w", 6), (it(1, 6),))
ALL = Read(leaf("v", 9), (it(1, 6),))
# In range for k < 6, and infinite beyond.
FAR = Read(leaf("f", 6), (it(1, 6),), INF)

EIGHT = Scope((4,), (8,), Read(leaf("x", 11), (it(0, 4) + it(1, 8),)))
BITS = (It(2, 2), It(3, 2), It(4, 2))

# A convolution of a convolution: of the pairs (h, g) those with one sum read one place.
H, G, U = It(1, 2), It(2, 6), It(3, 7)
MET = Count(G, bare(U) - bare(H), (U,))
TAPS = (Read(leaf("u", 2), (bare(H),)), Read(leaf("x", 10), (it(0, 4) + bare(H) + bare(G),)))
W2, ALL2 = (Read(leaf("w", size), (bare(G),)) for size in (6, 9))
FAR2 = Read(leaf("f", 6), (bare(G),), INF)


def twice(*factors: Scalar) -> Scope:
    return canonical(Scope((4,), (2, 6), Prod((*TAPS, *factors))))


# A read in range only where 2 divides i + k, and a read in range only where k is i + 1.
EVEN = Read(leaf("x", 9), ((it(0, 4) + it(1, 6)) // 2 + (it(0, 4) + it(1, 6)) % 2 * 99,))
ONE = Read(leaf("one", 1), (it(1, 6) - it(0, 4) - 1,))


@pytest.mark.parametrize(
    ("condition", "scope", "count"),
    [
        ("iterators", over(X), Count(It(0, 4), QR, (Q, R))),
        ("iterators", over(X), Count(K, QR, (Q,))),
        ("iterators", over(X), Count(K, bare(It(1, 6)), (It(1, 6),))),
        ("iterators", over(X), Count(K, QR + bare(It(4, 2)), (Q, R))),
        ("iterators", over(X), Count(K, bare(It(2, 0)), (It(2, 0),))),
        # Eight values from 0 to 7, as of three binary digits, but 1 twice and 3 not at all.
        ("values", EIGHT, Count(It(1, 8), sum(map(bare, BITS[:2]), bare(BITS[2]) * 5), BITS)),
        ("values", over(X), Count(K, QR, (Q, R, It(4, 2)))),
        ("values", over(X), Count(K, QR + bare(Q) // 2, (Q, R))),
        ("values", over(Prod((EVEN, ALL))), Count(K, bare(Q) * 2 + (it(0, 4) + 1) % 2, (Q,))),
        # Beside the steps the read is 1.5 and not 0.
        ("values", over(Prod((replace(EVEN, fill=1.5), ALL))),
         Count(K, bare(Q) * 2 + it(0, 4) % 2, (Q,))),
        ("values", over(Call("exp", (EVEN,))), Count(K, bare(Q) * 2 + it(0, 4) % 2, (Q,))),
        ("values", over(EVEN, "max"), Count(K, bare(Q) * 2 + it(0, 4) % 2, (Q,))),
        ("beyond", over(Prod((EVEN, ALL))), Count(K, bare(Q4) * 2 + it(0, 4) % 2, (Q4,))),
        ("values", over(Prod((ONE, ALL))), Count(K, it(0, 4) + 2, ())),
        ("large", over(ALL), Count(K, bare(It(2, 1 << 23)), (It(2, 1 << 23),))),
        ("values", over(X), Count(K, bare(It(2, 2)) * 3 + bare(R), (It(2, 2), R))),
        ("values", over(X), Count(K, QR + 1, (Q, R))),
        ("values", over(X), Count(K, bare(It(2, 5)) + bare(R), (It(2, 5), R))),
        ("values", over(X), Count(K, bare(It(2, 5)), (It(2, 5),))),
        ("beyond", over(Prod((X, ALL))), Count(K, bare(It(2, 7)), (It(2, 7),))),
        ("beyond", over(Prod((W, FAR))), Count(K, bare(It(2, 7)), (It(2, 7),))),
        ("beyond", over(Call("exp", (W,))), Count(K, bare(It(2, 7)), (It(2, 7),))),
        ("beyond", over(W, "max"), Count(K, bare(It(2, 7)), (It(2, 7),))),
        # For h = 1 the sum u takes g = -1, and for h = 0 g = 6.
        ("beyond", twice(), MET),
        ("beyond", twice(ALL2), MET),
        ("beyond", replace(twice(FAR2), body=Prod((*TAPS, FAR2))), MET),
        # Six sums leave g = 5 out, for h = 1.
        ("values", twice(W2), Count(G, bare(It(3, 6)) - bare(H), (It(3, 6),))),
        ("values", twice(W2), Count(G, bare(U) - bare(H) * 2, (U,))),
    ],
)  # fmt: skip
def test_a_condition_that_fails_is_named(condition: str, scope: Scope, count: Count) -> None:
    with pytest.raises(LawError) as refused:
        recount(scope, Recount((count,)))
    assert (refused.value.law, refused.value.condition) == ("recount", condition)


EQUAL = [
    (over(X), Count(K, QR, (Q, R))),
    (over(Call("exp", (X,)), "prod"), Count(K, 5 - QR, (Q, R))),
    (over(X, "max"), Count(K, bare(It(2, 5)) + bare(R), (It(2, 5), R))),
    (over(Prod((X, W))), Count(K, bare(It(2, 4)) * 2 + bare(R) - 1, (It(2, 4), R))),
    (over(Prod((EVEN, ALL))), Count(K, bare(Q) * 2 + it(0, 4) % 2, (Q,))),
    (over(Prod((EVEN, W))), Count(K, bare(Q4) * 2 + it(0, 4) % 2, (Q4,))),
    (over(Prod((ONE, ALL))), Count(K, it(0, 4) + 1, ())),
    (twice(W2), MET),
    (twice(W2), Count(G, bare(It(3, 8)) - bare(H) * 2, (It(3, 8),))),
    (EIGHT, Count(It(1, 8), bare(BITS[0]) + bare(BITS[1]) * 2 + bare(BITS[2]) * 4, BITS)),
]


@pytest.mark.parametrize(("scope", "count"), EQUAL)
def test_one_step_before_the_edge_it_is_equal(scope: Scope, count: Count) -> None:
    answer = recount(scope, Recount((count,)))
    assert answer != scope
    assert_one_value(scope, answer)


@pytest.mark.parametrize(("scope", "count"), EQUAL)
def test_counts_are_taken_back_into_what_they_were_made_of(scope: Scope, count: Count) -> None:
    steps = (Recount((count,)),)
    apart = recount(scope, *steps)
    assert match(apart, Match(scope, (), steps)) == scope
    other = Scope(scope.traversal, scope.reduction, product([Num(2), scope.body]), scope.reducer)
    with pytest.raises(LawError) as refused:
        match(apart, Match(other, (), steps))
    assert (refused.value.law, refused.value.condition) == ("match", "match")


@pytest.mark.parametrize(("extent", "given"), [(1 << 19, True), (1 << 20, False)])
def test_a_zero_is_looked_for_in_so_many_places(extent: int, given: bool) -> None:
    """x[k + 6 * j] with x of six elements is zero for k = 6 at all j. Beyond LARGEST places, the
    law doesn't look."""
    scope = Scope((), (6, extent), Read(leaf("x", 6), (it(0, 6) + it(1, extent) * 6,)))
    further = Recount((Count(It(0, 6), bare(It(2, 7)), (It(2, 7),)),))
    if given:
        assert sorted(recount(scope, further).reduction) == [7, extent]
        return
    with pytest.raises(LawError) as refused:
        recount(scope, further)
    assert refused.value.condition == "beyond"


def test_what_is_zero_beyond_one_iterator_may_not_be_so_beyond_two() -> None:
    """x[k - h] with x of one element is zero for k = 2 and h < 2, and for h = 2 and k < 2, but at
    k = h = 2 it is in range again."""
    k, h = It(1, 2), It(2, 2)
    scope = Scope((4,), (2, 2), Read(leaf("x", 1), (bare(k) - bare(h),)))
    further = [Count(old, bare(It(n, 3)), (It(n, 3),)) for n, old in ((3, k), (4, h))]
    assert_one_value(scope, recount(scope, Recount((further[0],))))
    with pytest.raises(LawError) as refused:
        recount(scope, Recount(tuple(further)))
    assert refused.value.condition == "beyond"


def test_each_iterator_is_replaced_once_by_iterators_of_its_own() -> None:
    """Replaced twice, k would leave a new iterator that the body doesn't use: the sum would be 6
    times as large. With one new iterator for both k and h, only the diagonal would be summed."""
    k, h = It(1, 6), It(2, 6)
    scope = Scope((4,), (6, 6), Read(leaf("x", 6, 6), (bare(k), bare(h))))
    first, *rest = (Count(old, bare(It(n, 6)), (It(n, 6),)) for old, n in ((k, 3), (k, 4), (h, 3)))
    for other in rest:
        with pytest.raises(LawError) as refused:
            recount(scope, Recount((first, other)))
        assert refused.value.condition == "iterators"
    apart = Count(h, bare(It(4, 6)), (It(4, 6),))
    assert_one_value(scope, recount(scope, Recount((first, apart))))


def test_no_value_depends_on_an_iterator_that_is_replaced_as_well() -> None:
    """With g = u - h, and another iterator in the place of h, g would have no h to depend on."""
    for other in (Count(H, bare(It(4, 2)), (It(4, 2),)), Count(H, bare(It(4, 7)) - bare(G), ())):
        with pytest.raises(LawError) as refused:
            recount(twice(W2), Recount((MET, other)))
        assert refused.value.condition == "iterators"


def test_a_number_is_no_value_of_an_iterator_of_several() -> None:
    with pytest.raises(LawError):
        recount(over(X), Recount((Count(K, Index(0), ()),)))


# ---- other places ------------------------------------------------------------------------------

ROW, TAP = it(0, 4), it(1, 3)
AT = ROW + TAP - 1


def largest(
    *index: Index, shape: tuple[int, ...] = (4,), reducer: str = "max", fill: float = -INF,
    extents: tuple[int, ...] = (4,), dtype: str = "float32",
) -> Scope:  # fmt: skip
    return Scope(extents, (3,), Read(leaf("x", *shape, dtype=dtype), index, fill), reducer)


def propose_places(world: World, scope: Scope) -> Cover:
    """Propose the indices of the first read, each perhaps cut at a border, moved or mirrored."""
    pick, index = world.choices.pick, []
    read = next(iter(reads(scope.body)), None)
    for at, size in zip(read.index, read.tensor.shape, strict=True) if read else ():
        low, high = pick(((0, size - 1), (0, size - 1), (1, size - 1), (0, size)))
        changed = at.maximum(low).minimum(high)
        index.append(pick((at, changed, changed, size - 1 - at, at + 1)))
    return Cover(tuple(index))


@by_turns
def test_whatever_takes_other_places_is_equal(turn: int) -> None:
    never_wrong(cover, propose_places, (pooled,), given_back=12, refused=("values", "extremum"),
                examples=200, turn=turn)  # fmt: skip


def pooled(world: World) -> Scope:
    """A random maximum or minimum over windows of a tensor with one or two axes; now and then
    another reduction, or a body that computes."""
    pick, count = world.choices.pick, world.choices.pick((1, 2))
    outer, inner = (tuple(pick((3, 1, 2, 4)) for _ in range(count)) for _ in range(2))
    index, shape = [], []
    for axis in range(count):
        step, dilation, pad = pick((1, 2)), pick((1, 1, 2)), pick((0, 1, 2))
        at = it(axis, outer[axis]) * step + it(count + axis, inner[axis]) * dilation - pad
        index.append(at)
        shape.append(max(1, at.range()[1] + 1 - pick((0, 1, 2))))
    reducer = pick(("max", "max", "min", "sum"))
    fill = -INF if reducer == "max" else INF
    dtype = pick(("float32", "float32", "float32", "int32"))
    fill = 0.0 if dtype == "int32" or chance(world.choices, 10) else fill
    read = Read(drawn(world, shape, "a", dtype), tuple(index), fill)
    return Scope(outer, inner, Call("exp", (read,)) if chance(world.choices, 10) else read, reducer)


@pytest.mark.parametrize(
    ("condition", "scope", "index"),
    [
        ("extremum", largest(AT, reducer="sum", fill=0.0), [AT.maximum(0)]),
        # The fill counts: max(-1, 0) of a window that reaches over the border isn't -1.
        ("extremum", largest(AT, fill=0.0), [AT.maximum(0)]),
        ("extremum", largest(AT, reducer="min"), [AT.maximum(0)]),
        ("extremum", largest(AT, dtype="int32", fill=0.0), [AT.maximum(0)]),
        ("extremum", replace(largest(AT), body=Call("exp", (largest(AT).body,))), [AT.maximum(0)]),
        ("index", largest(AT), []),
        ("index", largest(AT), [AT, AT]),
        ("index", largest(AT), [ROW + it(2, 3) - 1]),
        # The first window takes the places 0 and 1 of 4, and not 2.
        ("values", largest(AT), [(AT + 1).minimum(3)]),
        ("values", largest(AT), [AT.maximum(1)]),
        ("values", largest(AT), [ROW]),
        # Windows with a gap: the first takes 0 and 2, the place at the border is none of theirs.
        ("values", largest(ROW + TAP * 2 - 1), [(ROW + TAP * 2 - 1).maximum(0)]),
        # A window that has no place inside has the value -inf.
        ("values", largest(ROW * 3 + TAP - 4, shape=(9,)), [(ROW * 3 + TAP - 4).maximum(0)]),
        # Two axes of one window: (0, 2), (1, 1), (2, 0) aren't (0, 0), (1, 1), (2, 2).
        ("values", largest(TAP, 2 - TAP, shape=(3, 3)), [TAP, TAP]),
        ("values", largest(TAP, TAP, shape=(3, 3)), [TAP, 2 - TAP]),
        # Along an axis without reduced iterators too.
        ("values", largest(ROW, TAP, shape=(4, 3)), [ROW.maximum(1), TAP]),
        ("large", largest(it(0, 1 << 21) + TAP, shape=(1 << 21,), extents=(1 << 21,)),
         [(it(0, 1 << 21) + TAP).minimum((1 << 21) - 1)]),
    ],
)  # fmt: skip
def test_other_places_are_refused(condition: str, scope: Scope, index: list[Index]) -> None:
    with pytest.raises(LawError) as refused:
        cover(scope, Cover(tuple(index)))
    assert (refused.value.law, refused.value.condition) == ("recount", condition)


@pytest.mark.parametrize(
    ("scope", "index"),
    [
        (largest(AT), [AT.maximum(0).minimum(3)]),
        (largest(AT, reducer="min", fill=INF), [AT.maximum(0)]),
        (largest(AT), [ROW + 1 - TAP]),
        (largest(ROW * 2 + TAP * 2 - 2, shape=(9,)), [(ROW * 2 + TAP * 2 - 2).maximum(0)]),
        # What leaves the tensor for all k of a row does so on both sides.
        (largest(ROW - 1, AT, shape=(4, 4)), [ROW - 1, AT.maximum(0)]),
        (largest(TAP, 2 - TAP, shape=(3, 3)), [2 - TAP, TAP]),
    ],
)
def test_the_same_places_in_another_way_are_equal(scope: Scope, index: list[Index]) -> None:
    answer = cover(scope, Cover(tuple(index)))
    assert answer != scope
    assert_one_value(scope, answer)


ROW, PLACE, STEP = it(0, 5000), It(1, 5000), It(2, 5000)
UP_TO = Read(leaf("t", 5000), (ROW - bare(PLACE),))
DOWN = Recount((Count(PLACE, ROW - bare(STEP), (STEP,)),))


def long(*factors: Scalar) -> Scope:
    return Scope((5000,), (5000,), Prod(factors))


def test_places_up_to_one_are_counted_down_without_being_enumerated() -> None:
    """Of 5000 rows there are 25 million pairs (row, place); the law enumerates 2**22."""
    found = recount(long(UP_TO, Read(leaf("x", 5000), (bare(PLACE),))), DOWN)
    assert set(read.index for read in reads(found.body)) == {
        (bare(It(1, 5000)),), (ROW - bare(It(1, 5000)),)
    }  # fmt: skip
    short = Scope((5,), (5,), Prod((Read(leaf("t", 5), (it(0, 5) - it(1, 5),)),
                                    Read(leaf("x", 5), (it(1, 5),)))))  # fmt: skip
    other = It(2, 5)
    assert_one_value(
        short, recount(short, Recount((Count(It(1, 5), it(0, 5) - bare(other), (other,)),)))
    )


@pytest.mark.parametrize(
    ("scope", "count"),
    [
        # Nothing is 0 beyond the row; nothing is 0 before the begin; the count ends too early; it
        # begins beyond the last place, where nothing is 0.
        (long(Read(leaf("x", 5000), (bare(PLACE),)), Read(leaf("w", 5000), (bare(PLACE),))),
         DOWN.counts[0]),
        (long(UP_TO, Read(leaf("x", 5001), (bare(PLACE) + 1,))), DOWN.counts[0]),
        (long(UP_TO, Read(leaf("x", 5000), (bare(PLACE),), 1.0)), DOWN.counts[0]),
        (long(UP_TO, Read(leaf("x", 5000), (bare(PLACE),))),
         Count(PLACE, ROW - bare(It(2, 4999)), (It(2, 4999),))),
        (long(Read(leaf("t", 5002), (ROW + 1 - bare(PLACE),)),
              Read(leaf("x", 6000), (bare(PLACE),))),
         Count(PLACE, ROW + 1 - bare(It(2, 5002)), (It(2, 5002),))),
    ],
)  # fmt: skip
def test_what_is_not_zero_around_the_count_is_enumerated(scope: Scope, count: Count) -> None:
    with pytest.raises(LawError) as refused:
        recount(scope, Recount((count,)))
    assert refused.value.condition == "large"
