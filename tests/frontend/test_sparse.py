"""Buffers that are matrices with few elements are said as these, and others stay data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsynth
from eqsynth.errors import WeightError
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.sparse import sparse, sums_rows
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Weight
from eqsynth.ir.types import TensorType

N = 32


def said(tensor: torch.Tensor, columns: bool = False) -> tuple[Expr, np.ndarray] | None:
    """What a tensor is said as, and the value of that."""
    weights: dict[str, np.ndarray] = {}

    def kept(part: torch.Tensor) -> Expr:
        name = f"w{len(weights)}"
        weights[name] = part.numpy()
        return Expr(Weight(name, TensorType(tuple(part.shape), str(part.dtype)[6:])))

    found = sparse(tensor, kept, columns)
    return None if found is None else (found, np.asarray(evaluate(found.tensor, weights)))


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) + 0.5


def picked(rows: int, columns: int, most: int, seed: int = 0) -> torch.Tensor:
    """A matrix with up to ``most`` elements in each row, and a row of zeros."""
    made, random = torch.zeros(rows, columns), torch.Generator().manual_seed(seed)
    for row in range(1, rows):
        at = torch.randint(0, columns, (most,), generator=random)
        made[row, at] = torch.randn(most, generator=random)
    return made


EYE = torch.eye(N)
SAID = {
    "a diagonal": torch.diag(drawn(N)),
    "tridiagonal": drawn(N, N).triu(-1).tril(1),
    "blocks": torch.kron(torch.eye(8), drawn(4, 4)),
    "blocks of two sizes": torch.kron(torch.eye(N), drawn(1, 3)),
    "each n-th diagonal": torch.kron(drawn(4, 4), torch.eye(8)),
    "circulant": 2 * EYE - EYE.roll(1, 0) - EYE.roll(-1, 0),
    "circulant of data": (EYE + EYE.roll(5, 0)) * drawn(N, N),
    "wide": torch.kron(torch.eye(16), drawn(2, 5)),
    "two diagonals of a tall one": 3 * torch.eye(2 * N, N) + torch.eye(2 * N, N).roll(9, 0),
    "a permutation": EYE[torch.randperm(N, generator=torch.Generator().manual_seed(0))],
    "scaled permutation": EYE[torch.randperm(N, generator=torch.Generator().manual_seed(1))] * 3,
    "few in a row": picked(N, 40, 5),
    "few in a column": picked(40, N, 5).T,
    "double": picked(N, N, 3).double(),
    "half": picked(N, N, 3).half(),
}
DATA = {
    "random": drawn(N, N),
    "a triangle of most": drawn(N, N).triu(-4),
    "zeros": torch.zeros(N, N),
    "small": torch.diag(drawn(15)),
    "integers": 2 * torch.eye(N, dtype=torch.int64),
    "NaN": torch.diag(torch.full((N,), torch.nan)),
    "infinite": torch.diag(torch.full((N,), torch.inf)),
    "a vector": torch.zeros(N * N),
    "three axes": torch.diag(drawn(N))[None],
    "a third of a row and of a column": picked(N, N, 12),
    "many in a row and in a column": picked(N, N, 16) + picked(N, N, 16, 1).T,
}


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("name", SAID)
def test_what_is_said_has_the_same_elements(name: str, columns: bool) -> None:
    found = said(SAID[name], columns)
    assert found is not None
    assert (found[0].shape, found[0].dtype) == (
        tuple(SAID[name].shape), str(SAID[name].dtype)[6:]
    )  # fmt: skip
    np.testing.assert_array_equal(found[1], SAID[name].numpy())


@pytest.mark.parametrize("name", DATA)
def test_other_matrices_are_data(name: str) -> None:
    assert said(DATA[name]) is None


@settings(max_examples=100, deadline=None)
@given(st.integers(16, 24), st.integers(16, 40), st.integers(0, 5), st.integers(), st.booleans())
def test_whatever_is_said_has_the_same_elements(
    rows: int, columns: int, most: int, seed: int, across: bool
) -> None:
    tensor = picked(rows, columns, most, seed % 1000)
    found = said(tensor, across)
    if found is not None:
        np.testing.assert_array_equal(found[1], tensor.numpy())


class Times(torch.nn.Module):
    """A function of x and a buffer."""

    def __init__(self, read: Callable[..., torch.Tensor], matrix: torch.Tensor) -> None:
        super().__init__()
        self.read = read
        self.register_buffer("matrix", matrix)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.read(x, self.matrix)


def left(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return a @ x.T


def right(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return x @ a


def einsum(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return torch.einsum("cv, vw -> cw", x, a)


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("read", "matrix", "times"),
    [
        (left, SAID["circulant"], 8),
        (right, SAID["tridiagonal"], 8),
        (left, torch.kron(torch.eye(N // 4), torch.full((1, 4), 0.25)), 8),
        (right, torch.kron(torch.eye(N // 2), drawn(2, 1)), 8),
        (left, torch.kron(torch.eye(N), torch.ones(4, 1)), 32),
        (einsum, picked(N, N, 2).T, 16),
        (left, picked(N, N, 2), 16),
        (right, SAID["a permutation"], 2048),
        (left, EYE - 1 / N, 16),
    ],
)
def test_zeros_arent_multiplied(
    read: Callable[..., torch.Tensor], matrix: torch.Tensor, times: int
) -> None:
    module, x = Times(read, matrix.contiguous()).eval(), drawn(4, N)
    program = eqsynth.optimize(module, (x,), objective="flops", engines=(), progress=False)
    assert times * program.report.flops_after <= program.report.flops_before
    torch.testing.assert_close(program(x), module(x))


def test_a_matrix_that_is_said_is_part_of_the_program() -> None:
    module, x = Times(left, picked(N, N, 2)).eval(), drawn(4, N)
    program = eqsynth.optimize(module, (x,), objective="flops", engines=(), progress=False)
    program.refresh(module)
    program.refresh({})
    torch.testing.assert_close(program(x), module(x))
    module.matrix = picked(N, N, 2, seed=1)
    with pytest.raises(WeightError):
        program.refresh(module)


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (left, False),
        (right, True),
        (einsum, True),
        (lambda x, a: torch.einsum("vw, cw -> vc", a, x), False),
        (lambda x, a: x @ a.T, False),
        (lambda x, a: a.mT @ x.T, True),
        (lambda x, a: x[0] + a.sum(0), None),
    ],
)
def test_which_axis_of_a_matrix_is_summed(
    read: Callable[..., torch.Tensor], expected: bool | None
) -> None:
    graph = torch.export.export(Times(read, EYE).eval(), (drawn(4, N),)).graph
    (node,) = (n for n in graph.nodes if n.op == "placeholder" and "matrix" in n.name)
    assert sums_rows(node) is expected
