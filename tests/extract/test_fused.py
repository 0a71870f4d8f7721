"""A map and the reduction through literals that it reads become one kernel of a plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import eqsynth
from eqsynth import ops
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.egraph.segments import cut, stitch
from eqsynth.extract import chosen
from eqsynth.extract.candidates import candidates
from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.plan import Plan
from eqsynth.extract.profile import Profile
from eqsynth.extract.regions import with_engines
from eqsynth.extract.route import form_of
from eqsynth.extract.search import Extraction, extract
from eqsynth.extract.timing import Timing
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import program_of
from eqsynth.ir.program import Program
from eqsynth.ir.tensor import Region, Scope, args_of, is_literal, topological
from eqsynth.ir.work import flops
from eqsynth.lower.assemble import assemble
from eqsynth.lower.backends import cpu_backends, engines
from eqsynth.rules import load_rules
from tests.extract.test_cost import TARGET

RULES = load_rules().select(numerics=("bitwise", "real"))
OWN = cpu_backends()[:3]
INDUCTOR = engines(["inductor"])


def layer(size: int = 8) -> tuple[Program, EGraph]:
    """A convolution with a bias, a residual and an activation, and its saturated e-graph."""
    x = eqsynth.input("x", (1, 16, size, size))
    w, b = eqsynth.weight("w", (16, 16, 3, 3)), eqsynth.weight("b", (16,))
    program = program_of(ops.relu(ops.conv2d(x, w, b, padding=1) + x * 0.5))[0]
    return program, saturate_terms(
        program.outputs, RULES, DEFAULT_PHASES, Limits(), log_matches=False
    )


def layers() -> EGraph:
    """The e-graph of two layers, each of which is a segment."""
    x: Expr = eqsynth.input("x", (1, 16, 8, 8))
    for name in "wv":
        x = ops.relu(ops.conv2d(x, eqsynth.weight(name, (16, 16, 3, 3)), None, padding=1))
    program = program_of(x)[0]
    segments = cut(program)
    graphs = {
        s.key: saturate_terms(s.roots, RULES, DEFAULT_PHASES, Limits(), log_matches=False)
        for s in segments
    }
    assert len(segments) == 2
    return stitch(program, segments, [graphs[segment.key] for segment in segments])


def measure(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing | None]:
    """A kernel takes 1 s, plus 1 s for every 1000 FLOPs; a kernel of torch takes 1 s, plus 1 s for
    every 10 FLOPs."""
    rates = {kernel: 10 if kernel.implementation == "torch" else 1000 for kernel in kernels}
    seconds = {kernel: 1 + flops(kernel.term) / rate for kernel, rate in rates.items()}
    return {kernel: Timing(s, s, s, 5) for kernel, s in seconds.items()}


@pytest.fixture
def costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CostModel]:
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    profile = Profile(TARGET.key())
    yield CostModel(TARGET, profile)
    profile.close()


def extracted(graph: EGraph, costs: CostModel) -> Extraction:
    return extract(graph, OWN, costs, measure, 60.0)


def regions(plan: Plan) -> list[Region]:
    return [step.member for step in plan.steps if isinstance(step.member, Region)]


@pytest.mark.rotating
def test_a_plan_has_the_map_in_the_kernel_of_the_matrices(costs: CostModel) -> None:
    program, graph = layer()
    plan = extracted(graph, costs).plan
    (region,) = regions(plan)
    assert any(map(is_literal, topological(region.outputs)))
    weights = {"w": torch.randn(16, 16, 3, 3), "b": torch.randn(16)}
    made = assemble(program, graph, plan, weights, OWN, math.inf)
    x = torch.randn(1, 16, 8, 8)
    known = {"x": x, **made.constants}
    for step in made.steps:
        args = zip(step.args, step.kernel.constants, strict=True)
        known[step.name] = step.runner(*(known[name] for name, constant in args if not constant))
    expected = torch.conv2d(x, weights["w"], weights["b"], padding=1) + x * 0.5
    torch.testing.assert_close(known[made.outputs[0]], expected.relu(), rtol=1e-4, atol=1e-4)


@pytest.mark.rotating
def test_what_was_chosen_comes_back(costs: CostModel) -> None:
    _, graph = layer()
    own = extracted(graph, costs)
    path = chosen.path_of(graph, costs, ())
    own = replace(own, ended=True)
    chosen.settle(path, chosen.Chosen(own, own, costs.relied_on(), 1.0), own, True)
    back = chosen.recall(path, graph, costs, (), 1.0)
    assert back is not None and back.own.plan == own.plan
    # The plan isn't accepted with the kernel of another map in place of this one.
    (at,) = (n for n, step in enumerate(own.plan.steps) if isinstance(step.member, Region))
    step = own.plan.steps[at]
    assert isinstance(step.kernel.term, Region)
    args, (output,) = step.kernel.term.args, step.kernel.term.outputs
    (inner,) = (term for term in args_of(output) if isinstance(term, Scope))
    other = replace(step, kernel=replace(step.kernel, term=Region((inner,), args)))
    plan = replace(own.plan, steps=(*own.plan.steps[:at], other, *own.plan.steps[at + 1 :]))
    wrong = replace(own, plan=plan, ended=True)
    chosen.settle(path, chosen.Chosen(wrong, wrong, costs.relied_on(), 1.0), wrong, True)
    assert chosen.recall(path, graph, costs, (), 1.0) is None


@pytest.mark.rotating
@pytest.mark.parametrize("engine", [False, True], ids=["own kernels", "on an engine"])
def test_the_plan_of_several_layers_comes_back(engine: bool, costs: CostModel) -> None:
    """The segments share literals, but each segment has its own class for a literal."""
    graph = layers()
    literals = [m for members in graph.classes.values() for m in members if is_literal(m)]
    assert len(literals) > len(set(literals))
    own = extracted(graph, costs)
    assert len(regions(own.plan)) == 2

    def fast(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing | None]:
        return dict.fromkeys(kernels, Timing(0.1, 0.1, 0.1, 5))

    tried = INDUCTOR if engine else ()
    found = with_engines(graph, own, tried, costs, fast, 60.0)
    assert (found.plan is own.plan) is not engine
    path = chosen.path_of(graph, costs, tried)
    chosen.settle(path, chosen.Chosen(own, found, costs.relied_on(), 60.0), found, True)
    back = chosen.recall(path, graph, costs, tried, 60.0)
    assert back is not None
    assert back.own.plan == own.plan and back.found.plan == found.plan


@pytest.mark.rotating
def test_a_route_knows_it_at_another_size() -> None:
    """The kernels have the same forms at two sizes if tiles divide both. Kernels whose maps compute
    different functions have different forms."""

    def forms(size: int) -> set[bytes]:
        found = candidates(layer(size)[1], OWN)
        terms = {c.kernel.term for options in found.values() for c in options}
        return {form_of(term) for term in terms if isinstance(term, Region)}

    assert len(forms(12) & forms(16)) > 1


@pytest.mark.rotating
def test_an_engine_is_given_the_terms_inside(costs: CostModel) -> None:
    _, graph = layer()
    own = extracted(graph, costs)
    told: list[bool] = []
    with_engines(
        graph, own, INDUCTOR, costs, measure, 60.0,
        tell=lambda steps, _: told.extend(
            any(map(is_literal, topological(s.kernel.term.outputs)))
            for s in steps if isinstance(s.kernel.term, Region)
        ),
    )  # fmt: skip
    # The engine is given the chosen program, with literals, and the original, without.
    assert {*told} == {True, False}
