"""What reductions are added up in, and that kernels do so."""

from __future__ import annotations

import pytest
import torch
from eoperator_cases import it, laid_out, tensor

from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Num, Prod, Read, Scalar, Sum
from eqsynth.ir.tensor import Scope
from eqsynth.lower.accumulation import accumulation
from eqsynth.lower.torch_scopes import run_scope
from eqsynth.lower.tvm_backend import TvmBackend

ROWS, LENGTH = 5, 77
X = tensor(0, (ROWS, LENGTH))
ROW, AT = it(0, ROWS), it(1, LENGTH)


def window() -> Scope:
    at: Index = it(1, 4) + it(2, 3)
    return Scope((ROWS, 4), (3,), Read(X, (ROW, at)))


@pytest.mark.parametrize(
    ("scope", "dtype"),
    [
        (Scope((ROWS,), (LENGTH,), Prod((Num(1 / LENGTH), Read(X, (ROW, AT))))), "float64"),
        (window(), "float32"),
        (Scope((ROWS,), (LENGTH,), Prod((Read(X, (ROW, AT)), Read(X, (ROW, AT))))), "float32"),
        (Scope((ROWS,), (LENGTH,), Call("abs", (Read(X, (ROW, AT)),))), "float32"),
        (Scope((ROWS,), (LENGTH,), Read(X, (ROW, AT)), "max"), "float32"),
        (Scope((ROWS, LENGTH), (), Read(X, (ROW, AT))), "float32"),
    ],
)
def test_sums_along_whole_axes_are_wide(scope: Scope, dtype: str) -> None:
    kind, body = accumulation(scope)
    assert kind == dtype
    assert isinstance(body, Scalar) and (body == scope.body) == (dtype == scope.dtype)


def test_exponentials_of_the_same_kernel_are_added_in_their_own_dtype() -> None:
    """Other values that a kernel computes itself, such as x + y before a normalization, aren't."""
    read = Read(X, (ROW, AT))
    for made, dtype in ((Call("exp", (read,)), "float32"), (Sum((read, read)), "float64")):
        inner = Scope((ROWS, LENGTH), (), made)
        assert accumulation(Scope((ROWS,), (LENGTH,), Read(inner, (ROW, AT))))[0] == dtype


def ways_to_add(scope: Scope, x: torch.Tensor) -> list[torch.Tensor]:
    kernels = list(TvmBackend().kernels(scope, (False,)))
    ran = [run for run in TvmBackend().build([(kernel, {}) for kernel in kernels]) if run]
    assert len(ran) == len(kernels) > 0
    pairs = zip(ran, kernels, strict=True)
    return [run(laid_out(x, kernel.inputs[0])) for run, kernel in pairs]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_long_sum_is_added_up_in_runs(axis: int) -> None:
    """4,096 numbers of one size and sign, added one after the other, are off by 2e-5 of the sum."""
    shape = (4096, 5) if axis == 0 else (5, 4096)
    x = torch.full(shape, 1e5) + torch.rand(shape, generator=torch.Generator().manual_seed(0))
    source, (here, along) = tensor(0, shape), (it(0, 5), it(1, 4096))
    read = Read(source, (along, here) if axis == 0 else (here, along))
    scope = Scope((5,), (4096,), Call("relu", (Sum((read, Num(-3.0))),)))
    right = (x - 3).double().sum(axis)
    for result in ways_to_add(scope, x):
        assert ((result - right) / right).abs().max() < 2e-6


@pytest.mark.parametrize("reduced", [(300,), (521,), (7, 64), (2, 3, 100), (16, 4, 16), (257, 2),
                                     (131, 131)])  # fmt: skip
@pytest.mark.parametrize("last", [True, False])
def test_sums_in_runs_have_all_terms_once(reduced: tuple[int, ...], last: bool) -> None:
    """Sums of whole numbers are exact, whatever the order."""
    shape = (3, *reduced) if last else (*reduced, 3)
    x = torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(0)).float()
    along = [it(slot, extent) for slot, extent in enumerate(reduced, 1)]
    read = Read(tensor(0, shape), (it(0, 3), *along) if last else (*along, it(0, 3)))
    scope = Scope((3,), reduced, Call("abs", (read,)))
    right = x.abs().sum(tuple(range(1, x.ndim)) if last else tuple(range(x.ndim - 1)))
    for result in ways_to_add(scope, x):
        assert torch.equal(result, right)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_mean_of_a_constant_row_is_the_constant(axis: int) -> None:
    numbers = torch.tensor([0.1, 1e6 + 0.3, -7 / 3, 1e-30, 3e38] * 7)
    shape = (LENGTH, 35) if axis == 0 else (35, LENGTH)
    x = numbers.unsqueeze(axis).expand(shape).contiguous()
    assert not torch.equal(x.mean(axis), numbers)  # in float32 it isn't
    source, (here, along) = tensor(0, shape), (it(0, 35), it(1, LENGTH))
    read = Read(source, (along, here) if axis == 0 else (here, along))
    scope = Scope((35,), (LENGTH,), Prod((Num(1 / LENGTH), read)))
    kernels = list(TvmBackend().kernels(scope, (False,)))
    ran = [run for run in TvmBackend().build([(kernel, {}) for kernel in kernels]) if run]
    assert len(ran) == len(kernels) > 0
    for run in ran:
        assert torch.equal(run(x), numbers)
    assert torch.equal(run_scope(scope, {source: x}), numbers)
