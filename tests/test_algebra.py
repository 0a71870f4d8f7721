"""The algebra suite by scopes alone: the FLOPs of the hand-made program, from the laws of sums and
products over any iteration space, with no rule about an operator loaded but its definition."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads import WORKLOADS
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.work import flops
from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules
from eqsynth.testing import assert_egraph_consistent
from tests.egraph.programs import least_flops

# What says something of operators beyond their definitions, or of views of views.
OF_OPERATORS = ("merge.egg", "epilogue.egg", "simplify.egg", "views-match.egg")


@cache
def scopes() -> RuleSet:
    return load_rules([name for name in DEFAULT_FILES if name not in OF_OPERATORS]).select()


Program = Callable[..., Tensor]


def folded(module: nn.Module) -> nn.Linear:
    """V(Ux) as one layer."""
    u, v = module.u.weight, module.v.weight
    layer = nn.Linear(u.shape[1], v.shape[0], bias=False)
    layer.weight = nn.Parameter(v @ u)
    return layer


# The program that somebody would write by hand, of the module.
BY_HAND: dict[str, Callable[[nn.Module], Program]] = {
    "chain": lambda _: lambda a, b, c: a @ (b @ c),
    "factor": lambda _: lambda a, b, c: a @ (b + c),
    "bottleneck": folded,
    "linear_mean": lambda m: lambda x: m.w(x.mean(1)),
    "conv_gap": lambda m: lambda x: m.conv(F.adaptive_avg_pool2d(x, 1)),
    "transition": lambda m: lambda x: m.conv(F.avg_pool2d(F.relu(x), 2)),
    "einsum4": lambda _: lambda a, b, c, d: (a @ b) @ (c @ d),
    "gnn": lambda m: lambda a, x: a @ m.w(x),
    "linear_attention": lambda _: lambda q, k, v: q @ (k.transpose(-1, -2) @ v),
}


class Written(nn.Module):
    def __init__(self, module: nn.Module, program: Program) -> None:
        super().__init__()
        self.module, self.program = module, program

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.program(*inputs)


def test_every_workload_of_the_suite_is_here() -> None:
    assert set(BY_HAND) == {name for name, w in WORKLOADS.items() if w.suite == "algebra"}
    assert not {rule.ruleset for rule in scopes().rules} & {"merge", "simplify"}


@pytest.mark.rotating
@pytest.mark.parametrize("name", BY_HAND)
def test_scopes_alone_find_what_is_gained_by_hand(name: str) -> None:
    module, inputs = WORKLOADS[name].reduced()
    written = Written(module, BY_HAND[name](module)).eval()
    torch.testing.assert_close(written(*inputs), module(*inputs), rtol=1e-4, atol=1e-4)
    original, by_hand = (capture(m, inputs).program for m in (module, written))
    before, wanted = (
        sum(flops(term) for term in p.terms() if not term.constant) for p in (original, by_hand)
    )
    limits = Limits(deadline_s=3600.0)
    graph = saturate_terms(original.outputs, scopes(), DEFAULT_PHASES, limits, False)
    assert graph.stop == "saturated"
    assert_egraph_consistent(graph)
    assert least_flops(graph) <= wanted < before
