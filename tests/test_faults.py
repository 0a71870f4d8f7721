"""An error in eqsynth itself costs the user a faster program, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import eqsynth
from eqsynth import pipeline
from eqsynth.errors import EqsynthError, FaultWarning

NET, X = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)).eval(), torch.randn(3, 4)


class FaultError(Exception):
    """No error that eqsynth raises on purpose."""


def fails(*_: Any, **__: Any) -> Any:
    raise FaultError("zip() argument 2 is longer")


@pytest.mark.parametrize("place", ["capture", "Run.pipeline"])
def test_a_fault_gives_the_original_and_a_warning(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"eqsynth.pipeline.{place}", fails)
    with pytest.warns(FaultWarning, match="(?s)argument 2 is longer.*strict=True"):
        program = eqsynth.optimize(NET, (X,), engines=(), objective="flops")
    assert program.original is NET and "FaultError" in str(program.report.reason)
    torch.testing.assert_close(program(X), NET(X))
    assert program.explain()
    with pytest.raises(FaultError):
        eqsynth.optimize(NET, (X,), engines=(), objective="flops", strict=True)


def test_a_fault_with_an_expression_runs_its_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.Run, "pipeline", fails)
    x, w = eqsynth.input("x", (3, 4)), eqsynth.weight("w", (4, 2), value=torch.ones(4, 2))
    with pytest.warns(FaultWarning):
        program = eqsynth.optimize(x @ w, engines=())
    torch.testing.assert_close(program(X), X @ torch.ones(4, 2))


def test_what_is_raised_on_purpose_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: object) -> Any:
        raise EqsynthError("a rule file is wrong")

    monkeypatch.setattr(pipeline.Run, "pipeline", refuses)
    with pytest.raises(EqsynthError, match="a rule file is wrong"):
        eqsynth.optimize(NET, (X,), engines=())
