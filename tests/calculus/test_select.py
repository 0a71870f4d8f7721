"""The laws of rows that are picked by data or by place, and of constants. With directed tests at
the edges of their conditions."""

from __future__ import annotations

import math

import pytest
import torch

from eqsynth.calculus.define import Define, define
from eqsynth.calculus.deriving import Match, match
from eqsynth.calculus.select import Numbers, number, rows
from eqsynth.errors import LawError
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    product,
    reads,
    tensors,
    total,
)
from eqsynth.ir.scopes import scope_over
from eqsynth.ir.tensor import Op, Scope, Tensor, topological
from eqsynth.testing.algebra_samples import looked_up, of_constant
from eqsynth.testing.choices import chance
from eqsynth.testing.families import FAMILIES
from eqsynth.testing.scope_samples import any_index, any_scope, at, iterators, leaf, made_scope
from eqsynth.testing.world import World
from tests import terms
from tests.calculus.proposals import assert_one_value, never_wrong
from tests.terms import it
from tests.turns import by_turns

IDS = terms.leaf("ids", 2, dtype="int64")

# ---- rows by data -------------------------------------------------------------------------------


def table(world: World) -> Scope:
    """A random table ``L_{r,j} R_k f(r, j, k)``. The row r is read along any axis; some reads are
    shifted or out of range."""
    pick = world.choices.pick
    row, column, inner = pick((4, 3, 2)), pick((1, 2)), pick((1, 2))
    r, j, k = iterators((row, column, inner))
    parts: list[Scalar] = []
    for name in "abc"[: pick((1, 2, 2, 3))]:
        axes = [(at(it), it.extent) for it in (r, j, k) if chance(world.choices, 2)]
        if chance(world.choices, 2):
            axes.reverse()
        far = chance(world.choices, 12)
        shape = [extent + far for _, extent in axes]
        index = [place - chance(world.choices, 20) for place, _ in axes]
        parts.append(Read(leaf(world, shape, name), tuple(index), pick((0.0, 0.0, 1.0))))
    body = product(parts) if chance(world.choices, 2) else Call("exp", (Sum((*parts, Num(1))),))
    return made_scope((row, column), (inner,), body, pick(("sum", "sum", "max")))


def data(world: World, _scope: Scope) -> Tensor:
    """The ids of the rows: a tensor of up to two axes."""
    return leaf(world, world.choices.pick(((3,), (2, 2), (1,), ())), "ids", "int64")


def embedding(table: Tensor, ids: Tensor) -> Op:
    return Op("Embedding", (table, ids))


@by_turns
def test_whatever_is_gathered_is_equal(turn: int) -> None:
    def law(scope: Scope, ids: Tensor) -> Scope:
        whole = embedding(scope, ids)
        return define(whole, Define(whole))

    never_wrong(law, data, (table,), given_back=60, refused=("rows",), left=embedding, turn=turn)


def grid(world: World) -> Scope:
    """A random table ``L_{i,r,j} R_k f(i, r, j, k)``, each read at some of the iterators."""
    pick = world.choices.pick
    its = iterators((pick((3, 2, 1)), pick((4, 3, 2)), pick((1, 2)), pick((1, 2))))
    parts: list[Scalar] = []
    for name in "abc"[: pick((1, 2, 2, 3))]:
        axes = [it for it in its if chance(world.choices, 2)]
        if chance(world.choices, 2):
            axes.reverse()
        far = chance(world.choices, 12)
        tensor = leaf(world, [it.extent + far for it in axes], name)
        parts.append(Read(tensor, tuple(map(at, axes)), pick((0.0, 0.0, 1.0))))
    body = product(parts) if chance(world.choices, 2) else Call("exp", (Sum((*parts, Num(1))),))
    *outer, inner = (it.extent for it in its)
    return made_scope(outer, (inner,), body, pick(("sum", "sum", "max")))


