"""What EinNet's derivations must find: its figures, at reduced sizes.

Each is proved against a program written by hand, and every program of the derivation has the same
value. ``MEMBERS`` says which operators the original program's own e-graph holds afterwards, found
without knowing the target.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import eqsynth
from eqsynth import ops
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, PROVE_PHASES, Limits
from eqsynth.explain import Explanation
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import program_of
from eqsynth.ir.tensor import Op
from eqsynth.prove import prove_equal
from eqsynth.rules import load_rules
from eqsynth.testing import assert_egraph_consistent
from tests.test_prove import agree

C, F, H, W = 2, 3, 4, 5
X, K = eqsynth.input("x", (1, C, H, W)), eqsynth.weight("w", (F, C, 3, 3))
CONV = ops.conv2d(X, K, padding=1)
# A transposed convolution and a dilated one, each over an image that its steps divide.
SMALL, LARGE = eqsynth.input("s", (1, C, 3, 3)), eqsynth.input("l", (1, C, 6, 6))
UP, WIDE = eqsynth.weight("u", (C, F, 4, 4)), eqsynth.weight("v", (F, C, 5, 5))
TRANSPOSED = ops.conv_transpose2d(SMALL, UP, stride=2, padding=1)
DILATED = ops.conv2d(LARGE, K, padding=2, dilation=2)
ROWS, WIDTH, STEP = 6, 3, 2
Q, KEYS, V = (eqsynth.input(name, (2, ROWS, WIDTH)) for name in "qkv")
BAND = eqsynth.input("band", (2, ROWS, 3))
# Which of the band are no keys: the same for every row.
MASK = eqsynth.input("mask", (3,))


def offset_reduce(t: Expr) -> Expr:
    """[f, h, v] = sum_{r,s} t[r, s, f, h + r - 1, v + s - 1]"""
    _, _, f, h, v = t.shape
    return eqsynth.scope(
        lambda n, f, h, v: eqsynth.sum(lambda r, s: t[r, s, f, h + r - 1, v + s - 1], r=3, s=3),
        n=1, f=f, h=h, v=v,
    )  # fmt: skip


def matmul_and_offset_reduce() -> Expr:
    image = ops.permute(ops.reshape(X, (C, H * W)), (1, 0))
    kernel = ops.reshape(ops.permute(K, (1, 2, 3, 0)), (C, 9 * F))
    product = ops.reshape(ops.matmul(image, kernel), (H, W, 3, 3, F))
    return offset_reduce(ops.permute(product, (2, 3, 4, 0, 1)))


def conv1x1_and_offset_reduce() -> Expr:
    kernel = ops.reshape(ops.permute(K, (2, 3, 0, 1)), (9 * F, C, 1, 1))
    return offset_reduce(ops.reshape(ops.conv2d(X, kernel), (3, 3, F, H, W)))


def im2col_and_matmul() -> Expr:
    patches = eqsynth.scope(
        lambda h, v, c, r, s: X[0, c, h + r - 1, v + s - 1], h=H, v=W, c=C, r=3, s=3
    )
    kernel = ops.permute(ops.reshape(K, (F, C * 9)), (1, 0))
    product = ops.matmul(ops.reshape(patches, (H * W, C * 9)), kernel)
    return ops.reshape(ops.permute(product, (1, 0)), (1, F, H, W))


def grouped_over_replicated_input() -> Expr:
    replicated = ops.reshape(
        ops.expand(ops.reshape(X, (1, 1, C, H, W)), (1, F, C, H, W)), (1, F * C, H, W)
    )
    return ops.conv2d(replicated, K, padding=1, groups=F)


def smaller_convolutions() -> Expr:
    """1x3 convolutions, one for each row of the kernel, and their sum with offsets."""
    kernel = ops.reshape(ops.permute(K, (2, 0, 1, 3)), (3 * F, C, 1, 3))
    parts = ops.reshape(ops.conv2d(X, kernel, padding=(0, 1)), (3, F, H, W))
    return eqsynth.scope(
        lambda n, f, h, v: eqsynth.sum(lambda r: parts[r, f, h + r - 1, v], r=3), n=1, f=F, h=H, v=W
    )


def conv3x3_of_conv5x5() -> Expr:
    """5x5 padded to 6x6, as four 3x3 kernels whose results are summed at offsets of 3."""
    padded = ops.reshape(ops.pad(WIDE, (0, 1, 0, 1)), (F, C, 2, 3, 2, 3))
    kernel = ops.reshape(ops.permute(padded, (2, 4, 0, 1, 3, 5)), (4 * F, C, 3, 3))
    parts = ops.conv2d(ops.pad(LARGE, (2, 3, 2, 3)), kernel)
    t = ops.reshape(parts, (2, 2, F, 9, 9))
    return eqsynth.scope(
        lambda n, f, h, v: eqsynth.sum(
            lambda a, b: t[a, b, f, h + 3 * a, v + 3 * b], a=2, b=2
        ),
        n=1, f=F, h=6, v=6,
    )  # fmt: skip


def matmul_and_taps_of_one_phase() -> Expr:
    """Table 3's ConvTranspose: every tap of every pixel, and a sum over those of a phase."""
    image = ops.permute(ops.reshape(SMALL, (C, 9)), (1, 0))
    t = ops.reshape(ops.matmul(image, ops.reshape(UP, (C, 16 * F))), (3, 3, F, 4, 4))
    return eqsynth.scope(
        lambda n, f, i, j: eqsynth.sum(
            lambda a, b: t[
                (i + 1) // 2 - a, (j + 1) // 2 - b, f, 2 * a + (i + 1) % 2, 2 * b + (j + 1) % 2
            ],
            a=2, b=2,
        ),
        n=1, f=F, i=6, j=6,
    )  # fmt: skip


