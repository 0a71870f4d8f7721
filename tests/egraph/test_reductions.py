"""Reductions in parts: properties of the laws, and the optimization of Syno's Fig. 4, which the
rules find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsynth
from eqsynth import ops
from eqsynth.egraph.tactics import derivation, reductions
from eqsynth.egraph.tactics.merging import merge
from eqsynth.egraph.tactics.paths import Path
from eqsynth.frontend.expr import Expr
from eqsynth.ir.index import Index
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, Sum, Value, reads
from eqsynth.ir.tensor import Scope
from eqsynth.ir.work import flops
from tests.terms import INF, assert_equal, end, it, leaf, times

IDENTITY = {"sum": 0.0, "max": -INF, "min": INF, "prod": 1.0}


@st.composite
def windowed(
    draw: st.DrawFn,
    reducers: Sequence[str] = ("sum", "sum", "max", "min", "prod"),
    kinds: Sequence[str] = ("read", "scaled", "weighted", "map", "value"),
) -> Scope:
    """Draw a reduction over windows of one or two axes, in range or partly out of range."""
    axes = draw(st.integers(1, 2))
    traversal = [draw(st.integers(1, 5)) for _ in range(axes)]
    windows = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3))
    extents = (*traversal, *windows)
    slots = [it(slot, extent) for slot, extent in enumerate(extents)]
    reducer = draw(st.sampled_from(reducers))
    index = []
    for axis in range(axes):
        at = slots[axis] * draw(st.sampled_from([1, 1, 2, 3]))
        for r in slots[axes:]:
            at = at + r * draw(st.sampled_from([0, 1, 1, 2, 3, -1]))
        index.append(at - draw(st.integers(0, 2)))
    sizes = [max(i.range()[1] + 1 - draw(st.integers(0, 2)), 1) for i in index]
    fill = draw(st.sampled_from([IDENTITY[reducer], 0.0]))
    body: Scalar = Read(leaf("x", *sizes), tuple(index), fill)
    kind = draw(st.sampled_from(kinds))
    r = draw(st.sampled_from(slots[axes:]))
    if kind == "scaled":
        body = Prod((Num(0.5), body))
    elif kind == "weighted":
        body = Prod((body, Read(leaf("w", r.range()[1] + 1), (r,))))
    elif kind == "map":
        body = Call("relu", (body,))
    elif kind == "value":
        body = Prod((body, Value(r + 1)))
    return canonical(Scope(tuple(traversal), tuple(windows), body, reducer))


@pytest.mark.rotating
def test_rfactor_keeps_the_value_and_takes_fewer_operations() -> None:
    answered: Counter[str] = Counter()

    @settings(max_examples=times(8))
    @given(windowed())
    def check(scope: Scope) -> None:
        answer = end(reductions.rfactor(scope))
        if answer is None:
            return
        answered[scope.reducer] += 1
        assert_equal(scope, answer)
        (read,) = reads(answer.body)
        assert isinstance(read.tensor, Scope)
        assert flops(read.tensor) + flops(answer) < flops(scope)

    check()
    assert min(answered[reducer] for reducer in IDENTITY) >= 5, answered


@pytest.mark.rotating
def test_a_split_that_is_not_built_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """rfactor builds only those splits that may save work. Building all of them gives the same
    answer."""
    every, built = reductions.splits, Counter[str]()

    def counted(scope: Scope, pays: reductions.Pays) -> Iterator[Path]:
        found = list(every(scope, pays))
        built["some"] += len(found)
        built["all"] += len(list(every(scope)))
        return iter(found)

    @settings(max_examples=times(1))
    @given(windowed())
    def check(scope: Scope) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(reductions, "splits", counted)
            some = end(reductions.rfactor(scope))
            patch.setattr(reductions, "splits", lambda scope, _pays: every(scope))
            assert end(reductions.rfactor(scope)) == some

    check()
    assert 0 < built["some"] < built["all"]


@pytest.mark.rotating
def test_what_was_split_is_merged_again() -> None:
    """An iterator that was replaced by two digits is one iterator again after merging."""
    answered: Counter[str] = Counter()

    @settings(max_examples=times(4))
    @given(windowed())
    def check(scope: Scope) -> None:
        for divided in (path.scope for path in reductions.splits(scope)):
            answered[scope.reducer] += 1
            assert_equal(scope, divided)
            merged = end(reductions.merge_iterators(divided))
            assert merged is not None and len(merged.reduction) < len(divided.reduction)
            assert_equal(scope, merged)

    check()
    assert min(answered[reducer] for reducer in IDENTITY) >= 5, answered


def block(q: int, r: int, coefficient: int, extra: tuple[Index, ...] = ()) -> Scope:
    """sum[a<q, b<r] x[coefficient*a + b, ..]."""
    a, b = it(0, q), it(1, r)
    index = (a * coefficient + b, *extra)
    shape = tuple(max(i.range()[1] + 1, 1) for i in index)
    return canonical(Scope((), (q, r), Read(leaf("x", *shape), index)))


def test_iterators_merge_only_where_they_are_the_digits_of_a_number() -> None:
    assert end(reductions.merge_iterators(block(3, 4, 4))) == canonical(
        Scope((), (12,), Read(leaf("x", 12), (it(0, 12),)))
    )
    # Blocks that overlap, blocks with a gap, and another index that reads one of the iterators.
    assert end(reductions.merge_iterators(block(3, 4, 3))) is None
    assert end(reductions.merge_iterators(block(3, 4, 5))) is None
    assert end(reductions.merge_iterators(block(3, 4, 4, (it(1, 4),)))) is None
    assert end(reductions.merge_iterators(block(3, 4, 4, (it(1, 4) // 2,)))) is None


def test_nothing_is_factored_where_nothing_is_shared() -> None:
    """Windows that don't overlap, windows with a weight for each tap, and a plain product."""
    i, r = it(0, 6), it(1, 4)
    apart = Scope((6,), (4,), Read(leaf("x", 24), (i * 4 + r,)))
    assert end(reductions.rfactor(apart)) is None
    x, w = Read(leaf("x", 9), (i + r,)), Read(leaf("w", 4), (r,))
    assert end(reductions.rfactor(Scope((6,), (4,), Prod((x, w))))) is None
    a, b = Read(leaf("a", 6, 4), (i, r)), Read(leaf("b", 4), (r,))
    assert end(reductions.rfactor(Scope((6,), (4,), Prod((a, b))))) is None
    assert end(reductions.rfactor(Scope((6,), (), Read(leaf("x", 6), (i,))))) is None


