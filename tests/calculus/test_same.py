"""The law `same`: two scopes are the same sum of products. Random rearrangements of a scope are
proposed, with directed tests at the edges of its conditions."""

from __future__ import annotations

import pytest

from eqsynth.calculus.same import Same, same
from eqsynth.egraph.tactics.moving import bounded, read_by, reindexed, termwise
from eqsynth.errors import LawError
from eqsynth.ir.functions import REDUCERS
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import (
    Call,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    factors_of,
    product,
    reads,
    substitute,
    terms_of,
    total,
)
from eqsynth.ir.scopes import (
    bare,
    closed,
    reduction_iterators,
    renumber,
    same_scope,
    scope_over,
    traversal_iterators,
)
from eqsynth.ir.tensor import Scope
from eqsynth.testing.algebra_samples import part_of_sum
from eqsynth.testing.choices import Rejected, chance, ordering
from eqsynth.testing.families import FAMILIES
from eqsynth.testing.scope_samples import (
    any_product,
    any_scope,
    iterators,
    made_scope,
    read,
    scalar,
    windows,
)
from eqsynth.testing.scope_samples import leaf as sample
from eqsynth.testing.world import World
from tests.calculus.proposals import assert_one_value, never_wrong, polynomial
from tests.terms import INF, it, leaf
from tests.turns import by_turns

# ---- other iterators --------------------------------------------------------------------------


def other_iterators(world: World, scope: Scope) -> Same:
    """Propose the scope with its axes permuted, split, shifted in a wider box or reversed, and some
    reductions outside. Some proposals have a fault, such as an index that is off by one."""
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
    return reindexed(scope, inner, tuple(at[n] for n in order), tuple(outer), fill)


@by_turns
def test_a_scope_over_other_iterators_is_equal(turn: int) -> None:
    families = (any_product, any_scope, windows, *FAMILIES)
    never_wrong(same, other_iterators, families, given_back=12, refused=("products",),
                examples=100, turn=turn)  # fmt: skip


# ---- by parts ---------------------------------------------------------------------------------


def by_a_part(world: World, scope: Scope) -> Same:
    """Propose to read a part of a tensor: every ``step``-th place from a first one along each
    axis."""
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
    return read_by(scope, read, Read(part, tuple(outside), pick((read.fill, read.fill, 0.0))))


@by_turns
def test_whatever_part_is_read_is_equal(turn: int) -> None:
    families = (*[part_of_sum] * 9, *FAMILIES)
    never_wrong(same, by_a_part, families, given_back=15, refused=("products",), examples=150,
                turn=turn)  # fmt: skip


# ---- boxes ------------------------------------------------------------------------------------


def beyond(world: World) -> Scope:
    """A random scope of reads that are partly out of range, with any reducer and fill."""
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
        reads.append(Read(sample(world, (pick((1, 2, 3)),)), (index,), fill))
    body = reads[0] if len(reads) == 1 else pick((Prod, Prod, Sum))(tuple(reads))
    return made_scope(outer, inner, body, reducer)


def on_a_box(world: World, scope: Scope) -> Same:
    """Propose a random box of some of the iterators."""
    pick = world.choices.pick
    box = {}
    for one in iterators(scope.extents):
        if one.extent and not chance(world.choices, 3):
            low = pick(range(min(3, one.extent)))
            box[one] = low, one.extent - pick(range(min(3, one.extent - low)))
    return bounded(scope, box, pick((0.0, 0.0, REDUCERS[scope.reducer], -INF)))


@by_turns
def test_whatever_is_bounded_is_equal(turn: int) -> None:
    families = (*[beyond] * 20, any_product, windows, *FAMILIES)
    never_wrong(same, on_a_box, families, given_back=15, refused=("products",), examples=600,
                turn=turn)  # fmt: skip


# ---- terms ------------------------------------------------------------------------------------


def sum_of_terms(world: World) -> Scope:
    """A random scope ``R_y (f + g)``."""
    pick = world.choices.pick
    outer, inner = ([world.extent() for _ in range(pick((1, 2, 0)))] for _ in range(2))
    its = iterators((*outer, *inner))
    terms: list[Scalar] = [
        scalar(world, its, 1) if chance(world.choices, 2) else read(world, its)
        for _ in range(pick((2, 3)))
    ]
    return made_scope(outer, inner, Sum(tuple(terms)), pick(("sum", "sum", "sum", "max")))


