"""Regions: spans of a plan that an engine runs. The tests state the times; the engines are real."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms, unsaturated
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.egraph.segments import cut, stitch
from eqsynth.extract import regions
from eqsynth.extract.candidates import copy_kernel
from eqsynth.extract.cost import CostModel
from eqsynth.extract.handing import SIDES, handed
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.profile import Profile
from eqsynth.extract.regions import first_asked, on_engines, with_engines
from eqsynth.extract.search import Extraction, extract
from eqsynth.extract.spans import spans
from eqsynth.extract.timing import OVERDUE, Timing
from eqsynth.frontend import ops
from eqsynth.frontend.captured import Captured, capture_expression
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import input as input_
from eqsynth.frontend.expression import weight
from eqsynth.ir.tensor import Op, Region, Tensor
from eqsynth.lower.assemble import assemble
from eqsynth.lower.backends import cpu_backends, engines
from eqsynth.lower.engines.engine import RegionBackend
from eqsynth.lower.engines.table import ENGINES
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lowered import small_constants
from eqsynth.rules import load_rules
from tests.extract.test_cost import TARGET

X, Y = input_("x", (4, 8)), input_("y", (4, 8))
W, V = weight("w", (8, 8)), weight("v", (8, 6))


def mlp() -> Expr:
    return ops.relu(ops.tanh(X @ W) @ V)


def two_results() -> list[Expr]:
    h = ops.tanh(X @ W)
    return [h + Y, ops.relu(h)]


def searched(
    outputs: Expr | Sequence[Expr], costs: CostModel
) -> tuple[Captured, EGraph, Extraction]:
    """Return a program, its unsaturated e-graph, and the plan of torch's kernels at 1 s each."""
    captured = capture_expression(outputs)
    graph = unsaturated(captured.program.outputs, "as it is")
    found = extract(
        graph, (TorchBackend(),), costs, lambda ks, _: dict.fromkeys(ks, seconds(1.0)), 60.0
    )
    return captured, graph, found


def seconds(value: float) -> Timing:
    return Timing(value, value, value, 5)


@pytest.fixture
def costs(tmp_path: Path) -> CostModel:
    return CostModel(TARGET, Profile(TARGET.key(), path=tmp_path / "profile.sqlite"))


def compiled(captured: Captured, graph: EGraph, plan: Plan) -> CompiledProgram:
    parts = assemble(captured.program, graph, plan, captured.weights, cpu_backends(), 1 << 30)
    return CompiledProgram(parts.parameters, parts.steps, parts.outputs, captured, parts.constants)


def by_region(plan: Plan) -> list[PlanStep]:
    return [step for step in plan.steps if isinstance(step.member, Region)]


# ---- spans ---------------------------------------------------------------------------------------


def test_a_chain_is_a_span_a_value(costs: CostModel) -> None:
    _, _, found = searched(mlp(), costs)
    parts = spans(found.plan).parts
    assert [(p.first, p.last) for p in parts] == [(k, k + 1) for k in range(len(found.plan.steps))]
    assert parts[-1].results == found.plan.outputs


def test_values_that_live_together_are_not_parted(costs: CostModel) -> None:
    h = ops.tanh(X @ W)
    _, _, found = searched(ops.relu(h) + ops.neg(h), costs)
    names = [step.kernel.term.label for step in found.plan.steps]
    ends = [names[part.last - 1] for part in spans(found.plan).parts]
    assert ends == ["Matmul", "Tanh", "Add"]


def test_the_results_of_a_program_end_one_span(costs: CostModel) -> None:
    _, _, found = searched(two_results(), costs)
    assert set(spans(found.plan).parts[-1].results) == set(found.plan.outputs)


def test_numbers_are_said_and_no_arguments(costs: CostModel) -> None:
    """A number is part of a region's term. OpenVINO runs x == 0, but not x == c with an input c."""
    _, graph, found = searched(ops.relu(X @ W) * 0.5 + 1.0, costs)
    parted = spans(found.plan)
    (engine,) = engines(["inductor"])
    for side in SIDES:
        whole = parted.joined(0, len(parted.parts))
        (step,) = handed(graph, found.plan, whole, (engine, side))
        assert isinstance(step.member, Region)
        assert sorted(arg.shape for arg in step.member.args) == sorted([X.shape, W.shape])


