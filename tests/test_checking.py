"""The check as a stage of ``optimize``: who is blamed, what the user is told, what is used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import eqsynth
from eqsynth import running
from eqsynth.errors import EquivalenceError, EquivalenceWarning
from eqsynth.lower.program import CompiledProgram

X = torch.linspace(-1, 1, 12).reshape(3, 4)
QUICK: dict[str, Any] = {"objective": "flops", "time_limit_s": 600.0, "progress": False}
WRONG = """\
;; wrong.egg -- planted.
;;
;; Rulesets   wrong   shrinks its term
;; Needs      schema.egg
;; Numerics   bitwise
;; Status     validated

(ruleset wrong)

;; tanh(sigmoid(x)) = sigmoid(x), wrong
(rewrite (Tanh (Sigmoid x)) (Sigmoid x) :ruleset wrong :name "tanh-of-sigmoid")
"""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(torch.sigmoid(self.a(x))))  # type: ignore[no-any-return]


def test_a_wrong_rule_is_named_by_its_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.egg"
    path.write_text(WRONG, encoding="utf-8")
    net = Net().eval()
    with pytest.warns(EquivalenceWarning, match="tanh-of-sigmoid"):
        program = eqsynth.optimize(net, (X,), rules=[path], **QUICK)
    assert program.original is net and torch.equal(program(X), net(X))
    assert f"tanh-of-sigmoid ({path}:11)" in program.report.reason


def test_a_wrong_kernel_is_named_and_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = running.lowered

    def faulty(*args: Any, **settings: Any) -> CompiledProgram:
        program = lowered(*args, **settings)
        last = program.steps[-1]
        wrong = replace(last, runner=lambda *values: last.runner(*values) * 1.001)
        program.steps = (*program.steps[:-1], wrong)
        program._compile()
        return program

    monkeypatch.setattr(running, "lowered", faulty)
    net = Net().eval()
    with pytest.raises(EquivalenceError) as caught:
        eqsynth.optimize(net, (X,), strict=True, **QUICK)
    error = caught.value
    assert error.step in error.where and error.step and not error.rules
    assert "print(program.report)" in error.hint


def test_an_expression_is_held_against_itself_in_float64() -> None:
    x = eqsynth.input("x", (3, 4))
    w = eqsynth.weight("w", (4, 4), value=torch.eye(4) + 1e-3)
    program = eqsynth.optimize(eqsynth.ops.exp(x @ w) - 1, strict=True, **QUICK)
    assert 0 <= program.report.error_rel < 1e-5 and not program.report.digits_lost


class Distances(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return ((x[:, None] - y[None]) ** 2).sum(-1)


@pytest.mark.slow
def test_digits_that_the_user_lets_go_are_told_and_the_program_is_used() -> None:
    torch.manual_seed(0)
    large = torch.randn(1024, 128), torch.randn(1024, 128)
    program = eqsynth.optimize(
        Distances().eval(), large, numerics="cancels", strict=True, progress=False
    )
    report = program.report
    assert program.original is None and report.digits_lost["near-equal"] > 1e-3
    assert "near-equal" in str(report) and report.error_rel < 1e-5
    assert report.bytes_after < report.bytes_before / 50  # nothing of 1024 x 1024 x 128
    args = torch.randn(128, 64), torch.randn(128, 64)
    exact = eqsynth.optimize(Distances().eval(), args, strict=True, progress=False)
    assert not exact.report.digits_lost


def _padded_layer(padding: Tensor) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True).eval()
    return layer, torch.randn(*padding.shape, 8)


@pytest.mark.rotating
def test_what_torch_captures_otherwise_is_no_rules_fault() -> None:
    """Where a query may attend to nothing, torch's fast path gives NaN, and the operators that
    ``torch.export`` sees don't."""
    padding = torch.tensor([[False, False, True], [True, True, True]])
    layer, x = _padded_layer(padding)
    given: dict[str, Any] = {"example_kwargs": {"src_key_padding_mask": padding}}
    with pytest.warns(EquivalenceWarning, match="what torch.export captures"):
        program = eqsynth.optimize(layer, (x,), **given, objective="flops", time_limit_s=600)
    assert program.original is layer and "set_fastpath_enabled" in str(program.report.reason)
    assert "rules" not in str(program.report.reason)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        program = eqsynth.optimize(layer, (x,), **given, objective="flops", time_limit_s=600)
        assert program.original is None
        close = program(x, src_key_padding_mask=padding), layer(x, src_key_padding_mask=padding)
        torch.testing.assert_close(*close)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
