"""Inputs on which torch would end the process: they raise under the guard, and aren't used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from eqsynth.lower.reruns import Reference, _Doubles
from eqsynth.lower.traps import Guard, Trapped

INTS = torch.tensor([5, -1, 7, -3])


def least(dtype: torch.dtype) -> torch.Tensor:
    return torch.full((4,), torch.iinfo(dtype).min, dtype=dtype)


def trunc(x: torch.Tensor, y: torch.Tensor | int) -> torch.Tensor:
    return torch.div(x, y, rounding_mode="trunc")


def reduced(lengths: list[int]) -> torch.Tensor:
    x = torch.ones(10)
    return torch.segment_reduce(x, "sum", lengths=torch.tensor(lengths), unsafe=True)


@pytest.mark.parametrize("call", [
    lambda: trunc(least(torch.int64), INTS), lambda: trunc(least(torch.int32), INTS.int()),
    lambda: trunc(least(torch.int64), -1), lambda: torch.lcm(least(torch.int64), INTS),
    lambda: reduced([4, 7]), lambda: reduced([-1, 11]),
])  # fmt: skip
def test_what_would_end_the_process_raises(call: Callable[[], torch.Tensor]) -> None:
    with Guard() as guard, pytest.raises(Trapped):
        call()
    assert guard.needed


@pytest.mark.parametrize("call", [
    lambda: trunc(INTS, INTS.flip(0)), lambda: trunc(least(torch.int64), INTS.abs()),
    lambda: trunc(least(torch.int64) + 1, INTS), lambda: trunc(torch.tensor([-1e30]), -1),
    lambda: torch.lcm(INTS, INTS.flip(0)), lambda: reduced([4, 6]),
    lambda: torch.lcm(least(torch.uint8), INTS.abs().to(torch.uint8)),
])  # fmt: skip
def test_what_torch_computes_is_computed(call: Callable[[], torch.Tensor]) -> None:
    expected = call()
    with Guard() as guard:
        assert torch.equal(call(), expected)
    assert guard.needed


def test_a_program_without_such_operators_runs_without_the_guard() -> None:
    plain, divides = Reference(lambda x: x // 2 + 1), Reference(lambda x: trunc(x, -1))
    for reference, guarded in ((plain, False), (divides, True)):
        reference(((INTS,), {}))
        assert reference._traps is guarded
    with pytest.raises(Trapped):
        divides(((least(torch.int64),), {}))


@pytest.mark.rotating(parts=4)
def test_the_check_of_a_division_does_not_end_the_process() -> None:
    program = """
import torch, eqsynth
class Divided(torch.nn.Module):
    def forward(self, x, y):
        return torch.div(x, y, rounding_mode="trunc") + 1
x = torch.arange(24).reshape(4, 6) - 9
y = torch.where(x == 0, -3, x).flip(0)
optimized = eqsynth.optimize(Divided().eval(), (x, y), objective="flops", engines=())
assert torch.equal(optimized(x, y), Divided()(x, y))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_constants_made_on_the_way_are_doubles() -> None:
    """A constant of float32 keeps its value, a conversion to float32 doesn't round, and one to
    bfloat16 does."""
    x = torch.randn(3, 4)

    class Made(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            third = torch.full((4, 2), 1 / 3)
            return x @ third, (x + 1e-9).float(), x.bfloat16(), x.sum(dtype=torch.float32)

    values = ((x,), {})
    exact = Reference(Made()).exact(values)
    assert exact is not None and all(y.dtype == torch.float64 for y in exact)
    third = torch.full((4, 2), 1 / 3).double()
    expected = (x.double() @ third, x.double() + 1e-9, x.bfloat16().double(), x.double().sum())
    for got, right in zip(exact, expected, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-12, atol=1e-12)


def test_a_program_of_doubles_rounds_where_it_says() -> None:
    class Rounded(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.float().double()

    x = torch.randn(3, 4, dtype=torch.float64)
    exact = Reference(Rounded()).exact(((x,), {}))
    assert exact is not None and torch.equal(exact[0], x.float().double())


def test_what_changes_in_place_stays_as_it_is() -> None:
    counted = torch.ones(3)
    with _Doubles():
        counted.add_(1)
    assert counted.dtype == torch.float32 and counted.sum() == 6
