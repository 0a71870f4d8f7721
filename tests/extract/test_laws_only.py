"""Members of e-classes that serve laws of products only: no kernel computes them."""

from __future__ import annotations

import pytest
import torch

import eqsynth
from eqsynth import ops
from eqsynth.egraph.graph import EGraph
from eqsynth.extract.candidates import candidates
from eqsynth.extract.row_chains import RowChains
from eqsynth.frontend.expression import program_of
from eqsynth.ir.scalar import Call
from eqsynth.ir.tensor import ClassRef, Scope, Tensor, args_of
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lower.tvm_backend import TvmBackend
from tests.egraph.programs import saturate, saturated


def reciprocals(graph: EGraph) -> set[ClassRef]:
    return {
        ref
        for ref, members in graph.classes.items()
        for member in members
        if isinstance(member, Scope)
        and isinstance(member.body, Call)
        and member.body.fn == "reciprocal"
    }


def reads_one(graph: EGraph, member: Tensor) -> bool:
    return isinstance(member, Scope) and bool(reciprocals(graph) & {*args_of(member)})


def test_what_multiplies_by_a_reciprocal_is_not_computed() -> None:
    graph = saturated("weighted-mean")
    assert any(reads_one(graph, m) for members in graph.classes.values() for m in members)
    found = candidates(graph, (TorchBackend(), TvmBackend()))
    computed = [one.member for own in found.values() for one in own]
    assert computed and not any(reads_one(graph, member) for member in computed)


def test_no_row_of_a_chain_is_multiplied_by_a_reciprocal() -> None:
    x = eqsynth.input("x", (8, 32))
    h = ops.exp(-(x * x))
    graph = saturate(program_of(h / ops.sum(h, 1, keepdim=True))[0].outputs[0])
    assert any(reads_one(graph, m) for members in graph.classes.values() for m in members)
    regions = [region for ref in graph.classes for region in RowChains(graph).regions(ref)]
    bodies = [scope for region in regions for scope in scopes_of(region.outputs[0])]
    assert bodies
    assert not any(isinstance(s.body, Call) and s.body.fn == "reciprocal" for s in bodies)


def scopes_of(term: Tensor) -> list[Scope]:
    below = [scope for arg in args_of(term) for scope in scopes_of(arg)]
    return [*([term] if isinstance(term, Scope) else []), *below]


@pytest.mark.rotating
@pytest.mark.parametrize("objective", ["flops", "time"])
def test_a_mean_by_tiny_weights_is_finite(objective: str) -> None:
    """The sum of the weights is 1.7e-39; its reciprocal is infinite, and the mean isn't."""

    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.v = torch.nn.Parameter(torch.randn(20, 3))

        def forward(self, d: torch.Tensor) -> torch.Tensor:
            h = torch.exp(-d * d)
            return (h / h.sum(1, keepdim=True)) @ self.v

    module = Mean().eval()
    found = eqsynth.optimize(module, (torch.rand(64, 20) * 3,), objective=objective, engines=())
    far = torch.rand(64, 20) * 0.01 + 9.6
    with torch.no_grad():
        torch.testing.assert_close(found(far), module(far), rtol=1e-2, atol=1e-2)
