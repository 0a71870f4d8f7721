"""Matching of convolutions and band products: groups, rearranged images, attributes, and scopes at
the edges that aren't matched."""

from __future__ import annotations

import pytest

from eqsynth.egraph.tactics.matching import dense_axes
from eqsynth.egraph.tactics.windows import match_conv2d, match_g2bmm, match_gbmm
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Prod, Read
from eqsynth.ir.tensor import Op, Scope, Tensor, topological
from tests.terms import assert_equal, it, leaf


def x(name: str, *at: Index, shape: tuple[int, ...], fill: float = 0.0) -> Read:
    return Read(leaf(name, *shape), at, fill)


def operators(term: Tensor | None, name: str) -> list[Op]:
    found = topological([term]) if term is not None else ()
    return [t for t in found if isinstance(t, Op) and t.name == name]


def gathers(term: Tensor | None) -> list[Scope]:
    return [t for t in topological([term] if term else []) if isinstance(t, Scope)]


# ---- flattening ------------------------------------------------------------------------------


def test_strides_of_the_flattened_tensor_decide_on_views() -> None:
    i, j, k = it(0, 2), it(1, 3), it(2, 4)
    merged = x("x", k, 3 * i + j, shape=(4, 6))
    assert [a.slot for a in dense_axes(merged) or ()] == [2, 0, 1]
    across = x("x", i, 4 * j + k, shape=(2, 12))
    assert [a.slot for a in dense_axes(across) or ()] == [0, 1, 2]
    for other in (
        x("x", k, 3 * i + j, shape=(4, 7)),
        x("x", k, 3 * i + j + 1, shape=(4, 7)),
        x("x", k, 2 * i + j, shape=(4, 5)),
        x("x", i, i, shape=(2, 2)),
        x("x", i - 1, j, shape=(2, 3)),
        x("x", k, (3 * i + j) % 6, shape=(4, 6)),
    ):
        assert dense_axes(other) is None


# ---- convolutions ----------------------------------------------------------------------------


def grouped(image: Index, extent: int, weight: Index | None = None) -> Scope:
    """[n, g, f, h] = sum_{c,r} x[n, 3g + c, image] * w[2g + f, c, r]: 2 groups of 3 channels."""
    n, g, f = it(0, 2), it(1, 2), it(2, 2)
    c, r = it(4, 3), it(5, 3)
    taps = weight if weight is not None else r
    a = x("x", n, 3 * g + c, image, shape=(2, 6, extent))
    b = x("w", 2 * g + f, c, taps, shape=(4, 3, 3))
    return Scope((2, 2, 2, 4), (3, 3), Prod((a, b)))


H, R = it(3, 4), it(5, 3)


@pytest.mark.parametrize(
    ("image", "extent", "attrs"),
    [
        (H + R, 6, ((1, 1), (0, 0), (1, 1), 2)),
        (2 * H + 3 * R - 2, 11, ((1, 2), (0, 2), (1, 3), 2)),
        (H + R - 1, 4, ((1, 1), (0, 1), (1, 1), 2)),
    ],
)
def test_a_grouped_convolution(image: Index, extent: int, attrs: object) -> None:
    scope = grouped(image, extent)
    found = match_conv2d(scope)
    (conv,) = operators(found, "Conv2d")
    assert conv.attrs == attrs and not gathers(found)
    assert found is not None
    assert_equal(scope, found)


@pytest.mark.parametrize("image", [2 * H + 2 * R, 2 * H + 4 * R - 3, H + R + 1, 3 * H + 3 * R - 7])
def test_a_common_step_is_a_rearranged_image(image: Index) -> None:
    scope = grouped(image, 9)
    found = match_conv2d(scope)
    (conv,) = operators(found, "Conv2d")
    assert len(gathers(found)) == 1 and conv.attrs[0] == (1, 1)
    assert found is not None
    assert_equal(scope, found)


def test_what_is_no_window_is_not_matched() -> None:
    assert match_conv2d(grouped((H + R) // 2, 3)) is None


@pytest.mark.parametrize(("image", "weight"), [(H + R, 2 - R), (H - R + 2, R), (H - R + 1, R)])
def test_a_kernel_that_runs_backward_is_a_rearranged_weight(image: Index, weight: Index) -> None:
    scope = grouped(image, 6 if image.const != 1 else 4, weight)
    found = match_conv2d(scope)
    (conv,) = operators(found, "Conv2d")
    assert conv.attrs[2:] == ((1, 1), 2) and found is not None
    assert [t.type.shape for t in gathers(found)] == [(2, 2, 3, 3)]
    assert_equal(scope, found)


# ---- band products ---------------------------------------------------------------------------

M, BAND = 5, 3


def g2bmm(index: Index, rows: int, a: Index | None = None, fill: float = 0.0) -> Scope:
    b, m, k = it(0, 2), it(1, M), it(3, 4)
    left = x("a", b, m if a is None else a, k, shape=(2, M, 4))
    right = x("b", b, index, k, shape=(2, rows, 4), fill=fill)
    return Scope((2, M, BAND), (4,), Prod((left, right)))


def gbmm(index: Index, rows: int) -> Scope:
    b, m, n, w = it(0, 2), it(1, M), it(2, 4), it(3, BAND)
    left, right = x("a", b, m, w, shape=(2, M, BAND)), x("b", b, index, n, shape=(2, rows, 4))
    return Scope((2, M, 4), (BAND,), Prod((left, right)))


@pytest.mark.parametrize("dilation", [1, 2, 4])
def test_a_band_product(dilation: int) -> None:
    m = it(1, M)
    scope = g2bmm(m + dilation * it(2, BAND) - dilation, M)
    found = match_g2bmm(scope)
    (band,) = operators(found, "G2BMM")
    assert band.attrs == (1, dilation) and not gathers(found) and found is not None
    assert_equal(scope, found)
    scope = gbmm(m + dilation * it(3, BAND) - dilation, M)
    found = match_gbmm(scope)
    (band,) = operators(found, "GBMM")
    assert band.attrs == (dilation,) and not gathers(found) and found is not None
    assert_equal(scope, found)


def test_a_band_ends_where_its_operand_does() -> None:
    """G2BMM reads 0 beyond the last row, so a scope that reads something else isn't matched."""
    m, w = it(1, M), it(2, BAND)
    for scope in (
        g2bmm(m + w - 1, M + 1),
        g2bmm(m + w - 1, M - 1),
        g2bmm(m + w, M),
        g2bmm(m + w - 1, M, fill=1.0),
        g2bmm(m - w + 1, M),
        g2bmm(2 * m + w - 1, 2 * M),
    ):
        found = match_g2bmm(scope)
        if found is not None:
            assert_equal(scope, found)
    assert match_g2bmm(g2bmm(m + w - 1, M + 1)) is None
    assert match_g2bmm(g2bmm(m + w, M)) is None
    assert match_g2bmm(g2bmm(m + w - 1, M, fill=1.0)) is None
    assert match_g2bmm(g2bmm(2 * m + w - 1, 2 * M)) is None
    assert match_gbmm(gbmm(m + it(3, BAND), M)) is None


def test_a_band_of_an_even_number_of_diagonals_has_no_middle() -> None:
    b, m, w, k = it(0, 2), it(1, M), it(2, 2), it(3, 4)
    left, right = x("a", b, m, k, shape=(2, M, 4)), x("b", b, m + w, k, shape=(2, M, 4))
    assert match_g2bmm(Scope((2, M, 2), (4,), Prod((left, right)))) is None
