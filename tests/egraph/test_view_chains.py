"""Scopes as chains of views: chains are compared with the interpreter, and found in the e-graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import eqsynth
from eqsynth import ops
from eqsynth.calculus.views import index_map
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import PROVE_PHASES
from eqsynth.egraph.tactics import view_chains
from eqsynth.egraph.tactics.merging import merge
from eqsynth.egraph.tactics.view_chains import view_chain
from eqsynth.ir.index import Index
from eqsynth.ir.normal import canonical
from eqsynth.ir.operators import operator
from eqsynth.ir.scalar import Read, reads
from eqsynth.ir.tensor import Op, Scope, Tensor, topological
from eqsynth.testing.consistency import assert_egraph_consistent
from tests.egraph.programs import LIMITS, RULES, saturate
from tests.terms import INF, assert_equal, it, leaf, times
from tests.turns import by_turns, in_rare_turns

Map = Callable[..., tuple[Index, ...]]
Shape = tuple[int, ...]

# Each chain: the extents of the result and of the tensor, the index map, the names of the views.
CHAINS: dict[str, tuple[Shape, Shape, Map, str]] = {
    "blocks": ((4, 6), (24,), lambda i, j: (6 * i + j,), "Split"),
    "blocks, off": ((4, 6), (36,), lambda i, j: (6 * i + j + 12,), "Slice Split"),
    "merged": ((24,), (4, 6), lambda i: (i // 6, i % 6), "Merge"),
    "merged twice": ((24,), (2, 3, 4), lambda i: (i // 12, i // 4 % 3, i % 4), "Merge Merge"),
    "regrouped": ((6, 4), (4, 6), lambda i, j: ((4 * i + j) // 6, (4 * i + j) % 6), "Merge Split"),
    "shifted": ((7,), (7,), lambda i: ((i + 3) % 7,), "Shift"),
    "shifted back": ((7,), (7,), lambda i: ((i - 2) % 7,), "Shift"),
    "windows": ((7, 3), (7,), lambda i, j: (i + j - 1,), "Unfold"),
    "windows of four": ((7, 4), (7,), lambda i, j: (i + j - 2,), "Unfold"),
    "windows inside": ((5, 3), (7,), lambda i, j: (i + j,), "Unfold Slice"),
    "strided windows": ((4, 3), (8,), lambda i, j: (2 * i + j - 1,), "Unfold Stride"),
    "dilated windows": ((8, 3), (8,), lambda i, j: (i + 2 * j - 3,), "Unfold Stride"),
    "image windows": (
        (3, 3, 4, 4), (4, 4), lambda r, s, i, j: (i + r - 1, j + s - 1), "Unfold Unfold Permute"
    ),
    "strided": ((4,), (8,), lambda i: (2 * i,), "Stride"),
    "strided, off": ((3,), (8,), lambda i: (2 * i + 1,), "Slice"),
    "strided, not to the end": ((3,), (8,), lambda i: (2 * i,), "Slice"),
    "padded": ((9,), (5,), lambda i: (i - 2,), "Pad"),
    "padded and strided": ((4,), (6,), lambda i: (2 * i - 1,), "Pad Slice"),
    "transposed": ((3, 4), (4, 3), lambda i, j: (j, i), "Permute"),
    "expanded": ((3, 5, 4), (3, 4), lambda i, j, k: (i, k), "Reshape Expand"),
    "tiled": ((6,), (3,), lambda i: (i % 3,), "Reshape Expand Merge"),
    "repeated": ((6,), (3,), lambda i: (i // 2,), "Reshape Expand Merge"),
    "wrapped": ((7,), (5,), lambda i: ((i + 4) % 5,), "Reshape Expand Merge Slice"),
    "shuffled": ((24,), (24,), lambda i: (i % 4 * 6 + i // 4,), "Split Permute Merge"),
    "one element": ((5,), (5, 5), lambda i: (i, Index(2)), "Slice Reshape"),
    "units": ((3, 1), (1, 3), lambda i, _: (Index(0), i), "Reshape"),
}  # fmt: skip


def scope_of(traversal: Shape, shape: Shape, index: Map, fill: float = 0.0) -> Scope:
    its = [it(slot, extent) for slot, extent in enumerate(traversal)]
    return canonical(Scope(traversal, (), Read(leaf("x", *shape), tuple(index(*its)), fill)))


def views(term: Tensor) -> list[str]:
    """The names of the views of a chain, the view of the tensor first."""
    return [t.name for t in topological([term]) if isinstance(t, Op)]


@pytest.mark.parametrize("name", CHAINS)
def test_a_single_read_is_a_chain_of_views(name: str) -> None:
    traversal, shape, index, expected = CHAINS[name]
    scope = scope_of(traversal, shape, index)
    chain = view_chain(scope)
    assert chain is not None and " ".join(views(chain)) == expected
    assert_equal(scope, chain)


@pytest.mark.parametrize(("fill", "padded"), [(0.0, True), (2.0, True), (-INF, False)])
def test_integers_are_padded_by_numbers_only(fill: float, padded: bool) -> None:
    """A read of integers with an infinite fill gives the smallest integer, but Pad with infinity
    has no meaning for integers (found by ``eqsynth rules check``)."""
    x = leaf("x", 5, dtype="int64")
    scope = Scope((9,), (), Read(x, (it(0, 9) - 2,), fill))
    chain = view_chain(scope)
    assert (chain is not None) == padded
    if chain is not None:
        assert_equal(scope, chain)


@pytest.mark.parametrize("name", CHAINS)
def test_another_fill_is_kept_or_there_is_no_chain(name: str) -> None:
    """Unfold reads 0 out of range. If the scope has another fill, the chain begins with a Pad."""
    traversal, shape, index, _ = CHAINS[name]
    for fill in (-INF, 2.5):
        scope = scope_of(traversal, shape, index, fill)
        chain = view_chain(scope)
        assert chain is not None
        assert_equal(scope, chain)
        assert isinstance(scope.body, Read)
        if "Unfold" in views(chain) and not scope.body.in_range():
            assert views(chain)[0] == "Pad"


@pytest.mark.parametrize(
    "scope",
    [
        scope_of((5,), (5,), lambda i: (4 - i,)),
        scope_of((5,), (5, 5), lambda i: (i, i)),
        scope_of((5,), (5,), lambda i: (i,)),
        scope_of((0, 3), (3,), lambda i, j: (j,)),
        scope_of((6,), (4,), lambda i: (i // 2 + i % 2,)),
    ],
    ids=["mirrored", "diagonal", "identity", "empty", "no digits"],
)
def test_what_is_no_chain_of_views_stays_a_scope(scope: Scope) -> None:
    assert view_chain(scope) is None


@pytest.mark.parametrize(
    "scope",
    [
        scope_of((4, 3), (4, 8), lambda i, j: (i, i + 2 * j)),
        scope_of((4, 3), (9, 9), lambda i, j: (i + 2 * j, i)),
        scope_of((4, 3), (2, 2, 8), lambda i, j: (i % 2, i // 2, i + j)),
    ],
)
@pytest.mark.parametrize("searched", [False, True])
def test_no_chain_of_a_diagonal_is_searched_for(
    scope: Scope, searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A diagonal has no chain. Without the check, the search would visit all allowed states to find
    that out."""
    view_chain.cache_clear()
    if searched:
        monkeypatch.setattr(view_chains, "_is_diagonal", lambda _index: False)
    else:
        monkeypatch.delattr(view_chains, "_moves")
    assert view_chain(scope) is None
    view_chain.cache_clear()


