"""A compiled program step by step: which kernel is wrong by itself, and what its roundings do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import eqsynth
from eqsynth.checking import Stage
from eqsynth.extract.measure import measure_cpu_target
from eqsynth.frontend.captured import capture_expression
from eqsynth.frontend.expr import Expr
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Value
from eqsynth.ir.tensor import Input, Op, Region, Scope
from eqsynth.ir.types import TensorType
from eqsynth.lower.check import Mismatch
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.reruns import Values, evaluate
from eqsynth.lower.rounding import Wrong, distance
from eqsynth.lower.stepping import faulty_step, losing_step, noisy_results, summed
from eqsynth.lower.steps import Parameter, Step
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.original import Original
from eqsynth.report import Report
from eqsynth.rules import load_rules


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


def worst(program: CompiledProgram, given: Values, expected: Tensor) -> Wrong:
    """The element of the program's result that is the furthest from the expected one."""
    got = program(*given[0]).double()
    at = int((got - expected).abs().nan_to_num(torch.inf).argmax())
    return Wrong(0, (at,), float(got[at]), float(expected[at]), 1e-3)


def test_the_step_that_loses_digits_is_found(program: CompiledProgram) -> None:
    given = values(1e4)
    x, y = (one.double() for one in given[0])
    wrong = worst(program, given, ((x - y) ** 2).sum(-1))
    number = losing_step(program, given, wrong)
    # The sums are as near as float32 can be: x·x - 2 x·y, and y·y. Their sum cancels.
    assert number is not None and number == len(program.steps) - 1
    # The element is right as it is.
    assert losing_step(program, given, replace(wrong, allowed=1e9)) is None
    # No rounding makes a result twice as large.
    assert losing_step(program, given, replace(wrong, expected=2 * wrong.expected + 1)) is None


def test_a_step_that_overflows_is_found() -> None:
    x = eqsynth.input("x", (3,))
    captured = capture_expression(eqsynth.ops.log(eqsynth.ops.exp(x + x)) - x)
    made = Original(captured, measure_cpu_target()).program(Report())
    given: Values = ((torch.tensor([1.0, 900.0, 2.0]),), {})
    number = losing_step(made, given, worst(made, given, given[0][0].double()))
    assert number is not None and made.steps[number].kernel.term.label.startswith("Exp")
    # The first element is wrong, and isn't infinite.
    wrong = Wrong(0, (0,), 1.0, 5.0, 1e-3)
    assert losing_step(made, given, wrong) is None


def test_a_wrong_kernel_loses_no_digits(program: CompiledProgram) -> None:
    given, good = values(), program.steps
    expected = program(*given[0]).double()
    try:
        broken(program, 2, lambda y: y * 1.01)
        program._compile()
        assert losing_step(program, given, worst(program, given, expected)) is None
    finally:
        program.steps = good
        program._compile()


def region_program() -> CompiledProgram:
    """``x @ y`` and its transpose, as one region of two results."""
    x, y = (Input(str(n), TensorType(shape, "float32")) for n, shape in enumerate([(3, 4), (4, 5)]))
    product = Op("Matmul", (x, y))
    region = Region((product, Op("Permute", (product,), ((1, 0),))), (x, y))
    (kernel,) = TorchBackend().kernels(region, (False, False))
    (runner,) = TorchBackend().build([(kernel, {})])
    assert runner is not None
    captured = capture_expression([Expr(x) @ Expr(y), Expr(region.outputs[1])])
    parameters = [Parameter(i, (0, 1)) for i in captured.program.inputs]
    names = [i.name for i in captured.program.inputs]
    step = Step("t", kernel, runner, tuple(names))
    return CompiledProgram(parameters, [step], ["t", "t.1"], captured)


def test_each_result_of_a_region_is_looked_at() -> None:
    program = region_program()
    given = (torch.randn(3, 4), torch.randn(4, 5)), {}
    results = noisy_results(program, given, 0)
    for one, other in zip(results, program(*given[0]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    assert faulty_step(program, given) is None
    broken(program, 0, lambda both: [both[0], both[1] * 1.001])  # type: ignore[arg-type,return-value]
    found = faulty_step(program, given)
    assert found is not None and found[0].name == "t" and found[1].output == 1


def long_sum(terms: int) -> Original:
    """``sum[k] x[i, k] * y[k, i]``, as a scope, of which a loop may add up one after the other."""
    x, y = eqsynth.input("x", (3, terms)), eqsynth.input("y", (terms, 3))
    each = eqsynth.scope(lambda i: eqsynth.sum(lambda k: x[i, k] * y[k, i], k=terms), i=3)
    return Original(capture_expression(each), measure_cpu_target())


def test_what_is_added_up_on_the_way_to_a_result_is_counted() -> None:
    x, y = eqsynth.input("x", (3, 64)), eqsynth.input("y", (64, 3))
    inner = eqsynth.scope(lambda i: eqsynth.sum(lambda k: x[i, k] * y[k, i], k=64), i=3)
    outer = eqsynth.scope(lambda n: eqsynth.sum(lambda i: inner[i] * x[n, i], i=3), n=3)
    # Those of libraries, those in float64, a maximum, and those in 32 bits of 16.
    small = eqsynth.input("h", (3, 64), "float16")
    others = [
        x @ y, eqsynth.ops.sum(x, -1),
        eqsynth.scope(lambda i: eqsynth.sum(lambda k: x[i, k], k=64), i=3),
        eqsynth.scope(lambda i: eqsynth.max(lambda k: x[i, k] * y[k, i], k=64), i=3),
        eqsynth.scope(lambda i: eqsynth.sum(lambda k: small[i, k] * small[i, k], k=64), i=3), x + x,
    ]  # fmt: skip
    captured = capture_expression([outer, inner, eqsynth.ops.exp(inner), *others])
    made = Original(captured, measure_cpu_target()).program(Report())
    assert summed(made) == [67, 64, 64, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(("terms", "fails"), [(64, True), (2048, False)])
def test_a_result_may_be_off_by_what_its_sums_lose(terms: int, fails: bool) -> None:
    """300 roundings, where neither moving the inputs explains them nor the original's own."""
    original = long_sum(terms)
    made = original.program(Report())
    broken(made, len(made.steps) - 1, lambda y: y * (1 + 300 * 2.0**-23))
    made._compile()
    given = torch.ones(3, terms), torch.ones(terms, 3)
    assert (faulty_step(made, (given, {})) is not None) is fails
    stage = Stage(original.captured, load_rules(), (), "real", Report())
    with pytest.raises(Mismatch) if fails else nullcontext():
        stage.hold(made, original)


def test_noise_shows_what_cancels(program: CompiledProgram) -> None:
    def moves(offset: float) -> float:
        base, again = (noisy_results(program, values(offset), seed) for seed in (0, 1))
        return float(distance(base[0], again[0]).max())

    assert 0 < moves(0.0) < 1e-4 and moves(1e4) > 1.0
    one, two = (noisy_results(program, values(), 3) for _ in range(2))
    assert torch.equal(one[0], two[0])


def test_a_scope_that_reads_nothing_is_a_term_to_compute() -> None:
    positions = Scope((4,), (), Value(Index.iterator(0, 4)))
    (value,) = evaluate([positions], {})
    assert value.tolist() == [0, 1, 2, 3]
