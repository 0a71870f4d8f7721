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


OPEN = """\
;; open.egg -- squares of differences, multiplied out.
;;
;; Rulesets   open   grows
;; Needs      schema.egg
;; Numerics   real
;; Status     validated

(ruleset open)

;; (x - y) * (x - y) = x * x - 2 * x * y + y * y
(rewrite (Mul (Sub x y) (Sub x y))
         (Add (Sub (Mul x x) (Add (Mul x y) (Mul x y))) (Mul y y))
         :ruleset open :name "square-of-difference")
"""


class Beside(nn.Module):
    """How far points are from others, and a product beside it that has nothing to do with them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.u, self.v = nn.Linear(8, 64, bias=False), nn.Linear(64, 8, bias=False)

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        d = x[:, None] - y[None, :]
        return (d * d).sum(0), self.v(self.u(z))


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


def test_a_part_that_loses_digits_stays_as_it_was_and_the_rest_is_faster(tmp_path: Path) -> None:
    path = tmp_path / "open.egg"
    path.write_text(OPEN, encoding="utf-8")
    net, given = Beside().eval(), (torch.randn(64), torch.randn(48), torch.randn(4, 8))
    # sum x·x - 2 y·sum x + n·y·y takes fewer FLOPs, and at 1e4 loses the digits of (x - y)².
    distances, product = 2 * 64 * 48 + 63 * 48, 2 * 4 * 8 * 8
    with pytest.warns(EquivalenceWarning, match=r"a part .* by the rounding of"):
        program = eqsynth.optimize(net, given, rules=[path], **QUICK)
    report = program.report
    assert not report.reason and 0 < len(report.mended) <= running.MENDED
    assert all("by the rounding of" in text for text in report.mended)
    assert report.flops_after <= distances + 64 * 48 + product < report.flops_before
    far = tuple(x + 1e4 for x in given)
    for got, expected in zip(program(*far), net(*far), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-2)
    assert "mended" in str(report)
    # Its route is that of the plan that is used: for other sizes nothing is mended, or warned of.
    other = torch.randn(60), torch.randn(44), torch.randn(4, 8)
    again = eqsynth.optimize(net, other, rules=[path], like=program, **QUICK)
    assert again.report.followed and not again.report.mended and not again.report.reason
    with pytest.raises(EquivalenceError, match="offset"):
        eqsynth.optimize(net, given, rules=[path], strict=True, **QUICK)


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
