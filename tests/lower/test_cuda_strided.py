"""Parts of tensors as operands of cuBLAS: which scopes are such products, and what they give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from eoperator_cases import array, it, laid_out, sample, tensor
from gpu_cases import GPU
from hypothesis import given
from hypothesis import strategies as st

from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Prod, Read
from eqsynth.ir.tensor import Scope, args_of
from eqsynth.lower.cuda.libraries import libraries
from eqsynth.lower.cuda.strided import product_of

(CUBLAS,) = (one for one in libraries(GPU) if one.name == "cublas")


def scope(
    traversal: tuple[int, ...], depth: int, x: tuple[int, ...], w: tuple[int, ...],
    xs: tuple[Index, ...], ws: tuple[Index, ...],
) -> Scope:  # fmt: skip
    return Scope(traversal, (depth,), Prod((Read(tensor(0, x), xs), Read(tensor(1, w), ws))))


R, C, K = it(0, 5), it(1, 6), it(2, 7)
B, M, N, D = it(0, 3), it(1, 5), it(2, 6), it(3, 7)

PARTS = {
    "rows": scope((5, 6), 7, (9, 7), (7, 6), (R + 3, K), (K, C)),
    "columns": scope((5, 6), 7, (5, 12), (7, 6), (R, K + 4), (K, C)),
    "both": scope((5, 6), 7, (9, 12), (8, 11), (R + 1, K + 2), (K + 1, C + 5)),
    "every other row": scope((5, 6), 7, (10, 7), (7, 6), (R * 2, K), (K, C)),
    "transposed": scope((5, 6), 7, (8, 9), (6, 20), (K + 1, R + 3), (C, K)),
    "a batch of parts": scope((3, 5, 6), 7, (3, 9, 7), (3, 7, 6), (B, M + 2, D), (B, D, N)),
    "windows": scope((3, 5, 6), 7, (20, 7), (3, 7, 6), (B * 5 + M, D), (B, D, N)),
    "one row": Scope((6,), (7,), Prod((Read(tensor(0, (9, 7)), (Index(4), it(1, 7))),
                                       Read(tensor(1, (7, 6)), (it(1, 7), it(0, 6)))))),
    "of one tensor": Scope((5, 6), (7,), Prod((Read(tensor(0, (12, 7)), (R, K)),
                                               Read(tensor(0, (12, 7)), (C + 6, K))))),
}  # fmt: skip

NONE = {
    "whole": scope((5, 6), 7, (5, 7), (7, 6), (R, K), (K, C)),
    "every other column": scope((5, 6), 7, (70,), (7, 6), (R * 14 + K * 2,), (K, C)),
    "backwards": scope((5, 6), 7, (9, 7), (7, 6), (R * -1 + 8, K), (K, C)),
    "a border": scope((5, 6), 7, (4, 7), (7, 6), (R, K), (K, C)),
    "overlapping rows": scope((5, 6), 7, (50,), (7, 6), (R + K,), (K, C)),
    "a diagonal": scope((5, 6), 7, (9, 9, 2), (7, 6), (R, R, Index(0)), (K, C)),
    "the batch inside": scope((5, 3, 6), 7, (3, 9, 7), (3, 7, 6),
                              (it(1, 3), it(0, 5), D), (it(1, 3), D, N)),
}  # fmt: skip


def check(term: Scope) -> None:
    """Every kernel gives what the interpreter gives, of operands that are passed as they are."""
    values = [sample(arg.shape, arg.dtype, n) for n, arg in enumerate(args_of(term))]
    named = {arg.label: array(v) for arg, v in zip(args_of(term), values, strict=True)}
    expected = evaluate(term, named)
    kernels = list(CUBLAS.kernels(term, (False,) * len(values)))
    assert kernels
    for kernel, run in zip(kernels, CUBLAS.build([(k, {}) for k in kernels]), strict=True):
        assert run is not None
        got = run(*map(laid_out, values, kernel.inputs))
        np.testing.assert_allclose(array(got), expected, rtol=1e-5, atol=1e-4)


def test_parts_are_operands() -> None:
    failed = {}
    for name, term in PARTS.items():
        try:
            check(term)
        except AssertionError as error:
            failed[name] = str(error)[:300]
    assert not failed


def test_what_is_no_part_that_cublas_takes() -> None:
    found = {n for n, term in NONE.items() if [*CUBLAS.kernels(term, (False, False))]}
    assert not found


def test_operands_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, tuple[int, ...]]] = []
    product = torch.bmm

    def bmm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        seen.append((x.data_ptr(), x.stride()))
        return product(x, w)

    monkeypatch.setattr(torch, "bmm", bmm)
    kernel = next(iter(CUBLAS.kernels(PARTS["both"], (False, False))))
    (run,) = CUBLAS.build([(kernel, {})])
    assert run is not None
    x, w = sample((9, 12), "float32"), sample((8, 11), "float32")
    run(x, w)
    ((pointer, steps),) = seen
    assert pointer == x[1:, 2:].data_ptr() and steps[1:] == (12, 1)


@given(st.data())
def test_any_two_affine_reads(data: st.DataObject) -> None:
    """Whatever is taken for a product is one."""
    extents = (3, 4, 2, 5)
    steps, starts = st.sampled_from((-1, 1, 1, 2)), st.integers(0, 2)

    def read(number: int, iterators: tuple[int, ...]) -> Read:
        shape, index = [], []
        for iterator in data.draw(st.permutations(iterators)):
            step, extent, start = data.draw(steps), extents[iterator], data.draw(starts)
            least = -min(0, step * (extent - 1))
            index.append(it(iterator, extent) * step + (least + start))
            shape.append(least + start + max(0, step * (extent - 1)) + 1 + data.draw(starts))
        return Read(tensor(number, tuple(shape)), tuple(index))

    batched = data.draw(st.booleans())
    left, right = ((0, 1, 3), (0, 2, 3)) if batched else ((0, 1, 3), (2, 3))
    term = Scope(extents[:3], extents[3:], Prod((read(0, left), read(1, right))))
    if list(CUBLAS.kernels(term, (False, False))):
        check(term)


def test_a_product_by_columns_is_that_of_the_transposed() -> None:
    term = scope((6, 5), 7, (9, 7), (7, 6), (it(1, 5) + 3, it(2, 7)), (it(2, 7), it(0, 6)))
    found = product_of(term, ((0, 1), (0, 1)))
    assert found is not None and (found.rows, found.columns) == (6, 5)
    check(term)
