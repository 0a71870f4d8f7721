"""Operators that torch runs, in expressions: divisions of integers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import eqsynth
from eqsynth import ops
from eqsynth.errors import LoweringError
from eqsynth.extract.measure import measure_cpu_target
from eqsynth.frontend.captured import capture_expression
from eqsynth.frontend.expr import Expr
from eqsynth.original import Original
from eqsynth.report import Report

A, B = eqsynth.input("a", (4, 3), "int64"), eqsynth.input("b", (3,), "int64")
X, Y = torch.arange(12).reshape(4, 3) - 6, torch.tensor([2, -3, 7])
ZERO = torch.tensor([2, 0, 7])

DIVISIONS = {
    "floor": A // B,
    "remainder": A % B,
    "mode floor": ops.div(A, B, rounding_mode="floor"),
    "mode trunc": ops.div(A, B, rounding_mode="trunc"),
    # What is 0 isn't read: torch divides by it all the same.
    "a part": ops.narrow(A // B, 1, 0, 1),
    "in a scope": eqsynth.scope(lambda i: (A // B)[i, 0] + 1, i=4),
}
TORCH = {
    "floor": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "mode floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "mode trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "a part": lambda a, b: (a // b)[:, :1],
    "in a scope": lambda a, b: (a // b)[:, 0] + 1,
}


def plain(expr: Expr) -> eqsynth.CompiledProgram:
    return Original(capture_expression(expr), measure_cpu_target()).program(Report())


@pytest.mark.parametrize("name", DIVISIONS)
def test_integers_are_divided_as_torch_does(name: str) -> None:
    program = plain(DIVISIONS[name])
    assert torch.equal(program(X, Y), TORCH[name](X, Y))
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        program(X, ZERO)


def test_the_optimized_program_raises_too_and_so_does_the_saved_one(tmp_path: Path) -> None:
    # What is divided and multiplied again is a remainder: no rule may take the division away.
    expr = ops.relu(A - (A // B) * B) + A // 3
    program = eqsynth.optimize(expr, objective="flops", time_limit_s=600, progress=False)
    eqsynth.save(program, tmp_path / "p.eqs")
    expected = (X - X // Y * Y).relu() + X // 3
    for each in (program, eqsynth.load(tmp_path / "p.eqs")):
        assert torch.equal(each(X, Y), expected)
        with pytest.raises(RuntimeError, match="ZeroDivision"):
            each(X, ZERO)
    # The division by 3 is nobody's but eqsynth's.
    opaque = [step for step in program.steps if step.kernel.opaque]
    assert len(opaque) == 1
    assert program.report.error_rel == 0 and not program.report.reason


def test_floats_and_known_divisors_stay_in_the_ir() -> None:
    f = eqsynth.input("f", (3,))
    for expr in (f // f, f % f, A // 3, A % -2):
        assert not capture_expression(expr).opaque
    assert capture_expression(A // 0).opaque


@pytest.mark.parametrize("divisor", [B, B + 1, B * B, B % 3 + 1])
def test_inputs_are_found_that_an_expression_takes(divisor: Expr) -> None:
    original = Original(capture_expression(A // divisor), measure_cpu_target())
    original.try_inputs()
    assert isinstance(original.call(*original.args), Tensor)


def test_where_no_inputs_are_found_the_expression_is_computed_as_it_is() -> None:
    original = Original(capture_expression(A // (B - B)), measure_cpu_target())
    with pytest.raises(LoweringError) as caught:
        original.try_inputs()
    assert "ZeroDivision" in caught.value.got
    program = eqsynth.optimize(A // (B - B), time_limit_s=5, progress=False)
    assert program.report.reason == str(caught.value)
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        program(X, Y)
