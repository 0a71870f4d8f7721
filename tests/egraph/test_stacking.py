"""The products of an unrolled loop's steps as one product: properties of the law, and loops that
the rules stack."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import eqsynth
from eqsynth import ops
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.egraph.tactics.stacking import stacked
from eqsynth.frontend.expr import Expr
from eqsynth.ir.index import Index
from eqsynth.ir.normal import canonical
from eqsynth.ir.outline import Places, outline
from eqsynth.ir.scalar import Prod, Read
from eqsynth.ir.tensor import Op, Scope
from eqsynth.ir.work import flops
from eqsynth.numerics import rules_of
from tests.terms import assert_equal, it, leaf


def step(x_at: int, w_at: int | None) -> Scope:
    """``L_{i,j} sum_k x[at, i, k] w[at, k, j]``; without ``w_at`` all steps share one w."""
    i, j, k = it(0, 2), it(1, 3), it(2, 4)
    x = Read(leaf("x", 5, 2, 4), (Index(x_at), i, k))
    if w_at is None:
        w = Read(leaf("w", 4, 3, constant=True), (k, j))
    else:
        w = Read(leaf("v", 7, 4, 3, constant=True), (Index(w_at), k, j))
    return canonical(Scope((2, 3), (4,), Prod((x, w))))


places = st.tuples(st.integers(-1, 5), st.none() | st.integers(0, 6))


@given(places, st.lists(places, max_size=5))
def test_a_part_of_what_is_stacked_is_the_product(
    own: tuple[int, int | None], others: list[tuple[int, int | None]]
) -> None:
    """The slice of the stacked product equals the step's product for any peers, and also if a place
    is out of range."""
    scope = step(*own)
    outlined = outline(scope)[0]
    found = {outline(step(*at)) for at in (own, *others)}
    peers = {places for other, places in found if other == outlined}
    for part in stacked(scope, peers):
        assert_equal(scope, part)


def test_all_steps_that_stand_in_a_row_are_one_product() -> None:
    steps = [step(at, None) for at in (0, 2, 4)]
    peers = {outline(scope)[1] for scope in steps}
    wholes = set()
    for number, scope in enumerate(steps):
        (part,) = stacked(scope, peers)
        assert isinstance(part, Op) and isinstance(part.args[0], Op)
        assert part.args[0].attrs == (0, number, number + 1, 1)
        wholes.add(part.args[0].args[0])
    (whole,) = wholes
    assert whole.shape == (3, 2, 3) and flops(whole) == sum(map(flops, steps))


@pytest.mark.parametrize("peers", [[(0, None)], [(0, None), (1, None), (3, None)]])
def test_what_is_alone_or_in_no_row_stays(peers: list[tuple[int, None]]) -> None:
    """Steps whose places aren't in a row aren't stacked: the product would also compute the places
    between them."""
    found: set[Places] = {outline(step(*at))[1] for at in peers}
    assert not list(stacked(step(0, None), found))


def test_places_that_move_together_are_one_axis() -> None:
    peers = {outline(step(at, at + 1))[1] for at in range(4)}
    (part,) = stacked(step(2, 3), peers)
    assert_equal(step(2, 3), part)


# ---- by the rules ------------------------------------------------------------------------------

X = eqsynth.input("x", (6, 1, 8))


def products(outputs: list[Expr]) -> set[tuple[str, tuple[int, ...]]]:
    """The names and shapes of all operators in the saturated e-graph."""
    graph = saturate_terms(
        tuple(e.tensor for e in outputs), rules_of((), "real", where="test"), DEFAULT_PHASES,
        Limits(), False,
    )  # fmt: skip
    members = [member for members in graph.classes.values() for member in members]
    return {(m.name, m.shape) for m in members if isinstance(m, Op)}


@pytest.mark.rotating
def test_gates_of_all_time_steps_are_one_product() -> None:
    """Six steps with two gates each. Each state depends on the previous one, but the products with
    x don't: they are one product of 6 rows and 16 columns."""
    w, v, u = (eqsynth.weight(name, (8, 8)) for name in "wvu")
    h = eqsynth.input("h", (1, 8))
    for t in range(6):
        x = ops.reshape(ops.slice(X, 0, t, t + 1), (1, 8))
        h = ops.tanh(x @ w + h @ u) * ops.sigmoid(x @ v)
    assert ("Matmul", (6, 16)) in products([h])


def test_heads_of_a_loop_are_one_batch() -> None:
    q, k = eqsynth.input("q", (3, 5, 4)), eqsynth.input("k", (3, 4, 5))

    def head(tensor: Expr, n: int) -> Expr:
        part = ops.slice(tensor, 0, n, n + 1)
        return ops.reshape(part, part.shape[1:])

    assert ("Matmul", (3, 5, 5)) in products(
        [ops.softmax(head(q, n) @ head(k, n), 1) for n in range(3)]
    )


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["Matmul", "Conv2d"])
def test_a_merged_product_is_a_scope_too(name: str) -> None:
    """So kernels are generated for it, as for each of the products."""
    if name == "Matmul":
        x, weights = eqsynth.input("x", (3, 8)), [eqsynth.weight(n, (8, 4)) for n in "wvu"]
        parts, shape = [x @ w for w in weights], (3, 12)
    else:
        x = eqsynth.input("x", (1, 3, 6, 6))
        weights = [eqsynth.weight(n, (4, 3, 3, 3)) for n in "wvu"]
        parts, shape = [ops.conv2d(x, w, padding=1) for w in weights], (1, 12, 6, 6)
    roots = tuple(ops.softmax(part, 1).tensor for part in parts)
    rules = rules_of((), "real", where="test")
    graph = saturate_terms(roots, rules, DEFAULT_PHASES, Limits(), False)
    (merged,) = (
        members
        for members in graph.classes.values()
        if any(isinstance(m, Op) and (m.name, m.shape) == (name, shape) for m in members)
    )
    assert any(isinstance(member, Scope) for member in merged)