@pytest.mark.rotating
def test_results_that_nothing_reads_are_not_handed_on(costs: CostModel) -> None:
    """Results that no later span reads, as a cache's keys and values, belong to one span."""
    h = ops.tanh(X @ W)
    g = ops.tanh(h @ W)
    captured, graph, found = searched([ops.relu(h @ V), ops.relu(g @ V), ops.neg(g)], costs)
    parted = spans(found.plan)
    names = [step.kernel.term.label for step in found.plan.steps]
    ends = [names[part.last - 1] for part in parted.parts]
    assert ends == ["Matmul", "Tanh", "Matmul", "Tanh", "Neg"]
    assert [len(part.results) for part in parted.parts] == [1, 1, 2, 1, 2]
    assert parted.joined(0, 5).results == found.plan.outputs
    assert len(parted.joined(2, 4).results) == 2

    measure = fast_if(lambda label: label == "Region of 5 operators")
    plan = with_engines(graph, found, engines(["inductor"]), costs, measure, 60.0).plan
    assert any(len(step.also) == 1 for step in by_region(plan))
    x = torch.randn(4, 8)
    torch.testing.assert_close(
        compiled(captured, graph, plan)(x), compiled(captured, graph, found.plan)(x)
    )


def under_a_mask(costs: CostModel) -> tuple[Captured, EGraph, Extraction]:
    """Layers that all add the mask exp(y), whose computation costs nothing."""
    mask = ops.exp(Y)
    x: Expr = X
    for _ in range(3):
        x = ops.tanh(x @ W) + mask
    captured, graph, found = searched(ops.relu(x), costs)
    steps = [replace(s, cost_s=s.cost_s * (s.kernel.term.label != "Exp")) for s in found.plan.steps]
    return captured, graph, replace(found, plan=replace(found.plan, steps=tuple(steps)))


def test_what_all_spans_read_is_computed_first(costs: CostModel) -> None:
    _, _, found = under_a_mask(costs)
    assert found.plan.steps[0].kernel.term.label == "Matmul"
    parted = spans(found.plan)
    assert [step.kernel.term.label for step in parted.plan.steps] == [
        "Exp", *["Matmul", "Tanh", "Add"] * 3, "Relu"
    ]  # fmt: skip
    assert [(p.first, p.last) for p in parted.parts] == [(k, k + 1) for k in range(11)]
    assert parted.shared == (parted.plan.steps[0].result,)
    # A region that computes the shared value has it among its results.
    assert parted.shared[0] in parted.joined(0, 5).results
    assert parted.joined(0, 11).results == found.plan.outputs
    heavy = [replace(step, cost_s=1.0) for step in found.plan.steps]
    assert spans(replace(found.plan, steps=tuple(heavy))).shared == ()


@pytest.mark.rotating
@pytest.mark.parametrize("refused", [True, False])
def test_an_engine_begins_after_what_it_refuses(refused: bool, costs: CostModel) -> None:
    class Narrow(RegionBackend):
        def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
            if not refused or "Exp" not in str(term):
                yield from super().kernels(term, constants)

    captured, graph, found = under_a_mask(costs)
    engine = Narrow(ENGINES["inductor"])
    # If nothing is refused, the first half is fast; it computes the mask for the second half.
    measure = fast_if(lambda label: label == f"Region of {10 if refused else 6} operators")
    better = with_engines(graph, found, [engine], costs, measure, 60.0)
    (step,) = by_region(better.plan)
    assert ("Exp" in str(step.kernel.term)) == (not refused)
    again = on_engines(graph, found, better.regions, [engine])
    assert again is not None and again.plan.runs_as(better.plan)
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    torch.testing.assert_close(
        compiled(captured, graph, better.plan)(x, y), compiled(captured, graph, found.plan)(x, y)
    )