def along(world: World, scope: Scope) -> Op:
    """A gather along any axis of the scope, by ids that are read at some of the axes; some gathers
    are smaller than the scope along another axis, and some don't show all ids."""
    pick = world.choices.pick
    axis, other = pick(range(3)), pick(range(3))
    shape = list(scope.traversal)
    shape[axis] = pick((1, 2, 3))
    if axis != other and chance(world.choices, 3):
        shape[other] = 1
    own = [i for i in iterators(shape) if chance(world.choices, 2)]
    if chance(world.choices, 2):
        own.reverse()
    far = chance(world.choices, 8)
    ids = leaf(world, [i.extent + far for i in own], "ids", "int64")
    if chance(world.choices, 8):
        return Op("Gather", (scope, leaf(world, shape, "ids", "int64")), (axis,))
    places = Scope(tuple(shape), (), Read(ids, tuple(map(at, own))))
    return Op("Gather", (scope, places), (axis,))


@by_turns
def test_whatever_is_picked_along_an_axis_is_equal(turn: int) -> None:
    def law(_scope: Scope, picked: Op) -> Scope:
        return define(picked, Define(picked))

    refused = ("rows", "operator")
    never_wrong(
        law, along, (grid,), given_back=60, refused=refused, left=lambda _, op: op, turn=turn
    )


def picked(table: Tensor, ids: Tensor, axis: int) -> Op:
    return Op("Gather", (table, ids), (axis,))


def test_a_pick_beside_an_axis_stays_a_gather() -> None:
    """``{L_{i,r,j} a[i, r, j] * b[r]}`` at ``ids[i]`` reads a gather of a, and rows of b."""
    a, b = terms.leaf("a", 2, 4, 3), terms.leaf("b", 4)
    body = Prod((Read(a, (it(0, 2), it(1, 4), it(2, 3))), Read(b, (it(1, 4),))))
    ids = Scope((2, 1, 3), (), Read(IDS, (it(0, 2),)))
    whole = picked(Scope((2, 4, 3), (), body), ids, 1)
    found = define(whole, Define(whole))
    names = {t.name: t.shape for t in topological([found]) if isinstance(t, Op)}
    assert names["Gather"] == (2, 1, 3) and names["Embedding"][0] == 2
    assert_one_value(whole, found)


@pytest.mark.parametrize(
    "ids",
    [
        Scope((2, 1, 3), (2,), Read(IDS, (it(0, 2),)), "max"),
        Scope((2, 1, 3), (), Read(IDS, (it(0, 2) - 1,))),
        Scope((2, 1, 3), (), Read(terms.leaf("more", 3, dtype="int64"), (it(0, 2),))),
        Scope((2, 1, 3), (), Read(terms.leaf("two", 2, 2, dtype="int64"), (it(0, 2), it(0, 2)))),
        Scope((2, 1, 3), (), Read(terms.leaf("turned", 2, 3, dtype="int64"), (it(2, 3), it(0, 2)))),
        Scope((2, 1, 3), (), Value(it(0, 2))),
    ],
)
def test_ids_that_are_no_view_of_all_are_refused(ids: Tensor) -> None:
    """Of ids that aren't shown an error would be missed, or be raised for nothing."""
    whole = picked(Scope((2, 4, 3), (), Read(terms.leaf("b", 4), (it(1, 4),))), ids, 1)
    with pytest.raises(LawError) as refused:
        define(whole, Define(whole))
    assert refused.value.condition == "operator"


def propose(world: World, scope: Scope) -> Match:
    """Propose the looked-up table times all or some of the other factors, read at the right place
    or at random indices."""
    pick = world.choices.pick
    read = next(read for read in reads(scope.body) if isinstance(read.tensor, Op))
    found = read.tensor
    assert isinstance(found, Op)
    value, width = It(9, found.args[0].shape[0]), len(found.args[1].shape)
    others = [f for f in reads(scope.body) if f != read and not chance(world.choices, 4)]
    row = Read(found.args[0], (at(value), *read.index[width:]))
    j = next((it for it in iterators(scope.traversal) if it.slot >= width), It(8, 1))
    body = product([row, *others])
    reduced = [it for it in iterators(scope.extents) if it.slot >= len(scope.traversal)]
    looked = scope_over([value, j], reduced, body, pick((scope.reducer, "sum")))
    own = [at(it) for it in iterators(scope.traversal)]
    where = (*own[:width], own[j.slot] if j.slot < len(own) else Index(0))
    if chance(world.choices, 4):
        where = tuple(any_index(world.choices, iterators(scope.traversal)) for _ in where)
    return Match(Scope(scope.traversal, (), Read(rows(looked, found.args[1]), where)))


