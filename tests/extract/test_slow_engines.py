"""Engines that compile for seconds: what they are asked to compile, and what is spared."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.egraph.segments import cut, stitch
from eqsynth.extract import regions
from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.profile import Profile
from eqsynth.extract.regions import with_engines
from eqsynth.extract.search import Extraction, extract
from eqsynth.extract.timing import OVERDUE, Timing
from eqsynth.frontend import ops
from eqsynth.frontend.captured import capture_expression
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import weight
from eqsynth.ir.tensor import Input, Op, Tensor
from eqsynth.ir.types import TensorType
from eqsynth.lower.backends import engines
from eqsynth.lower.engines.engine import RegionBackend
from eqsynth.lower.engines.table import ENGINES
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.rules import load_rules
from tests.extract.searched import V, W, X, fast_if, searched, seconds
from tests.extract.test_cost import TARGET


@cache
def sixteen_layers(differing: bool = False) -> tuple[EGraph, Extraction]:
    """An e-graph of sixteen layers, and its plan: one step of 1 s for each layer. The layers are
    equal, or each has another number of columns. What the plan gains over the original's operators
    isn't told."""
    h: Expr = X
    for n in range(16):
        rows, columns = h.shape[1], W.shape[1] + n * differing
        h = ops.tanh(h @ (weight(f"w{n}", (rows, columns)) if differing else W))
    program = capture_expression(h).program
    segments, rules = cut(program), load_rules().select()
    graphs = {
        key: saturate_terms(segment.roots, rules, DEFAULT_PHASES, Limits(), False)
        for key, segment in {segment.key: segment for segment in segments}.items()
    }
    graph = stitch(program, segments, [graphs[segment.key] for segment in segments])
    with TemporaryDirectory() as folder:
        costs = CostModel(TARGET, Profile(TARGET.key(), path=Path(folder, "profile.sqlite")))
        found = extract(
            graph, (TorchBackend(),), costs, lambda ks, _: dict.fromkeys(ks, seconds(1.0)), 60.0
        )
        costs.profile.close()
    assert found.plain_s == 32.0
    return graph, replace(found, plain_s=0.0)


@pytest.mark.rotating
@pytest.mark.parametrize("differing", [False, True], ids=["equal layers", "differing layers"])
@pytest.mark.parametrize(
    ("gain", "original_s", "compiled"),
    [(0.125, 40.0, True), (0.075, 40.0, False), (0.125, 1.0, False)],
    ids=["gains an eighth", "gains too little", "slower than the original"],
)
def test_a_slow_engine_compiles_a_sample_of_what_was_chosen_first(
    costs: CostModel, gain: float, original_s: float, compiled: bool, differing: bool
) -> None:
    """In the chosen plan, each layer is one step of 1 s. One of sixteen equal layers is the sample,
    or two layers of which each differs from all others."""
    graph, found = sixteen_layers(differing)
    assert len(found.plan.steps) == 16
    sample, sample_s = f"Region of {1 + differing} operators", (1 - gain) * (1 + differing)
    takes = {"Region of 32 operators": original_s, sample: sample_s}
    asked: list[str] = []

    def measure(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing | None]:
        (label,) = (kernel.term.label for kernel in kernels)
        asked.append(label)
        return dict.fromkeys(kernels, seconds(takes.get(label, 99.0)))

    with_engines(graph, found, engines(["inductor"]), costs, measure, 600.0)
    assert asked == [*takes, *["Region of 16 operators"] * compiled]


@pytest.mark.rotating
@pytest.mark.parametrize(("needs_s", "compiled"), [(50.0, True), (70.0, False)])
def test_a_sample_gets_as_much_time_as_compiling_the_original_took(
    costs: CostModel, needs_s: float, compiled: bool
) -> None:
    """Compiling the original took 60 s. A sample that isn't ready by then has no time, and the
    search has ended nevertheless: another one would find the same."""
    graph, found = sixteen_layers()
    takes = {"Region of 32 operators": 40.0, "Region of 1 operators": 0.5}
    asked: list[str] = []

    def measure(kernels: Sequence[Kernel], until: float) -> dict[Kernel, Timing | None]:
        (label,) = (kernel.term.label for kernel in kernels)
        asked.append(label)
        late = label == "Region of 1 operators" and until - time.monotonic() < needs_s
        return {} if late else dict.fromkeys(kernels, seconds(takes.get(label, 10.0)))

    given = engines(["inductor"])
    better = with_engines(graph, found, given, costs, measure, 600.0, compiled_s=60.0)
    assert asked[:3] == [*takes, *["Region of 16 operators"] * compiled]
    assert better.ended and bool(better.regions) == compiled


