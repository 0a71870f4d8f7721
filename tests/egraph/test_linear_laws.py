"""Laws of sums, broadcasts, diagonals and rows picked by data: properties and directed tests
(``properties.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import strategies as st

import eqsynth
from eqsynth import ops
from eqsynth.calculus.conditions import is_product
from eqsynth.calculus.define import Define
from eqsynth.egraph.scope_rules.building import answers
from eqsynth.egraph.tactics import linear, selection
from eqsynth.egraph.tactics.common_factor import common_factor
from eqsynth.egraph.tactics.paths import path
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import program_of
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import canonical
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
    total,
)
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.ir.work import flops
from eqsynth.testing.strategies import EXTENTS, bodies
from eqsynth.testing.strategies import reads as random_reads
from tests.egraph.programs import least_flops, saturate
from tests.egraph.properties import holds, some, stated, x
from tests.terms import INF, assert_equal, end, it, leaf, op
from tests.turns import by_turns

DELTA = stated("delta-under-sum")

# ---- sums ----------------------------------------------------------------------


@st.composite
def sums(draw: st.DrawFn) -> Scope:
    """Draw ``sum_y (f + g)``, whose terms are numbers, products and functions."""
    extents = [draw(EXTENTS) for _ in range(3)]
    its = [It(slot, extent) for slot, extent in enumerate(extents)]
    terms: list[Scalar] = []
    for _ in range(draw(st.integers(2, 3))):
        kind = draw(st.sampled_from(["number", "product", "body"]))
        if kind == "number":
            terms.append(Num(draw(st.sampled_from([1.0, -2.0]))))
        elif kind == "product":
            chosen = draw(st.lists(st.sampled_from(its), min_size=1, unique=True))
            terms.append(product([draw(random_reads(chosen)), draw(random_reads(chosen))]))
        else:
            terms.append(draw(bodies(its)))
    return Scope(tuple(extents[:1]), tuple(extents[1:]), total(terms))


@by_turns
def test_a_sum_of_terms_is_reduced_term_by_term(turn: int) -> None:
    holds(turn, lambda scope: some(end(linear.term_split(scope))), sums(), accepted=5)


def test_a_number_of_sums_is_a_sum_and_equal_terms_fall_away() -> None:
    """f + h - (g + h) = f - g, and a sum of sums without a number stays as it is."""
    i = it(0, 3)
    f, g, h = (x(i, shape=(3,), name=name) for name in "fgh")
    scope = Scope((3,), (), Sum((f, h, Prod((Num(-1.0), Sum((g, h)))))))
    found = end(linear.spread(scope))
    assert found is not None and set(reads(found.body)) == {f, g}
    assert_equal(scope, found)
    assert linear.spread(found) is None
    infinite = Call("reciprocal", (h,))
    open_ = Scope((3,), (), Sum((infinite, Prod((Num(-1.0), Sum((g, infinite)))))))
    assert linear.spread(open_) is None


def test_constant_terms_meet() -> None:
    i, j = it(0, 3), it(1, 2)
    terms = (
        x(i, j, shape=(3, 2)),
        Read(leaf("c", 2, constant=True), (j,)),
        Prod((Num(2.0), Read(leaf("d", 2, constant=True), (j,)))),
    )
    scope = canonical(Scope((3, 2), (), Sum(terms)))
    folded = end(linear.fold_terms(scope))
    assert folded is not None and len(folded.body.terms) == 2  # type: ignore[attr-defined]
    assert_equal(scope, folded)
    assert end(linear.fold_terms(canonical(Scope((3, 2), (), Sum(terms[:2]))))) is None


def test_a_quotient_by_constants_is_a_product() -> None:
    """f / d = f * {1/d}; (f + c) / d stays a sum where it is to be taken apart, but never for d
    that isn't constant."""
    i, j = it(0, 3), it(1, 2)
    f, c = x(i, j, shape=(3, 2)), Read(leaf("c", 2, constant=True), (j,))
    for d, summed in (
        (Read(leaf("d", 2, constant=True), (j,)), True),
        (Read(leaf("d", 3, 2, constant=True), (i, j)), True),
        (Read(leaf("d", 2), (j,)), False),
    ):
        plain = canonical(Scope((3, 2), (), Call("div", (f, d))))
        found = end(linear.invariants(plain))
        assert found is not None and not any(isinstance(p, Call) for p in factors_of(found.body))
        assert_equal(plain, found)
        shifted = canonical(Scope((3, 2), (), Call("div", (Sum((f, c)), d))))
        for shifts in (False, True):
            answer = end(linear.invariants(shifted, shifts=shifts))
            assert answer is not None
            stays = any(isinstance(part, Sum) for part in factors_of(answer.body))
            assert stays == (summed and shifts)
            assert_equal(shifted, answer)
    each = Read(leaf("d", 3, 2), (i, j))
    assert end(linear.invariants(canonical(Scope((3, 2), (), Call("div", (f, each)))))) is None


