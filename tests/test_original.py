"""The original program: what is called, and what is said where it is used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import eqsynth
from eqsynth.extract.measure import measure_cpu_target
from eqsynth.frontend.captured import capture_expression
from eqsynth.frontend.torch_export import capture
from eqsynth.original import Original
from eqsynth.report import Report

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Keyed(nn.Module):
    def forward(self, pair: dict[str, Tensor], *, scale: Tensor) -> Tensor:
        return (pair["a"] - pair["b"]) * scale


def original(module: nn.Module, *args: Any, **kwargs: Any) -> Original:
    return Original(capture(module, args, kwargs), measure_cpu_target(), module, args, kwargs)


@pytest.mark.parametrize(
    ("stop", "told"), [("saturated", False), ("rounds", False), ("worker killed", True)]
)
def test_a_search_that_was_cut_short_is_told(stop: str, told: bool) -> None:
    report = Report(stop=stop, reason="nothing faster was found")
    program = original(nn.Linear(4, 5).eval(), X).program(report)
    text = str(program.explain())
    assert "nothing faster" in text and (stop in text) is told
    assert report.backend == "original" and report.parameters == 4 * 5 + 5


def test_whoever_varies_arguments_sees_them_in_a_row() -> None:
    module = Keyed().eval()
    pair = {"a": X, "b": X + 1}
    made = original(module, pair, scale=X)
    leaves = made.leaves()
    assert len(leaves) == 3 and all(isinstance(leaf, Tensor) for leaf in leaves)
    changed = [leaf * 2 for leaf in leaves]
    expected = module({"a": X * 2, "b": X * 2 + 2}, scale=X * 2)
    assert torch.equal(made.flat(made.call)(*changed), expected)
    linear = nn.Linear(4, 5).eval()
    assert original(linear, X).flat(linear) is linear  # nothing to take apart


def test_the_original_of_an_expression_is_plain_torch() -> None:
    x, w = eqsynth.input("x", (3, 4)), eqsynth.weight("w", (4, 5), value=torch.ones(4, 5))
    made = Original(capture_expression(eqsynth.ops.relu(x @ w)), measure_cpu_target())
    report = Report()
    program = made.program(report)
    assert {step.kernel.backend for step in program.steps} == {"torch"}
    torch.testing.assert_close(program(X), torch.relu(X @ torch.ones(4, 5)))
    assert report.parameters == 20
