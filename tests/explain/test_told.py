"""Explanations as people read them: golden files, and what bounds their length."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.egraph.segments import cut, stitch
from eqsynth.errors import EquivalenceError
from eqsynth.explain import Explanation, NoExplanation, Page, explain_plan, planned_values
from eqsynth.explain.sides import Change, Side
from eqsynth.explain.told import SCREEN, headline, region, summary
from eqsynth.extract.candidates import candidates
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.select import Selection
from eqsynth.extract.timing import OperatorTimes
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.formulas import Line
from eqsynth.ir.tensor import Input, Op
from eqsynth.ir.types import TensorType
from eqsynth.ir.work import bytes_moved, flops
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.report import Report
from eqsynth.rules import load_rules


class LinearAttention(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.transpose(-1, -2)) @ v


class Attended(LinearAttention):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(super().forward(q, k, v), -1)


class Block(nn.Module):
    """Of a ResNet: two convolutions, each with its normalization, and the sum with the input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(x + self.bn2(self.conv2(y)))


class Layer(nn.Module):
    """Of a transformer, with one head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(8), nn.LayerNorm(8)
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        scores = torch.softmax(self.q(y) @ self.k(y).transpose(-1, -2), dim=-1)
        x = x + scores @ self.v(y)
        return x + self.down(torch.relu(self.up(self.after(x))))


class Gate(nn.Module):
    """Of an LSTM: parts of one product, each through its function."""

    def forward(self, gates: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(gates[:, 4:8]) * c


PROGRAMS = {
    "gate": (Gate(), (torch.ones(3, 16), torch.ones(3, 4))),
    "linear_attention": (LinearAttention(), tuple(torch.ones(2, 64, 8) for _ in range(3))),
    "resnet_block": (Block(), (torch.ones(1, 4, 6, 6),)),
    "two_layers": (nn.Sequential(Layer(), Layer()), (torch.ones(1, 6, 8),)),
}


# Enough for the layers' rewrites that have fewer FLOPs (part of the nodes are kept for matching);
# to its end the search would take a minute.
NODES = 1000


def price(kernel: Kernel) -> float:
    """Little arithmetic, little moved, few kernels."""
    return flops(kernel.term) + bytes_moved(kernel.term) + 100.0


def explained(
    model: nn.Module, inputs: tuple[Any, ...], timed: bool = False, within: str = ""
) -> Explanation:
    """
    Args:
        within: an operator that kernels compute on the way to what they give.
    """
    captured = capture(model.eval(), inputs)
    program = captured.program
    segments = cut(program)
    rules = load_rules()
    graphs = {
        s.key: saturate_terms(s.roots, rules, DEFAULT_PHASES, Limits(NODES, 600.0), True)
        for s in segments
    }
    graph = stitch(program, segments, [graphs[s.key] for s in segments])
    plan = Selection(graph, candidates(graph, [TorchBackend()])).best(price)
    times = OperatorTimes()
    if timed:
        _, values = planned_values(graph, plan)
        results = [values[step.result] for step in plan.steps]
        inner = frozenset(t for t in results if isinstance(t, Op) and t.name == within)
        times = OperatorTimes(
            before={t: 1e-3 for t in program.terms() if isinstance(t, Op) and not t.constant},
            after={t: 25e-6 for t in results if t not in inner},
            kernels={t: "a kernel" for t in results if t not in inner},
            within=inner,
        )
    logs = {key: graph.log for key, graph in graphs.items()}
    found = explain_plan(program, tuple(segments), logs, graph, plan, times=lambda: times)
    assert isinstance(found, Explanation)
    return found


# What these tests read takes five seconds to make.
TOGETHER = pytest.mark.rotating(together="explanations")


@pytest.fixture(scope="module")
def explanations() -> dict[str, Explanation]:
    return {name: explained(*PROGRAMS[name]) for name in PROGRAMS}


@pytest.mark.rotating
@TOGETHER
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_one_reads(name: str, explanations: dict[str, Explanation], golden: Any) -> None:
    text = re.sub(r"(\.py):\d+", r"\1", str(explanations[name]))
    golden.check(f"explain/{name}.txt", text + "\n")


@TOGETHER
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_region_fits_a_screen(name: str, explanations: dict[str, Explanation]) -> None:
    for change in explanations[name].changes:
        for room in (SCREEN, 24):
            found = region(change, room)
            assert len(found) <= room and max(map(len, found)) <= 100


@TOGETHER
def test_the_headline_says_what_was_gained(explanations: dict[str, Explanation]) -> None:
    (change,) = explanations["linear_attention"].changes
    assert headline(change) == ("(q @ kᵀ) @ v -> q @ (vᵀ @ k)ᵀ", "8 times fewer FLOPs")
    assert (change.before.flops, change.after.flops) == (4 * 2 * 64 * 64 * 8, 4 * 2 * 64 * 8 * 8)
    assert [step.rules[-1] for step in change.steps] == ["factor"]


def test_milliseconds_are_told_where_they_are_known() -> None:
    explanation = explained(*PROGRAMS["linear_attention"], timed=True)
    (change,) = explanation.changes
    # Two products and a transposition before; after, two einsums at least.
    assert change.before.time_s == pytest.approx(3e-3)
    assert change.after.time_s == pytest.approx(len(change.after.seconds) * 25e-6)
    assert headline(change)[1].startswith("8 times fewer FLOPs, 3.00 -> 0.05")
    assert str(explanation).count("a kernel") == len(change.after.lines)


@TOGETHER
def test_the_report_has_a_row_for_each_region() -> None:
    tensors = tuple(torch.randn(64, 4) for _ in range(3))
    explanation = explained(Attended(), tensors, timed=True)
    # Of the original: a transposition and two products of 1 ms each, softmax of 1 ms.
    (replaced, kept) = Page(lambda: explanation).regions()
    assert replaced[0] == "replaced" and replaced[1].startswith("3.00 -> 0.0")
    assert "(q @ kᵀ) @ v -> q @ (kᵀ @ v)" in replaced[1] and "; by " in replaced[1]
    assert kept == ("kept", "1.00 -> 0.025 ms; softmax; as before")
    page = Page(lambda: explanation)
    report = Report(page=page, backend="torch", stop="saturated")
    assert report.regions == [replaced, kept]
    assert [row for row in report.rows() if row[0] in ("replaced", "kept")] == [replaced, kept]
    assert Report(page=page, backend="original").regions == []
    assert Report(page=Page(lambda: NoExplanation("why")), backend="torch").regions == []


def test_a_long_program_has_some_of_its_regions_in_the_table() -> None:
    class Long:
        def __call__(self, report: Report) -> str:
            return ""

        def regions(self) -> list[tuple[str, str]]:
            return [("replaced", f"{n} {'x' * 300}") for n in range(40)]

    report = Report(page=Long(), backend="torch")
    told = [text for name, text in report.rows() if name == "replaced"]
    assert len(told) == 16 and all(len(text) <= 150 and text.endswith(" …") for text in told)
    assert ("regions", "24 more: report.regions") in report.rows()
    assert len(report.regions) == 40


@TOGETHER
def test_equal_layers_are_told_once(explanations: dict[str, Explanation]) -> None:
    twice = [c for c in explanations["two_layers"].changes if len(c.places) == 2]
    assert twice
    assert all("0." in c.places[0] and "1." in c.places[1] for c in twice)


@TOGETHER
def test_the_chain_is_there_in_full(explanations: dict[str, Explanation]) -> None:
    explanation = explanations["linear_attention"]
    assert explanation.full.startswith("original program")
    assert all(f"{n}. " in explanation.full for n in range(1, len(explanation.steps) + 1))


def test_what_changed_nothing_is_no_region() -> None:
    explanation = explained(nn.Softmax(dim=-1), (torch.ones(2, 3),))
    assert explanation.changes == ()
    assert str(explanation) == "no operator was changed"



def of_one_line(text: str, kinds: dict[str, int], **known: Any) -> Side:
    term = Input("x", TensorType((2, 3), "float32"))
    return Side((Line("t0", text, term, (term,)),), text, kinds, (term,), **known)


def test_what_only_another_kernel_runs_is_a_line() -> None:
    x = Input("x", TensorType((2, 3), "float32"))
    before = of_one_line("x @ w0", {"matmul": 1}, time_s=2e-5)
    after = of_one_line("x @ w7", {"matmul": 1}, time_s=1e-5, kernels={x: "tvm rows"})
    same = Change(before, after, {}, ("head",), (), 1, ("matmul-definition",))
    assert headline(same)[0] == "x @ w0 by another kernel"
    assert summary([same]).splitlines() == [
        "as before, by other kernels:", "  x @ w0 in head  0.020 -> 0.010 ms  tvm rows",
    ]  # fmt: skip
    other = replace(same, after=replace(after, lines=of_one_line("w7 @ x", {}).lines))
    assert not summary([other]).startswith("as before")


def test_a_table_is_printed_where_the_log_lacks_a_proof() -> None:
    asked = []

    def explanation() -> NoExplanation:
        asked.append(1)
        raise EquivalenceError("the log doesn't prove t3", got="nothing", expected="a chain")

    report = Report(page=Page(explanation), backend="torch", stop="saturated")
    text = str(report)
    assert "regions" in text and "the log doesn't prove t3" in text
    assert len(asked) == 1  # a log is replayed in a second or so


def test_what_a_kernel_computes_on_the_way_is_told_with_its_result() -> None:
    """By itself the convolution would be kept without a time, and the map slower than before."""
    model, inputs = nn.Sequential(nn.Conv2d(3, 4, 3), nn.PReLU(4)), (torch.randn(1, 3, 6, 6),)
    apart, together = (explained(model, inputs, timed=True, within=w) for w in ("", "Conv2d"))
    assert all("conv" not in headline(change)[0] for change in apart.changes)
    (change,) = together.changes
    assert change.before.time_s == pytest.approx(5e-3)  # with bias, comparison, product, choice
    assert change.after.time_s == pytest.approx(25e-6)