def by_terms(world: World, scope: Scope) -> Same:
    """Propose the sum term by term, a factor as a scope of its own, the body multiplied out, or a
    body with a factor or a term missing or doubled."""
    pick = world.choices.pick
    kind = pick(("terms", "terms", "factor", "without", "twice", "multiplied"))
    body = scope.body
    factors, terms = list(factors_of(body)), list(terms_of(body))
    if kind == "terms":
        if isinstance(body, Sum) and scope.reducer == "sum":
            return termwise(scope)
        raise Rejected("no sum")
    if kind == "factor":
        one = pick(factors)
        inner = closed(one, {*traversal_iterators(scope), *reduction_iterators(scope)})
        body = product([inner, *(f for f in factors if f is not one)])
    elif kind == "without":
        body = total(terms[1:]) if len(terms) > 1 else product(factors[1:])
    elif kind == "twice":
        body = total([product([Num(0.5), body]), product([Num(pick((0.5, 0.5, 1.5))), body])])
    elif isinstance(body, Prod) and any(isinstance(f, Sum) for f in factors):
        sums = next(f for f in factors if isinstance(f, Sum))
        rest = [f for f in factors if f is not sums]
        body = total([product([*rest, term]) for term in sums.terms])
    return Same(same_scope(scope, body, reduction_iterators(scope)))


@by_turns
def test_whatever_has_the_same_terms_is_equal(turn: int) -> None:
    families = (*[sum_of_terms] * 10, *[polynomial] * 10, any_scope, *FAMILIES)
    never_wrong(same, by_terms, families, given_back=12, refused=("products", "type"),
                examples=250, turn=turn)  # fmt: skip


def each(it: It) -> tuple[It, tuple[int, ...]]:
    """An iterator, and the cuts between all of its values."""
    return it, tuple(range(1, it.extent))


def apart(world: World, scope: Scope) -> Same:
    """Propose the sum over the values of one iterator, each value as a term; now and then without
    the last value."""
    its = reduction_iterators(scope)
    if not its or scope.reducer != "sum":
        raise Rejected("no sum")
    one = world.choices.pick(its)
    values = range(one.extent - chance(world.choices, 4))
    rest = [it for it in its if it != one]
    parts = [
        closed(substitute(scope.body, lambda it, v=v: Index(v) if it == one else bare(it)),
               {*traversal_iterators(scope)}, "sum", rest)
        for v in values
    ]  # fmt: skip
    return Same(same_scope(scope, total(parts), []))


@by_turns
def test_what_is_summed_value_by_value_is_equal(turn: int) -> None:
    def taken(scope: Scope, given: Same) -> Scope:
        """Return the proposed sum if the law accepts it for one of the iterators."""
        found = LawError("none", law="same", condition="products")
        for one in reduction_iterators(scope):
            try:
                assert same(given.other, Same(scope, (), (each(one),))) == scope
                return given.other
            except LawError as error:
                found = error
        raise found

    never_wrong(taken, apart, (*[any_product] * 4, windows, *FAMILIES), given_back=10,
                refused=("products",), examples=100, turn=turn)  # fmt: skip


# ---- the edges --------------------------------------------------------------------------------

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
NEAR = Read(leaf("y", 4), (it(0, 4),))
LOG = Call("log", (NEAR,))
FAR = Read(leaf("z", 4), (it(0, 4) - 1,), -INF)
BESIDE = Read(leaf("v", 4), (it(0, 4),))
APART = Read(leaf("m", 2, 2, 2), (it(0, 4), it(0, 4) - 2, it(1, 2)), -INF)
NOWHERE = Scope((4,), (2,), APART, "max")
SUM = Read(Scope((4,), (), Sum((NEAR, FAR))), (it(0, 4),))
EXP = Scope((4,), (), Call("exp", (NEAR,)))

# y lies at 1..4 of six places, and at 2..5: the same elements in boxes that begin elsewhere.
EARLY, LATE = (Scope((6,), (), Read(leaf("y", 4), (it(0, 6) - n,))) for n in (1, 2))

