"""``optimize`` as a whole: every workload at reduced size, and what it promises of the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import eqsynth
from benchmarks.workloads import WORKLOADS
from eqsynth.errors import EquivalenceError, EquivalenceWarning
from eqsynth.ir.tensor import Op, Scope, topological
from eqsynth.lower.program import CompiledProgram
from eqsynth.pipeline import optimize
from eqsynth.report import Report

# Whole optimizations, minutes on two cores: `make test-all`.
pytestmark = pytest.mark.slow

STAGES = ["rules", "capture", "saturate", "extract", "measure", "lower", "check", "race"]

# More than about five seconds on two cores.
SLOW = {"resnet18", "resnet50", "resnext50", "vgg16", "nasnet_a", "infogan", "dcgan", "bert128",
        "bert64", "gcn", "fsrcnn", "nasrnn"}  # fmt: skip
SLOW |= {w.name for w in WORKLOADS.values() if w.suite == "kernels"} - {"bias_relu_nchw", "col2im"}


def agree(program: CompiledProgram, module: nn.Module, inputs: Sequence[Tensor]) -> None:
    with torch.no_grad():
        got, expected = tree_leaves(program(*inputs)), tree_leaves(module(*inputs))
    for y, z in zip(got, expected, strict=True):
        scale = float(z.abs().max())
        assert scale > 1e-6  # else any tolerance would do
        torch.testing.assert_close(y, z, rtol=0, atol=2e-5 * scale)


def sane(report: Report, any_rules: bool = True) -> None:
    """Figures that no result can have otherwise."""
    assert report.time_before_s > 0 and report.time_after_s > 0 and report.optimize_s > 0
    for which, median in (("before", report.time_before_s), ("after", report.time_after_s)):
        low, high = report.quartiles_s[which]
        assert 0 < low <= median <= high
    assert 0 <= report.flops_after <= report.flops_before
    assert bool(report.flops_after) == bool(report.flops_before)  # views have none
    assert report.bytes_before > 0 and report.bytes_after > 0
    assert report.parameters >= 0 and report.peak_memory_bytes > 4 * report.parameters
    assert 0 <= report.error_rel < 1e-3
    assert report.enodes >= report.eclasses > 0
    assert 0 < report.distinct_segments <= report.segments
    assert report.stop in ("saturated", "rounds", "deadline", "node_limit", "worker deadline")
    assert report.opaque_share == 0.0
    assert report.rules_fired or not any_rules
    assert all(count > 0 for count in report.rules_fired.values())
    assert report.kernels_considered > 0 and report.rounds > 0
    assert list(report.stages_s) == STAGES
    assert report.backend and not report.reason
    assert math.isclose(report.speedup, report.time_before_s / report.time_after_s)
    assert all(text for name, text in report.rows() if name != "rules")


# ---- every workload ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in WORKLOADS]
)
def test_a_workload(name: str) -> None:
    """The program and torch agree, and the report makes sense (the e-graphs are tested in
    ``egraph/test_workload_egraphs.py``)."""
    module, inputs = WORKLOADS[name].reduced()
    # A loaded machine may need several times what an idle one does.
    program = optimize(module, inputs, objective="flops", time_limit_s=600)
    agree(program, module, inputs)
    # Of a kernel that is one operator, nothing need be rewritten.
    sane(program.report, any_rules=WORKLOADS[name].suite != "kernels")
    assert program.original is None


# ---- algebra that has to happen ------------------------------------------------------------------


@pytest.mark.parametrize(("name", "factor"), [("linear_attention", 32.0), ("bottleneck", 7.9)])
def test_flops_fall_at_full_size(name: str, factor: float) -> None:
    module, inputs = WORKLOADS[name].build()
    program = optimize(module, inputs, objective="flops", time_limit_s=600)
    assert program.original is None
    assert program.report.flops_before >= factor * program.report.flops_after
    agree(program, module, inputs)


def test_a_batch_norm_folds_into_the_weights() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(16)
    model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1, bias=False), norm, nn.ReLU()).eval()
    assert norm.running_mean is not None and norm.running_var is not None
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
        norm.weight.uniform_(0.5, 2.0)
        norm.bias.normal_()
    x = torch.randn(1, 8, 14, 14)
    program = optimize(model, (x,), objective="flops", time_limit_s=600)
    agree(program, model, (x,))
    # What is left is the convolution with its bias and the ReLU: no scale.
    elements = 16 * 14 * 14
    assert program.report.flops_after <= 2 * elements * 8 * 9 + 3 * elements
    assert program.report.flops_after < program.report.flops_before
    assert program.report.parameters == 16 * 8 * 9 + 16


def test_what_depends_on_weights_only_is_computed_once() -> None:
    w = torch.randn(8, 8)
    x, weight = eqsynth.input("x", (2, 8)), eqsynth.weight("w", (8, 8), value=w)
    program = optimize(eqsynth.ops.matmul(x, eqsynth.ops.exp(weight @ weight)), time_limit_s=20)
    assert program.report.flops_after <= 2 * 2 * 8 * 8
    value = torch.randn(2, 8)
    torch.testing.assert_close(program(value), value @ (w @ w).exp(), rtol=1e-4, atol=1e-4)


def test_optimizing_for_time_measures_what_it_runs() -> None:
    module, inputs = WORKLOADS["bottleneck"].reduced()
    program = optimize(module, inputs, time_limit_s=60)
    report = program.report
    assert report.complete and report.kernels_timed > 0
    assert report.time_before_s > 0 and report.time_after_s > 0
    agree(program, module, inputs)
    again = optimize(module, inputs, time_limit_s=60)
    assert again.report.kernels_timed == 0  # from the profile
    assert again.report.remembered_plan and again.report.rounds == 0  # also what lost the race


# ---- expressions ---------------------------------------------------------------------------------


def test_an_expression() -> None:
    value = torch.randn(12, 5)
    a, w = eqsynth.input("A", (6, 12)), eqsynth.weight("W", (12, 5), value=value)
    program = optimize(eqsynth.ops.relu(a @ w), objective="flops", time_limit_s=600)
    x = torch.randn(6, 12)
    torch.testing.assert_close(program(x), (x @ value).relu())


def test_several_expressions() -> None:
    a, b, c = (eqsynth.input(name, (8, 8)) for name in "abc")
    program = optimize([a @ b + a @ c, eqsynth.ops.relu(a)], objective="flops", time_limit_s=600)
    x, y, z = (torch.randn(8, 8) for _ in range(3))
    first, second = program(x, y, z)
    torch.testing.assert_close(first, x @ y + x @ z, rtol=1e-4, atol=1e-4)
    assert torch.equal(second, x.relu())
    assert program.report.flops_after < program.report.flops_before


def test_a_scope() -> None:
    height, width, channels, filters = 5, 4, 3, 2
    weight = torch.randn(3, 3, filters, channels)
    x = eqsynth.input("X", (height, width, channels))
    k = eqsynth.weight("K", (3, 3, filters, channels), value=weight)
    conv = eqsynth.scope(
        lambda h, w, f: eqsynth.sum(
            lambda r, s, c: x[h + r - 1, w + s - 1, c] * k[r, s, f, c], r=3, s=3, c=channels
        ),
        h=height, w=width, f=filters,
    )  # fmt: skip
    program = optimize(conv, objective="flops", time_limit_s=600)
    image = torch.randn(height, width, channels)
    expected = nn.functional.conv2d(
        image.permute(2, 0, 1)[None], weight.permute(2, 3, 0, 1), padding=1
    )[0].permute(1, 2, 0)
    torch.testing.assert_close(program(image), expected, rtol=1e-4, atol=1e-4)


# ---- the result as an object ---------------------------------------------------------------------


def test_an_optimized_program_is_saved_and_loaded(tmp_path: Path) -> None:
    module, inputs = WORKLOADS["bottleneck"].reduced()
    program = optimize(module, inputs, objective="flops", time_limit_s=600)
    eqsynth.save(program, tmp_path / "program.eqsynth")
    loaded = eqsynth.load(tmp_path / "program.eqsynth")
    assert torch.equal(loaded(*inputs), program(*inputs))
    assert str(loaded.report) == str(program.report)
    assert str(loaded.explain()) == str(program.explain())


def test_a_program_can_be_optimized_again() -> None:
    """The second time nothing is left to gain."""
    module, inputs = WORKLOADS["factor"].reduced()
    first = optimize(module, inputs, objective="flops", time_limit_s=600)
    second = optimize(module, inputs, objective="flops", time_limit_s=600)
    assert second.report.flops_after == first.report.flops_after
    assert [s.kernel for s in second.steps] == [s.kernel for s in first.steps]


def test_the_module_is_not_touched() -> None:
    module, inputs = WORKLOADS["transition"].reduced()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    copies = [x.clone() for x in inputs]
    optimize(module, inputs, objective="flops", time_limit_s=600)
    assert all(torch.equal(state[name], value) for name, value in module.state_dict().items())
    assert all(torch.equal(x, y) for x, y in zip(inputs, copies, strict=True))
    assert not module.training


def test_without_a_check_there_is_no_error() -> None:
    module, inputs = WORKLOADS["chain"].reduced()
    program = optimize(module, inputs, objective="flops", time_limit_s=600, check=False)
    assert program.report.error_rel == 0.0
    agree(program, module, inputs)


# ---- rules of a user -----------------------------------------------------------------------------

MINE = """\
;; mine.egg -- for a test.
;;
;; Rulesets   mine   shrinks its term
;; Needs      schema.egg
;; Numerics   bitwise
;; Status     validated