@pytest.mark.rotating
def test_a_number_behind_a_bias_goes_into_the_weights() -> None:
    x, w, b = eqsynth.input("x", (5, 8)), eqsynth.weight("w", (8, 6)), eqsynth.weight("b", (6,))
    for scaled in ((x @ w + b) * 0.3, (x @ w + b) / 3, (x @ w + b) / 3 + b):
        graph = saturate(program_of(scaled)[0].outputs[0])
        assert least_flops(graph) == 2 * 5 * 8 * 6 + 5 * 6
        bodies = [m.body for ms in graph.classes.values() for m in ms if isinstance(m, Scope)]
        assert not any(isinstance(b, Call) and b.fn == "reciprocal" for b in bodies)


@pytest.mark.rotating
def test_an_exact_difference_is_not_taken_apart() -> None:
    """x - m may be exact; x/s - m/s is rounded. What a sum has rounded already is taken apart."""
    b, m, s = (eqsynth.weight(name, (4,)) for name in "bms")
    a, w = eqsynth.input("a", (5, 4)), eqsynth.weight("w", (4, 4))
    turned = ops.permute(ops.permute(a, (1, 0)), (1, 0))
    for value, apart in ((a, False), (turned, False), (a @ w, True), (a @ w + b, True)):
        for scaled in ((value - m) * s, (value - m) / s, ops.relu((value - m) / s + b)):
            graph = saturate(program_of(scaled)[0].outputs[0])
            fired = {*graph.matches} & {"scale-of-shifted", "scale-of-shifted-and-shift"}
            assert bool(fired) == apart, (str(scaled), fired)


@pytest.mark.rotating
def test_a_scaled_product_of_smaller_constants_is_seen_through() -> None:
    """x @ (outer(u, v) / 3) is (x @ u) * v, whatever scales the constant; so is a low rank."""
    x, u, v = eqsynth.input("x", (5, 8)), eqsynth.weight("u", (8,)), eqsynth.weight("v", (8,))
    outer = ops.reshape(u, (8, 1)) * v
    low = eqsynth.weight("p", (8, 1)) @ eqsynth.weight("q", (1, 8))
    missed = {}
    for name, w in {
        "plain": outer, "third": outer / 3, "half": outer * 0.5,
        "by its sum": outer / ops.sum(outer), "by a weight": outer / eqsynth.weight("s", (1,)),
        "rank one": low, "half rank one": low * 0.5, "third of rank one": low / 3,
    }.items():  # fmt: skip
        found = least_flops(saturate(program_of(x @ w)[0].outputs[0]))
        if found > 5 * 8 * 2 + 5 * 8:
            missed[name] = found
    assert not missed
    y, p, q = (eqsynth.input("y", (5, 16)), eqsynth.weight("p", (16, 2)),
               eqsynth.weight("q", (2, 16)))  # fmt: skip
    half = y @ (0.5 * (p @ q))
    assert least_flops(saturate(program_of(half)[0].outputs[0])) == 2 * (2 * 5 * 16 * 2)
    full = x @ (eqsynth.weight("w", (8, 8)) / 3)
    assert least_flops(saturate(program_of(full)[0].outputs[0])) == 5 * 8 * 8 * 2


def test_small_integers_are_not_summed_apart() -> None:
    """a + b in int8 wraps. The sums of a and of b are in int64 and don't."""
    a, b = (Read(leaf(n, 3, dtype="int8"), (it(0, 3),)) for n in "ab")
    assert end(linear.term_split(Scope((), (3,), Sum((a, b))))) is None


@st.composite
def polynomials(draw: st.DrawFn) -> Scope:
    its = [It(slot, draw(EXTENTS)) for slot in range(2)]

    def linear_(depth: int) -> Scalar:
        count = draw(st.integers(1, 2 + depth))
        return total(
            [draw(random_reads(its)) for _ in range(count)] + [Num(draw(st.integers(0, 2)))]
        )

    factor = linear_(0)
    factors = [factor, factor if draw(st.booleans()) else linear_(1)]
    if draw(st.integers(0, 3)) == 0:
        factors = [Call("pow", (factor, Num(2)))]
    return Scope((its[0].extent,), (its[1].extent,), product(factors))


