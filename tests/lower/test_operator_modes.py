"""Modules that compile functions themselves compute as before after a run under a mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from eqsynth.lower.operator_modes import OperatorMode, name_of
from eqsynth.lower.reruns import SUMS, _Doubles, _Rounding
from eqsynth.lower.traps import Guard
from eqsynth.pipeline import optimize

MODES = (Guard, _Doubles, lambda: _Rounding(SUMS))
X = torch.linspace(-1, 2, 6)


@pytest.mark.parametrize("mode", MODES)
def test_a_compiled_function_stays_compiled(mode: Callable[[], OperatorMode]) -> None:
    graphs, runs = [], []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)

        def run(*values: Any) -> Any:
            runs.append(values)
            return graph.forward(*values)

        return run

    compiled = torch.compile(lambda x: x.relu() + 1, backend=backend)
    with mode():
        compiled(X)
    runs.clear()
    assert torch.equal(compiled(X), X.relu() + 1)
    assert graphs and len(runs) == 1


class Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))
        return made + 1


def test_a_module_of_branches_runs_after_it_was_optimized() -> None:
    module = Branches().eval()
    program = optimize(module, (X,), objective="flops", time_limit_s=3, engines=(), strict=True)
    for x in (X, -X):
        with torch.no_grad():
            assert torch.equal(module(x), (x * 2 if x.sum() > 0 else x - 1) + 1)
            torch.testing.assert_close(program(x), module(x))


def test_an_operator_of_higher_order_has_no_name() -> None:
    assert name_of(torch.ops.aten.add_.Tensor) == "add"
    assert name_of(torch.ops.higher_order.cond) == ""
