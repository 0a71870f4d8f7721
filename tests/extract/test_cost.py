"""The cost model, and the loop of extracting and measuring. The tests state all kernel times."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import ExtractionError
from eqsynth.extract.candidates import VIEW_S, candidates, copy_kernel
from eqsynth.extract.cost import CALLS, MANY, MIN_RATIOS, SIBLING, CostModel, measurement_key
from eqsynth.extract.kernel import Kernel, contiguous
from eqsynth.extract.one_part import OutOfTime
from eqsynth.extract.plan import Plan
from eqsynth.extract.profile import Profile
from eqsynth.extract.schedule import Band, Rows
from eqsynth.extract.search import extract
from eqsynth.extract.select import Selection
from eqsynth.extract.target import Device, MemoryLevel, Target
from eqsynth.extract.timing import Timing
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Call, Num, Prod, Read, Sum
from eqsynth.ir.tensor import ClassRef, Input, Op, Scope, Tensor
from eqsynth.ir.types import TensorType
from eqsynth.ir.work import bytes_moved, flops, parts
from eqsynth.lower.torch_backend import TorchBackend
from tests.extract.egraphs import egraph, leaf, ref, unary
from tests.terms import it

TARGET = Target(
    name="cpu",
    device=Device("a CPU", 2, ()),
    threads=2,
    levels=(MemoryLevel("DRAM", float("inf"), 1e9),),
    flops_per_s=(("float32", 1e9),),
    dispatch_s=1e-6,
    kernel_dispatch_s=1e-7,
)


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    return Profile(TARGET.key(), path=tmp_path / "profile.sqlite")


def timing(seconds: float) -> Timing:
    return Timing(seconds, seconds, seconds, 5)


def kernel_of(term: Tensor, implementation: str = "torch", constants: bool = False) -> Kernel:
    return Kernel(
        term,
        (constants,) * len({*getattr(term, "args", ())}),
        implementation,
        tuple(contiguous(len(a.shape)) for a in dict.fromkeys(getattr(term, "args", ()))),
        contiguous(len(term.shape)),
        Rows() if implementation == "tvm" else "",
    )


def matmul(rows: int = 100, columns: int = 100) -> Op:
    left = Input("0", TensorType((rows, 100), "float32"))
    return Op("Matmul", (left, Input("1", TensorType((100, columns), "float32"))))


def relu(extent: int) -> Op:
    return Op("Relu", (Input("0", TensorType((extent,), "float32")),))


RELU = relu(1000)


# ---- the model ---------------------------------------------------------------------------------


def test_an_unmeasured_kernel_is_estimated_by_the_roofline(profile: Profile) -> None:
    costs = CostModel(TARGET, profile)
    assert costs(kernel_of(RELU)) == pytest.approx(8e-6 + 1e-6)  # 8000 bytes at 1 GB/s
    assert costs(kernel_of(matmul())) == pytest.approx(2e-3 + 1e-6)  # 2 MFLOP at 1 GFLOP/s
    assert costs(kernel_of(RELU, "tvm")) == pytest.approx(8e-6 + 1e-7)
    assert not costs.measured(kernel_of(RELU))


def test_a_scope_through_torch_costs_a_call_for_each_part_of_its_body(profile: Profile) -> None:
    i = Index.iterator(0, 1000)
    x, y = (Read(Input(n, TensorType((1000,), "float32")), (i,)) for n in "01")
    scope = Scope((1000,), (), Call("exp", (Sum((x, y, Num(1.0))),)))
    costs = CostModel(TARGET, profile)
    # x, y, 1, their sum and its exponential
    assert costs(kernel_of(scope)) == pytest.approx(1.2e-5 + 5 * CALLS * 1e-6)
    assert costs(kernel_of(scope, "tvm")) == pytest.approx(1.2e-5 + 1e-7)


def test_what_was_measured_is_the_cost(profile: Profile) -> None:
    costs, kernel = CostModel(TARGET, profile), kernel_of(RELU)
    costs.record({kernel: timing(7e-5)})
    assert costs.measured(kernel) and costs(kernel) == 7e-5
    again = CostModel(TARGET, profile)
    assert not again.measured(kernel)
    again.load([kernel, kernel_of(matmul())])
    assert again(kernel) == 7e-5
    assert not again.measured(kernel_of(matmul()))


def test_a_family_that_was_measured_estimates_its_others(profile: Profile) -> None:
    costs = CostModel(TARGET, profile)
    other = kernel_of(matmul(200))
    for extent in (100, 110, 120):
        assert costs(other) == pytest.approx(costs.roofline_s(other))
        kernel = kernel_of(matmul(extent))
        costs.record({kernel: timing(3 * costs.roofline_s(kernel))})
    assert costs(other) == pytest.approx(3 * costs.roofline_s(other))
    assert costs(kernel_of(RELU)) == pytest.approx(costs.roofline_s(kernel_of(RELU)))
    assert costs(kernel_of(other.term, "onednn.linear")) == pytest.approx(costs.roofline_s(other))


def test_a_family_bound_by_memory_is_seen_at_a_low_quantile(profile: Profile) -> None:
    costs = CostModel(TARGET, profile)
    for number in range(1, 12):  # ratios 1.1 to 2.1
        kernel = kernel_of(relu(1000 + number))
        costs.record({kernel: timing((1 + number / 10) * costs.roofline_s(kernel))})
    assert costs(kernel_of(RELU)) == pytest.approx(1.2 * costs.roofline_s(kernel_of(RELU)))


def test_kernels_of_a_size_tell_most_of_each_other(profile: Profile) -> None:
    """Small kernels take five times their roofline, large kernels 1.5 times. Once enough kernels
    are measured, the estimate of a small one is made from the small ones: five times."""
    costs = CostModel(TARGET, profile)
    small, large = kernel_of(relu(10_000)), kernel_of(relu(1_000_000))

    def record(count: int) -> None:
        for n in range(1, count):
            for base, ratio in ((10_000, 5.0), (1_000_000, 1.5)):
                kernel = kernel_of(relu(base + n))
                costs.record({kernel: timing(ratio * costs.roofline_s(kernel))})

    record(MANY)
    assert costs(small) == pytest.approx(1.5 * costs.roofline_s(small))  # too few: all are asked
    record(MANY + 1)
    assert costs(small) == pytest.approx(5.0 * costs.roofline_s(small))
    assert costs(large) == pytest.approx(1.5 * costs.roofline_s(large))


def test_a_library_writes_out_the_windows_of_a_convolution(profile: Profile) -> None:
    """torch's einsum takes at least the time for writing and reading them, nine times the image,
    and a call for each part. A generated kernel reads the image, as does one call of a library."""
    f, h, w, c, r, s = (it(n, e) for n, e in enumerate((1, 100, 100, 3, 3, 3)))
    x, k = (Input(str(n), TensorType(shape, "float32"))
            for n, shape in enumerate(((3, 102, 102), (1, 3, 3, 3))))  # fmt: skip
    body = Prod((Read(x, (c, h + r, w + s)), Read(k, (f, c, r, s))))
    scope, windows = Scope((1, 100, 100), (3, 3, 3), body), 4 * 3 * 9 * 100 * 100
    costs, layouts = CostModel(TARGET, profile), (contiguous(3), contiguous(4))
    ways = ("torch", ""), ("cublas.strided", ""), ("tvm", Rows())
    named = {name: Kernel(scope, (False, True), name, layouts, contiguous(3), schedule)
             for name, schedule in ways}  # fmt: skip
    least_s = {name: costs.roofline_s(kernel) for name, kernel in named.items()}
    moved = bytes_moved(scope)
    calls_s = CALLS * parts(scope) * 1e-6
    assert least_s["torch"] == pytest.approx(calls_s + (moved + 2 * windows) / 1e9, rel=1e-2)
    assert least_s["tvm"] == pytest.approx(flops(scope) / 1e9, rel=1e-2)
    assert least_s["cublas.strided"] == pytest.approx(flops(scope) / 1e9, rel=1e-2)


def test_small_kernels_tell_nothing_of_large_ones(profile: Profile) -> None:
    """They take five times their roofline. A large one may come near to its own, until as many of
    its size were measured as an estimate needs."""
    costs, large = CostModel(TARGET, profile), kernel_of(relu(1_000_000))
    for n in range(2 * MANY):
        kernel = kernel_of(relu(10_000 + n))
        costs.record({kernel: timing(5.0 * costs.roofline_s(kernel))})
    assert costs(large) == pytest.approx(costs.roofline_s(large))
    assert costs(kernel_of(relu(9_000))) == pytest.approx(
        5.0 * costs.roofline_s(kernel_of(relu(9_000)))
    )
    for n in range(1, MIN_RATIOS + 1):
        assert costs(large) == pytest.approx(costs.roofline_s(large))
        kernel = kernel_of(relu(1_000_000 + n))
        costs.record({kernel: timing(1.5 * costs.roofline_s(kernel))})
    assert costs(large) == pytest.approx(1.5 * costs.roofline_s(large))


def test_a_kernel_that_differs_in_its_schedule_only_is_not_hoped_to_be_much_faster(
    profile: Profile,
) -> None:
    costs, timed = CostModel(TARGET, profile), kernel_of(RELU)
    sibling, turned = replace(timed, schedule="other"), replace(timed, schedule="third")
    others = [kernel_of(RELU, "tvm"), kernel_of(relu(999)), kernel_of(RELU, constants=True)]
    hoped = {kernel: costs(kernel) for kernel in (sibling, *others)}
    costs.record({timed: timing(1e-3)})
    assert costs(sibling) == costs(turned) == pytest.approx(SIBLING * 1e-3)
    assert all(costs(kernel) == hoped[kernel] for kernel in others)
    again = CostModel(TARGET, profile)
    again.load([timed])
    assert again(sibling) == costs(sibling)
    # The fastest sibling counts, and a measured kernel costs its own time.
    costs.record({sibling: timing(5e-4)})
    assert costs(turned) == pytest.approx(SIBLING * 5e-4) and costs(sibling) == 5e-4
    # A kernel that failed says nothing about its siblings.
    failed = kernel_of(relu(998))
    costs.record({failed: None})
    assert costs(replace(failed, schedule="other")) < 1e-3


@pytest.mark.parametrize("rows, columns", [(20, 100), (2000, 8)])
def test_small_and_narrow_products_tell_nothing_of_others(
    profile: Profile, rows: int, columns: int
) -> None:
    """Small products are measured at three times their roofline, but the estimate of a large one is
    still its roofline: it may come near to the peak."""
    costs = CostModel(TARGET, profile)
    other = kernel_of(matmul(300))
    for extent in range(rows, rows + 2 * MIN_RATIOS):
        kernel = kernel_of(matmul(extent, columns))
        costs.record({kernel: timing(3 * costs.roofline_s(kernel))})
    assert costs(other) == pytest.approx(costs.roofline_s(other))
    narrow = kernel_of(matmul(rows // 2, columns))
    assert costs(narrow) == pytest.approx(3 * costs.roofline_s(narrow))


def test_the_least_ratio_counts_where_arithmetic_is_the_bound(profile: Profile) -> None:
    costs = CostModel(TARGET, profile)
    for number in range(1, 12):
        kernel = kernel_of(matmul(200 + number))
        costs.record({kernel: timing((1 + number / 10) * costs.roofline_s(kernel))})
    assert costs(kernel_of(matmul())) == pytest.approx(1.1 * costs.roofline_s(kernel_of(matmul())))


def test_kernels_by_small_blocks_say_nothing_of_those_by_large_ones(profile: Profile) -> None:
    """Four bands of 2 by 8 at 26 times their roofline kept bands of 8 by 32 from being timed."""
    costs = CostModel(TARGET, profile)
    by_blocks = kernel_of(matmul(), "tvm.band")
    small, other = (replace(by_blocks, schedule=Band(2, 8 * n, 2)) for n in (1, 2))
    large, larger = (replace(by_blocks, schedule=Band(8, 32 * n, 100)) for n in (1, 2))
    for number in range(MIN_RATIOS):
        slow = replace(small, term=matmul(100 + number))
        costs.record({slow: timing(26 * costs.roofline_s(slow))})
    assert costs.family(small) == costs.family(other) != costs.family(large)
    assert costs.family(large) == costs.family(larger)
    roofline_s = costs.roofline_s(replace(large, term=matmul(101)))
    assert costs(replace(other, term=matmul(101))) == pytest.approx(26 * roofline_s)
    assert costs(replace(large, term=matmul(99))) < 2 * roofline_s


def test_a_kernel_that_failed_is_not_tried_again_for_a_while(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs, kernel = CostModel(TARGET, profile), kernel_of(RELU)
    costs.record({kernel: None})

    def known() -> bool:
        again = CostModel(TARGET, profile)
        again.load([kernel])
        return again.measured(kernel)

    assert costs.measured(kernel) and costs(kernel) == float("inf")
    assert known()
    with monkeypatch.context() as patched:  # a mended kernel is tried at once
        patched.setattr("eqsynth.extract.profile.kept.code_of", lambda *_: "other code")
        assert not known()
    with monkeypatch.context() as patched:
        patched.setattr("eqsynth.extract.profile.FAILED_FOR", timedelta(days=-1))
        assert not known()
    # A time that is measured after the failure replaces it.
    CostModel(TARGET, profile).record({kernel: timing(1e-3)})
    again = CostModel(TARGET, profile)
    again.load([kernel])
    assert again(kernel) == pytest.approx(1e-3)


def test_a_view_costs_a_call_and_is_not_timed(profile: Profile) -> None:
    view = Op("Permute", (Input("0", TensorType((1000, 1000), "float32")),), ((1, 0),))
    costs, kernel = CostModel(TARGET, profile), kernel_of(view, "torch.view")
    assert costs.measured(kernel) and costs(kernel) == VIEW_S


def test_flops_as_objective_look_at_time_on_a_tie_only(profile: Profile) -> None:
    costs = CostModel(TARGET, profile, "flops")
    slow, fast = kernel_of(matmul(), "torch"), kernel_of(matmul(), "onednn.linear")
    costs.record({slow: timing(50.0), fast: timing(1e-6), kernel_of(RELU): timing(900.0)})
    assert costs(fast) < costs(slow) < costs(fast) + 1
    assert costs(kernel_of(RELU)) < costs(fast)
    costs.record({fast: None})
    assert costs(fast) == float("inf")


def test_keys_of_measurements_tell_kernels_apart() -> None:
    base = kernel_of(matmul())
    others = [
        kernel_of(matmul(), constants=True),
        kernel_of(matmul(200)),
        kernel_of(matmul(), "onednn.linear"),
        Kernel(base.term, base.constants, "torch", ((1, 0), (0, 1)), (0, 1)),
        Kernel(base.term, base.constants, "torch", ((0, 1), (0, 1)), (1, 0)),
        Kernel(base.term, base.constants, "torch", base.inputs, base.output, "tiles 8"),
    ]
    keys = {measurement_key(k).text() for k in (base, *others)}
    assert len(keys) == len(others) + 1
    assert measurement_key(base) == measurement_key(kernel_of(matmul()))


# ---- the loop ----------------------------------------------------------------------------------


def two_ways() -> EGraph:
    """An e-graph with two plans for relu(a): the class a has the members x @ x and exp(x)."""
    x, a, b = (ref(n, (64, 64)) for n in range(3))
    return egraph(
        {
            x: [leaf(Input, 0, (64, 64))],
            a: [Op("Matmul", (x, x)), unary("Exp", x)],
            b: [unary("Relu", a)],
        },
        b,
    )


class Clock:
    """A measurement: a kernel takes the time stated for its operator, and None means that it fails.
    ``rounds`` lists the kernels of each call."""

    def __init__(self, pause_s: float = 0.0, **times: float | None) -> None:
        self.times, self.pause_s = times, pause_s
        self.rounds: list[list[Kernel]] = []

    def __call__(self, kernels: Sequence[Kernel], until: float) -> dict[Kernel, Timing | None]:
        self.rounds.append(list(kernels))
        if len(self.rounds) > 1:
            time.sleep(self.pause_s)
        found: dict[Kernel, Timing | None] = {}
        for kernel in kernels:
            assert isinstance(kernel.term, Op)
            seconds = self.times.get(kernel.term.name, 1.0)
            found[kernel] = None if seconds is None else timing(seconds)
        return found


def chosen(graph: EGraph, profile: Profile, clock: Clock, deadline_s: float = 60.0) -> set[str]:
    found = extract(graph, [TorchBackend()], CostModel(TARGET, profile), clock, deadline_s)
    assert found.plan.kernels() and found.complete
    return {s.member.name for s in found.plan.steps if isinstance(s.member, Op)}


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ({"Matmul": 2e-3, "Exp": 9e-3, "Relu": 1e-5}, {"Matmul", "Relu"}),
        ({"Matmul": 9e-3, "Exp": 2e-3, "Relu": 1e-5}, {"Exp", "Relu"}),
    ],
)
def test_the_plan_that_measures_best_is_found(
    profile: Profile, times: dict[str, float], best: set[str]
) -> None:
    clock = Clock(**times)
    assert chosen(two_ways(), profile, clock) == best
    # Both ways were tried, since neither's estimate is above the other's time.
    asked = {k.term.name for r in clock.rounds for k in r if isinstance(k.term, Op)}
    assert {"Matmul", "Exp", "Relu"} <= asked
    # No kernel was timed twice, and a second search finds all times in the profile.
    every = [k for r in clock.rounds for k in r]
    assert len(every) == len(set(every))
    again = Clock()
    assert chosen(two_ways(), profile, again) == best
    assert again.rounds == []


class InOneLayout(TorchBackend):
    """The torch backend with contiguous layouts only."""

    def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        for kernel in super().kernels(term, constants):
            if {*kernel.inputs, kernel.output} == {contiguous(2)}:
                yield kernel


@pytest.mark.parametrize(("small_s", "timed"), [(5e-3, False), (5e-2, True)])
def test_what_can_gain_less_than_a_hundredth_is_not_timed(
    profile: Profile, small_s: float, timed: bool
) -> None:
    x, small, y, a, b, root = (ref(n, (64, 64)) for n in range(6))
    graph = egraph(
        {
            x: [leaf(Input, 0, (64, 64))],
            y: [leaf(Input, 1, (64, 64))],
            a: [Op("Matmul", (x, y))],
            small: [unary("Exp", x), unary("Neg", x)],
            b: [unary("Relu", a)],
            root: [Op("Matmul", (b, small))],
        },
        root,
    )
    clock = Clock(Matmul=0.5, Relu=1e-4, Exp=small_s, Neg=small_s)
    found = extract(graph, [InOneLayout()], CostModel(TARGET, profile), clock, 60.0)
    asked = [k.term.name for r in clock.rounds for k in r if isinstance(k.term, Op)]
    assert len({"Exp", "Neg"} & set(asked)) == (2 if timed else 1)
    assert found.complete
    # The plan has the measured costs, although it was made before they were measured.
    times = clock.times
    assert found.plan.cost_s == pytest.approx(
        sum(times[label] or 0.0 for label in map(str, (s.member.label for s in found.plan.steps)))
    )
    # The next search begins with the known times and measures nothing.
    again = Clock(**times)
    extract(graph, [InOneLayout()], CostModel(TARGET, profile), again, 60.0)
    assert again.rounds == []


def test_a_kernel_that_fails_is_never_chosen(profile: Profile) -> None:
    assert chosen(two_ways(), profile, Clock(Exp=None, Matmul=9.0)) == {"Matmul", "Relu"}


def test_a_deadline_keeps_the_best_plan_that_was_measured() -> None:
    # The first plan is measured before the deadline. The second one is measured too late to look
    # for a third, and is slower. On a machine too slow for two rounds, the deadline is doubled.
    deadline_s, clock = 0.1, Clock()
    while len(clock.rounds) < 2:
        deadline_s *= 2
        clock = Clock(pause_s=deadline_s, Exp=1e-2, Matmul=5e-2, Relu=1e-5)
        costs = CostModel(TARGET, Profile(TARGET.key(), path=None))  # nothing is known yet
        found = extract(two_ways(), [TorchBackend()], costs, clock, deadline_s)
    assert {s.member.label for s in found.plan.steps} == {"Exp", "Relu"}
    assert found.plan.steps and found.complete


def labels(plan: Plan) -> set[str]:
    return {step.member.label for step in plan.steps}


def test_without_any_time_cautious_estimates_choose(profile: Profile) -> None:
    clock, costs = Clock(), CostModel(TARGET, profile)
    found = extract(two_ways(), [TorchBackend()], costs, clock, -1.0)
    assert clock.rounds == []
    assert labels(found.plan) == {"Exp", "Relu"}
    assert (found.timed, found.estimated, found.complete) == (0, 2, False)


@pytest.mark.rotating
def test_without_any_time_the_originals_operators_have_a_plan() -> None:
    """After the deadline, only the original's operators get candidates, and only :meth:`plain`
    makes a plan, however large the e-graph is."""
    x = ref(0, (64, 64))
    classes: dict[ClassRef, list[Tensor]] = {x: [leaf(Input, 0, (64, 64))]}
    original, last = {}, x
    for number in range(1, 600):
        this = ref(number, (64, 64))
        classes[this] = [unary("Relu", last), unary("Exp", last)]
        original[this] = (unary("Relu", last),)
        last = this
    graph = replace(egraph(classes, last), original={x: tuple(classes[x]), **original})
    found = candidates(graph, [TorchBackend()], until=-1.0)
    assert {c.member.label for options in found.values() for c in options} == {"Relu"}
    with pytest.raises(OutOfTime):
        Selection(graph, found, until=-1.0).one_by_one(lambda kernel: 1.0)
    assert len(Selection(graph, found, until=-1.0).plain(lambda kernel: 1.0).steps) == 599


def test_an_operator_that_runs_in_another_form_only_is_waited_for(profile: Profile) -> None:
    x, a = ref(0, (8, 8)), ref(1, (8, 8))
    graph = egraph({x: [leaf(Input, 0, (8, 8))], a: [unary("Relu", x), unary("Exp", x)]}, a)
    graph = replace(graph, original={x: graph.classes[x], a: (unary("Exp", x),)})

    class NoExp(TorchBackend):
        def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> list[Kernel]:
            return [] if term.label == "Exp" else list(super().kernels(term, constants))

    found = extract(graph, [NoExp()], CostModel(TARGET, profile), Clock(), -1.0)
    assert labels(found.plan) == {"Relu"}


def test_a_measure_that_ran_out_of_time_leaves_no_failures(profile: Profile) -> None:
    """A kernel that wasn't measured before the deadline is estimated; one that failed is never
    chosen."""
    costs = CostModel(TARGET, profile)
    asked: list[Kernel] = []

    def measure(kernels: Sequence[Kernel], until: float) -> dict[Kernel, Timing | None]:
        asked.extend(kernels)
        time.sleep(max(0.0, until - time.monotonic()))
        return {kernels[0]: None}

    found = extract(two_ways(), [TorchBackend()], costs, measure, 1.0)
    assert found.timed == 1 and asked[0] not in found.plan.kernels()
    assert len(asked) > 1 and not any(costs.measured(kernel) for kernel in asked[1:])
    assert found.estimated > 0 and not found.complete


def test_an_optimistic_estimate_does_not_beat_a_time(profile: Profile) -> None:
    costs = CostModel(TARGET, profile)
    term = matmul()
    timed, other = kernel_of(term), kernel_of(term, "onednn.linear")
    costs.record({timed: timing(2 * costs.roofline_s(timed))})
    assert costs(other) < costs(timed) < costs.cautious(other) < float("inf")
    assert costs.cautious(timed) == costs(timed)
    assert costs.cautious(kernel_of(RELU, "tvm")) == float("inf")  # it may not even build
    for extent in (100, 110, 120):
        kernel = kernel_of(matmul(extent), "onednn.linear")
        costs.record({kernel: timing(1.5 * costs.roofline_s(kernel))})
    unknown = kernel_of(matmul(130), "onednn.linear")
    assert costs.cautious(unknown) == pytest.approx(1.5 * costs.roofline_s(unknown))


def test_time_for_building_is_left_over(profile: Profile) -> None:
    clock = Clock(Matmul=2.0, Exp=1.0)
    graph, costs = two_ways(), CostModel(TARGET, profile)
    found = extract(graph, [TorchBackend()], costs, clock, 60.0, reserve_s=lambda kernels: 61.0)
    assert clock.rounds == [] and labels(found.plan) == {"Exp", "Relu"}


def test_no_time_is_left_over_for_building_what_is_still_to_be_timed(profile: Profile) -> None:
    def reserve_s(kernels: Sequence[Kernel]) -> float:
        return 61.0 * len(kernels)

    clock, costs = Clock(Matmul=2.0, Exp=1.0), CostModel(TARGET, profile)
    extract(two_ways(), [TorchBackend()], costs, clock, 60.0, reserve_s)
    assert clock.rounds


def test_a_warm_profile_needs_no_time(profile: Profile) -> None:
    chosen(two_ways(), profile, Clock(Matmul=2.0, Exp=1.0))
    found = extract(two_ways(), [TorchBackend()], CostModel(TARGET, profile), Clock(), -1.0)
    assert found.complete and found.timed == 0


def test_flops_need_no_measuring(profile: Profile) -> None:
    clock = Clock()
    costs = CostModel(TARGET, profile, "flops")
    found = extract(two_ways(), [TorchBackend()], costs, clock, 0.0)
    assert clock.rounds == []
    assert {s.member.label for s in found.plan.steps} == {"Exp", "Relu"}


def test_an_output_that_nothing_runs_is_an_error(profile: Profile) -> None:
    with pytest.raises(ExtractionError) as caught:
        extract(two_ways(), [], CostModel(TARGET, profile), Clock(), 1.0)
    assert caught.value.where == "output 0"
    assert caught.value.got == "Relu(a): float32[64, 64], a: float32[64, 64]"


def test_what_was_considered_is_told(profile: Profile) -> None:
    graph = two_ways()
    found = extract(graph, [TorchBackend()], CostModel(TARGET, profile), Clock(), 60.0)
    every = {c.kernel for options in candidates(graph, [TorchBackend()]).values() for c in options}
    assert found.considered == len(every)
    assert 0 < found.timed <= len(every) + 2 * len(graph.classes)
    assert copy_kernel(ref(0).type, (0, 1), (1, 0)) == copy_kernel(ref(9).type, (0, 1), (1, 0))


def test_one_of_several_kernels_with_the_same_code_is_timed(profile: Profile) -> None:
    """Here the code depends on the extent's last digit."""

    def code_of(kernel: Kernel) -> int | None:
        return kernel.term.shape[0] % 10 or None

    costs = CostModel(TARGET, profile, code_of=code_of)
    one, same, other, unknown, unlike = (
        kernel_of(relu(n), "tvm") for n in (1001, 1011, 1002, 1000, 1010)
    )
    every = [one, same, other, unknown, unlike]
    assert costs.distinct(every) == [one, other, unknown, unlike]
    costs.record({one: timing(5e-5)})
    assert costs.measured(one) and not costs.measured(other) and not costs.measured(unknown)
    # Results of another size: they can't have the same code, whatever the key says.
    assert not costs.measured(same)
    wide = replace(same, term=one.term, inputs=one.inputs, constants=(True,))
    assert costs.measured(wide) and costs(wide) == costs.timed_only(wide) == 5e-5
    costs.record({wide: timing(7e-5)})
    assert costs(wide) == 7e-5 and costs(one) == 5e-5
    # A kernel that fails says nothing about the others.
    costs.record({other: None})
    again = replace(other, constants=(True,))
    assert costs(other) == float("inf") and not costs.measured(again)
    # Another search knows it from the profile.
    later = CostModel(TARGET, profile, code_of=code_of)
    later.load([one])
    assert later.measured(replace(one, constants=(True,)))