@pytest.mark.rotating
@pytest.mark.parametrize(("had_s", "asked_again"), [(500.0, True), (700.0, False)])
def test_an_engine_that_was_not_ready_is_asked_again_if_it_has_more_time(
    costs: CostModel, had_s: float, asked_again: bool
) -> None:
    """There are 600 s. The original isn't known, so it wasn't ready in the seconds that it had."""
    graph, found = sixteen_layers()
    asked: list[str] = []

    def measure(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing | None]:
        asked.extend(kernel.term.label for kernel in kernels)
        return dict.fromkeys(kernels, seconds(99.0))

    better = with_engines(
        graph, found, engines(["inductor"]), costs, measure, 600.0, compiled_s=had_s
    )
    assert ("Region of 32 operators" in asked) == asked_again == better.ended


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize(
    ("original_s", "chosen_s", "sampled"),
    [(40.0, 40.0, False), (40.0, 20.0, True)], ids=["gains nothing", "gains half"],
)
def test_a_slow_engine_that_cannot_catch_up_gets_no_sample(
    costs: CostModel, original_s: float, chosen_s: float, sampled: bool
) -> None:
    """Inductor takes 30 s for the original, and the plan's own kernels 16 s for what was chosen.
    If the chosen terms save another engine and own kernels nothing, they aren't expected to save
    Inductor anything. The other engine is Inductor too, by another name, since no other may be
    installed."""
    graph, found = sixteen_layers()
    found = replace(found, plain_s=found.plan.cost_s)
    original, chosen, sample = (f"Region of {count} operators" for count in (32, 16, 1))
    takes = {("quick", original): original_s, ("quick", chosen): chosen_s,
             ("inductor", original): 30.0}  # fmt: skip
    asked: list[tuple[str, str]] = []

    def measure(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing | None]:
        (kernel,) = kernels
        asked.append((kernel.backend, kernel.term.label))
        return {kernel: seconds(takes.get(asked[-1], 99.0))}

    quick, slow = (RegionBackend(ENGINES["inductor"]) for _ in range(2))
    quick.name, quick.slow = "quick", False
    with_engines(graph, found, [quick, slow], costs, measure, 600.0)
    assert set(asked[:3]) == set(takes)
    assert (("inductor", sample) in asked) == sampled
    assert sampled or ("inductor", chosen) not in asked


@pytest.mark.parametrize("gain", [0.0, 2.0], ids=["unknown", "gains half"])
def test_what_own_kernels_gain_an_engine_may_gain(costs: CostModel, gain: float) -> None:
    """Inductor takes 30 s for the original, but may take 15 for what was chosen, or anything."""
    graph, found = sixteen_layers()
    asked: list[str] = []

    def measure(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing | None]:
        asked.extend(kernel.term.label for kernel in kernels)
        return dict.fromkeys(kernels, seconds(30.0))

    found = replace(found, plain_s=gain * found.plan.cost_s)
    with_engines(graph, found, engines(["inductor"]), costs, measure, 600.0)
    assert "Region of 1 operators" in asked


def test_an_engine_may_refuse_what_was_chosen(costs: CostModel) -> None:
    """It takes the original's 32 operators, and no region of fewer."""

    class Narrow(RegionBackend):
        def kernels(self, term: Tensor, constants: Sequence[bool]) -> Iterator[Kernel]:
            if "32" in term.label:
                yield from super().kernels(term, constants)

    graph, found = sixteen_layers()
    found = replace(found, plain_s=found.plan.cost_s)
    times = fast_if(lambda label: "32" in label)
    better = with_engines(graph, found, [Narrow(ENGINES["inductor"])], costs, times, 600.0)
    assert [step.kernel.term.label for step in better.plan.steps] == ["Region of 32 operators"]


def test_a_short_plan_is_not_compiled_by_an_engine_that_cannot_catch_up(costs: CostModel) -> None:
    """A plan of three steps of 1 s gets no sample; the original takes Inductor 30 s."""
    _, graph, found = searched(ops.tanh(ops.relu(X @ W) @ V), costs)
    found = replace(found, plain_s=found.plan.cost_s)
    quick, slow = (RegionBackend(ENGINES["inductor"]) for _ in range(2))
    quick.name, quick.slow = "quick", False
    asked: list[tuple[str, str]] = []

    def measure(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing | None]:
        asked.extend((kernel.backend, kernel.term.label) for kernel in kernels)
        return {k: seconds(30.0 if k.backend == "inductor" else 10.0) for k in kernels}

    plan = with_engines(graph, found, [quick, slow], costs, measure, 600.0).plan
    assert plan.steps == found.plan.steps
    assert asked == [("quick", "Region of 4 operators"), ("inductor", "Region of 4 operators")]