def test_an_index_that_is_divided_is_left_alone() -> None:
    i, q, r = it(0, 6), it(1, 4), it(2, 2)
    scope = Scope((6,), (4, 2), Read(leaf("x", 9, 2), ((i + q) // 2, r)))
    assert end(reductions.rfactor(scope)) is None


# ---- Syno's Fig. 4 -----------------------------------------------------------------------------


def figure_4(h: int, k: int, s: int, outer_blocks: bool) -> Expr:
    """Y[i] = sum_k sum_s X[..]: Split, Unfold, then both sums (Syno §8)."""
    x = eqsynth.input("x", (h,))
    if outer_blocks:
        return ops.sum(ops.syno.unfold(ops.syno.split(x, 0, h // s), 1, k), (0, 2))
    return ops.sum(ops.syno.unfold(ops.syno.split(x, 0, s), 0, k), (1, 2))


def reduced_first(h: int, k: int, s: int, outer_blocks: bool) -> Expr:
    """The same result with the sum over s first: Z = sum_s X, Y = sum_k Z."""
    x = eqsynth.input("x", (h,))
    if outer_blocks:
        return ops.sum(ops.syno.unfold(ops.sum(ops.syno.split(x, 0, h // s), 0), 0, k), 1)
    return ops.sum(ops.syno.unfold(ops.sum(ops.syno.split(x, 0, s), 1), 0, k), 1)


@pytest.mark.rotating
@pytest.mark.parametrize("outer_blocks", [True, False])
def test_rfactor_is_proved(outer_blocks: bool) -> None:
    case = (24, 3, 4, outer_blocks)
    assert eqsynth.prove_equal(figure_4(*case), reduced_first(*case), time_limit_s=20)
    wrong = reduced_first(24, 5, 4, outer_blocks)
    assert not eqsynth.prove_equal(figure_4(*case), wrong, time_limit_s=5)


@pytest.mark.rotating
@pytest.mark.parametrize(("h", "k", "s"), [(24, 3, 4), (64, 5, 4), (60, 3, 5), (36, 7, 2)])
@pytest.mark.parametrize("outer_blocks", [True, False])
def test_rfactor_takes_the_flops_that_figure_4_says(
    h: int, k: int, s: int, outer_blocks: bool
) -> None:
    program = eqsynth.optimize(figure_4(h, k, s, outer_blocks), objective="flops", time_limit_s=600)
    assert program.report.flops_before >= k * h
    # (1 + k/s) * H, if a window has a prime number of elements.
    assert program.report.flops_after == h + k * h // s
    assert "rfactor" in program.report.rules_fired
    x = np.random.default_rng(0).standard_normal(h).astype(np.float32)
    blocks = x.reshape(s, h // s).sum(0) if outer_blocks else x.reshape(h // s, s).sum(1)
    expected = np.convolve(blocks, np.ones(k), mode="full")[k // 2 :][: h // s]
    np.testing.assert_allclose(program(torch.as_tensor(x)).numpy(), expected, atol=1e-4)


def test_a_window_that_moves_by_a_part_of_itself_shares_blocks() -> None:
    """sum_{r<k*s} x[s*i + r]: neighbouring windows share blocks of s elements, which appear only
    when the iterator r is split."""
    k, s, n = 3, 8, 20
    x = eqsynth.input("x", (s * (n + k - 1),))
    program = eqsynth.optimize(
        ops.sum(ops.unfold(x, 0, k * s, s), 1), objective="flops", time_limit_s=600
    )
    assert program.report.flops_after <= s * (n + k - 1) + k * n < k * s * n


def test_a_pooling_is_done_one_axis_at_a_time() -> None:
    """A separable window: about 2*k operations for each point instead of k*k."""
    at = (it(0, 12) + it(2, 5), it(1, 12) + it(3, 5))
    scope = canonical(Scope((12, 12), (5, 5), Read(leaf("x", 16, 16), at), "max"))
    answer = end(reductions.rfactor(scope))
    assert answer is not None
    assert_equal(scope, answer)
    (read,) = reads(answer.body)
    assert isinstance(read.tensor, Scope)
    assert flops(read.tensor) + flops(answer) == 16 * 12 * 5 + 12 * 12 * 5


@pytest.mark.parametrize("reducer", IDENTITY)
def test_the_box_of_padded_windows_leaves_out_what_changes_nothing(reducer: str) -> None:
    """Rows that consist of padding aren't reduced if the padding is the reducer's identity."""
    at = (it(0, 12) + it(2, 5) - 2, it(1, 12) + it(3, 5) - 2)
    for fill, rows in ((IDENTITY[reducer], 12), (7.0, 16)):
        scope = canonical(Scope((12, 12), (5, 5), Read(leaf("x", 12, 12), at, fill), reducer))
        answer = end(reductions.rfactor(scope))
        assert answer is not None
        assert_equal(scope, answer)
        (read,) = reads(answer.body)
        assert isinstance(read.tensor, Scope)
        assert sorted(read.tensor.traversal) == [12, rows]


def test_the_box_of_a_body_that_is_no_bare_read_is_not_tightened() -> None:
    """The fill -inf is the identity of a maximum of x, but not of a maximum of exp(x) or of -x."""
    at = it(0, 12) + it(1, 5) + it(2, 5) - 8
    read = Read(leaf("x", 12), (at,), -INF)
    for body in (Call("exp", (read,)), Prod((Num(-1.0), read))):
        scope = canonical(Scope((12,), (5, 5), body, "max"))
        answer = end(reductions.rfactor(scope))
        assert answer is not None
        assert_equal(scope, answer)
        (outer,) = reads(answer.body)
        assert outer.in_range()


# ---- reductions other than sums --------------------------------------------------------------


@pytest.mark.rotating
def test_the_strictest_boundary_of_a_reduction_is_that_of_its_identity() -> None:
    answered: Counter[str] = Counter()

    @settings(max_examples=times(10))
    @given(windowed(reducers=("max", "min", "prod"), kinds=("read",)))
    def check(scope: Scope) -> None:
        answer = end(derivation.tighten(scope))
        if answer is not None:
            answered[scope.reducer] += 1
            assert_equal(scope, answer)

    check()
    assert min(answered[reducer] for reducer in ("max", "min", "prod")) >= 5, answered


def padded(reducer: str, fill: float, body: str, dtype: str = "float32") -> Scope:
    """[i] = reduce_k f(x[i, k - 1]): 5 rows of 6 elements, of which a 3 x 3 block is in range."""
    read = Read(leaf("x", 3, 3, dtype=dtype), (it(0, 5) - 1, it(1, 6) - 1), fill)
    bodies: dict[str, Scalar] = {
        "alone": read, "scaled": Prod((Num(-1.0), read)), "biased": Sum((read, Num(1.0))),
        "exp": Call("exp", (read,)), "relu": Call("relu", (read,)),
    }  # fmt: skip
    return canonical(Scope((5,), (6,), bodies[body], reducer))


@pytest.mark.parametrize("reducer", ["max", "min", "prod"])
def test_padding_with_the_identity_is_not_reduced(reducer: str) -> None:
    scope = padded(reducer, IDENTITY[reducer], "alone")
    answer = end(derivation.tighten(scope))
    assert answer is not None
    (read,) = reads(answer.body)
    assert isinstance(read.tensor, Scope) and read.tensor.extents == (3, 3)
    assert read.fill == IDENTITY[reducer]
    assert_equal(scope, answer)


@pytest.mark.parametrize(
    ("reducer", "fill", "body", "dtype"),
    [
        ("max", 0.0, "alone", "float32"),  # of numbers below 0, the maximum is that 0
        ("min", 0.0, "alone", "float32"),
        ("prod", 0.0, "alone", "float32"),
        ("max", INF, "alone", "float32"),
        ("max", -INF, "scaled", "float32"),  # inf where nothing is
        ("max", -INF, "exp", "float32"),  # 0 where nothing is
        ("max", -INF, "relu", "float32"),
        ("prod", 1.0, "biased", "float32"),
        ("max", 0.0, "alone", "int64"),
    ],
)
def test_what_a_reduction_reads_outside_may_count(
    reducer: str, fill: float, body: str, dtype: str
) -> None:
    assert end(derivation.tighten(padded(reducer, fill, body, dtype))) is None


@st.composite
def nested(draw: st.DrawFn) -> tuple[Scope, Read, Scope]:
    """Draw a window over windows, with the same reducer or two. The outer one may be partly out of
    range."""
    inner_size, outer_size = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    steps = [draw(st.integers(1, 2)) for _ in range(4)]
    rows, places = draw(st.integers(4, 9)), draw(st.integers(1, 3))
    reducers = st.sampled_from(["max", "max", "min", "prod"])
    body: Scalar = Read(leaf("x", 12), (it(0, rows) * steps[0] + it(1, inner_size) * steps[1],))
    if draw(st.booleans()):
        body = Call("tanh", (body,))
    inner = canonical(Scope((rows,), (inner_size,), body, draw(reducers)))
    at = it(0, places) * steps[2] + it(1, outer_size) * steps[3] - draw(st.sampled_from([0, 0, 1]))
    read = Read(inner, (at,), draw(st.sampled_from([IDENTITY[inner.reducer], 0.0])))
    return canonical(Scope((places,), (outer_size,), read, draw(reducers))), read, inner


@pytest.mark.rotating
def test_a_reduction_of_reductions_is_one() -> None:
    answered: Counter[str] = Counter()

    @settings(max_examples=times(10))
    @given(nested())
    def check(drawn: tuple[Scope, Read, Scope]) -> None:
        outer, _, inner = drawn
        (read,) = reads(outer.body)
        merged = merge(outer, read, inner)
        if merged is None or not outer.reduction or not inner.reduction:
            return
        answered[outer.reducer] += 1
        assert_equal(outer, merged)

    check()
    assert min(answered[reducer] for reducer in ("max", "min", "prod")) >= 5, answered


@pytest.mark.parametrize(
    ("inner", "outer", "body", "padding"),
    [
        ("max", "min", "alone", 0),
        ("sum", "max", "alone", 0),
        ("max", "sum", "alone", 0),
        ("max", "max", "scaled", 0),  # the largest -x
        ("max", "max", "relu", 0),
        ("max", "max", "alone", 1),  # a window half outside would be read where none is
    ],
)
def test_other_reductions_of_reductions_are_two(
    inner: str, outer: str, body: str, padding: int
) -> None:
    read = Read(leaf("x", 8), (it(0, 6) + it(1, 3),), 0.0)
    whole = canonical(Scope((6,), (3,), read, inner))
    again = Read(whole, (it(0, 4 + padding) + it(1, 3) - padding,), IDENTITY[inner])
    bodies: dict[str, Scalar] = {
        "alone": again,
        "scaled": Prod((Num(-1.0), again)),
        "relu": Call("relu", (again,)),
    }
    scope = canonical(Scope((4 + padding,), (3,), bodies[body], outer))
    (read,) = reads(scope.body)
    assert merge(scope, read, whole) is None


@pytest.mark.rotating
def test_three_small_poolings_are_one_large_one() -> None:
    """A maximum over 3 x 3 windows three times is proved to be a maximum over 7 x 7 windows. An
    average and a maximum over 3 x 3 windows aren't a maximum over 5 x 5 windows."""
    x = eqsynth.input("x", (1, 2, 9, 8))
    small = ops.max_pool2d(ops.max_pool2d(ops.max_pool2d(x, 3, 1), 3, 1), 3, 1)
    assert eqsynth.prove_equal(small, ops.max_pool2d(x, 7, 1))
    mixed = ops.max_pool2d(ops.avg_pool2d(x, 3, 1), 3, 1)
    assert not eqsynth.prove_equal(mixed, ops.max_pool2d(x, 5, 1))


def test_an_index_without_overlap_takes_each_value_once() -> None:
    """If ``_overlaps`` is False, the index takes each value once. It is True for windows."""
    random, apart = Random(0), 0
    for _ in range(300):
        extents = [random.randint(2, 5) for _ in range(random.randint(1, 3))]
        index = Index(random.randint(-3, 3))
        for slot, extent in enumerate(extents):
            index += Index.iterator(slot, extent) * random.choice((-1, 1, 2, -4, 5, 12))
        places = index.evaluate(dict(enumerate(np.indices(extents))))
        values = Counter(np.broadcast_to(places, extents).ravel().tolist())
        if not reductions._overlaps(index):
            assert max(values.values()) == 1
            apart += 1
    assert 20 < apart < 280
    i, k = Index.iterator(0, 12), Index.iterator(1, 64)
    assert not reductions._overlaps(i * 64 + k) and reductions._overlaps(i * 32 + k)
    assert reductions._overlaps((i * 64 + k) // 2)
