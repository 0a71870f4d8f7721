"""Which part of a program lost: steps in their place against what they replaced."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from eqsynth.egraph.saturation import unsaturated
from eqsynth.extract.candidates import candidates
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.select import Selection
from eqsynth.extract.target import CPU, Achieved, Device, MemoryLevel, Target
from eqsynth.frontend.captured import Captured
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.tensor import Input
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.step_times import opaque_share, step_times
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lowered import lowered
from eqsynth.report import Report
from eqsynth.why_not import heaviest, replaced, why_not
from tests.extract.egraphs import egraph, kernel, leaf, ref, unary

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Net(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).exp().sin()


class Sorting(nn.Module):
    """``sort`` has no term: it is opaque."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sort(torch.relu(x))[0].exp()


def compiled(module: nn.Module) -> tuple[Captured, CompiledProgram, Plan]:
    captured = capture(module.eval(), (X,))
    graph = unsaturated(captured.program.outputs, "original")
    backends = (TorchBackend(captured.opaque),)
    plan = Selection(graph, candidates(graph, backends)).plain(lambda kernel: 1.0)
    return captured, lowered(captured, graph, plan, backends), plan


def slowed(program: CompiledProgram, number: int) -> CompiledProgram:
    """The program with one step that takes 5 ms more."""
    step = program.steps[number]

    def runner(*args: torch.Tensor) -> torch.Tensor:
        time.sleep(5e-3)
        return step.runner(*args)

    steps = list(program.steps)
    steps[number] = replace(step, runner=runner)
    program.steps = tuple(steps)
    return program


def test_every_step_is_timed_in_its_place() -> None:
    _, program, _ = compiled(Net())
    times = step_times(slowed(program, 1), (X,), {})
    assert len(times) == len(program.steps) == 3
    assert all(seconds > 0 for seconds in times) and max(times) == times[1]
    torch.testing.assert_close(program(X), Net()(X))  # the program is as it was


def test_the_step_that_lost_is_told_with_what_it_replaced() -> None:
    captured, program, plan = compiled(Net())
    graph = unsaturated(captured.program.outputs, "original")
    told = why_not(captured, graph, plan, slowed(program, 2), (X,), {})
    assert told and told[0].what.startswith("Sin")
    assert [name.partition(" ")[0] for name in told[0].replaced] == ["Sin"]
    assert told[0].replaced_s is not None and told[0].excess_s > 0


def test_the_heaviest_kernel_is_told_with_what_it_achieves() -> None:
    """Twice the same kernel is one row; a view, which takes no time, is none."""

    class Turned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ x.t() @ x).exp().exp()

    _, program, plan = compiled(Turned())
    kinds = [step.kernel.implementation for step in plan.steps]
    steps_s = [0.0 if kind == "torch.view" else 2e-3 for kind in kinds]
    steps_s[-1] += 1e-3
    assert len(program.steps) == len(steps_s) and "torch.view" in kinds
    target = Target(
        CPU, Device("a CPU", 1, ()), 1, (MemoryLevel("memory", math.inf, 1e9),),
        (("float32", 1e3),), 0.0, 0.0,
    )  # fmt: skip
    exp, *products = heaviest(plan, steps_s, target)
    assert (exp.steps, len(products)) == (2, 2)
    assert exp.time_s == pytest.approx(5e-3) and exp.share == pytest.approx(5 / 9)
    # 12 elements in 2.5 ms are 4800 operations a second.
    assert exp.achieved == Achieved(pytest.approx(4800.0), 1e3, "FLOP/s")
    rate = pytest.approx(2 * 3 * 3 * 4 / 2e-3)
    assert [product.achieved.per_s for product in products] == [rate, rate]
    slow = replace(target, levels=(MemoryLevel("memory", math.inf, 1.0),))
    assert heaviest(plan, steps_s, slow)[0].achieved.unit == "B/s"
    report = Report(kernels=(exp, *products))
    assert ("heaviest", str(exp)) in report.rows()
    report.original_is_kept(parameters=0)
    assert not report.kernels
    assert "in 2 steps, 56% of the time; 4.8e-06 GFLOP/s, 480% of the peak" in str(exp)


def test_what_a_step_replaced_lies_between_its_result_and_its_arguments() -> None:
    x, a, b, c = (ref(n) for n in range(4))
    exp, relu, neg = unary("Exp", x), unary("Relu", a), unary("Neg", b)
    graph = egraph({x: [leaf(Input, 0)], a: [exp], b: [relu], c: [neg]}, c)
    graph = replace(graph, original={x: (leaf(Input, 0),), a: (exp,), b: (relu,), c: (neg,)})
    made = kernel(exp, 1.0).kernel

    def step(result: int, arg: int) -> PlanStep:
        refs = (x, a, b, c)
        layout = (0, 1)
        return PlanStep(made, exp, ((refs[arg], layout),), {}, (refs[result], layout), 1.0)

    assert replaced(graph, step(3, 1)) == {c: neg, b: relu}
    assert replaced(graph, step(3, 0)) == {c: neg, b: relu, a: exp}
    assert replaced(graph, step(1, 1)) == {}  # a copy
    # One whose argument is no value of the original reads nothing that the original computes.
    other = ref(9)
    lost = PlanStep(made, exp, ((other, (0, 1)),), {}, (c, (0, 1)), 1.0)
    assert replaced(graph, lost) is None
    gone = PlanStep(made, exp, ((x, (0, 1)),), {}, (other, (0, 1)), 1.0)
    assert replaced(graph, gone) is None


@pytest.mark.rotating
@pytest.mark.parametrize("opaque", [True, False])
def test_the_share_of_opaque_operators_is_measured(opaque: bool) -> None:
    _, program, _ = compiled(Sorting())
    assert sum(step.kernel.opaque for step in program.steps) == 1
    number = next(n for n, s in enumerate(program.steps) if s.kernel.opaque is opaque)
    share = opaque_share(slowed(program, number), (X,), {})
    assert 0 < share < 1 and (share > 0.5) is opaque