def test_an_engine_that_is_late_is_asked_for_no_more_and_has_not_failed(costs: CostModel) -> None:
    graph, found = sixteen_layers()
    asked: list[str] = []
    takes = {"Region of 32 operators": seconds(99.0), "Region of 1 operators": OVERDUE}

    def measure(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing | None]:
        asked.extend(kernel.term.label for kernel in kernels)
        return {kernel: takes[kernel.term.label] for kernel in kernels}

    better = with_engines(graph, found, engines(["inductor"]), costs, measure, 600.0)
    assert asked == [*takes]
    assert better.plan is found.plan and not better.ended
    (late,) = costs.overdue
    another = CostModel(TARGET, costs.profile)
    another.load([late])
    assert costs.measured(late) and not another.measured(late)


def test_what_was_timed_counts_when_a_sample_has_taken_the_time(
    costs: CostModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that were timed before a sample used up the time may still be chosen. (Of Swin, four
    were timed in 7 s of 29, a sample for Inductor took 12 s, and all four were ignored.)"""
    graph, found = sixteen_layers()
    now = [0.0]
    monkeypatch.setattr(regions.time, "monotonic", lambda: now[0])

    def measure(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing | None]:
        (kernel,) = kernels
        now[0] += 1.0 if kernel.term.label == "Region of 32 operators" else 400.0
        return {kernel: seconds(10.0)}

    better = with_engines(graph, found, engines(["inductor"]), costs, measure, 600.0)
    assert [step.kernel.term.label for step in better.plan.steps] == ["Region of 32 operators"]
    assert not better.ended


def test_engines_that_compile_at_once_are_asked_first(costs: CostModel) -> None:
    """Fast compilers are asked for both programs before a slow one, which may use up the time."""
    installed = engines(["inductor", "onnxruntime", "openvino"])
    graph, found = sixteen_layers()
    asked: list[tuple[str, str]] = []

    def measure(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing | None]:
        asked.extend((kernel.backend, kernel.term.label) for kernel in kernels)
        return dict.fromkeys(kernels, seconds(99.0))

    with_engines(graph, found, installed, costs, measure, 600.0)
    quick = [engine.name for engine in installed if engine.name != "inductor"]
    sides = ("Region of 32 operators", "Region of 16 operators")
    assert asked[: 2 * len(quick) + 1] == [
        *((name, side) for side in sides for name in quick),
        ("inductor", "Region of 32 operators"),
    ]


@pytest.mark.parametrize(
    ("contracting", "original_s", "sampled"),
    [(12, 30.0, True), (14, 30.0, False), (14, 17.0, True)],
    ids=["much else", "little else", "nearly the best"],
)
def test_a_slow_engine_gets_no_contractions_that_libraries_were_timed_for(
    costs: CostModel, monkeypatch: pytest.MonkeyPatch,
    contracting: int, original_s: float, sampled: bool,
) -> None:  # fmt: skip
    """Of 16 s of the plan's own kernels so many are contractions. An engine could save half of the
    rest, which is too little if that is less than a tenth of all, unless the engine is nearly as
    fast with the original's terms."""
    graph, found = sixteen_layers()
    steps = iter([True] * contracting + [False] * (16 - contracting))
    monkeypatch.setattr(regions, "_contracts", lambda _term: next(steps))
    asked: list[str] = []

    def measure(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing | None]:
        asked.extend(kernel.term.label for kernel in kernels)
        return dict.fromkeys(kernels, seconds(original_s))

    with_engines(graph, found, engines(["inductor"]), costs, measure, 600.0)
    assert ("Region of 1 operators" in asked) == sampled


def test_which_steps_are_contractions() -> None:
    """Products with a weight that is used for few rows are, products with a vector aren't."""

    def product(rows: int) -> Op:
        x, w = TensorType((rows, 256), "float32"), TensorType((256, 256), "float32")
        return Op("Matmul", (Input("x", x), Input("w", w)))

    assert [regions._contracts(product(rows)) for rows in (1, 8, 28)] == [False, False, True]
    assert not regions._contracts(Op("Exp", (Input("x", TensorType((256, 256), "float32")),)))
