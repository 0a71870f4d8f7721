"""A compiled program step by step: which kernel is wrong by itself, and what its roundings do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import eqsynth
from eqsynth.extract.measure import measure_cpu_target
from eqsynth.frontend.captured import capture_expression
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.reruns import Values
from eqsynth.lower.rounding import distance
from eqsynth.lower.stepping import faulty_step, noisy_results
from eqsynth.original import Original
from eqsynth.report import Report


@pytest.fixture(scope="module")
def program() -> CompiledProgram:
    """|x - y|^2 the way that cancels, a step an operator."""
    x, y = (eqsynth.input(name, (3, 4)) for name in "xy")
    square = eqsynth.ops.sum(x * x, -1) - 2 * eqsynth.ops.sum(x * y, -1)
    captured = capture_expression(square + eqsynth.ops.sum(y * y, -1))
    return Original(captured, measure_cpu_target()).program(Report())


def values(offset: float = 0.0) -> Values:
    torch.manual_seed(0)
    return (offset + torch.randn(3, 4), offset + torch.randn(3, 4)), {}


def broken(program: CompiledProgram, number: int, change: Callable[[Tensor], Tensor]) -> None:
    """Plants a fault in the kernel of one step."""
    steps, runner = [*program.steps], program.steps[number].runner
    steps[number] = replace(steps[number], runner=lambda *args: change(runner(*args)))
    program.steps = tuple(steps)


def test_each_kernel_is_right_by_itself(program: CompiledProgram) -> None:
    for offset in (0.0, 1e6):
        assert faulty_step(program, values(offset)) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y * 1.0001,
        lambda y: torch.cat([y[:-1], y[-1:] + 1e-4]),
        lambda y: torch.full_like(y, torch.nan),
        lambda y: y.double(),
    ],
)
def test_the_first_wrong_kernel_is_named(
    program: CompiledProgram, change: Callable[[Tensor], Tensor]
) -> None:
    good = program.steps
    try:
        broken(program, 2, change)
        broken(program, 3, change)
        found = faulty_step(program, values())
    finally:
        program.steps = good
    assert found is not None and found[0].name == good[2].name


def test_noise_shows_what_cancels(program: CompiledProgram) -> None:
    def moves(offset: float) -> float:
        base, again = (noisy_results(program, values(offset), seed) for seed in (0, 1))
        return float(distance(base[0], again[0]).max())

    assert 0 < moves(0.0) < 1e-4 and moves(1e4) > 1.0
    one, two = (noisy_results(program, values(), 3) for _ in range(2))
    assert torch.equal(one[0], two[0])