@by_turns
def test_whatever_is_looked_up_instead_is_equal(turn: int) -> None:
    def law(scope: Scope, given: Match) -> Scope:
        answer = match(scope, given)
        assert isinstance(answer, Scope)
        return answer

    refused = ("match",)
    never_wrong(law, propose, (looked_up,), given_back=15, refused=refused, turn=turn)


R, J, K = it(0, 4), it(1, 2), it(2, 3)


def rows_of(*index: Index, shape: tuple[int, ...], name: str = "a", fill: float = 0.0) -> Read:
    return Read(terms.leaf(name, *shape), index, fill)


def of_table(body: Scalar) -> Scope:
    return Scope((4, 2), (3,), body)


@pytest.mark.parametrize(
    "body",
    [
        rows_of(R - 1, J, shape=(4, 2)),
        rows_of(R, J, shape=(5, 2)),
        rows_of(R, J, shape=(3, 2)),
        rows_of(R, R, shape=(4, 4)),
        rows_of(R * 2, J, shape=(7, 2)),
        Sum((rows_of(R, shape=(4,)), Value(R))),
        rows_of(J, shape=(2,)),
    ],
)
def test_rows_are_read_along_an_axis_of_their_own(body: Scalar) -> None:
    with pytest.raises(LawError) as refused:
        whole = embedding(of_table(body), IDS)
        define(whole, Define(whole))
    assert (refused.value.law, refused.value.condition) == ("select", "rows")


@pytest.mark.parametrize(
    "body",
    [
        rows_of(R, J, shape=(4, 2)),
        rows_of(J, R, shape=(2, 4)),
        Prod((rows_of(R, K, shape=(4, 3)), rows_of(K, J, shape=(3, 2), name="b"))),
        Prod((rows_of(R, shape=(4,)), rows_of(K, R, J, shape=(3, 4, 2), name="b"))),
        Call("exp", (Sum((rows_of(R, J + K, shape=(4, 3), fill=2.0), Num(1.0))),)),
    ],
)
@pytest.mark.parametrize("ids", [IDS, terms.leaf("pairs", 2, 3, dtype="int64")])
def test_rows_are_gathered_before_or_after(body: Scalar, ids: Tensor) -> None:
    whole = embedding(of_table(body), ids)
    assert_one_value(whole, define(whole, Define(whole)))


TABLE = terms.leaf("t", 4, 3)
ROWS = Op("Embedding", (TABLE, IDS))
B, C, S = it(0, 2), it(1, 5), it(2, 3)
READ = Read(ROWS, (B, S))
OTHER = rows_of(S, C, shape=(3, 5), name="f")
PRODUCT = Scope((2, 5), (3,), Prod((READ, OTHER)))
VALUE = it(0, 4)
LOOKED_UP = Scope((4, 5), (3,), Prod((Read(TABLE, (VALUE, S)), OTHER)))


def by_rows(table: Scope, *at: Index, ids: Tensor = IDS) -> Match:
    return Match(Scope((2, 5), (), Read(embedding(table, ids), at)))


def test_a_table_is_computed_before_it_is_looked_up() -> None:
    given = by_rows(LOOKED_UP, B, C)
    assert match(PRODUCT, given) == given.term
    assert_one_value(PRODUCT, given.term)


@pytest.mark.parametrize(
    ("condition", "given"),
    [
        ("match", by_rows(LOOKED_UP, B, C - 1)),
        ("match", by_rows(Scope((4, 5), (3,), LOOKED_UP.body, "max"), B, C)),
        ("match", by_rows(LOOKED_UP, B, C, ids=terms.leaf("others", 2, dtype="int64"))),
        ("match", by_rows(Scope((4, 5), (3,), Prod((Read(terms.leaf("u", 4, 3), (VALUE, S)),
                                                   OTHER))), B, C)),
        ("rows", by_rows(Scope((4, 5), (3,), OTHER), B, C)),
    ],
)  # fmt: skip
def test_a_table_that_is_another_is_refused(condition: str, given: Match) -> None:
    with pytest.raises(LawError) as refused:
        match(PRODUCT, given)
    assert refused.value.condition == condition


# ---- rows by place ------------------------------------------------------------------------------