@by_turns
def test_products_of_sums_are_multiplied_out(turn: int) -> None:
    holds(turn, lambda scope: some(end(linear.multiply_out(scope))), polynomials(), accepted=5)


def test_sums_of_integers_are_not_multiplied_out() -> None:
    """0.5 * (b + w) of int32: b + w wraps, 0.5 * b + 0.5 * w doesn't."""
    i = it(0, 4)
    b, w = (Read(leaf(name, 4, dtype="int32"), (i,)) for name in "bw")
    scope = Scope((), (4,), Prod((Num(0.5), Sum((b, w)))))
    assert scope.dtype == "float32" and end(linear.multiply_out(scope)) is None


def test_infinite_fills_are_not_multiplied_out() -> None:
    """Out of range, inf * (-inf + 1) is -inf, but inf * -inf + inf * 1 is NaN."""
    f, g = (Read(leaf(n, 3), (it(0, 4),), fill) for n, fill in (("f", INF), ("g", -INF)))
    assert end(linear.multiply_out(Scope((), (4,), Prod((f, Sum((g, Num(1.0)))))))) is None


# ---- what broadcasts -------------------------------------------------------------


@st.composite
def broadcasting(draw: st.DrawFn) -> Scope:
    i, j = It(0, draw(EXTENTS)), It(1, draw(EXTENTS))
    over = draw(st.one_of(random_reads([i, j]), bodies([i, j])))
    under: Scalar = draw(st.one_of(random_reads([i]), st.just(Num(4.0))))
    if draw(st.booleans()):
        under = Call("exp", (under,))
    body: Scalar = Call("div", (over, Sum((Num(9.0), Call("abs", (under,))))))
    if draw(st.booleans()):
        body = product([body, Call("sigmoid", (draw(random_reads([j])),))])
    if draw(st.booleans()):
        body = total([body, draw(random_reads([i, j]))])
    return Scope((i.extent, j.extent), (), body)


@by_turns
def test_functions_that_broadcast_are_computed_once(turn: int) -> None:
    holds(turn, lambda scope: some(end(linear.invariants(scope))), broadcasting(), accepted=5)


def test_division_by_a_broadcast_becomes_a_product_of_reads() -> None:
    i, j = it(0, 3), it(1, 4)
    e = Call("exp", (x(i, j, shape=(3, 4)),))
    scope = canonical(Scope((3, 4), (), Call("div", (e, x(i, shape=(3,), name="s")))))
    answer = end(linear.invariants(scope))
    assert answer is not None and is_product(answer)
    assert_equal(scope, answer)
    integers = Read(leaf("n", 3, dtype="int64"), (i,))
    assert linear.invariants(Scope((3,), (), Call("div", (integers, Num(1.0))))) is None
    assert linear.invariants(Scope((3, 4), (), Call("div", (e, Num(0.0))))) is None


@st.composite
def repeating(draw: st.DrawFn) -> Scope:
    h, k = It(0, draw(st.integers(2, 6))), It(1, draw(EXTENTS))
    divisor = draw(st.integers(2, 3))
    shift = draw(st.integers(0, 2))
    index = Index.iterator(0, h.extent) + shift
    atom = index // divisor if draw(st.booleans()) else index % divisor
    other = draw(random_reads([k]))
    size = atom.range()[1] + k.extent
    read = x(atom + it(1, k.extent) - draw(st.integers(0, 1)), shape=(size,))
    twice = x(atom, shape=(atom.range()[1] + 1,), name="z") if draw(st.booleans()) else Num(1)
    return Scope((h.extent,), (k.extent,), product([read, other, twice]))


@by_turns
def test_what_repeats_is_computed_once(turn: int) -> None:
    holds(turn, lambda scope: some(end(linear.quotient(scope))), repeating(), accepted=5)