def matmul_and_col2im() -> Expr:
    """The same with a sum over all taps: those between pixels read far outside, which is 0."""
    image = ops.permute(ops.reshape(SMALL, (C, 9)), (1, 0))
    t = ops.reshape(ops.matmul(image, ops.reshape(UP, (C, 16 * F))), (3, 3, F, 4, 4))
    return eqsynth.scope(
        lambda n, f, i, j: eqsynth.sum(
            lambda k, m: t[
                (i + 1 - k) // 2 + (i + 1 - k) % 2 * 10, (j + 1 - m) // 2 + (j + 1 - m) % 2 * 10,
                f, k, m,
            ],
            k=4, m=4,
        ),
        n=1, f=F, i=6, j=6,
    )  # fmt: skip


def pixel_shuffle(t: Expr) -> Expr:
    n, c, h, w = t.shape
    apart_ = ops.permute(ops.reshape(t, (n, c // 4, 2, 2, h, w)), (0, 1, 4, 2, 5, 3))
    return ops.reshape(apart_, (n, c // 4, 2 * h, 2 * w))


def sub_pixel_convolution() -> Expr:
    """Four times the filters, each the taps of one phase reversed, on one more pixel."""
    kernel = eqsynth.scope(
        lambda f, r, s, c, a, b: UP[c, f, 2 - 2 * a + r, 2 - 2 * b + s],
        f=F, r=2, s=2, c=C, a=2, b=2,
    )  # fmt: skip
    shuffled = pixel_shuffle(ops.conv2d(SMALL, ops.reshape(kernel, (4 * F, C, 2, 2)), padding=1))
    return ops.narrow(ops.narrow(shuffled, 2, 1, 6), 3, 1, 6)


def sub_pixel_convolution_with_zeros() -> Expr:
    """The same on as many pixels as there are: of three taps one is none of the phase."""
    kernel = eqsynth.scope(
        lambda f, r, s, c, a, b: UP[c, f, r - 2 * a + 3, s - 2 * b + 3],
        f=F, r=2, s=2, c=C, a=3, b=3,
    )  # fmt: skip
    return pixel_shuffle(ops.conv2d(SMALL, ops.reshape(kernel, (4 * F, C, 3, 3)), padding=1))


def convolution_on_rearranged_rows() -> Expr:
    split = ops.reshape(LARGE, (1, C, 3, 2, 3, 2))
    batch = ops.reshape(ops.permute(split, (3, 5, 0, 1, 2, 4)), (4, C, 3, 3))
    result = ops.reshape(ops.conv2d(batch, K, padding=1), (2, 2, 1, F, 3, 3))
    return ops.reshape(ops.permute(result, (2, 3, 4, 0, 5, 1)), (1, F, 6, 6))


def apart(t: Expr) -> Expr:
    b, m, n = t.shape
    split = ops.reshape(t, (b, m // STEP, STEP, n))
    return ops.reshape(ops.permute(split, (0, 2, 1, 3)), (b * STEP, m // STEP, n))


def together(t: Expr) -> Expr:
    b, m, n = t.shape
    joined = ops.permute(ops.reshape(t, (b // STEP, STEP, m, n)), (0, 2, 1, 3))
    return ops.reshape(joined, (b // STEP, m * STEP, n))


def banded_chain(between: Callable[[Expr], Expr]) -> tuple[Expr, Callable[[], Expr]]:
    """Two products and what is between them; the rearrangements between them are cancelled."""

    def undilated() -> Expr:
        band = ops.g2bmm(apart(Q), apart(KEYS), 1)
        return together(ops.gbmm(between(band), apart(V)))

    return ops.gbmm(between(ops.g2bmm(Q, KEYS, 1, STEP)), V, STEP), undilated


KEYS_0, KEYS_1 = eqsynth.input("k0", (3, 4)), eqsynth.input("k1", (3, 4))
WEIGHTS = [eqsynth.weight(name, (4, 5)) for name in ("w0", "w1")]
P = eqsynth.weight("p", (F, C, 1, 1))
BOTH = ops.cat([CONV, ops.conv2d(X, P)], 1)


def conv3x3_of_both() -> Expr:
    """The 1x1 kernel enlarged to 3x3, beside the other."""
    return ops.conv2d(X, ops.cat([K, ops.pad(P, (1, 1, 1, 1))], 0), padding=1)


def three_conv1x3(padded: bool) -> Expr:
    """Of the rows of the padded image, or with the results moved by a row."""
    rows = ops.pad(X, (0, 0, 1, 1))
    parts = [ops.narrow(K, 2, r, 1) for r in range(3)]
    if padded:
        results = [
            ops.conv2d(ops.narrow(rows, 2, r, H), k, padding=(0, 1)) for r, k in enumerate(parts)
        ]
    else:
        results = [ops.conv2d(X, k, padding=(0, 1)) for k in parts]
        results[0] = ops.narrow(ops.pad(results[0], (0, 0, 1, 0)), 2, 0, H)
        results[2] = ops.narrow(ops.pad(results[2], (0, 0, 0, 1)), 2, 1, H)
    return results[0] + results[1] + results[2]


# GCN's separable pair begins with two convolutions of one image, of a column and of a row.
COLUMN, ROW = eqsynth.weight("col", (F, C, 3, 1)), eqsynth.weight("row", (F, C, 1, 3))


def one_matmul_for_both() -> list[Expr]:
    """Fig. 15's first step: a product with all taps of both, and a sum at offsets of each part."""
    taps = [ops.permute(ops.reshape(k, (F, C, 3)), (1, 2, 0)) for k in (COLUMN, ROW)]
    kernel = ops.cat([ops.reshape(k, (C, 3 * F)) for k in taps], 1)
    image = ops.permute(ops.reshape(X, (C, H * W)), (1, 0))
    t = ops.reshape(ops.matmul(image, kernel), (H, W, 2, 3, F))
    return [
        eqsynth.scope(
            lambda n, f, i, j: eqsynth.sum(lambda r: t[i + r - 1, j, 0, r, f], r=3),
            n=1, f=F, i=H, j=W,
        ),
        eqsynth.scope(
            lambda n, f, i, j: eqsynth.sum(lambda r: t[i, j + r - 1, 1, r, f], r=3),
            n=1, f=F, i=H, j=W,
        ),
    ]  # fmt: skip


# The second convolution of each branch: of a row after the column, of a column after the row.
THEN_ROW, THEN_COLUMN = (
    eqsynth.weight("then_row", (F, F, 1, 3)), eqsynth.weight("then_col", (F, F, 3, 1)),
)  # fmt: skip


def separable_pair() -> list[Expr]:
    column, row = ops.conv2d(X, COLUMN, padding=(1, 0)), ops.conv2d(X, ROW, padding=(0, 1))
    return [
        ops.conv2d(column, THEN_ROW, padding=(0, 1)), ops.conv2d(row, THEN_COLUMN, padding=(1, 0)),
    ]  # fmt: skip


def one_matmul_and_one_batched() -> list[Expr]:
    """Fig. 15: the products of the second step share no input, and are one batched product."""
    images = [ops.permute(ops.reshape(t, (F, H * W)), (1, 0)) for t in one_matmul_for_both()]
    taps = [ops.permute(ops.reshape(k, (F, F, 3)), (1, 2, 0)) for k in (THEN_ROW, THEN_COLUMN)]
    kernels = ops.stack([ops.reshape(k, (F, 3 * F)) for k in taps])
    t = ops.reshape(ops.matmul(ops.stack(images), kernels), (2, H, W, 3, F))
    return [
        eqsynth.scope(
            lambda n, f, i, j: eqsynth.sum(lambda r: t[0, i, j + r - 1, r, f], r=3),
            n=1, f=F, i=H, j=W,
        ),
        eqsynth.scope(
            lambda n, f, i, j: eqsynth.sum(lambda r: t[1, i + r - 1, j, r, f], r=3),
            n=1, f=F, i=H, j=W,
        ),
    ]  # fmt: skip


# TASO's Fig. 8: two images of two channels, depthwise kernels and filters.
U, T = eqsynth.input("u", (1, 2, 4, 4)), eqsynth.input("t", (1, 2, 4, 4))
POOL = ops.full((2, 1, 3, 3), 1 / 9)
D1, D2 = eqsynth.weight("d1", (2, 1, 1, 1)), eqsynth.weight("d2", (2, 1, 3, 3))
E1, E2 = eqsynth.weight("e1", (3, 2, 1, 1)), eqsynth.weight("e2", (3, 2, 1, 1))


def pooled(t: Expr) -> Expr:
    return ops.avg_pool2d(t, 3, stride=1, padding=1)


def depthwise(kernel: Expr) -> Expr:
    return ops.conv2d(U, kernel, padding=1, groups=2)


def separable_convolutions() -> Expr:
    one = ops.conv2d(ops.conv2d(U, D1, groups=2), E1)
    return one + ops.conv2d(ops.conv2d(T, D2, padding=1, groups=2), E2)


def one_separable_convolution() -> Expr:
    """Fig. 8c: both images, the smaller kernel enlarged: a depthwise convolution and another."""
    kernels = ops.cat([ops.pad(D1, (1, 1, 1, 1)), D2], 0)
    deep = ops.conv2d(ops.cat([U, T], 1), kernels, padding=1, groups=4)
    return ops.conv2d(deep, ops.cat([E1, E2], 1))


def interleaved_depthwise() -> Expr:
    """Two average poolings of two images, as a convolution of two channels a group."""
    both = ops.permute(ops.reshape(ops.cat([U, T], 1), (1, 2, 2, 4, 4)), (0, 2, 1, 3, 4))
    kernel = ops.full((2, 2, 3, 3), 1 / 9)
    return ops.conv2d(ops.reshape(both, (1, 4, 4, 4)), kernel, padding=1, groups=2)


CASES: dict[str, tuple[Expr, Callable[[], Expr]]] = {
    "Fig. 7e, Matmul and OffsetReduce": (CONV, matmul_and_offset_reduce),
    "Fig. 7f, Conv1x1 and OffsetReduce": (CONV, conv1x1_and_offset_reduce),
    "Fig. 7i, im2col and Matmul": (CONV, im2col_and_matmul),
    "Fig. 7k, grouped over a replicated input": (CONV, grouped_over_replicated_input),
    "Fig. 7n, smaller convolutions": (CONV, smaller_convolutions),
    "Table 3, ConvTranspose, Matmul and a sum over a phase": (
        TRANSPOSED, matmul_and_taps_of_one_phase,
    ),
    "Table 3, ConvTranspose, Matmul and col2im": (TRANSPOSED, matmul_and_col2im),
    "sub-pixel convolution": (TRANSPOSED, sub_pixel_convolution),
    "sub-pixel convolution, zeros in its kernels": (TRANSPOSED, sub_pixel_convolution_with_zeros),
    "Fig. 3a, a 3x3 and a 1x1 convolution in one": (BOTH, conv3x3_of_both),
    "three 1x3 convolutions": (CONV, lambda: three_conv1x3(False)),
    "three 1x3 convolutions of rows of the image": (CONV, lambda: three_conv1x3(True)),
    "TASO Fig. 8b": (
        pooled(U) + pooled(U), lambda: depthwise(POOL + POOL),
    ),
    "TASO Fig. 8b, two images": (
        pooled(U) + pooled(T), lambda: ops.conv2d(U + T, POOL, padding=1, groups=2),
    ),
    "TASO Fig. 8b, two images side by side": (pooled(U) + pooled(T), interleaved_depthwise),
    "TASO Fig. 8c": (separable_convolutions(), one_separable_convolution),
    "dilated convolution": (DILATED, convolution_on_rearranged_rows),
    "Fig. 14, G2BMM": (
        ops.g2bmm(Q, KEYS, 1, STEP), lambda: together(ops.g2bmm(apart(Q), apart(KEYS), 1)),
    ),
    "Fig. 14, GBMM": (
        ops.gbmm(BAND, V, STEP), lambda: together(ops.gbmm(apart(BAND), apart(V))),
    ),
    "Fig. 14, a chain with a scaling": banded_chain(lambda band: band * 0.5),
    "Fig. 14, a chain with relu": banded_chain(ops.relu),
    "Fig. 14, a chain with a mask and softmax": banded_chain(
        lambda band: ops.softmax(band + MASK, 2)
    ),
    "Fig. 15, products that share no input, batched": (
        ops.stack([ops.matmul(KEYS_0, WEIGHTS[0]), ops.matmul(KEYS_1, WEIGHTS[1])]),
        lambda: ops.matmul(ops.stack([KEYS_0, KEYS_1]), ops.stack(WEIGHTS)),
    ),
}  # fmt: skip


@pytest.mark.slow
def test_a_separable_pair_is_one_product_and_one_batched_product() -> None:
    """Fig. 15 as a whole."""
    proof = prove_equal(separable_pair(), one_matmul_and_one_batched(), time_limit_s=300)
    assert proof, proof.stop
    explanation = proof.explain()
    assert isinstance(explanation, Explanation)
    assert agree(explanation) == len(explanation.steps) + 1


@pytest.mark.slow
def test_the_e_graph_of_a_separable_pair_has_one_value_a_class() -> None:
    roots = program_of([*separable_pair(), *one_matmul_and_one_batched()])[0].outputs
    limits = Limits(deadline_s=300.0)
    graph = saturate_terms(roots, load_rules().select(), PROVE_PHASES, limits, False)
    assert graph.stop in ("saturated", "rounds")
    assert_egraph_consistent(graph)


PROVED: dict[str, tuple[Any, Callable[[], Any]]] = {
    **CASES,
    "Fig. 15, two convolutions of one image, one product": (
        [ops.conv2d(X, COLUMN, padding=(1, 0)), ops.conv2d(X, ROW, padding=(0, 1))],
        one_matmul_for_both,
    ),
}


# The search for these takes over five seconds.
LONG = frozenset({
    "Fig. 7n, smaller convolutions",
    "Table 3, ConvTranspose, Matmul and a sum over a phase",
    "Table 3, ConvTranspose, Matmul and col2im",
    "Fig. 15, two convolutions of one image, one product",
})  # fmt: skip
assert set(PROVED) > LONG


@pytest.mark.rotating
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if case in LONG else ()) for case in PROVED],
)
def test_it_is_proved(case: str) -> None:
    left, right = PROVED[case]
    proof = prove_equal(left, right(), time_limit_s=120)
    assert proof, proof.stop
    explanation = proof.explain()
    assert isinstance(explanation, Explanation)
    assert agree(explanation) == len(explanation.steps) + 1


@pytest.mark.rotating
def test_conv5x5_holds_conv3x3_with_four_times_the_channels() -> None:
    """Fig. 6, without knowing the target; in the phases of proofs."""
    roots = program_of(ops.conv2d(LARGE, WIDE, padding=2))[0].outputs
    graph = saturate_terms(roots, load_rules().select(), PROVE_PHASES, Limits(), False)
    assert graph.stop == "saturated"
    assert_egraph_consistent(graph)
    weights = [
        member.args[1].shape
        for members in graph.classes.values()
        for member in members
        if isinstance(member, Op) and member.name == "Conv2d"
    ]
    assert (4 * F, C, 3, 3) in weights


@pytest.mark.slow
def test_a_chain_with_a_scaled_softmax_is_undilated() -> None:
    """Fig. 14 as LongFormer has it."""
    left, right = banded_chain(lambda band: ops.softmax(band * 0.5, 2))
    proof = prove_equal(left, right(), time_limit_s=240)
    assert proof, proof.stop


@pytest.mark.slow
def test_conv5x5_is_conv3x3_with_four_times_the_channels() -> None:
    """Fig. 6."""
    proof = prove_equal(ops.conv2d(LARGE, WIDE, padding=2), conv3x3_of_conv5x5(), time_limit_s=240)
    assert proof, proof.stop


# ---- without knowing the target --------------------------------------------------------------


@cache
def saturated(name: str) -> EGraph:
    program = {
        "conv": CONV,
        "transposed": TRANSPOSED,
        "dilated": DILATED,
        "g2bmm": ops.g2bmm(Q, KEYS, 1, STEP),
        "gbmm": ops.gbmm(BAND, V, STEP),
        "shared": ops.cat([CONV, ops.conv2d(X, eqsynth.weight("p", (F, C, 1, 1)))], 1),
    }[name]
    graph = saturate_terms(
        program_of(program)[0].outputs, load_rules(), DEFAULT_PHASES, Limits(), False
    )
    assert graph.stop == "saturated" and graph.enodes < 1000
    assert_egraph_consistent(graph)
    return graph


MEMBERS: list[tuple[str, str, tuple[tuple[int, ...], ...], tuple[object, ...]]] = [
    # Matmul of the image with all taps, for an OffsetReduce; im2col and Matmul.
    ("conv", "Matmul", ((H * W, C), (C, 9 * F)), ()),
    ("conv", "Matmul", ((H * W, 9 * C), (9 * C, F)), ()),
    # Matmul and a sum that gathers (Table 3's ConvTranspose); a convolution at a sub-pixel each.
    ("transposed", "Matmul", ((9, C), (C, 16 * F)), ()),
    ("transposed", "Conv2d", ((1, C, 3, 3), (4 * F, C, 2, 2)), ((1, 1), (1, 1), (1, 1), 1)),
    ("dilated", "Conv2d", ((4, C, 5, 5), (F, C, 3, 3)), ((1, 1), (0, 0), (1, 1), 1)),
    ("g2bmm", "G2BMM", ((4, 3, WIDTH), (4, 3, WIDTH)), (1, 1)),
    ("gbmm", "GBMM", ((4, 3, 3), (4, 3, WIDTH)), (1,)),
    # Fig. 3a: one product for the 3x3 and the 1x1 convolution of one input.
    ("shared", "Matmul", ((H * W, C), (C, 10 * F)), ()),
]


@pytest.mark.rotating
@pytest.mark.parametrize(("program", "operator", "shapes", "attrs"), MEMBERS)
def test_it_is_in_the_e_graph(
    program: str, operator: str, shapes: tuple[tuple[int, ...], ...], attrs: tuple[object, ...]
) -> None:
    found = [
        member
        for members in saturated(program).classes.values()
        for member in members
        if isinstance(member, Op) and member.name == operator
    ]
    assert (shapes, attrs) in [(tuple(a.shape for a in op.args), op.attrs) for op in found]