def places(world: World) -> Scope:
    extent = world.choices.pick((3, 2, 1))
    own = iterators((extent, 2))
    return Scope((extent, 2), (), Value(any_index(world.choices, own)))


@by_turns
def test_whatever_is_read_by_place_is_equal(turn: int) -> None:
    def table_for(world: World, _scope: Scope) -> Tensor:
        return leaf(world, (world.choices.pick((3, 2, 5)), 2), "t")

    def whole(scope: Scope, source: Tensor) -> Op:
        return Op("Embedding", (source, scope))

    def law(scope: Scope, source: Tensor) -> Scope:
        embedded = whole(scope, source)
        return define(embedded, Define(embedded))

    never_wrong(law, table_for, (places,), given_back=40, refused=("range",), left=whole, turn=turn)


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("range", Scope((3,), (), Value(it(0, 3) + 2))),
        ("range", Scope((3,), (), Value(it(0, 3) - 1))),
        ("operator", Scope((3,), (2,), Value(it(0, 3)))),
        ("operator", Scope((2,), (), Read(IDS, (it(0, 2),)))),
    ],
)
def test_a_place_that_is_none_is_refused(condition: str, ids: Scope) -> None:
    whole = embedding(TABLE, ids)
    with pytest.raises(LawError) as refused:
        define(whole, Define(whole))
    assert refused.value.condition == condition
    with pytest.raises(LawError) as refused:
        define(embedding(TABLE, terms.leaf("i", 7, dtype="int64")),
               Define(embedding(TABLE, Scope((3,), (), Value(it(0, 3))))))  # fmt: skip
    assert refused.value.condition == "type"


# ---- constants ---------------------------------------------------------------------------------


def numbers(_world: World, scope: Scope) -> Numbers:
    """Propose all tensors in the body that are full of one number."""
    full = {read.tensor: read.tensor.attrs[1] for read in reads(scope.body)
            if isinstance(read.tensor, Op) and read.tensor.name == "Full"}  # fmt: skip
    return Numbers(tuple((tensor, float(value)) for tensor, value in full.items()
                         if isinstance(value, float)))  # fmt: skip


@by_turns
def test_whatever_number_is_read_is_equal(turn: int) -> None:
    families = (*[of_constant] * 8, any_scope, *FAMILIES)
    never_wrong(number, numbers, families, given_back=30, refused=("reads",), examples=500,
                turn=turn)  # fmt: skip


def full(dtype: str = "float32", value: float = 2.0) -> Op:
    return Op("Full", (), ((3,), value, dtype))


@pytest.mark.parametrize(
    ("dtype", "value", "stays"),
    [
        ("int64", 2.0, False),
        ("int32", -1.0, False),
        ("uint8", 255.0, False),
        ("uint8", 256.0, True),
        ("uint8", -1.0, True),
        ("int64", 2.0**40, False),
        ("float32", 2.0**24 + 1, True),
        ("float32", 3.0, False),
        ("float32", -terms.INF, False),
        ("int64", terms.INF, True),
        ("float32", 0.1, True),
        ("bool", 1.0, True),
    ],
)
def test_a_function_of_two_takes_a_number_that_its_dtype_has(
    dtype: str, value: float, stays: bool
) -> None:
    tensor, own = full(dtype, value), (it(0, 3),)
    x = Read(terms.leaf("x", 3, dtype=dtype), own)
    scope = Scope((3,), (), Call("le", (x, Read(tensor, own))))
    if stays:
        with pytest.raises(LawError) as refused:
            number(scope, Numbers(((tensor, value),)))
        assert refused.value.condition == "reads"
        return
    answer = number(scope, Numbers(((tensor, value),)))
    assert answer.body == Call("le", (x, Num(value)))
    assert_one_value(scope, answer)


@pytest.mark.parametrize("index", [it(0, 3) - 3, it(0, 3) + 5, Index(-1), it(0, 3) * 2 + 5])
def test_a_read_that_is_always_outside_is_its_fill(index: Index) -> None:
    x, y = terms.leaf("x", 3), terms.leaf("y", 5)
    scope = Scope((3,), (), Sum((Read(x, (it(0, 3),)), Read(y, (index,), 7.0))))
    answer = number(scope, Numbers(()))
    assert answer.body == Sum((Num(7.0), Read(x, (it(0, 3),))))
    assert_one_value(scope, answer)