def test_an_overlap_that_unfold_would_read_is_no_unfold() -> None:
    """``x[i + j - 2]`` with 3 taps j is not Unfold, which reads ``x[i + j - 1]``. The chain that is
    found equals the scope."""
    scope = scope_of((6, 3), (6,), lambda i, j: (i + j - 2,))
    chain = view_chain(scope)
    assert chain is not None
    assert_equal(scope, chain)


SYNO = ("Split", "Merge", "Shift", "Unfold", "Stride", "Permute", "Slice", "Pad", "Expand")


@st.composite
def composed(draw: st.DrawFn, count: int = 4) -> tuple[Scope, Tensor]:
    """Draw a chain of up to ``count`` views, and its composed index maps as a scope of one read."""
    term: Tensor = leaf("x", *draw(st.sampled_from([(6,), (4, 3), (2, 6), (12,), (2, 3, 4)])))
    scope: Scope | None = None
    for _ in range(draw(st.integers(count // 2, count))):
        axis = draw(st.integers(0, len(term.shape) - 1))
        extent = term.shape[axis]
        name = draw(st.sampled_from(SYNO))
        divisors = [d for d in range(1, extent + 1) if extent % d == 0]
        divisor = draw(st.sampled_from(divisors))
        attrs: tuple[object, ...] | None = {
            "Split": (axis, divisor),
            "Merge": (axis,) if axis + 1 < len(term.shape) else None,
            "Shift": (axis, draw(st.integers(-2, 3))),
            "Unfold": (axis, draw(st.integers(1, 3))) if len(term.shape) < 4 else None,
            "Stride": (axis, divisor),
            "Permute": (tuple(draw(st.permutations(range(len(term.shape))))),),
            "Slice": (axis, draw(st.integers(0, extent - 1)), extent, draw(st.integers(1, 2))),
            "Pad": ((1,) * len(term.shape), (0,) * len(term.shape), 0.0),
            "Expand": ((2, *term.shape),) if len(term.shape) < 4 else None,
        }[name]
        if attrs is None:
            continue
        after = Op(name, (term,), attrs)  # type: ignore[arg-type]
        if after.type.size > 600:
            continue
        its = [it(slot, e) for slot, e in enumerate(after.shape)]
        index, fill = index_map(name, after.attrs, its, term.shape)
        read = Read(term, tuple(index), fill)
        defined = Scope(after.shape, (), read)
        if scope is None:
            scope = defined
        else:
            scope = merge(defined, read, scope)
            if scope is None:
                # The chain reads beyond what an earlier view has cut off, so it isn't one read.
                return draw(composed(count))
        term = after
    return (scope, term) if scope is not None else draw(composed(count))


@by_turns
def test_composed_views_are_taken_apart_again(turn: int) -> None:
    found: Counter[bool] = Counter()

    @seed(turn)
    @settings(max_examples=times(1))
    @given(composed())
    def check(case: tuple[Scope, Tensor]) -> None:
        scope, term = case
        scope = canonical(scope)
        assert_equal(term, scope)
        chain = view_chain(scope)
        found[chain is not None] += 1
        if chain is not None:
            assert_equal(scope, chain)
            assert all(operator(name).kind == "view" for name in views(chain))

    check()
    # Identities have no chain. Some maps have a sum under // that only index.egg simplifies.
    assert found[True] >= 3 * found[False], found


# ---- in the e-graph ---------------------------------------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["blocks", "merged", "shifted", "windows", "strided", "padded"])
def test_the_rules_find_the_view(name: str) -> None:
    traversal, shape, index, expected = CHAINS[name]
    graph = saturate(scope_of(traversal, shape, index))
    assert_egraph_consistent(graph)
    names = {m.name for m in graph.classes[graph.roots[0]] if isinstance(m, Op)}
    assert expected.split()[-1] in names
    assert graph.matches["match-view"] == 1


@pytest.mark.rotating
@pytest.mark.parametrize("mode", ["circular", "reflect", "replicate", "nearest"])
def test_reads_of_an_element_again_are_scopes_among_others(mode: str) -> None:
    """Paddings that repeat elements, or nearest-neighbour sampling, between a map and a
    convolution."""
    x = ops.relu(eqsynth.input("x", (1, 2, 4, 5)))
    w = eqsynth.weight("w", (3, 2, 3, 3))
    again = ops.upsample_nearest(x, (6, 7)) if mode == "nearest" else ops.pad(x, (1, 1, 2, 1), mode)
    graph = saturate(ops.conv2d(again, w).tensor)
    assert graph.stop == "saturated"
    assert_egraph_consistent(graph)
    # The convolution reads x through the index functions too.
    flat = [m for m in graph.classes[graph.roots[0]] if isinstance(m, Scope) and m.reduction]
    assert any(not index.is_affine for m in flat for r in reads(m.body) for index in r.index)


@in_rare_turns
@settings(max_examples=times(0.16))
@given(composed(6))
def test_chains_of_six_views_stay_small_and_consistent(case: tuple[Scope, Tensor]) -> None:
    """All members of every e-class are equal, and the e-graph has at most 400 e-nodes."""
    _, term = case
    graph = saturate(term)
    assert graph.stop == "saturated"
    assert_egraph_consistent(graph)
    assert graph.enodes <= 400


# ---- Syno §6: the table at the head of rules/views-match.egg ----------------------------------

syno = ops.syno
X = eqsynth.input("x", (4, 6, 5))
W = eqsynth.weight("w", (5, 3))
PAIR = eqsynth.input("pair", (4, 6))

EQUAL = {
    "Merge above Split (Fig. 3a)": (
        syno.split(syno.merge(PAIR, 0), 0, 3), syno.merge(syno.split(PAIR, 1, 3), 0)
    ),
    "Merge above Split across": (
        syno.split(syno.merge(PAIR, 0), 0, 12), syno.merge(syno.split(PAIR, 0, 2), 1)
    ),
    "Split of a Merge": (syno.split(syno.merge(PAIR, 0), 0, 6), PAIR),
    "Merge of a Split": (syno.merge(syno.split(PAIR, 1, 2), 1), PAIR),
    "Shifts": (syno.shift(syno.shift(PAIR, 1, 2), 1, 3), syno.shift(PAIR, 1, 5)),
    "Shifts all round": (syno.shift(syno.shift(PAIR, 1, 2), 1, 4), PAIR),
    "Strides": (syno.stride(syno.stride(X, 0, 2), 0, 2), syno.stride(X, 0, 4)),
    "Expands": (
        syno.expand(syno.expand(PAIR, 0, 2), 1, 3),
        ops.expand(ops.reshape(PAIR, (1, 1, 4, 6)), (2, 3, 4, 6)),
    ),
    "contraction, then Merge (Fig. 3b)": (
        ops.matmul(syno.merge(X, 0), W), syno.merge(ops.matmul(X, W), 0)
    ),
    "contraction, then Split": (
        ops.matmul(syno.split(X, 1, 2), W), syno.split(ops.matmul(X, W), 1, 2)
    ),
    "contraction, then Shift": (
        ops.matmul(syno.shift(X, 1), W), syno.shift(ops.matmul(X, W), 1)
    ),
    "Reduce of an Expand": (ops.sum(syno.expand(PAIR, 0, 7), 0), PAIR * 7.0),
}  # fmt: skip

# [(i + j - K/2) / B, (i + j - K/2) % B] and [i / B, i % B + j - K/2] differ at a block's border.
BORDERS = syno.unfold(syno.merge(PAIR, 0), 0, 3), syno.merge(syno.unfold(PAIR, 1, 3), 0)


def together(*roots: Tensor) -> EGraph:
    return saturate_terms(roots, RULES, PROVE_PHASES, LIMITS, False)


@pytest.mark.rotating
@pytest.mark.parametrize("name", EQUAL)
def test_what_syno_calls_equal_is_found(name: str) -> None:
    left, right = EQUAL[name]
    assert_equal(left.tensor, right.tensor)
    graph = together(left.tensor, right.tensor)
    assert graph.stop == "saturated" and graph.roots[0] == graph.roots[1]


def test_what_syno_calls_nearly_equal_is_not_united() -> None:
    """Syno's Fig. 3(c): a window over merged axes crosses the borders of blocks, a window within a
    block doesn't."""
    left, right = (side.tensor for side in BORDERS)
    with pytest.raises(AssertionError):
        assert_equal(left, right)
    graph = together(left, right)
    assert graph.roots[0] != graph.roots[1]
    assert_egraph_consistent(graph)
