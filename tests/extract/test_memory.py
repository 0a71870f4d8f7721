"""Plans within a bound on memory: the order of steps, more expensive plans with smaller values, and
the bound in ``optimize``."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

import eqsynth
from eqsynth.extract.memory import Bound, ordered, within
from eqsynth.extract.plan import Plan, PlanStep, State
from eqsynth.ir.tensor import ClassRef, Input, Op, Tensor
from tests.extract.egraphs import (
    Given,
    best,
    check_plan,
    egraph,
    kernel,
    leaf,
    ref,
    selection,
    unary,
)

BIG, SMALL = (100, 10), (10,)
BIG_BYTES, SMALL_BYTES = 4000, 40


def live_bytes(plan: Plan) -> int:
    """The result of `Plan.peak_bytes`, counted step by step, for plans without views."""
    peak = 0
    for n in range(len(plan.steps) + 1):
        made = set(plan.inputs.values()) | {step.result for step in plan.steps[: n + 1]}
        read = {arg for step in plan.steps[n:] for arg in step.args} | set(plan.outputs)
        here = {plan.steps[n].result} if n < len(plan.steps) else set()
        live = (made & read) | here | set(plan.inputs.values())
        peak = max(peak, sum(state[0].type.nbytes for state in live))
    return peak


def two_sums() -> Plan:
    """A plan that computes the big values a = Relu(x) and b = Tanh(x), then a sum of each."""
    x, a, b, c, d = ref(0, BIG), ref(1, BIG), ref(2, BIG), ref(3, SMALL), ref(4, SMALL)
    members: dict[ClassRef, Tensor] = {
        a: unary("Relu", x), b: unary("Tanh", x),
        c: Op("ReduceSum", (a,), ((0,), 0)),
        d: Op("ReduceSum", (b,), ((0,), 0)),
    }  # fmt: skip
    graph = egraph({x: [leaf(Input, 0, BIG)], **{r: [m] for r, m in members.items()}}, c, d)
    plan = best(graph, *(kernel(m, 1.0) for m in members.values()))
    order = {r: n for n, r in enumerate((a, b, c, d))}
    steps = sorted(plan.steps, key=lambda step: order[step.result[0]])
    return replace(plan, steps=tuple(steps))


def test_one_big_value_at_a_time() -> None:
    plan = two_sums()
    assert plan.peak_bytes() == 3 * BIG_BYTES + SMALL_BYTES
    other = ordered(plan)
    check_plan(other)
    assert other.peak_bytes() == 2 * BIG_BYTES + 2 * SMALL_BYTES
    assert [step.result[0].handle for step in other.steps] == [1, 3, 2, 4]
    assert ordered(other) is other


def random_plan(seed: int) -> Plan:
    draw = random.Random(seed)
    shapes = [(draw.choice((1, 5, 20, 200)),) for _ in range(14)]
    states: list[State] = [(ref(n, shape), (0,)) for n, shape in enumerate(shapes)]
    x, steps = states[0], []
    for n in range(1, len(states)):
        args = tuple(dict.fromkeys(draw.choice(states[:n]) for _ in range(draw.randint(1, 3))))
        member = unary("Relu", args[0][0])
        steps.append(PlanStep(kernel(member, 1.0).kernel, member, args, {}, states[n], 1.0))
    outputs = (states[-1], draw.choice(states[1:]))
    return Plan(tuple(steps), {"x": x}, outputs, float(len(steps)))


@pytest.mark.rotating
def test_random_plans_stay_valid_and_need_no_more() -> None:
    less = 0
    for seed in range(400):
        plan = random_plan(seed)
        assert plan.peak_bytes() == live_bytes(plan), seed
        other = ordered(plan)
        check_plan(other)
        assert set(map(id, other.steps)) == set(map(id, plan.steps))
        assert other.peak_bytes() == live_bytes(other) <= plan.peak_bytes(), seed
        less += other.peak_bytes() < plan.peak_bytes()
    assert less > 40


def test_a_dearer_plan_that_writes_less() -> None:
    # Three plans: 1 s through a big value, 2 s through a medium one, 5 s through a small one.
    x, y = ref(0, SMALL), ref(1, SMALL)
    through = {ref(2, (1000,)): 1.0, ref(3, (200,)): 2.0, ref(4, (11,)): 5.0}
    roads = {r: Op("Pad", (x,), ((0,), (r.shape[0] - 10,), 0.0)) for r in through}
    ends = {r: Op("Slice", (r,), (0, 0, 10, 1)) for r in through}
    classes = {x: [leaf(Input, 0, SMALL)], **{r: [m] for r, m in roads.items()}}
    graph = egraph({**classes, y: list(ends.values())}, y)
    kernels = [kernel(roads[r], 0.0) for r in through]
    kernels += [kernel(ends[r], cost_s) for r, cost_s in through.items()]
    table = selection(graph, *kernels)
    fast = table.best(Given())
    for limit, cost_s in ((10_000, 1.0), (4_000, 2.0), (900, 2.0), (800, 5.0), (130, 5.0)):
        plan = within(fast, Given(), table.one_by_one, Bound(limit, Plan.peak_bytes))
        check_plan(plan)
        assert plan.cost_s == cost_s, limit
    least = within(fast, Given(), table.one_by_one, Bound(100, Plan.peak_bytes))
    assert least.peak_bytes() == 2 * SMALL_BYTES + 44
    # The bound also counts packed constants, here those of the plan of 2 s.
    packed = Bound(4_000, lambda plan: plan.peak_bytes() + 3_500 * (plan.cost_s == 2.0))
    assert within(fast, Given(), table.one_by_one, packed).cost_s == 5.0


@pytest.fixture(scope="module")
def convolutions() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
    first, second = layers
    return torch.nn.Sequential(first, torch.nn.ReLU(), second).eval()


@pytest.mark.rotating
def test_a_program_keeps_the_bound(convolutions: torch.nn.Module) -> None:
    x = torch.randn(1, 16, 16, 16)

    def found(**bound: float) -> eqsynth.CompiledProgram:
        return eqsynth.optimize(convolutions, (x,), objective="flops", strict=True, **bound)

    free = found()  # by tiles: fewer products, and larger values between them
    needed = free.report.peak_memory_bytes
    bounded = found(peak_memory=0.6 * needed)
    assert bounded.report.peak_memory_bytes <= 0.6 * needed
    assert free.report.flops_after < bounded.report.flops_after
    assert not bounded.report.reason
    torch.testing.assert_close(bounded(x), convolutions(x))
    # Without a bound, the plan is again the one without a bound.
    assert found().report.peak_memory_bytes == needed
    kept = found(peak_memory=40_000)
    assert kept.report.backend == "original"
    assert "needs so little memory" in kept.report.reason and "40,000" in kept.report.reason
    tiny = found(peak_memory=1000)
    assert tiny.report.backend == "original" and "peak_memory" in tiny.report.reason