@pytest.mark.parametrize(
    "read",
    [
        Read(terms.leaf("y", 5), (it(0, 3) - 2,)),  # in range at the last place
        Read(terms.leaf("y", 5), (it(0, 3) + 4,)),  # and at the first
        Read(terms.leaf("y", 5, dtype="uint8"), (it(0, 3) - 3,)),  # beside another dtype
    ],
)
def test_another_read_stays(read: Read) -> None:
    x = Read(terms.leaf("x", 3), (it(0, 3),))
    with pytest.raises(LawError) as refused:
        number(Scope((3,), (), Sum((x, read))), Numbers(()))
    assert refused.value.condition == "reads"


@pytest.mark.parametrize("kind", [Sum, Prod])
@pytest.mark.parametrize(
    ("dtype", "value", "other", "stays"),
    [
        ("int64", 2.0, "int64", False),
        ("uint8", 255.0, "uint8", False),
        ("uint8", 256.0, "uint8", True),
        ("int32", 2.0, "int64", True),
        ("bool", 1.0, "bool", True),
    ],
)
def test_an_operand_of_integers_becomes_a_number_that_their_dtype_has(
    kind: type[Sum] | type[Prod], dtype: str, value: float, other: str, stays: bool
) -> None:
    tensor, own = full(dtype, value), (it(0, 3),)
    xs = [Read(terms.leaf(name, 3, dtype=other), own) for name in "xy"]
    scope = canonical(Scope((3,), (), kind((*xs, Read(tensor, own)))))
    known = Numbers(((tensor, value),))
    if stays:
        with pytest.raises(LawError) as refused:
            number(scope, known)
        assert refused.value.condition == "reads"
        return
    answer = number(scope, known)
    assert tensor not in tensors(answer.body) and answer.type == scope.type
    assert_one_value(scope, answer)


LINE = (it(0, 3),)
FLOAT, BYTE = (Read(terms.leaf(name, 3, dtype=name), LINE) for name in ("float32", "uint8"))


@pytest.mark.parametrize(
    "body",
    [
        # 2 to the power of -1 is 0.5, and as a power of integers 0.
        Sum((FLOAT, Call("pow", (Read(full(), LINE), Num(-1))))),
        Call("where", (Read(full(), LINE), FLOAT, Num(1))),
        # A condition is no operand whose dtype counts.
        Call("where", (Read(full("int64"), LINE), FLOAT, Num(1))),
        Call("where", (BYTE, Read(full("uint8"), LINE), BYTE)),
        Call("where", (Call("gt", (FLOAT, Num(0))), Read(full(), LINE), FLOAT)),
        Prod((FLOAT, Cast("float32", Prod((Num(3.0**20), Sum((
            Read(terms.leaf("i", 3, dtype="int64"), LINE), Read(full("int64"), LINE)))))))),
    ],
)  # fmt: skip
def test_a_number_has_the_value_of_the_read(body: Scalar) -> None:
    scope = canonical(Scope((3,), (), body))
    answer = number(scope, Numbers(tuple((full(t), 2.0) for t in ("float32", "uint8", "int64"))))
    assert not [tensor for tensor in tensors(answer.body) if isinstance(tensor, Op)]
    assert_one_value(scope, answer)


def test_a_read_outside_is_the_number_if_that_is_its_fill() -> None:
    """Of a concatenation with zeros the piece of zeros is read with zeros around it."""
    place = (it(0, 3) - 1,)
    known = Numbers(((full(), 2.0),))
    scope = Scope((3,), (), Sum((FLOAT, Read(full(), place, 2.0))))
    answer = number(scope, known)
    assert not [tensor for tensor in tensors(answer.body) if isinstance(tensor, Op)]
    assert_one_value(scope, answer)
    with pytest.raises(LawError) as refused:
        number(Scope((3,), (), Sum((FLOAT, Read(full(), place, 1.0)))), known)
    assert refused.value.condition == "reads"


def test_an_operand_of_numbers_alone_stays_a_read() -> None:
    """Without it, nothing would have a dtype."""
    tensor = full("int64", 2.0)
    scope = Scope((3,), (), total([Num(1.0), Read(tensor, (it(0, 3),))]))
    with pytest.raises(LawError) as refused:
        number(scope, Numbers(((tensor, 2.0),)))
    assert refused.value.condition == "reads"


