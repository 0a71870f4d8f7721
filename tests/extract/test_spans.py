"""Spans: the parts of a plan that can be handed to an engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eqsynth.extract.cost import CostModel
from eqsynth.extract.handing import SIDES, handed
from eqsynth.extract.regions import with_engines
from eqsynth.extract.spans import spans
from eqsynth.frontend import ops
from eqsynth.ir.tensor import Region
from eqsynth.lower.backends import engines
from tests.extract.searched import (
    V,
    W,
    X,
    by_region,
    compiled,
    fast_if,
    mlp,
    searched,
    two_results,
    under_a_mask,
)


def test_a_chain_is_a_span_a_value(costs: CostModel) -> None:
    _, _, found = searched(mlp(), costs)
    parts = spans(found.plan).parts
    assert [(p.first, p.last) for p in parts] == [(k, k + 1) for k in range(len(found.plan.steps))]
    assert parts[-1].results == found.plan.outputs


def test_values_that_live_together_are_not_parted(costs: CostModel) -> None:
    h = ops.tanh(X @ W)
    _, _, found = searched(ops.relu(h) + ops.neg(h), costs)
    names = [step.kernel.term.label for step in found.plan.steps]
    ends = [names[part.last - 1] for part in spans(found.plan).parts]
    assert ends == ["Matmul", "Tanh", "Add"]


def test_the_results_of_a_program_end_one_span(costs: CostModel) -> None:
    _, _, found = searched(two_results(), costs)
    assert set(spans(found.plan).parts[-1].results) == set(found.plan.outputs)


def test_numbers_are_said_and_no_arguments(costs: CostModel) -> None:
    """A number is part of a region's term. OpenVINO runs x == 0, but not x == c with an input c."""
    _, graph, found = searched(ops.relu(X @ W) * 0.5 + 1.0, costs)
    parted = spans(found.plan)
    (engine,) = engines(["inductor"])
    for side in SIDES:
        whole = parted.joined(0, len(parted.parts))
        (step,) = handed(graph, found.plan, whole, (engine, side))
        assert isinstance(step.member, Region)
        assert sorted(arg.shape for arg in step.member.args) == sorted([X.shape, W.shape])


@pytest.mark.rotating
def test_results_that_nothing_reads_are_not_handed_on(costs: CostModel) -> None:
    """Results that no later span reads, as a cache's keys and values, belong to one span."""
    h = ops.tanh(X @ W)
    g = ops.tanh(h @ W)
    captured, graph, found = searched([ops.relu(h @ V), ops.relu(g @ V), ops.neg(g)], costs)
    parted = spans(found.plan)
    names = [step.kernel.term.label for step in found.plan.steps]
    ends = [names[part.last - 1] for part in parted.parts]
    assert ends == ["Matmul", "Tanh", "Matmul", "Tanh", "Neg"]
    assert [len(part.results) for part in parted.parts] == [1, 1, 2, 1, 2]
    assert parted.joined(0, 5).results == found.plan.outputs
    assert len(parted.joined(2, 4).results) == 2

    measure = fast_if(lambda label: label == "Region of 5 operators")
    plan = with_engines(graph, found, engines(["inductor"]), costs, measure, 60.0).plan
    assert any(len(step.also) == 1 for step in by_region(plan))
    x = torch.randn(4, 8)
    torch.testing.assert_close(
        compiled(captured, graph, plan)(x), compiled(captured, graph, found.plan)(x)
    )


def test_what_all_spans_read_is_computed_first(costs: CostModel) -> None:
    _, _, found = under_a_mask(costs)
    assert found.plan.steps[0].kernel.term.label == "Matmul"
    parted = spans(found.plan)
    assert [step.kernel.term.label for step in parted.plan.steps] == [
        "Exp", *["Matmul", "Tanh", "Add"] * 3, "Relu"
    ]  # fmt: skip
    assert [(p.first, p.last) for p in parted.parts] == [(k, k + 1) for k in range(11)]
    assert parted.shared == (parted.plan.steps[0].result,)
    # A region that computes the shared value has it among its results.
    assert parted.shared[0] in parted.joined(0, 5).results
    assert parted.joined(0, 11).results == found.plan.outputs
    heavy = [replace(step, cost_s=1.0) for step in found.plan.steps]
    assert spans(replace(found.plan, steps=tuple(heavy))).shared == ()
