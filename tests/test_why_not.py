"""Which part of a program lost: steps in their place against what they replaced."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from eqsynth.egraph.saturation import unsaturated
from eqsynth.extract.candidates import candidates
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.select import Selection
from eqsynth.frontend.captured import Captured
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.tensor import Input
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.step_times import opaque_share, step_times
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lowered import lowered
from eqsynth.why_not import replaced, why_not
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