@pytest.mark.parametrize(
    ("condition", "body"),
    [
        ("reads", Read(full(), (it(0, 3) - 1,))),
        ("reads", Prod((Read(full("float64"), (it(0, 3),)), rows_of(it(0, 3), shape=(3,))))),
        ("reads", Read(Op("Full", (), ((3,), 2, "int32")), (it(0, 3),))),
        ("reads", Call("max", tuple(Read(full(t), (it(0, 3),)) for t in ("uint8", "int64")))),
        ("dtype", Read(full("float64"), (it(0, 3),))),
        # 255 + 2 is 1 as a uint8.
        ("reads", Cast("float32", Cast("int64", Sum((
            Read(terms.leaf("u", 3, dtype="uint8"), (it(0, 3),)), Read(full(), (it(0, 3),))))))),
    ],
)
def test_a_number_that_is_none_is_refused(condition: str, body: Scalar) -> None:
    scope = Scope((3,), (), body)
    known = Numbers(tuple((read.tensor, 2.0) for read in reads(body)))
    if condition == "reads" and isinstance(body, Prod):
        known = Numbers(((full(), 2.0),))
    with pytest.raises(LawError) as refused:
        number(scope, known)
    assert refused.value.condition == condition


def test_a_number_of_a_narrower_dtype_keeps_its_rounding() -> None:
    """The float32 nearest to 0.1 isn't the float64 nearest to 0.1."""
    x = Read(terms.leaf("x", 3, dtype="float64"), (it(0, 3),))
    narrow, wide = full("float32", 0.1), full("float64", 0.1)
    with pytest.raises(LawError) as refused:
        number(Scope((3,), (), Prod((x, Read(narrow, (it(0, 3),))))), Numbers(((narrow, 0.1),)))
    assert refused.value.condition == "reads"
    scope = Scope((3,), (), Prod((x, Read(wide, (it(0, 3),)))))
    assert_one_value(scope, number(scope, Numbers(((wide, 0.1),))))


DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def whole(dtype: str) -> tuple[int, int]:
    """The range of integers that both the dtype and a Python float hold exactly."""
    kind = getattr(torch, dtype)
    if not kind.is_floating_point:
        told = torch.iinfo(kind)
        return max(told.min, -(2**53)), min(told.max, 2**53 if dtype == "int64" else told.max)
    digits = 1 - round(math.log2(torch.finfo(kind).eps))
    return -(2**digits), 2**digits


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_is_held_exactly_by_the_dtype_that_it_gets(dtype: str) -> None:
    """Each end of the range, and the next integer beyond it."""
    x, value = Read(terms.leaf("x", 3, dtype=dtype), (it(0, 3),)), terms.leaf("t", dtype=dtype)
    body: Scalar = Sum((x, Read(value, ())))
    # Among floats alone any number is one of the floats' own.
    body = body if dtype == "int64" else Cast("int64", body)
    low, high = whole(dtype)
    for held in (low, high):
        found = number(Scope((3,), (), body), Numbers(((value, float(held)),)))
        assert value not in tensors(found.body)
    for beyond in (low - 2, high + 2):  # a Python float holds 2**53 + 2, and not 2**53 + 1
        with pytest.raises(LawError) as refused:
            number(Scope((3,), (), body), Numbers(((value, float(beyond)),)))
        assert refused.value.condition == "reads"


def test_all_operands_beside_a_number_have_its_dtype() -> None:
    """Also the one right behind it: int8 + int16 + int8 is computed in int16."""
    narrow, value = terms.leaf("x", 3, dtype="int8"), full("int8", 2.0)
    wide = terms.leaf("y", 3, dtype="int16")
    at_i = (it(0, 3),)
    for between in (Read(wide, at_i), Read(narrow, at_i)):
        scope = Scope((3,), (), Sum((Read(value, at_i), between, Read(narrow, at_i))))
        known = Numbers(((value, 2.0),))
        if between.tensor is narrow:
            assert_one_value(scope, number(scope, known))
            continue
        with pytest.raises(LawError) as refused:
            number(scope, known)
        assert refused.value.condition == "reads"
