"""oneDNN's operators: values, and the layouts that they really give, at the edges too."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from lower_cases import arguments, check_kernel, op, tensor

from eqsynth.extract.kernel import Kernel, channels_last
from eqsynth.ir.operators import POST_FUNCTIONS
from eqsynth.ir.tensor import Op, args_of
from eqsynth.lower.torch_backend import matrix_layouts
from eqsynth.lower.vendor import OneDnnBackend

BACKEND = OneDnnBackend()
DTYPES = ["float32"]
if torch.ops.mkldnn._is_mkldnn_bf16_supported():
    DTYPES.append("bfloat16")


def kernels(term: Op, *constant: int) -> list[Kernel]:
    flags = tuple(k in constant for k in range(len(args_of(term))))
    return list(BACKEND.kernels(term, flags))


def check(term: Op, *constant: int) -> Counter[str]:
    """Every kernel of the term; how many each implementation has."""
    found = kernels(term, *constant)
    for kernel in found:
        check_kernel(BACKEND, kernel, arguments(term))
    return Counter(kernel.implementation for kernel in found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("constant", [(), (0,), (1,)])
@pytest.mark.parametrize("shape", [(5, 3, 4), (1, 3, 4), (5, 1, 4), (5, 3, 1), (1, 1, 1)])
def test_a_matrix_product(shape: tuple[int, ...], constant: tuple[int, ...], dtype: str) -> None:
    m, k, n = shape
    found = check(op("Matmul", (m, k), (k, n), dtype=dtype), *constant)
    orders = 2 if constant else 4
    assert found == {"onednn.linear": orders, "onednn.linear_transposed": orders}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("post", POST_FUNCTIONS)
def test_a_fused_matrix_product(post: str, dtype: str) -> None:
    for constant in ((1,), (1, 2), ()):
        assert check(op("FusedMatmul", (5, 3), (3, 4), (4,), attrs=(post,), dtype=dtype), *constant)
        assert check(
            op("FusedMatmul", (2, 5, 3), (3, 4), (4,), attrs=(post,), dtype=dtype), *constant
        )
        assert check(
            op("FusedMatmulAdd", (5, 3), (3, 4), (4,), (5, 4), attrs=(post,), dtype=dtype),
            *constant,
        )


@pytest.mark.parametrize("constant", [(), (0,), (1,)])
@pytest.mark.parametrize("batch", [(2,), (3, 2), (1, 2), (2, 1)])
def test_a_batch_of_matrix_products(batch: tuple[int, ...], constant: tuple[int, ...]) -> None:
    term = op("Matmul", (*batch, 5, 3), (*batch, 3, 4))
    grouped = {"onednn.grouped"} if len(batch) == 1 and constant == (1,) else set()
    assert set(check(term, *constant)) == {"onednn.batch"} | grouped
    # oneDNN takes strided matrices at the right too, but with its slowest code.
    rank = len(batch) + 2
    assert {k.inputs[1] for k in kernels(term, *constant)} <= set(matrix_layouts(rank))


CONVS: list[tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]] = [
    ((1, 16, 6, 6), (16, 16, 3, 3), ((1, 1), (1, 1), (1, 1), 1)),
    ((2, 3, 9, 8), (8, 3, 3, 2), ((2, 1), (1, 0), (1, 2), 1)),
    ((1, 8, 5, 5), (8, 1, 3, 3), ((1, 1), (1, 1), (1, 1), 8)),
    ((1, 8, 5, 5), (12, 2, 3, 3), ((1, 1), (1, 1), (1, 1), 4)),
    ((1, 16, 4, 4), (8, 16, 1, 1), ((1, 1), (0, 0), (1, 1), 1)),
    # Extents of 1, where memory formats can't be told apart by their strides.
    ((1, 1, 6, 6), (4, 1, 3, 3), ((1, 1), (1, 1), (1, 1), 1)),
    ((2, 4, 6, 6), (1, 4, 3, 3), ((1, 1), (1, 1), (1, 1), 1)),
    ((1, 8, 1, 1), (4, 8, 1, 1), ((1, 1), (0, 0), (1, 1), 1)),
    ((1, 1, 1, 1), (1, 1, 1, 1), ((1, 1), (0, 0), (1, 1), 1)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("x", "w", "attrs"), CONVS)
def test_a_convolution(
    x: tuple[int, ...], w: tuple[int, ...], attrs: tuple[Any, ...], dtype: str
) -> None:
    plain = op("Conv2d", x, w, attrs=attrs, dtype=dtype)
    assert check(plain, 1) == {"onednn.conv": 2}
    assert {kernel.output for kernel in kernels(plain, 1)} == {channels_last(4)}
    assert check(plain) == {}
    for post in ("none", "relu", "gelu"):
        fused = op("FusedConv2d", x, w, w[:1], attrs=(*attrs, post), dtype=dtype)
        assert check(fused, 1, 2) == {"onednn.conv": 2}
        add = op("FusedConv2dAdd", x, w, w[:1], plain.shape, attrs=(*attrs, post), dtype=dtype)
        assert check(add, 1, 2) == {"onednn.conv": 2}


@pytest.mark.parametrize("post", POST_FUNCTIONS)
def test_a_convolution_and_its_activation(post: str) -> None:
    x, w, attrs = CONVS[1]
    assert check(op("FusedConv2d", x, w, w[:1], attrs=(*attrs, post)), 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution(groups: int, dtype: str) -> None:
    for stride, padding, output_padding, dilation in (
        ((2, 2), (1, 1), (1, 1), (1, 1)),
        ((1, 2), (0, 1), (0, 0), (2, 1)),
    ):
        attrs = (stride, padding, output_padding, dilation, groups)
        term = op("ConvTranspose2d", (2, 8, 5, 5), (8, 4, 3, 3), attrs=attrs, dtype=dtype)
        assert check(term, 1) == {"onednn.conv_transpose": 2}


def test_what_onednn_cannot_do_is_left_to_others() -> None:
    window = ((1, 1), (0, 0), (1, 1), 1)
    assert kernels(op("Matmul", (5, 3), (3, 4), dtype="float64"), 1) == []
    assert kernels(op("Matmul", (5, 0), (0, 4)), 1) == []
    assert kernels(op("Matmul", (0, 3), (3, 4)), 1) == []
    assert kernels(op("Matmul", (2, 1, 5, 3), (1, 3, 3, 4))) == []
    assert kernels(op("Conv2d", (0, 3, 4, 4), (2, 3, 1, 1), attrs=window), 1) == []
    assert kernels(op("Add", (5, 3), (5, 3)), 1) == []
    x = tensor(0, 3, 3)
    assert kernels(Op("Matmul", (x, x))) == []
