"""Matching scopes to operators: products of matrices, convolutions, epilogues, views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsynth.calculus.conditions import is_view
from eqsynth.calculus.views import defining_scope
from eqsynth.egraph.tactics import epilogue, matching, windows
from eqsynth.ir.index import Index
from eqsynth.ir.operators import POST_FUNCTIONS
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, Sum, reads, total
from eqsynth.ir.tensor import Op, Scope, Tensor, topological
from eqsynth.testing.strategies import (
    EXTENTS,
    VIEWS,
    products,
)
from tests.egraph.properties import contractions, holds, some, x
from tests.terms import assert_equal, it, leaf, op, times
from tests.turns import by_turns

# ---- matching --------------------------------------------------------------------


@by_turns
def test_matching_matmul(turn: int) -> None:
    holds(
        turn,
        lambda s: some(matching.match_matmul(s)),
        st.one_of(contractions(), products(factors=(2, 2))),
        accepted=3,
    )


@st.composite
def convolutions(draw: st.DrawFn) -> Scope:
    """Draw ``sum x[n, c, s*h + d*r - p, …] * w[f, c, r, …]`` with the axes in any order, and
    without some of them."""
    x_axes: list[tuple[Index, int]] = []
    w_axes: list[tuple[Index, int]] = []
    kept: list[int] = []
    gone: list[int] = []
    todo: list[tuple[str, int]] = []
    for axis in draw(st.permutations("nfchw")):
        if axis == "h" or draw(st.integers(0, 3)):
            todo.append((axis, draw(EXTENTS)))
    traversal = [(a, e) for a, e in todo if a != "c"]
    kept = [e for _, e in traversal]
    slot = len(kept)
    for n, (axis, extent) in enumerate(traversal):
        i = it(n, extent)
        if axis == "n":
            x_axes.append((i, extent))
        elif axis == "f":
            w_axes.append((i, extent))
        else:
            stride, dilation = draw(st.integers(1, 2)), draw(st.integers(1, 2))
            kernel = draw(st.integers(1, 3))
            offset = draw(st.sampled_from([0, -1, -1, -2, 1]))
            at = i * stride + it(slot, kernel) * dilation + offset
            size = max(1, at.range()[1] + 1 + draw(st.sampled_from([0, 0, -1, -1, -2, 1])))
            x_axes.append((at, size))
            w_axes.append((it(slot, kernel), kernel))
            gone.append(kernel)
            slot += 1
    for axis, extent in todo:
        if axis == "c":
            x_axes.append((it(slot, extent), extent))
            w_axes.append((it(slot, extent), extent))
            gone.append(extent)
    if draw(st.integers(0, 5)) == 0:
        x_axes.append((Index(0), draw(st.integers(1, 2))))
    operands = []
    for name, axes in (("x", x_axes), ("w", w_axes)):
        turned = draw(st.permutations(axes))
        tensor = leaf(name, *(e for _, e in turned), constant=name == "w")
        operands.append(Read(tensor, tuple(i for i, _ in turned)))
    return Scope(tuple(kept), tuple(gone), Prod(tuple(operands)))


@by_turns
def test_matching_conv2d(turn: int) -> None:
    holds(turn, lambda s: some(windows.match_conv2d(s)), convolutions(), accepted=5, examples=100)


def test_a_convolution_is_matched_with_its_attributes() -> None:
    n, f, h, w = (it(slot, e) for slot, e in enumerate((2, 5, 4, 6)))
    c, r, s = it(4, 3), it(5, 3), it(6, 2)
    image = x(n, c, 2 * h + r - 1, w + 2 * s - 1, shape=(2, 3, 8, 6))
    weight = Read(leaf("w", 5, 3, 3, 2, constant=True), (f, c, r, s))
    scope = Scope((2, 5, 4, 6), (3, 3, 2), Prod((image, weight)))
    found = windows.match_conv2d(scope)
    assert isinstance(found, Op) and found.name == "Conv2d"
    assert found.attrs == ((2, 1), (1, 1), (1, 2), 1)
    assert_equal(scope, found)


def test_a_flipped_window_is_matched_with_its_kernel_reversed() -> None:
    image = x(it(0, 3), it(2, 2), it(1, 3) - it(3, 2) + 1, shape=(3, 2, 4))
    scope = Scope((3, 3), (2, 2), Prod((image, x(it(2, 2), it(3, 2), shape=(2, 2), name="w"))))
    found = windows.match_conv2d(scope)
    assert found is not None
    assert "Conv2d" in [t.name for t in topological([found]) if isinstance(t, Op)]
    assert_equal(scope, found)


@pytest.mark.parametrize(
    "image",
    [
        x(it(0, 3), it(2, 2), it(1, 3) + it(3, 2), shape=(3, 2, 4), fill=1.0),
        x(it(0, 3), it(2, 2), (it(1, 3) + it(3, 2)) % 4, shape=(3, 2, 4)),
    ],
    ids=["fill", "circular"],
)
def test_what_is_no_convolution_is_not_matched(image: Read) -> None:
    """The image x[n, c, h + r] of a convolution along one axis, with one change."""
    weight = x(it(2, 2), it(3, 2), shape=(2, 2), name="w")
    assert windows.match_conv2d(Scope((3, 3), (2, 2), Prod((image, weight)))) is None
    for offset, extent in ((0, 4), (1, 6), (-1, 3)):
        # A crop is matched as a slice of the image, a padding as an attribute.
        right = x(it(0, 3), it(2, 2), it(1, 3) + it(3, 2) + offset, shape=(3, 2, extent))
        scope = Scope((3, 3), (2, 2), Prod((right, weight)))
        (found,) = some(windows.match_conv2d(scope))
        assert_equal(scope, found)


@pytest.mark.parametrize("law", [matching.match_matmul, windows.match_conv2d])
def test_only_sums_of_one_dtype_are_products_of_matrices(
    law: Callable[[Scope], Tensor | None],
) -> None:
    i, j, k = it(0, 2), it(1, 3), it(2, 4)
    a, b = x(i, k, shape=(2, 4), name="a"), x(k, j, shape=(4, 3), name="b")
    assert law(Scope((2, 3), (4,), Prod((a, b)), "max")) is None
    half = Read(leaf("b", 4, 3, dtype="float16"), (k, j))
    assert law(Scope((2, 3), (4,), Prod((a, half)))) is None
    assert law(Scope((2, 3), (4,), Sum((a, b)))) is None
    mask = Read(leaf("m", 2, 4, dtype="bool"), (i, k)), Read(leaf("n", 4, 3, dtype="bool"), (k, j))
    assert law(Scope((2, 3), (4,), Prod(mask))) is None


# ---- epilogues -------------------------------------------------------------------


@st.composite
def epilogues(draw: st.DrawFn) -> Scope:
    """Draw ``L . post(product + bias + residual + …)``, where the product is of matrices or is a
    convolution."""
    kind = draw(st.sampled_from(["Matmul", "Batched", "Reshape", "Conv2d"]))
    m, n = draw(EXTENTS), draw(EXTENTS)
    if kind == "Conv2d":
        inner: Op = op(
            "Conv2d",
            leaf("x", 2, 3, m, n),
            leaf("w", n, 3, 1, 1),
            attrs=((1, 1), (0, 0), (1, 1), 1),
        )
    elif kind == "Batched":
        inner = op("Matmul", leaf("x", 2, m, 3), leaf("w", 3, n))
    else:
        inner = op("Matmul", leaf("x", 2 * m, 3), leaf("w", 3, n))
    if kind == "Reshape":
        inner = op("Reshape", inner, attrs=(draw(st.sampled_from([(2, m, n), (2 * m * n,)])),))
    shape = inner.shape
    at = [it(slot, extent) for slot, extent in enumerate(shape)]
    channel = 1 if kind == "Conv2d" else len(shape) - 1
    terms: list[Scalar] = [Read(inner, tuple(at))]
    for name in draw(st.lists(st.sampled_from("bbrocns"), max_size=2)):
        if name == "b":
            terms.append(x(at[channel], shape=(shape[channel],), name="b"))
        elif name == "c":
            unit = tuple(Index(0) if a != channel else at[a] for a in range(len(shape)))
            extents = tuple(e if a == channel else 1 for a, e in enumerate(shape))
            terms.append(x(*unit, shape=extents, name="c"))
        elif name == "o":
            other = draw(st.integers(0, len(shape) - 1))
            terms.append(x(at[other], shape=(shape[other],), name="o"))
        elif name == "n":
            terms.append(Num(0.5))
        elif name == "s":
            terms.append(x(*at[:-1], at[-1] - 1, shape=shape, name="r"))
        else:
            terms.append(x(*at, shape=shape, name="r"))
    body = total(terms)
    post = draw(st.sampled_from([*POST_FUNCTIONS, "exp"]))
    return Scope(shape, (), body if post == "none" else Call(post, (body,)))


def operators_of(tensor: Tensor) -> Sequence[Op]:
    return [tensor] if isinstance(tensor, Op) else []


def test_matching_epilogues() -> None:
    seen: Counter[str] = Counter()

    def law(scope: Scope) -> list[Tensor]:
        found = [fused for fused, _ in epilogue.match_epilogue(scope, operators_of)]
        seen.update(t.name for f in found for t in topological([f]) if isinstance(t, Op))
        return found

    holds(0, law, epilogues(), accepted=60, examples=300)
    fused = ("FusedMatmul", "FusedMatmulAdd", "FusedConv2d", "FusedConv2dAdd")
    assert min(seen[name] for name in fused) >= 5, seen


# ---- definitions and views -------------------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_its_scope(name: str) -> None:
    counts: Counter[str] = Counter()

    extents = st.sampled_from([2, 1, 3, 4, 4, 0])

    @settings(max_examples=times(2))
    @given(st.data(), st.lists(extents, min_size=1, max_size=3))
    def check(data: st.DataObject, shape: list[int]) -> None:
        @st.composite
        def built(draw: st.DrawFn) -> Op:
            return VIEWS[name](draw, leaf("x", *shape))

        view = data.draw(built())
        scope = defining_scope(view)
        assert scope is not None
        counts["nonempty"] += bool(view.type.size)
        counts["moved"] += not (is_view(scope) and scope.body == whole(scope))
        assert_equal(view, scope)

    check()
    assert counts["nonempty"] >= 15 and counts["moved"] >= 8, counts


def whole(scope: Scope) -> Scalar:
    (read, *_) = reads(scope.body)
    same = tuple(it(slot, e) for slot, e in enumerate(scope.traversal))
    return Read(read.tensor, same) if len(same) == len(read.tensor.shape) else Num(0)


def test_an_operator_that_moves_nothing_is_no_view() -> None:
    assert defining_scope(op("Relu", leaf("x", 2))) is None
