"""Programs whose plans are searched for with stated times, and engines of stated speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import unsaturated
from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.search import Extraction, extract
from eqsynth.extract.timing import Timing
from eqsynth.frontend import ops
from eqsynth.frontend.captured import Captured, capture_expression
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import input as input_
from eqsynth.frontend.expression import weight
from eqsynth.ir.tensor import Region
from eqsynth.lower.assemble import assemble
from eqsynth.lower.backends import cpu_backends
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.torch_backend import TorchBackend

X, Y = input_("x", (4, 8)), input_("y", (4, 8))
W, V = weight("w", (8, 8)), weight("v", (8, 6))


def mlp() -> Expr:
    return ops.relu(ops.tanh(X @ W) @ V)


def two_results() -> list[Expr]:
    h = ops.tanh(X @ W)
    return [h + Y, ops.relu(h)]


def searched(
    outputs: Expr | Sequence[Expr], costs: CostModel
) -> tuple[Captured, EGraph, Extraction]:
    """Return a program, its unsaturated e-graph, and the plan of torch's kernels at 1 s each."""
    captured = capture_expression(outputs)
    graph = unsaturated(captured.program.outputs, "as it is")
    found = extract(
        graph, (TorchBackend(),), costs, lambda ks, _: dict.fromkeys(ks, seconds(1.0)), 60.0
    )
    return captured, graph, found


def seconds(value: float) -> Timing:
    return Timing(value, value, value, 5)


def compiled(captured: Captured, graph: EGraph, plan: Plan) -> CompiledProgram:
    parts = assemble(captured.program, graph, plan, captured.weights, cpu_backends(), 1 << 30)
    return CompiledProgram(parts.parameters, parts.steps, parts.outputs, captured, parts.constants)


def by_region(plan: Plan) -> list[PlanStep]:
    return [step for step in plan.steps if isinstance(step.member, Region)]


def under_a_mask(costs: CostModel) -> tuple[Captured, EGraph, Extraction]:
    """Layers that all add the mask exp(y), whose computation costs nothing."""
    mask = ops.exp(Y)
    x: Expr = X
    for _ in range(3):
        x = ops.tanh(x @ W) + mask
    captured, graph, found = searched(ops.relu(x), costs)
    steps = [replace(s, cost_s=s.cost_s * (s.kernel.term.label != "Exp")) for s in found.plan.steps]
    return captured, graph, replace(found, plan=replace(found.plan, steps=tuple(steps)))


def fast_if(
    fast: Callable[[str], bool],
) -> Callable[[Sequence[Kernel], float], dict[Kernel, Timing | None]]:
    """Return a measurement in which regions with these labels take 1 s, other regions 9 s."""

    def measure(kernels: Sequence[Kernel], _: float) -> dict[Kernel, Timing | None]:
        return {k: seconds(1.0 if fast(k.term.label) else 9.0) for k in kernels}

    return measure
