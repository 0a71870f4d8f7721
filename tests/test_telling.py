"""``logging`` under the name ``eqsynth``."""

from __future__ import annotations

import logging

import pytest
import torch

import eqsynth

OPTIONS = {"objective": "flops", "engines": (), "progress": False, "time_limit_s": 600.0}


class Named(torch.nn.Module):
    """With an operator that no term says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sort(x @ x).values


@pytest.mark.rotating
def test_a_run_is_told_line_by_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "eqsynth"):
        eqsynth.optimize(Named().eval(), (torch.eye(3),), **OPTIONS)  # type: ignore[arg-type]
    told = [record.getMessage().split()[0] for record in caplog.records]
    assert told == ["captured", "operators", "found", "chose", "timed"]
    assert "sort" in caplog.records[1].getMessage()
    assert all(record.name == "eqsynth.optimize" for record in caplog.records)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "eqsynth"):
        found = eqsynth.optimize(Named().eval(), (torch.eye(3),), **OPTIONS)  # type: ignore[arg-type]
    steps = [r for r in caplog.records if r.levelno == logging.DEBUG and " ms by " in r.msg]
    assert steps
    assert caplog.records[-1].getMessage() == str(found.explain())


def test_the_engine_is_silent_where_all_loggers_speak(caplog: pytest.LogCaptureFixture) -> None:
    a, b = eqsynth.input("a", (2, 3)), eqsynth.input("b", (2, 3))
    with caplog.at_level(logging.INFO):
        assert eqsynth.prove_equal(a + b, b + a)
    assert not [record for record in caplog.records if record.name.startswith("egglog")]


def test_what_is_refused_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "eqsynth"):
        eqsynth.optimize(torch.nn.ReLU().eval(), (torch.eye(3).to_sparse(),), **OPTIONS)  # type: ignore[arg-type]
    (record,) = caplog.records
    assert record.getMessage().startswith("refused the module")