@pytest.mark.parametrize("refused", ["Exp", "Relu"])
def test_what_is_refused_at_an_end_is_left_out(refused: str, costs: CostModel) -> None:
    class Narrow(RegionBackend):
        def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
            if refused not in str(term):
                yield from super().kernels(term, constants)

    x: Expr = ops.neg(ops.exp(X))
    for _ in range(20):
        x = ops.tanh(x)
    captured, graph, found = searched(ops.neg(ops.relu(x)), costs)
    asked: list[str] = []

    def measure(kernels: Sequence[Kernel], _: float) -> dict[Kernel, Timing | None]:
        asked.extend(kernel.term.label for kernel in kernels)
        return dict.fromkeys(kernels, seconds(1.0))

    plan = with_engines(graph, found, [Narrow(ENGINES["inductor"])], costs, measure, 60.0).plan
    assert {*asked} == {f"Region of {23 if refused == 'Exp' else 22} operators"}
    labels = [step.kernel.term.label for step in plan.steps]
    assert labels == (["Exp", *asked[:1]] if refused == "Exp" else [*asked[:1], "Relu", "Neg"])


def fast_if(
    fast: Callable[[str], bool],
) -> Callable[[Sequence[Kernel], float], dict[Kernel, Timing | None]]:
    """Return a measurement in which regions with these labels take 1 s, other regions 9 s."""

    def measure(kernels: Sequence[Kernel], _: float) -> dict[Kernel, Timing | None]:
        return {k: seconds(1.0 if fast(k.term.label) else 9.0) for k in kernels}

    return measure


# ---- the choice ----------------------------------------------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize("outputs", [mlp, two_results], ids=["one result", "two results"])
def test_a_faster_engine_takes_the_whole_program(
    outputs: Callable[[], Expr | list[Expr]], costs: CostModel
) -> None:
    captured, graph, found = searched(outputs(), costs)
    better = with_engines(
        graph, found, engines(["inductor"]), costs, lambda ks, _: {ks[0]: seconds(1e-3)}, 60.0
    )
    (step,) = better.plan.steps
    assert isinstance(step.member, Region) and better.plan.cost_s == 1e-3
    args = [torch.randn(i.shape) for i in captured.program.inputs]
    mine = compiled(captured, graph, better.plan)(*args)
    wanted = compiled(captured, graph, found.plan)(*args)
    torch.testing.assert_close(mine, wanted)


def test_a_slower_or_broken_engine_takes_nothing(costs: CostModel) -> None:
    _, graph, found = searched(mlp(), costs)
    for answer in (seconds(100.0), None):
        again = with_engines(
            graph,
            found,
            engines(["inductor"]),
            costs,
            lambda ks, _, a=answer: {ks[0]: a},
            60.0,  # type: ignore[misc]
        )
        assert again.plan.steps == found.plan.steps


def test_kernels_are_weighed_as_they_run_in_a_row(costs: CostModel) -> None:
    """Each of four kernels takes 1 s alone, and the engine takes 5 s for all of them. The engine is
    chosen only if the four in a row take 1.5 times as long as alone."""
    _, graph, found = searched(mlp(), costs)
    for together, taken in ((1.0, False), (1.5, True)):
        plan = with_engines(
            graph, replace(found, together=together), engines(["inductor"]), costs,
            lambda kernels, _until: {k: seconds(5.0) for k in kernels}, 60.0,
        ).plan  # fmt: skip
        assert bool(by_region(plan)) == taken


@pytest.mark.parametrize(("raced", "chosen"), [(False, 0), (True, 1)])
def test_whole_programs_are_chosen_by_times_that_were_taken_in_turns(
    costs: CostModel, raced: bool, chosen: int
) -> None:
    """Timed one after the other, the first program looks twice as fast; timed in turns, it is
    slower. All times in turns are ten times as long (threads wake up), so only ratios count."""
    program = capture_expression(ops.neg(ops.neg(ops.tanh(X @ W)))).program
    rules = load_rules().select()
    graph = saturate_terms(program.outputs, rules, DEFAULT_PHASES, Limits(), False)
    found = extract(
        graph, (TorchBackend(),), costs, lambda ks, _: dict.fromkeys(ks, seconds(1.0)), 60.0
    )
    asked: list[Kernel] = []

    def measure(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing]:
        asked.extend(kernels)
        return {kernels[0]: seconds(0.1 if len(asked) == 1 else 0.2)}

    def in_turns(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing]:
        return {k: seconds(1.5 if k == asked[1] else 2.0) for k in kernels if raced}

    # What the search chose, and the original: two programs for one engine.
    better = with_engines(
        graph, found, engines(["inductor"]), costs, measure, 600.0, in_turns=in_turns
    )
    assert len(asked) >= 2 and better.plan.steps[0].kernel == asked[chosen]


