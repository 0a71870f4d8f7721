"""``optimize`` on random modules and programs keeps what it promises; each promise is checked."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import eqsynth
from eqsynth.errors import EqsynthError, EquivalenceError
from eqsynth.frontend.expr import Expr
from eqsynth.ir.data import sample_all
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Tensor
from eqsynth.lower.program import CompiledProgram
from eqsynth.testing import (
    Argument,
    ModuleCase,
    assert_equivalent,
    assert_optimize_sound,
    optimized,
)
from eqsynth.testing.strategies import operator_programs, torch_modules
from tests.terms import times
from tests.turns import in_turns

DTYPES = ("float32", "float32", "float64", "int64", "bool", "bfloat16")


def check(case: ModuleCase, **how: Any) -> CompiledProgram:
    args = [case.arguments(kind) for kind in ("normal", "zeros", "ties")]
    return assert_optimize_sound(case.module(), *args, **how)


@in_turns
@settings(max_examples=times(0.04), suppress_health_check=list(HealthCheck))
@given(torch_modules(steps=5, dtypes=DTYPES, empty=True))
def test_random_modules(case: ModuleCase) -> None:
    check(case)


@pytest.mark.slow
@settings(max_examples=times(0.6), suppress_health_check=list(HealthCheck))
@given(torch_modules(steps=8, dtypes=DTYPES))
def test_more_random_modules(case: ModuleCase) -> None:
    check(case)


@pytest.mark.slow
@settings(max_examples=times(0.2), suppress_health_check=list(HealthCheck))
@given(torch_modules(steps=5))
def test_random_modules_for_time(case: ModuleCase) -> None:
    """The road that users take: kernels are built and timed."""
    check(case, objective="time", again=False)


@in_turns
@settings(max_examples=times(0.04), suppress_health_check=list(HealthCheck))
@given(operator_programs(steps=4, dtypes=("float32", "float32", "int64", "bool")))
def test_random_programs(root: Tensor) -> None:
    """As expressions; the interpreter says what they compute."""
    env = sample_all(root)
    expression = Expr(root, env)
    first, again = (
        eqsynth.optimize(expression, objective="flops", time_limit_s=600, progress=False)
        for _ in range(2)
    )
    assert again.report.flops_after == first.report.flops_after <= first.report.flops_before
    dtypes = {p.input.name: getattr(torch, p.input.dtype) for p in first.inputs}
    result = first(*(torch.as_tensor(env[name]).to(dtype) for name, dtype in dtypes.items()))
    expected = torch.as_tensor(evaluate(root, env)).to(result.dtype)
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3, equal_nan=True)


# ---- what was found ----------------------------------------------------------------

ROW_OF_ONE = ModuleCase(
    inputs=(Argument((3,), "int64", below=1),),
    layers=("l0 = nn.Embedding(1, 3)",),
    forward=("v0 = self.l0(x0)", "return v0 @ v0.mT"),
)
ROWS_OF_A_PRODUCT = ModuleCase(
    inputs=(Argument((4, 3)), Argument((4, 1)), Argument((2,), "int64", below=4)),
    forward=("v0 = (x0 * x1)[x2]", "return v0"),
)


@pytest.mark.rotating
@pytest.mark.parametrize("case", [ROW_OF_ONE, ROWS_OF_A_PRODUCT])
def test_what_random_modules_found(case: ModuleCase) -> None:
    """Positions were drawn outside of a table; a law made an embedding of a table of one axis."""
    program = check(case, again=case == ROW_OF_ONE)
    assert program.report.stop == "saturated"


# ---- planted faults ------------------------------------------------------------------

CASE = ModuleCase((Argument((2, 3)),), ("l0 = nn.Linear(3, 2)",), ("return F.relu(self.l0(x0))",))


def off_by_one(module: torch.nn.Module, program: CompiledProgram) -> None:
    plain = program.forward
    program.forward = lambda *args: plain(*args) + 1  # type: ignore[method-assign]


def not_the_same_twice(module: torch.nn.Module, program: CompiledProgram) -> None:
    plain, calls = program.forward, itertools.count()
    # A rounding, every other time: no single result is wrong.
    program.forward = lambda *args: plain(*args) * (1 + 1.2e-7 * (next(calls) % 2))  # type: ignore[method-assign]


def dearer(module: torch.nn.Module, program: CompiledProgram) -> None:
    program.report.flops_after = program.report.flops_before + 1


def touched(module: torch.nn.Module, program: CompiledProgram) -> None:
    with torch.no_grad():
        module.l0.bias[0] = float("nan")  # type: ignore[operator,index]
    program.forward = module.forward  # type: ignore[method-assign]


def takes_anything(module: torch.nn.Module, program: CompiledProgram) -> None:
    plain = program.forward
    program.forward = lambda x: plain(x.float().reshape(2, 3))  # type: ignore[method-assign]


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("fault", "where"),
    [
        (off_by_one, "output 0"),
        (not_the_same_twice, "a second call"),
        (dearer, "FLOPs"),
        (touched, "the module's weights"),
        (takes_anything, "a call with another argument 0"),
    ],
)
def test_a_planted_fault_is_found(
    fault: Callable[[torch.nn.Module, CompiledProgram], None],
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def faulty(module: torch.nn.Module, *args: Any, **settings: Any) -> CompiledProgram:
        program = eqsynth.optimize(module, *args, **settings)
        fault(module, program)
        return program

    monkeypatch.setattr(optimized, "optimize", faulty)
    with pytest.raises(EqsynthError) as caught:
        check(CASE, again=False)
    assert isinstance(caught.value, EquivalenceError)
    assert caught.value.where.startswith(where)


@pytest.mark.rotating
def test_results_are_held_against_torch() -> None:
    program = check(CASE)
    module, (x,) = CASE.module(), CASE.arguments()
    assert_equivalent(program, module, (x,))
    assert program.original is None
