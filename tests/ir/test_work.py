"""Floating-point operations and bytes, counted by hand."""

from __future__ import annotations

import pytest

from eqsynth.ir.scalar import Call, Prod, Read, Sum
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.ir.work import bytes_moved, bytes_unfolded, flops
from tests.terms import it, leaf, op

X, W = leaf("x", 2, 3), leaf("w", 3, 4)
IMAGE, K = leaf("image", 1, 4, 5, 5), leaf("k", 6, 2, 3, 3)
BAND = leaf("band", 2, 5, 4)
A, B = (Read(t, (it(0, 2), it(1, 3))) for t in (X, leaf("y", 2, 3)))
PATCH = ((3, 3), (1, 1), (0, 0), (1, 1))
CASES: list[tuple[Tensor, int]] = [
    (X, 0),
    (op("Matmul", X, W), 2 * 2 * 3 * 4),
    (op("FusedMatmul", X, W, leaf("b", 4), attrs=("none",)), 2 * 2 * 3 * 4 + 8),
    (op("Conv2d", IMAGE, K, attrs=((1, 1), (0, 0), (1, 1), 2)), 2 * (6 * 9) * (2 * 9)),
    (op("G2BMM", BAND, BAND, attrs=(1, 2)), 2 * 2 * 5 * 4 * 3),
    (op("GBMM", leaf("p", 2, 5, 3), BAND, attrs=(1,)), 2 * 2 * 5 * 4 * 3),
    (op("MaxPool2d", IMAGE, attrs=PATCH), 4 * 9 * 9),
    (op("Relu", X), 6),
    (op("Add", X, leaf("s", 1)), 6),
    (op("ReduceSum", X, attrs=((0, 1), 0)), 6),
    (op("Permute", X, attrs=((1, 0),)), 0),
    (op("Full", attrs=((9,), 0.0, "float32")), 0),
    (Scope((2, 3), (), A), 0),
    (Scope((2, 3), (), Sum((A, B, B))), 12),
    (Scope((2, 3), (), Call("relu", (A,))), 6),
    (Scope((2,), (3,), Prod((A, B))), 12),
    (Scope((2,), (3,), A), 6),
]


@pytest.mark.parametrize(("term", "expected"), CASES, ids=lambda c: getattr(c, "label", None))
def test_flops(term: Tensor, expected: int) -> None:
    assert flops(term) == expected


def test_a_transposed_convolution_counts_its_input() -> None:
    term = op("ConvTranspose2d", IMAGE, leaf("up", 4, 3, 2, 2),
              attrs=((2, 2), (0, 0), (0, 0), (1, 1), 1))
    assert flops(term) == 2 * (4 * 25) * (3 * 4)


def test_bytes_count_each_argument_once() -> None:
    assert bytes_moved(op("Mul", X, X)) == 24 + 24
    assert bytes_moved(op("Matmul", X, leaf("h", 3, 4))) == 24 + 48 + 32
    assert bytes_moved(Scope((2,), (3,), Prod((A, B)))) == 24 + 24 + 8


def test_bytes_of_operands_that_are_unfolded() -> None:
    f, h, c, r = it(0, 8), it(1, 10), it(2, 4), it(3, 3)
    image, taps = leaf("image", 8, 12), leaf("taps", 8, 4, 3)
    weights = Read(taps, (f, c, r))
    groups = Scope((8, 10), (4, 3), Prod((Read(image, (f // 4 * 4 + c, h + r)), weights)))
    assert bytes_unfolded(groups) == 4 * 8 * 10 * 4 * 3
    windows = Scope((8, 10), (4, 3), Prod((Read(image, (c, h + r)), weights)))
    assert bytes_unfolded(windows) == 4 * 10 * 4 * 3
    # Each element once, or a part of them; a sum of one factor; a maximum; no reduction.
    assert bytes_unfolded(Scope((8, 10), (4, 3), Prod((Read(image, (f, h)), weights)))) == 0
    assert bytes_unfolded(Scope((2,), (3,), A)) == 0
    assert bytes_unfolded(Scope((8, 10), (4, 3), groups.body, "max")) == 0
    assert bytes_unfolded(Scope((8, 10, 4, 3), (), groups.body)) == 0