@cache
def sixteen_layers() -> tuple[EGraph, Extraction]:
    """An e-graph of sixteen layers, and its plan: one step of 1 s for each layer. What the plan
    gains over the original's operators isn't told."""
    h: Expr = X
    for _ in range(16):
        h = ops.tanh(h @ W)
    program = capture_expression(h).program
    segments, rules = cut(program), load_rules().select()
    graphs = {
        s.key: saturate_terms(s.roots, rules, DEFAULT_PHASES, Limits(), False) for s in segments
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


@pytest.mark.parametrize(
    ("sample_s", "original_s", "compiled"),
    [(2.0, 40.0, True), (2.3, 40.0, False), (2.0, 1.0, False)],
    ids=["near", "slower than own kernels", "slower than the original"],
)
def test_a_slow_engine_compiles_a_sample_of_what_was_chosen_first(
    costs: CostModel, sample_s: float, original_s: float, compiled: bool
) -> None:
    """In the chosen plan, each layer is one step of 1 s, and two layers are the sample."""
    graph, found = sixteen_layers()
    assert len(found.plan.steps) == 16
    takes = {"Region of 32 operators": original_s, "Region of 2 operators": sample_s}
    asked: list[str] = []

    def measure(kernels: Sequence[Kernel], _until: float) -> dict[Kernel, Timing | None]:
        (label,) = (kernel.term.label for kernel in kernels)
        asked.append(label)
        return dict.fromkeys(kernels, seconds(takes.get(label, 99.0)))

    with_engines(graph, found, engines(["inductor"]), costs, measure, 600.0)
    assert asked == [*takes, *["Region of 16 operators"] * compiled]


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
    original, chosen, sample = (f"Region of {count} operators" for count in (32, 16, 2))
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
    assert "Region of 2 operators" in asked


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
    takes = {"Region of 32 operators": seconds(99.0), "Region of 2 operators": OVERDUE}

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


@pytest.mark.rotating
def test_each_part_runs_on_the_engine_that_is_fastest_there(costs: CostModel) -> None:
    """Four layers, each of them fastest on one of the installed engines."""
    acts = (ops.tanh, ops.sigmoid, ops.relu, ops.gelu)
    h: Expr = X
    for n, act in enumerate(acts):
        h = act(h @ weight(f"w{n}", (8, 8)))
    captured, graph, found = searched(h, costs)
    installed = engines(["inductor", "onnxruntime", "openvino"])
    fastest = [installed[n % len(installed)].name for n in range(4)]
    layers = dict(zip(("Tanh", "Sigmoid", "Relu", "Gelu"), fastest, strict=True))

    def measure(kernels: Sequence[Kernel], until: float) -> dict[Kernel, Timing | None]:
        """The whole takes as long as the kernels, a half takes a little less, and a layer takes
        0.1 s on its engine."""
        (kernel,) = kernels
        inside = [engine for act, engine in layers.items() if act in str(kernel.term)]
        took = {4: 8.0, 2: 3.8}.get(len(inside)) or (0.1 if inside == [kernel.backend] else 3.0)
        return {kernel: seconds(took)}

    better = with_engines(graph, found, installed, costs, measure, 60.0)
    plan = better.plan
    assert [step.kernel.backend for step in plan.steps] == fastest
    # The same regions in another plan need no measurement.
    again = on_engines(graph, found, better.regions, installed)
    assert again is not None and [s.kernel for s in again.plan.steps] == [
        s.kernel for s in plan.steps
    ]
    assert on_engines(graph, found, better.regions, ()) is None
    assert on_engines(graph, found, (), installed) == found
    x = torch.randn(4, 8)
    torch.testing.assert_close(
        compiled(captured, graph, plan)(x), compiled(captured, graph, found.plan)(x)
    )


def test_what_an_engine_refuses_as_a_whole_it_may_take_in_parts(costs: CostModel) -> None:
    class Narrow(RegionBackend):
        def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
            if "Relu" not in str(term):
                yield from super().kernels(term, constants)

    _, graph, found = searched(mlp(), costs)
    plan = with_engines(
        graph, found, [Narrow(ENGINES["inductor"])], costs,
        lambda kernels, _until: {k: seconds(0.1) for k in kernels}, 60.0,
    ).plan  # fmt: skip
    parts = [step.kernel.term.label for step in by_region(plan)]
    assert parts == ["Region of 2 operators", "Region of 1 operators"]
    assert plan.steps[-1].kernel.term.label == "Relu"


def test_an_engine_takes_the_half_where_it_is_faster(costs: CostModel) -> None:
    """Only the region of the first two operators is fast; the other steps keep their kernels."""
    captured, graph, found = searched(ops.relu(ops.tanh(X @ W) @ V), costs)

    def measure(kernels: Sequence[Kernel], until: float) -> dict[Kernel, Timing | None]:
        (kernel,) = kernels
        assert isinstance(kernel.term, Region)
        fast = kernel.term.label == "Region of 2 operators" and "Tanh" in str(kernel.term)
        return {kernel: seconds(0.1 if fast else 3.5)}

    better = with_engines(graph, found, engines(["inductor"]), costs, measure, 60.0)
    (step,) = by_region(better.plan)
    assert "Tanh" in str(step.kernel.term) and len(better.plan.steps) > 1
    x = torch.randn(4, 8)
    torch.testing.assert_close(
        compiled(captured, graph, better.plan)(x), compiled(captured, graph, found.plan)(x)
    )


def test_halving_ends_where_it_gains_nothing(costs: CostModel) -> None:
    """If an engine is equally fast everywhere, the whole and the halves are tried, no quarters."""
    x: Expr = X
    for _ in range(8):
        x = ops.tanh(x)
    _, graph, found = searched(x, costs)
    asked: list[str] = []

    def measure(kernels: Sequence[Kernel], until: float) -> dict[Kernel, Timing | None]:
        (kernel,) = kernels
        asked.append(kernel.term.label)
        return {kernel: seconds(1.02 * int(kernel.term.label.split()[2]))}

    assert len(spans(found.plan).parts) == 8
    plan = with_engines(graph, found, engines(["inductor"]), costs, measure, 60.0).plan
    assert plan == found.plan
    # The halves are equal up to names, so only one of them is timed.
    assert asked == ["Region of 8 operators", "Region of 4 operators"]


def test_the_slower_side_is_not_parted(costs: CostModel) -> None:
    """The original has a Sigmoid in place of the plan's Tanh and is slower as a whole, so no parts
    of the original are timed."""
    _, graph, found = searched(ops.relu(ops.tanh(ops.exp(ops.neg(X)))), costs)
    (tanh,) = (step for step in found.plan.steps if step.kernel.term.label == "Tanh")
    assert isinstance(tanh.member, Op)
    other = Op("Sigmoid", tanh.member.args)
    graph = replace(graph, original={**graph.original, tanh.result[0]: (other,)})
    asked: list[str] = []

    def measure(kernels: Sequence[Kernel], until: float) -> dict[Kernel, Timing | None]:
        (kernel,) = kernels
        asked.append(str(kernel.term.outputs[0]) if isinstance(kernel.term, Region) else "")
        return {kernel: seconds(5.0 if "Sigmoid" in asked[-1] else 4.0)}

    with_engines(graph, found, engines(["inductor"]), costs, measure, 60.0)
    assert sum("Sigmoid" in text for text in asked) == 1
    assert sum("Tanh" in text for text in asked) == 2


def test_what_is_asked_first_is_known_before_the_search(costs: CostModel) -> None:
    """The region that an engine is asked first is known before the search. Both segments of the
    program read one weight."""
    h = ops.relu(X @ W) @ W
    captured, _, _ = searched(ops.relu(h) @ W + h, costs)
    segments = cut(captured.program)
    assert len(segments) > 1
    graph = stitch(
        captured.program, segments,
        [saturate_terms(s.roots, load_rules(), DEFAULT_PHASES, Limits(500, 5.0), False)
         for s in segments],
    )  # fmt: skip
    found = extract(
        graph, (TorchBackend(),), costs, lambda ks, _: dict.fromkeys(ks, seconds(1.0)), 60.0
    )
    asked: list[Kernel] = []

    def late(kernels: Sequence[Kernel], until: float) -> dict[Kernel, Timing | None]:
        asked.extend(kernels)
        return {}

    with_engines(graph, found, engines(["inductor"]), costs, late, 60.0)
    plain, (first,) = first_asked(captured.program, segments, engines(["inductor"]), 60.0)
    assert first.kernel in asked
    assert not first_asked(captured.program, segments, engines(["inductor"]), 1.0)[1]
    # The weight is small, so the region is timed with its real values.
    ((place, value),) = small_constants(captured, plain, [first])[first.kernel].items()
    assert first.constants[place].shape == (8, 8)
    (expected,) = captured.weights.values()
    torch.testing.assert_close(value, expected)
    assert not small_constants(captured, plain, [first], most_bytes=255)[first.kernel]


@pytest.mark.rotating
def test_a_region_meets_the_layouts_around_it(costs: CostModel) -> None:
    """A value that is transposed in memory between two spans is copied before a region reads it."""
    captured, graph, found = searched(ops.relu(ops.tanh(X @ W)), costs)
    product, tanh, relu = found.plan.steps
    ref = product.result[0]
    turned = PlanStep(copy_kernel(ref.type, (0, 1), (1, 0)), ref, (product.result,), {},
                      (ref, (1, 0)), 1.0)  # fmt: skip
    strided = replace(
        tanh, args=((ref, (1, 0)),), result=(tanh.result[0], (1, 0)),
        kernel=replace(tanh.kernel, inputs=((1, 0),), output=(1, 0)),
    )  # fmt: skip
    end = replace(relu, args=(strided.result,), kernel=replace(relu.kernel, inputs=((1, 0),)))
    plan = replace(found.plan, steps=(product, turned, strided, end), cost_s=4.0)

    def measure(kernels: Sequence[Kernel], until: float) -> dict[Kernel, Timing | None]:
        (kernel,) = kernels
        return {kernel: seconds(1e-3 if "Matmul" not in str(kernel.term) else 4.5)}

    better = with_engines(
        graph, replace(found, plan=plan), engines(["inductor"]), costs, measure, 60.0
    )
    (step,) = by_region(better.plan)
    at_hand = {product.result}
    for each in better.plan.steps:
        assert set(each.args) <= at_hand | set(better.plan.inputs.values())
        at_hand.add(each.result)
    x = torch.randn(4, 8)
    torch.testing.assert_close(
        compiled(captured, graph, better.plan)(x), torch.relu(torch.tanh(x @ captured.weights["w"]))
    )


def test_nothing_is_tried_past_the_deadline_or_for_fewer_flops(costs: CostModel) -> None:
    _, graph, found = searched(mlp(), costs)

    def never(kernels: Sequence[Kernel], until: float) -> dict[Kernel, Timing | None]:
        raise AssertionError(f"{len(kernels)} kernels are timed")

    inductor = engines(["inductor"])
    assert with_engines(graph, found, inductor, costs, never, -1.0).plan == found.plan
    flops = CostModel(TARGET, costs.profile, "flops")
    assert with_engines(graph, found, inductor, flops, never, 60.0).plan == found.plan


def test_a_region_that_was_not_reached_is_not_taken(costs: CostModel) -> None:
    """A region without a measured time isn't chosen by its optimistic estimate, and isn't recorded
    as failed."""
    _, graph, found = searched(mlp(), costs)
    asked: list[Kernel] = []

    def late(kernels: Sequence[Kernel], until: float) -> dict[Kernel, Timing | None]:
        asked.extend(kernels)
        return {}

    again = with_engines(graph, found, engines(["inductor"]), costs, late, 60.0)
    assert again.plan.steps == found.plan.steps
    assert asked and not any(costs.measured(kernel) for kernel in asked)