(ruleset mine)

;; exp(log(x)) = x for the x of this test, which are positive
(rewrite (Exp (Log x)) x :ruleset mine :name "exp-of-log-of-mine")
"""


def test_a_users_rule_file_is_loaded_and_fires(tmp_path: Path) -> None:
    path = tmp_path / "mine.egg"
    path.write_text(MINE)
    x = eqsynth.input("x", (4, 4))
    expression = eqsynth.ops.exp(eqsynth.ops.log(eqsynth.ops.relu(x)))
    settings: dict[str, Any] = {"objective": "flops", "time_limit_s": 600.0, "check": False}
    plain = optimize(expression, **settings)
    mine = optimize(expression, rules=[path], **settings)
    assert "exp-of-log-of-mine" not in plain.report.rules_fired
    assert mine.report.rules_fired["exp-of-log-of-mine"] > 0
    assert mine.report.flops_after < plain.report.flops_after
    assert "exp-of-log-of-mine" in mine.explain().rules
    value = torch.rand(4, 4) + 1
    assert torch.equal(mine(value), value)
    last = mine.explain().steps[-1].after
    assert not [t for t in topological(last) if isinstance(t, Op) and t.name in ("Exp", "Log")]
    assert all(isinstance(t, Op | Scope) or t.label == "x" for t in topological(last))


def test_a_wrong_rule_is_caught_by_the_check(tmp_path: Path) -> None:
    path = tmp_path / "mine.egg"
    path.write_text(MINE)
    x = eqsynth.input("x", (4, 4))
    expression = eqsynth.ops.exp(eqsynth.ops.log(eqsynth.ops.relu(x) - 1))
    settings: dict[str, Any] = {"rules": [path], "objective": "flops", "time_limit_s": 600.0}
    with pytest.raises(EquivalenceError) as caught:
        optimize(expression, strict=True, **settings)
    assert caught.value.rules[0].startswith(f"exp-of-log-of-mine ({path}:")
    with pytest.warns(EquivalenceWarning, match="exp-of-log-of-mine"):
        program = optimize(expression, **settings)
    report, value = program.report, torch.rand(4, 4)
    assert report.backend == "original" and "exp-of-log-of-mine" in report.reason
    assert report.flops_after == report.flops_before
    torch.testing.assert_close(program(value), (value - 1).log().exp(), equal_nan=True)
