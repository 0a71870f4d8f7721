"""Laws of parts and of monotone functions: properties, directed tests (``properties.py``), and
programs that these laws improve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st

import eqsynth
from eqsynth import ops
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES
from eqsynth.egraph.tactics import maps
from eqsynth.frontend.expr import Expr
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, Sum, composites, product, reads, total
from eqsynth.ir.tensor import Scope
from eqsynth.testing.strategies import EXTENTS
from eqsynth.testing.strategies import reads as random_reads
from tests.egraph.programs import LIMITS, RULES
from tests.egraph.properties import holds, some, x
from tests.terms import INF, assert_equal, end, it, leaf, op
from tests.turns import by_turns

# ---- parts -------------------------------------------------------------------------------------


@st.composite
def partial(draw: st.DrawFn) -> Scope:
    """Draw a function of reads at affine indices, some of them out of range."""
    i, j, k = (It(slot, draw(EXTENTS)) for slot in range(3))
    terms: list[Scalar] = []
    for name in "ab":
        index = []
        for _ in range(draw(st.integers(1, 2))):
            a, b = (draw(st.sampled_from([0, 1, 1, 2, 3, -1])) for _ in range(2))
            c = draw(st.integers(-2, 4))
            one, other = draw(st.permutations([i, j, k]))[:2]
            value = Index.iterator(one.slot, one.extent) * a + c
            index.append(value + Index.iterator(other.slot, other.extent) * b)
        shape = tuple(draw(st.integers(1, 7)) for _ in index)
        fill = draw(st.sampled_from([0.0, 0.0, 1.0]))
        terms.append(Call("exp", (Read(leaf(name, *shape), tuple(index), fill),)))
    reducer = draw(st.sampled_from(["sum", "max"]))
    return Scope((i.extent, j.extent), (k.extent,), total(terms), reducer)


def parts(scope: Scope) -> Iterator[Scope]:
    for read in reads(scope.body):
        yield from some(end(maps.part(scope, read)))


def test_an_infinite_fill_is_made_no_element() -> None:
    """A fill of -inf can't become an element of a sum. Laws of sums take elements to be finite, and
    would drop the term -inf * 0 where w is out of range."""
    beside = Read(leaf("w", 5), (it(0, 2) * 4,))
    for fill, found in ((2.0, True), (-INF, False)):
        read = Read(leaf("t", 2, 3), (Index(3), it(1, 3)), fill)
        scope = Scope((2,), (3,), Prod((read, beside)))
        assert (end(maps.part(scope, read)) is not None) == found
    window = Read(leaf("t", 9), (it(0, 2) + it(1, 3) - 1,), -INF)
    assert end(maps.part(Scope((2,), (3,), window, "max"), window)) is not None


@by_turns
def test_a_part_of_an_operand_is_read_as_a_part(turn: int) -> None:
    holds(turn, parts, partial(), accepted=7)


@pytest.mark.parametrize(
    ("index", "shape", "part"),
    [
        ((it(0, 3), Index(1)), (3, 4), (3, 1)),  # a column
        ((it(0, 3), it(0, 3)), (3, 3), (3,)),  # the diagonal
        ((it(0, 3) * 2,), (6,), (3,)),  # every second place
        ((it(0, 3) + it(1, 2),), (9,), (4,)),  # a window over a slice
        ((it(0, 3) * 2 - 2,), (9,), (2,)),  # from outside
        ((it(0, 3) + it(1, 2) - 1,), (3,), None),  # all of it, and beyond
        ((it(0, 4), it(1, 2)), (4, 2), None),
    ],
)
def test_no_more_is_read_than_the_index_takes(
    index: tuple[Index, ...], shape: tuple[int, ...], part: tuple[int, ...] | None
) -> None:
    read = Read(leaf("a", *shape), index)
    extents = {i.slot: i.extent for n in index for i in n.iterators()}
    traversal = tuple(extents.get(slot, 1) for slot in range(max(extents) + 1))
    scope = Scope(traversal, (), Call("exp", (read,)))
    found = end(maps.part(scope, read))
    assert (None if found is None else next(iter(reads(found.body))).tensor.shape) == part
    if found is not None:
        assert_equal(scope, found)


# ---- the largest and the smallest ----------------------------------------------------------------

INCREASING = sorted(n for n, f in FUNCTIONS.items() if f.increasing)


@st.composite
def extrema(draw: st.DrawFn) -> Scope:
    its = [It(slot, draw(EXTENTS)) for slot in range(3)]

    def body(depth: int) -> Scalar:
        kind = (
            draw(st.sampled_from(["read", "sum", "scaled", "call", "other"])) if depth else "read"
        )
        if kind == "sum":
            return total([body(depth - 1) for _ in range(draw(st.integers(2, 3)))])
        if kind == "scaled":
            scale = Num(draw(st.sampled_from([2.0, 0.5, -1.0, -3.0, 0.0])))
            return product([scale, body(depth - 1)])
        if kind == "call":
            name = draw(st.sampled_from(INCREASING))
            return Call(name, tuple(body(depth - 1) for _ in range(FUNCTIONS[name].arity)))
        if kind == "other":
            return Call(draw(st.sampled_from(["abs", "sin", "cos"])), (body(depth - 1),))
        chosen = draw(st.lists(st.sampled_from(its), min_size=1, unique=True))
        return draw(random_reads(chosen))

    reducer = draw(st.sampled_from(["max", "min"]))
    return Scope((its[0].extent,), tuple(i.extent for i in its[1:]), body(3), reducer)


@by_turns
def test_the_largest_of_an_increasing_function(turn: int) -> None:
    holds(turn, lambda scope: some(end(maps.extremum(scope))), extrema(), accepted=3)


def test_every_increasing_function_increases() -> None:
    """Values of both signs, near each other and far apart, are in order after the function."""
    values = sorted([-50.0, -3.0, -1.0, -1e-6, 0.0, 1e-6, 0.5, 0.5000001, 1.0, 3.0, 50.0])
    for name in INCREASING:
        function = FUNCTIONS[name]
        for other in values if function.arity == 2 else [None]:
            rest = [] if other is None else [other]
            found = [float(function.value(value, *rest)) for value in values]
            assert found == sorted(found), name


ROW, J = it(0, 3), it(1, 4)
A = x(J, shape=(4,))


@pytest.mark.parametrize(
    "body",
    [
        Call("sin", (A,)),  # neither up nor down
        Call("abs", (A,)),
        Call("sqrt", (A,)),  # NaN below zero, and a maximum with NaN in it is NaN
        Prod((A, A)),
        Prod((A, Read(leaf("c", 3), (ROW,)))),  # of any sign
        Prod((Num(0.0), A)),
        Call("min", (A, Read(leaf("d", 4), (J,)))),  # at the same place
        Sum((A, Read(leaf("d", 4), (J,)))),
    ],
)
def test_what_is_not_monotone_stays(body: Scalar) -> None:
    assert end(maps.extremum(Scope((3,), (4,), body, "max"))) is None


def test_sums_have_no_largest_value() -> None:
    scope = Scope((3,), (4,), Call("relu", (x(ROW, J, shape=(3, 4)),)), "sum")
    assert end(maps.extremum(scope)) is None


def test_integers_come_round() -> None:
    small = Read(leaf("u", 4, dtype="uint8"), (J,))
    other = Read(leaf("v", 3, dtype="uint8"), (ROW,))
    assert end(maps.extremum(Scope((3,), (4,), Sum((small, other)), "max"))) is None


def test_a_negative_factor_turns_it_over() -> None:
    scope = Scope((3,), (4,), Prod((Num(-2.0), x(ROW, J, shape=(3, 4)))), "max")
    found = end(maps.extremum(scope))
    assert found is not None
    (read,) = reads(found.body)
    assert isinstance(read.tensor, Scope) and read.tensor.reducer == "min"
    assert_equal(scope, found)


def test_disjoint_iterators_are_reduced_apart() -> None:
    scope = Scope(
        (), (4, 2), Sum((x(it(0, 4), shape=(4,)), Read(leaf("b", 2), (it(1, 2),)))), "max"
    )
    found = end(maps.extremum(scope))
    assert found is not None and len(list(reads(found.body))) == 2
    assert_equal(scope, found)


# ---- programs ------------------------------------------------------------------------------------

X, W, V = eqsynth.input("x", (16, 8)), eqsynth.weight("w", (8, 12)), eqsynth.weight("v", (12, 4))
BIAS = eqsynth.weight("b", (12,))
IDS = eqsynth.input("ids", (2,), "int64")


def first_rows(t: Any) -> Expr:
    return ops.slice(t, 0, 0, 2)


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("program", "target"),
    [
        (first_rows(ops.relu(X @ W)), ops.relu(first_rows(X) @ W)),
        (first_rows(ops.tanh(ops.relu(X @ W + BIAS) @ V)),
         ops.tanh(ops.relu(first_rows(X) @ W + BIAS) @ V)),
        (ops.embedding(ops.relu(X @ W), IDS), ops.relu(ops.embedding(X, IDS) @ W)),
        (first_rows(ops.softmax(X @ W, 1)), ops.softmax(first_rows(X) @ W, 1)),
        (first_rows(ops.amax(X @ W, 1)), ops.amax(first_rows(X) @ W, 1)),
        (ops.amax(ops.relu(X @ W + BIAS), 0), ops.relu(ops.amax(X @ W, 0) + BIAS)),
        (ops.amin(ops.sigmoid(-X), 1), ops.sigmoid(-ops.amax(X, 1))),
    ],
)  # fmt: skip
def test_it_is_proved(program: Expr, target: Expr) -> None:
    proof = eqsynth.prove_equal(program, target, time_limit_s=60)
    assert proof, proof.stop


@pytest.mark.parametrize(
    ("kernel", "stride", "fused"), [(2, 2, True), (2, 3, True), (3, 1, False)]
)  # fmt: skip
def test_a_map_goes_into_a_sum_that_takes_each_element_once(
    kernel: int, stride: int, fused: bool
) -> None:
    """A map isn't fused into windows that overlap, which would compute it for each window."""
    image = leaf("image", 1, 3, 6, 6)
    square, step = (kernel, kernel), (stride, stride)
    pooled = op("AvgPool2d", op("Relu", image), attrs=(square, step, (0, 0), (1, 1)))
    graph = saturate_terms((pooled,), RULES, DEFAULT_PHASES, LIMITS, False)
    bodies = [m.body for m in graph.classes[graph.roots[0]] if isinstance(m, Scope)]
    assert any(Call in map(type, composites(body)) for body in bodies) == fused
