"""Reads that are always outside of their tensor: of what is put together, only what is read is
computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.scalar import Read, Sum, reads
from eqsynth.ir.tensor import Scope
from eqsynth.testing.consistency import assert_egraph_consistent
from eqsynth.testing.search import estimated_plan
from tests.egraph.programs import LIMITS, RULES
from tests.terms import it, leaf


def _first_of_written(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    h = x @ w
    h[:, 0] = h[:, 0] + 1.0
    h[:, 1:] *= 0.5
    return h[:, 0] @ v


def _first_of_joined(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    h = x @ w
    return torch.cat((h[:, :2].tanh(), h[:, 2:].exp()), 1)[:, 0] @ v


def _blocks(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    both = torch.zeros(16, 16)
    both[:8, :8], both[8:, 8:] = w, v
    return x.reshape(-1, 16) @ both


def _diagonal(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    twice = torch.zeros(8, 8)
    twice.fill_diagonal_(2.0)
    return x @ twice


class Module(torch.nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self.function(*given)


@pytest.mark.parametrize(
    ("function", "least"),
    [
        # Two products of the first of 40 rows; what is written is put together as what is joined.
        pytest.param(_first_of_written, 2 * 2 * (4 * 8 * 8), marks=pytest.mark.rotating),
        (_first_of_joined, 2 * 2 * (4 * 8 * 8)),
        (_blocks, 2 * 80 * (2 * 8 * 8)),
        (_diagonal, 4 * 40 * 8),  # one multiplication an element
    ],
)
def test_only_what_is_read_is_computed(
    function: Callable[..., torch.Tensor], least: int
) -> None:
    example = (torch.ones(4, 40, 8), torch.ones(8, 8), torch.ones(8, 8))
    program = capture(Module(function).eval(), example).program
    graph = saturate_terms(program.outputs, RULES, DEFAULT_PHASES, LIMITS, True)
    assert graph.stop == "saturated"
    assert_egraph_consistent(graph)
    assert least <= estimated_plan(graph, "flops").cost_s <= 1.2 * least
    # Of each answer the form without such reads is kept, and not both.
    scopes = [member for found in graph.classes.values() for member in found
              if isinstance(member, Scope)]  # fmt: skip
    assert not [scope for scope in scopes if any(map(Read.is_outside, reads(scope.body)))]


def test_a_scope_of_the_user_is_said_without_it() -> None:
    x, y, own = leaf("x", 3), leaf("y", 5), it(0, 3)
    scope = Scope((3,), (), Sum((Read(x, (own,)), Read(y, (own - 3,), 7.0))))
    graph = saturate_terms((scope,), RULES, DEFAULT_PHASES, LIMITS, True)
    members = graph.classes[graph.roots[0]]
    assert any(isinstance(m, Scope) and len([*reads(m.body)]) == 1 for m in members)