def test_a_quotient_needs_its_iterator_in_one_place() -> None:
    h, k = it(0, 6), it(1, 3)
    inside = x(h // 2, k, shape=(3, 3))
    summed = end(linear.quotient(Scope((6,), (3,), inside)))
    assert summed is not None
    assert_equal(Scope((6,), (3,), inside), summed)
    # A read without a sum only moves elements: nothing can be computed less often.
    assert end(linear.quotient(Scope((6, 3), (), inside))) is None
    both = Prod((inside, x(h, shape=(6,), name="y")))
    assert end(linear.quotient(Scope((6,), (3,), both))) is None
    remainder = Prod((inside, x(h % 2, shape=(2,), name="y")))
    assert end(linear.quotient(Scope((6,), (3,), remainder))) is None


# ---- diagonals and constants --------------------------------------------------------


def one(index: Index) -> Read:
    return Read(op("Full", attrs=((1,), 1.0, "float32")), (index,))


@st.composite
def diagonals(draw: st.DrawFn) -> Scope:
    i, j, k = (it(slot, draw(EXTENTS)) for slot in range(3))
    value = draw(st.sampled_from([i, i - 1, i + j, 2 * i, Index(0), Index(1), -j + 1]))
    extents = [draw(EXTENTS) for _ in range(3)]
    its = [It(slot, extent) for slot, extent in enumerate(extents)]
    value = value.substitute(lambda a: Index.iterator(a.slot, extents[a.slot]))
    factors: list[Scalar] = [draw(random_reads(its)) for _ in range(draw(st.integers(1, 2)))]
    last = Index.iterator(2, extents[2])
    at = last - value if draw(st.booleans()) else value - last
    return Scope(tuple(extents[:2]), (extents[2],), product([*factors, one(at)]))


@by_turns
def test_a_diagonal_selects(turn: int) -> None:
    holds(turn, partial(answers, DELTA), diagonals(), accepted=5)


N = 16
ROW, COLUMN = ops.unsqueeze(ops.arange(N), 1), ops.arange(N)


@pytest.mark.rotating
@pytest.mark.parametrize("shape", [(N, 1), (1, N)])
@pytest.mark.parametrize(
    "chosen",
    [
        ROW == COLUMN,
        ROW == COLUMN + 1,
        ops.eq(ROW, COLUMN + ops.full((N,), 1, "int64")),
        ROW == N - 1 - COLUMN,
        ROW + COLUMN == N - 1,
    ],
    ids=["plain", "offset", "offset by a tensor", "flipped", "flipped, as a sum"],
)
def test_a_product_with_a_diagonal_is_a_product_of_elements(
    chosen: Expr, shape: tuple[int, int]
) -> None:
    d, x = eqsynth.input("d", shape), eqsynth.input("x", (N, N))
    (root,) = program_of(ops.where(chosen, d, 0.0) @ x)[0].outputs
    assert flops(root) > N**3
    assert least_flops(saturate(root)) <= N * N


def test_a_diagonal_that_leaves_the_range_keeps_its_zeros() -> None:
    i, k = it(0, 4), it(1, 3)
    scope = canonical(Scope((4,), (3,), Prod((x(k, shape=(5,)), one(k - i)))))
    (answer,) = answers(DELTA, scope)
    assert not answer.reduction
    assert_equal(scope, answer)


def test_numbers_in_place_of_constant_tensors() -> None:
    full = op("Full", attrs=((3,), 2.0, "float32"))
    i = it(0, 3)
    value = {full: 2.0}.get
    inside = canonical(Scope((3,), (), Prod((x(i, shape=(3,)), Read(full, (i,))))))
    answer = end(selection.read_constants(inside, value))
    assert answer is not None
    assert_equal(inside, answer)
    outside = canonical(Scope((3,), (), Prod((x(i, shape=(3,)), Read(full, (i - 1,))))))
    assert end(selection.read_constants(outside, value)) is None


# ---- rows by data -------------------------------------------------------------------


def test_rows_of_a_product_are_rows_of_its_factor() -> None:
    """Rows of a @ b are rows of a, times b. Tests draw ids below 100, and tables have 200 rows."""
    r, j, k = it(0, 200), it(1, 2), it(2, 3)
    ids = leaf("ids", 2, dtype="int64")
    product_ = Prod((x(k, r, shape=(3, 200)), x(k, j, shape=(3, 2), name="b")))
    inner = canonical(Scope((200, 2), (3,), product_))
    whole = op("Embedding", inner, ids)
    answer = end(path(whole, Define(whole)))
    assert answer is not None
    assert_equal(whole, answer)
    longer = Prod((x(r, k, shape=(201, 3)), x(k, j, shape=(3, 2), name="b")))
    # The factor has a row 200, which the product doesn't have.
    beyond = canonical(Scope((200, 2), (3,), longer))
    whole = op("Embedding", beyond, ids)
    assert end(path(whole, Define(whole))) is None


def test_rows_of_a_product_of_tables_of_any_rank() -> None:
    """An embedding's table has two axes; the factors of the table have one, three and two axes."""
    r, j, k = it(0, 200), it(1, 2), it(2, 3)
    ids = leaf("ids", 2, dtype="int64")
    factors = (
        x(r, shape=(200,)),
        x(k, r, j, shape=(3, 200, 2), name="b"),
        x(r, k, shape=(200, 3), name="c"),
    )
    inner = canonical(Scope((200, 2), (3,), Prod(factors)))
    whole = op("Embedding", inner, ids)
    answer = end(path(whole, Define(whole)))
    assert answer is not None
    assert_equal(whole, answer)


@pytest.mark.parametrize("rest", [(), (4, 5)])
def test_a_product_with_rows_may_have_a_table_of_any_rank(rest: tuple[int, ...]) -> None:
    ids = leaf("ids", 2, dtype="int64")
    rows = op("Embedding", leaf("t", 200, 3, constant=True), ids)
    k = it(1 + len(rest), 3)
    others = [it(1 + n, extent) for n, extent in enumerate(rest)]
    read = Read(rows, (it(0, 2), k))
    w = Read(leaf("w", 3, *rest, constant=True), (k, *others))
    scope = canonical(Scope((2, *rest), (3,), Prod((read, w))))
    answer = end(selection.ungather_rows(scope, read, rows))
    assert answer is not None
    assert_equal(scope, answer)


def test_rows_that_are_picked_at_a_composed_place_are_rows_of_a_table() -> None:
    """``t[ids][3*i + j] @ w``: the neighbours of each node, in the order of a list."""
    i, j, k, m = it(0, 4), it(1, 3), it(3, 3), it(2, 5)
    rows = op("Embedding", leaf("t", 4, 3), leaf("ids", 12, dtype="int64"))
    w = Read(leaf("w", 3, 5, constant=True), (k, m))
    scope = canonical(Scope((4, 3, 5), (3,), Prod((Read(rows, (i * 3 + j, k)), w))))
    answer = end(selection.ungather_rows(scope, next(iter_rows(scope, rows)), rows))
    assert answer is not None
    assert_equal(scope, answer)
    v = Read(leaf("v", 4, 3), (i, it(2, 3)))  # for each node, so not one product for each row
    beside = canonical(Scope((4, 3), (3,), Prod((Read(rows, (i * 3 + j, it(2, 3))), v))))
    assert end(selection.ungather_rows(beside, next(iter_rows(beside, rows)), rows)) is None


def iter_rows(scope: Scope, rows: Tensor) -> Iterator[Read]:
    return (read for read in reads(scope.body) if read.tensor == rows)


@pytest.mark.parametrize("constant", [True, False])
def test_a_product_with_rows_of_a_table_is_a_table(constant: bool) -> None:
    i, j, k = it(0, 2), it(1, 4), it(2, 3)
    ids = leaf("ids", 2, dtype="int64")
    rows = op("Embedding", leaf("t", 200, 3, constant=constant), ids)
    w = Read(leaf("w", 3, 4, constant=True), (k, j))
    read = Read(rows, (i, k))
    scope = canonical(Scope((2, 4), (3,), Prod((read, w))))
    answer = end(selection.ungather_rows(scope, read, rows))
    assert (answer is not None) == constant
    if answer is not None:
        assert_equal(scope, answer)


def test_a_product_with_added_rows_adds_rows_of_a_table() -> None:
    """``one_hot(ids).sum(1) @ w``: the sum over places stays, now of rows of w."""
    i, j, n, k = it(0, 2), it(1, 4), it(2, 5), it(3, 3)
    ids = leaf("ids", 2, 5, dtype="int64")
    rows = op("Embedding", leaf("t", 200, 3, constant=True), ids)
    w = Read(leaf("w", 3, 4, constant=True), (k, j))
    scope = canonical(Scope((2, 4), (5, 3), Prod((Read(rows, (i, n, k)), w))))
    (read,) = (each for each in reads(scope.body) if each.tensor == rows)
    answer = end(selection.ungather_rows(scope, read, rows))
    assert answer is not None and answer.reduction == (5,)
    assert_equal(scope, answer)
    # If all that is reduced picks rows, there is no product that could be computed before.
    column = it(1, 3)
    alone = Read(rows, (i, n, column))
    v = Read(leaf("v", 3, constant=True), (column,))
    added = canonical(Scope((2, 3), (5,), Prod((alone, v))))
    assert end(selection.ungather_rows(added, alone, rows)) is None


def test_rows_of_a_diagonal_are_rows_of_what_it_multiplies() -> None:
    """``(one_hot(ids) * a).sum(1) @ x``: rows of x, weighted and added."""
    i, j, n, k = it(0, 4), it(1, 5), it(2, 2), it(3, 6)
    rows = op("Embedding", leaf("t", 6, 6, constant=True), leaf("ids", 4, 2, dtype="int64"))
    beside, x = Read(leaf("a", 4, 2), (i, n)), Read(leaf("x", 6, 5), (k, j))
    scope = canonical(Scope((4, 5), (2, 6), Prod((Read(rows, (i, n, k)), beside, x))))
    (read,) = iter_rows(scope, rows)
    # The table has 6 rows, of which 8 are picked: not twice as many.
    assert end(selection.ungather_rows(scope, read, rows)) is None
    answer = end(selection.ungather_rows(scope, read, rows, lambda table: table.shape == (6, 6)))
    assert answer is not None and answer.reduction == (2,)
    assert_equal(scope, answer)
    # A factor of a place and of what is summed, a[i, k], has another row for each place.
    both = Read(leaf("a", 4, 6), (i, k))
    mixed = canonical(Scope((4, 5), (2, 6), Prod((Read(rows, (i, n, k)), both, x))))
    (read,) = iter_rows(mixed, rows)
    assert end(selection.ungather_rows(mixed, read, rows, lambda _table: True)) is None


# ---- windows of one image ---------------------------------------------------------------


def flats_of(read: Read) -> list[Scope]:
    return [read.tensor] if isinstance(read.tensor, Scope) and is_product(read.tensor) else []


def window(size: int, shift: int, name: str, constant: bool = True) -> Read:
    """A read of ``L_{f,h} sum_{c,r} a[c, h + r - shift] w[f, c, r]``, with two channels c."""
    f, h, c, r = it(0, 2), it(1, 5), it(2, 2), it(3, size)
    weight = Read(leaf(name, 2, 2, size, constant=constant), (f, c, r))
    body = Prod((x(c, h + r - shift, shape=(2, 5), name="a"), weight))
    return Read(canonical(Scope((2, 5), (2, size), body)), (f, h))


def test_rows_at_places_that_are_computed_are_read_there() -> None:
    table, count = leaf("t", 4, 2), it(0, 3)
    backwards = Scope((3,), (), Value(count * -1 + 3))
    whole = op("Embedding", table, backwards)
    answer = end(path(whole, Define(whole)))
    assert answer == Scope((3, 2), (), Read(table, (count * -1 + 3, it(1, 2))))
    for beyond_it in (count + 2, count - 1):  # no row: an embedding raises there
        beyond = op("Embedding", table, Scope((3,), (), Value(beyond_it)))
        assert end(path(beyond, Define(beyond))) is None


@pytest.mark.parametrize(("small", "shift"), [(1, 0), (3, 1), (5, 2), (3, 0), (2, 2)])
def test_a_smaller_window_is_part_of_a_larger_one(small: int, shift: int) -> None:
    scope = canonical(Scope((2, 5), (), Sum((window(5, 2, "w"), window(small, shift, "v")))))
    joined = [end(path(scope, step)) for step in common_factor(scope, flats_of)]
    assert joined
    for answer in joined:
        assert answer is not None and answer.reduction and is_product(answer)
        assert_equal(scope, answer)


def test_the_image_itself_is_a_window_of_one() -> None:
    image = x(it(0, 2), it(1, 5), shape=(2, 5), name="a")
    scope = canonical(Scope((2, 5), (), Sum((window(3, 1, "w"), image))))
    (step,) = common_factor(scope, flats_of)
    answer = end(path(scope, step))
    assert answer is not None
    assert_equal(scope, answer)


def test_windows_that_do_not_lie_in_each_other_stay_apart() -> None:
    scope = canonical(Scope((2, 5), (), Sum((window(3, 0, "w"), window(3, 2, "v")))))
    assert not list(common_factor(scope, flats_of))
    data = canonical(Scope((2, 5), (), Sum((window(5, 2, "w"), window(3, 1, "v", False)))))
    assert not list(common_factor(data, flats_of))