HIGH = Scope((6, 2), (3,), INNER.body, "max")
Y = Read(leaf("y", 3), (it(1, 3),))
OVER = Scope((2,), (3,), Sum((Read(leaf("x", 2, 3), (it(0, 2), it(1, 3))), Y)))
OF_K = OVER.body.terms[0]
MOST = Scope((2,), (3,), OVER.body, "max")
LARGE = Read(leaf("l", 70), (it(1, 70),))


def at(inner: Scope, *index: Index, outer: tuple[It, ...] = (), fill: float = 0.0,
       scope: Scope = SCOPE) -> Same:  # fmt: skip
    return reindexed(scope, inner, index, outer, fill)


@pytest.mark.parametrize(
    ("condition", "scope", "given"),
    [
        ("iterators", MOST, Same(MOST, (), (each(It(1, 3)),))),
        ("products", MOST, Same(Scope((2,), (), Sum(tuple(
            Read(Scope((2,), (3,), term, "max"), (it(0, 2),)) for term in OVER.body.terms))))),
        ("products", Scope((2,), (3,), product([Num(-1), OF_K]), "max"),
         Same(Scope((2,), (), Prod((Num(-1), Read(Scope((2,), (3,), OF_K, "max"), (it(0, 2),))))))),
        ("products", SCOPE, at(split(1), *QR)),
        ("products", SCOPE, at(split(), bare(A) % 3, bare(A) // 3)),
        ("products", SCOPE, at(split(0, 3), *QR)),
        ("products", EXP, at(EXP, it(0, 4) + 1, scope=EXP)),
        ("products", EARLY, Same(LATE)),
        ("products", LATE, Same(EARLY)),
        ("products", SCOPE, at(HIGH, bare(A), bare(B), outer=(B,))),
        ("type", SCOPE, Same(Scope((6, 1), (2, 3), renumber(SCOPE.body, {0: 0, 1: 2, 2: 3})))),
        ("type", SCOPE, Same(Scope((6,), (0,), Read(leaf("x", 8), (bare(A),))))),
        ("type", SCOPE, Same(Scope((6,), (), Read(leaf("i", 6, dtype="int64"), (bare(A),))))),
        ("type", EXP, Same(EXP, ((NEAR.tensor, Scope((4, 1), (), NEAR)),))),
        ("iterators", SCOPE, Same(SCOPE, (), (each(A),))),
        ("iterators", SCOPE, Same(SCOPE, (), (each(It(1, 3)),))),
        ("iterators", OVER, Same(OVER, (), ((It(1, 3), (2, 1)),))),
        ("iterators", OVER, Same(OVER, (), ((It(1, 3), (3,)),))),
        ("large", Scope((2,), (70,), LARGE),
         Same(Scope((2,), (70,), LARGE), (), (each(It(1, 70)),))),
        ("products", OVER, Same(Scope((2,), (3,), OVER.body, "max"))),
        ("products", OVER, Same(Scope((2,), (3,), product([Num(1.0001), OVER.body])))),
        ("finite", Scope((4,), (), total([FAR, product([Num(-1), FAR]), NEAR])),
         Same(Scope((4,), (), NEAR))),
        ("finite", Scope((4,), (), total([LOG, product([Num(-1), LOG]), NEAR])),
         Same(Scope((4,), (), NEAR))),
        # 0 * -inf is NaN, and so is -inf + inf, where (2 - 1) * -inf is -inf.
        ("finite", Scope((4,), (), Sum((Prod((Num(0), FAR)), NEAR))), Same(Scope((4,), (), NEAR))),
        ("products", Scope((4,), (), Prod((Sum((NEAR, BESIDE)), FAR))),
         Same(Scope((4,), (), Sum((Prod((NEAR, FAR)), Prod((BESIDE, FAR))))))),
        # A maximum that reads nothing is -inf, not 0.
        ("products", NOWHERE, Same(Scope((4,), (), Prod((Num(0), NEAR))))),
        ("products", Scope((4,), (), Call("exp", (SUM,))),
         Same(Scope((4,), (), total([Call("exp", (FAR,)), Call("exp", (NEAR,))])))),
        ("products", Scope((4,), (), Prod((SUM, SUM))),
         Same(Scope((4,), (), total([Prod((FAR, FAR)), Prod((NEAR, NEAR))])))),
    ],
)  # fmt: skip
def test_a_condition_that_fails_is_named(condition: str, scope: Scope, given: Same) -> None:
    with pytest.raises(LawError) as refused:
        same(scope, given)
    assert (refused.value.law, refused.value.condition) == ("same", condition)


# ---- dtypes and large numbers -----------------------------------------------------------------

U, V = (Read(leaf(name, 4, dtype="uint8"), (it(0, 4),)) for name in "uv")
P, N = (Read(leaf(name, 4, dtype="bool"), (it(0, 4),)) for name in "pn")
L64 = Read(leaf("i", 4, dtype="int64"), (it(0, 4),))


def over_4(body: Scalar) -> Scope:
    return Scope((4,), (), body)


def read_of(*terms: Scalar) -> Read:
    """A read of the scope that is the sum of the terms."""
    return Read(over_4(total(terms)), (it(0, 4),))


HALVES = [over_4(Prod((Num(0.5), *factors))) for factors in ((U, V), (Prod((U, V)),))]


@pytest.mark.parametrize(
    ("condition", "body", "other"),
    [
        # A sum modulo 256, and a sum of bools (an "or"), times a float.
        ("products", Prod((read_of(U, V), NEAR)), Sum((read_of(Prod((U, NEAR))),
                                                       read_of(Prod((V, NEAR)))))),
        ("products", Prod((read_of(P, N), NEAR)), Sum((read_of(Prod((P, NEAR))),
                                                       read_of(Prod((N, NEAR)))))),
        ("products", Prod((Sum((P, N)), Read(P.tensor, (3 - it(0, 4),)))),
         Sum(tuple(Prod((x, Read(P.tensor, (3 - it(0, 4),)))) for x in (P, N)))),
        # A product of floats, and half of a product modulo 256.
        ("products", Sum((HALVES[0].body, NEAR)), Sum((HALVES[1].body, NEAR))),
        ("products", *(product([Num(2), Read(half, (it(0, 4),))]) for half in HALVES)),
        # Numbers that are alike up to the rounding of float32, and some up to that of float64.
        ("products", Sum((Num(2.0**50), L64)), Sum((Num(2.0**50 + 1), L64))),
        ("products", Prod((Num(2.0**30), read_of(Prod((Num(2.0**15), L64))))),
         Sum((Prod((Num(2.0**30), read_of(Prod((Num(2.0**15), L64))))), L64))),
        ("products", Prod((Num(2.0**30), read_of(Num(2.0**30), L64))),
         Sum((Num(1), Prod((Num(2.0**30), read_of(Num(2.0**30), L64)))))),
    ],
)  # fmt: skip
def test_what_wraps_or_rounds_is_not_the_same(
    condition: str, body: Scalar, other: Scalar
) -> None:
    scope, wrong = over_4(body), over_4(other)
    assert scope.type == wrong.type
    with pytest.raises(LawError) as refused:
        same(scope, Same(wrong))
    assert refused.value.condition == condition


# ---- what is read by parts, and at one place only ---------------------------------------------

PAIR = [Read(leaf(name, 4), (it(0, 4),)) for name in "cd"]


def before(*terms: Scalar, fill: float = 0.0) -> Read:
    """A read of the sum of the terms one place before, which is out of range at place 0."""
    return Read(over_4(total(terms)), (it(0, 4) - 1,), fill)


def around(body: Scalar) -> Scope:
    return Scope((4,), (3,), body)


def window(*terms: Scalar) -> Read:
    """A read of the sum of the terms at three places around, out of range at both ends."""
    return Read(over_4(total(terms)), (it(0, 4) + it(1, 3) - 1,))


def one(index: Index, fill: float = 0.0) -> Read:
    """A read of a tensor of one element."""
    return Read(leaf("one", 1), (index,), fill)


H, K = it(0, 4), it(1, 4)
ONES = Read(leaf("x", 4), (K,), 1.0)
ROWS = Read(leaf("r", 2), (it(0, 2),))
VIEW = over_4(Read(leaf("y", 4), (H - 1,), 2.0))
BIASED = Scope((4,), (3,), Sum((Read(leaf("x", 4, 3), (H, it(1, 3))), Y)))


@pytest.mark.parametrize(
    ("scope", "other"),
    [
        (over_4(before(*PAIR, fill=1.5)), over_4(Sum(tuple(before(x, fill=1.5) for x in PAIR)))),
        (Scope((4,), (4,), Read(over_4(Sum(tuple(PAIR))), (H + K - 1,)), "max"),
         over_4(Sum(tuple(Read(Scope((4,), (4,), Read(x.tensor, (H + K - 1,)), "max"), (H,))
                          for x in PAIR)))),
        (around(Prod((window(*PAIR), window(*PAIR)))),
         around(Sum(tuple(Prod((window(x), window(x))) for x in PAIR)))),
        (around(window(U, V, NEAR)), around(window(Sum((U, V)), NEAR))),
        # u + v is a number modulo 256, also where another scope computes it.
        (around(window(read_of(U, V), NEAR)), around(window(U, V, NEAR))),
        (around(window(U, NEAR)), over_4(Sum(tuple(Read(around(window(x)), (H,))
                                                   for x in (U, NEAR))))),
        (over_4(Call("exp", (before(*PAIR),))),
         over_4(Sum(tuple(Call("exp", (before(x),)) for x in PAIR)))),
        (around(Prod((window(LOG, *PAIR), NEAR))),
         around(Sum(tuple(Prod((window(x), NEAR)) for x in (LOG, *PAIR))))),
        (over_4(Read(VIEW, (H,))), over_4(Read(leaf("y", 4), (H - 1,)))),
        (Scope((6,), (), Read(EXP, (it(0, 6) - 1,))), Scope((6,), (), Read(EXP, (it(0, 6) - 2,)))),
        # The factor of one element is zero at all places but one; not with another fill, at every
        # second place only, or if the place may be outside.
        (Scope((4,), (4,), Prod((ONES, one(K - H, 1.0)))), over_4(Prod((Read(ONES.tensor, (H,)),
                                                                       one(Index(0)))))),
        (Scope((2,), (4,), Prod((ONES, one(it(1, 4) * 2 - it(0, 2))))),
         Scope((2,), (), Prod((Read(ONES.tensor, (it(0, 2) * 2,)), one(Index(0)))))),
        *[(Scope((2, 2), (2,), Prod((ROWS, one(it(2, 2) - it(0, 2) - it(1, 2) + n)))),
           Scope((2, 2), (), Prod((ROWS, one(Index(0)))))) for n in (1, 0)],
    ],
)  # fmt: skip
def test_what_is_read_in_another_way_is_not_the_same(scope: Scope, other: Scope) -> None:
    assert scope.type == other.type
    with pytest.raises(LawError) as refused:
        same(scope, Same(other))
    assert refused.value.condition == "products"


@pytest.mark.parametrize(
    "scope",
    [around(Prod((window(*PAIR, LOG), NEAR))), over_4(Prod((Num(0.5), U))),
     around(Prod((Read(BIASED, (H + it(1, 3) - 1,)), NEAR))),
     Scope((4,), (4,), Prod((ONES, one(K - K // 2))))],
)  # fmt: skip
def test_what_is_not_opened_is_a_factor(scope: Scope) -> None:
    assert same(scope, Same(scope)) == scope


def test_what_reads_itself_has_no_end() -> None:
    x = leaf("x", 4)
    again = Scope((4,), (), product([Num(2), Read(x, (it(0, 4),))]))
    with pytest.raises(LawError) as refused:
        same(Scope((4,), (), Read(x, (it(0, 4),))), Same(again, ((x, again),)))
    assert refused.value.condition == "large"


FAR_AWAY = Scope((4,), (), Read(leaf("y", 4), (it(0, 4),), -INF))
PADDED = Scope((6,), (), Read(leaf("y", 4), (it(0, 6) - 1,), -INF))
WINDOW = Read(leaf("t", 9), (it(0, 3) + it(1, 2) - 1,), -INF)
HIGHEST = Scope((3,), (2,), WINDOW, "max")
PART = Scope((3,), (), Read(leaf("t", 9), (it(0, 3),)))
LONG, SHORT = (
    Scope((4,), (n,), Read(leaf("m", 4, 2), (it(0, 4), it(1, n) - n // 4), -INF), "max")
    for n in (4, 2)
)


@pytest.mark.parametrize(
    ("scope", "given"),
    [
        (SCOPE, at(split(), *QR)),
        (SCOPE, at(INNER, bare(A), bare(B), outer=(B,))),
        (PADDED, at(FAR_AWAY, it(0, 6) - 1, fill=-INF, scope=PADDED)),
        (HIGHEST, read_by(HIGHEST, WINDOW, Read(PART, WINDOW.index, -INF))),
        (OVER, termwise(OVER)),
        # Terms that vanish: a zero, a difference.
        (over_4(Sum((L64, Read(L64.tensor, (H + 9,))))), Same(over_4(L64))),
        (over_4(Sum((L64, Value(H), Prod((Num(-1), Value(H)))))), Same(over_4(L64))),
        (over_4(Sum((NEAR, *PAIR, Prod((Num(-1), NEAR))))), Same(over_4(Sum(tuple(PAIR))))),
        (over_4(product([Num(2.0**50), NEAR])),
         Same(over_4(total([product([Num(2.0**49), read_of(NEAR)])] * 2)))),
        # A product that is multiplied out, reductions that are narrowed or have one place.
        (Scope((2,), (3,), Prod((Y, OVER.body))),
         Same(Scope((2,), (3,), Sum(tuple(Prod((Y, term)) for term in OVER.body.terms))))),
        (Scope((4,), (6,), Prod((Read(leaf("y", 4), (it(1, 6) - 1,)), NEAR))),
         Same(Scope((4,), (4,), Prod((Read(leaf("y", 4), (K,)), NEAR))))),
        (Scope((4,), (4, 2), Prod((ONES, one(K - H), Read(leaf("w", 2), (it(2, 2),))))),
         Same(Scope((4,), (2,), Prod((Read(ONES.tensor, (H,)), one(Index(0)),
                                      Read(leaf("w", 2), (it(1, 2),))))))),
        # On the box 1 to 4 of 6 places, logarithms and maxima are opened.
        (Scope((6,), (), Prod((Read(over_4(LOG), (it(0, 6) - 1,)),
                               Read(PAIR[0].tensor, (it(0, 6) - 1,))))),
         Same(Scope((6,), (), Read(over_4(Prod((LOG, PAIR[0]))), (it(0, 6) - 1,))))),
        (Scope((6,), (), Read(LONG, (it(0, 6) - 1,))),
         Same(Scope((6,), (), Read(SHORT, (it(0, 6) - 1,))))),
    ],
)  # fmt: skip
def test_one_step_before_the_edge_it_is_equal(scope: Scope, given: Same) -> None:
    assert given.other != scope
    assert_one_value(scope, same(scope, given))


def test_what_is_outside_of_a_box_is_told_apart() -> None:
    """Reads of one element with fill -inf and with fill 0 aren't the same under a maximum."""
    lowest = Scope((6,), (2,), Read(leaf("y", 4), (it(0, 6) - 1 + 0 * it(1, 2),), -INF), "max")
    highest = Scope((6,), (2,), Read(leaf("y", 1), (it(0, 6) + it(1, 2) - 3,), -INF), "max")
    zero = Scope((6,), (2,), Read(leaf("y", 1), (it(0, 6) + it(1, 2) - 3,)), "max")
    for other in (zero, Scope((6,), (), Read(leaf("y", 1), (it(0, 6) - 3,)))):
        with pytest.raises(LawError):
            same(highest, Same(other))
    assert lowest.type == highest.type
    with pytest.raises(LawError):
        same(HIGHEST, read_by(HIGHEST, WINDOW, Read(PART, WINDOW.index, 0.0)))


@pytest.mark.parametrize("name", "abcdefgh")
def test_a_sum_is_opened_where_iterators_are_alike(name: str) -> None:
    """``sum_{k,h} {u + v}[i + k - 1, j + h - 1]`` with k and h of one extent. The canonical form
    over u may have h first, while the form over u + v has k first."""
    i, j, k, h = (It(slot, extent) for slot, extent in enumerate((4, 4, 3, 3)))
    window = bare(i) + bare(k) - 1, bare(j) + bare(h) - 1
    pieces = [leaf(name + piece, 4, 4) for piece in "uv"]
    plain = Scope((4, 4), (), Sum(tuple(Read(x, (bare(i), bare(j))) for x in pieces)))
    whole = leaf(name, 4, 4)
    scope = Scope((4, 4), (3, 3), Read(whole, window))
    parts = [Scope((4, 4), (3, 3), Read(x, window)) for x in pieces]
    other = Scope((4, 4), (), Sum(tuple(Read(part, (bare(i), bare(j))) for part in parts)))
    assert same(scope, Same(other, ((whole, plain),))) == other
