"""Regions: parts of a plan that an engine runs as one program, if that is measured to be faster.

    conv -> relu -> [one value] -> matmul -> gelu      two spans, so three regions: each, and both

A plan is split into spans at values that are alone (``spans.py``). An engine is a backend that runs
a :class:`Region`, which may be one span or several in a row, with the terms that were chosen or
those of the original program. Regions are timed, and the cheapest sequence of regions and eqsynth's
own spans becomes the plan. Not here: engines (``lower/``), the choice among kernels of single
operators (``select.py``).
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, combinations

from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import unsaturated
from eqsynth.egraph.segments import Segment, stitch
from eqsynth.extract.candidates import copy_kernel
from eqsynth.extract.cost import CostModel
from eqsynth.extract.handing import CHOSEN, ORIGINAL, SIDES, Try, handed
from eqsynth.extract.kernel import Backend, Compiling, Kernel, Layout, contiguous
from eqsynth.extract.plan import Plan, PlanStep, State
from eqsynth.extract.search import NEGLIGIBLE, Extraction, Measure, OnEngine
from eqsynth.extract.spans import Span, Spans, spans
from eqsynth.extract.timing import Timing
from eqsynth.ir.program import Program
from eqsynth.ir.tensor import ClassRef, Input, Tensor
from eqsynth.ir.types import ITEMSIZE
from eqsynth.ir.work import bytes_moved, flops

LIGHT = 0.1
"""A range of spans that takes less than this part of the plan's time isn't tried by itself: an
engine takes seconds to compile it, and could save no more than this part."""

CLEAR = 1.5
"""If the plan's own kernels and the engine differ by more than this factor on a range of spans, one
of them is better throughout, so the range isn't split further. If a slow engine, by what it takes
for the original, can't come this near to the best program, it gets no sample of the chosen one."""

NEAR = 1.1
"""A factor within which two times count as nearly equal. If an engine takes longer for the chosen
terms of a range than for the original's, or the reverse, by more than this factor, the slower form
isn't tried on parts of the range."""

APART = 3.0
"""Times of whole programs that were measured one after another only tell which is faster if they
differ by more than this factor. (OpenVINO on GPT-2 of 4 layers took 2.5 and 5.7 ms in two runs
within a minute.)"""

SAMPLE = 0.25
"""The largest part of the plan's time that a slow engine compiles first, as a sample. The engine
gets the whole program if it saves the part `LIGHT` of the sample's time. (resnet18, tiled: the
whole chosen program is 28 kernels for Inductor and takes 33 to 46 s of CPU to compile, a quarter of
it 14 to 20 s. In another run the whole took 43 of 93 s and lost by 15.2 to 20.2 ms. BERT of 64
tokens: a sample at 0.86 of the plan's time, then the whole at 0.85.)"""

LONG_S = 2e-4
"""A span that repeats can be the sample if it takes at least so many seconds: the call of an engine
takes about a tenth of that."""

CONTRACTING = 16
"""A step with at least so many floating-point operations for each element that it moves is a
contraction. (A depthwise 3x3 convolution has 9; the tiles of a 3x3 convolution, 28 rows by a weight
of 256 by 256, have 46.)"""

FEW = 12
"""A plan of up to so many steps is given to slow engines as a whole at once, without a sample."""

RIVAL = 1.25
"""If an engine takes at most this factor more for the whole program than the chosen plan is
expected to, both are raced as programs. The plan's kernels and the engine were timed minutes apart,
and the speed of a shared machine changes meanwhile. (A block of a U-Net, two searches: 1.14 and
2.09 ms on ONNX Runtime; the chosen plans were expected to take 1.10 and 1.50, and took 1.83 and
1.74.)"""

COMPILE_S = 5.0
"""About the seconds that an engine takes to compile a region."""

SOON = 0.05
"""The largest part of the time that is left for timing the original on engines before any kernel is
timed."""

CALLS = 6
"""About the number of calls that timing a slow program takes (``timing.time_one``)."""


def first_asked(
    program: Program, segments: Sequence[Segment], engines: Sequence[Backend], within_s: float
) -> tuple[EGraph, list[PlanStep]]:
    """Return the e-graph of the original, and the regions that ``with_engines`` will try first: the
    whole original, on each engine. They are known before anything is searched, so that engines can
    compile them during saturation; a slow engine is the last, as it may use up the time (Inductor
    all of 30 s for Whisper). There are no regions if ``within_s`` is less than compiling may take.
    """
    graph = stitch(program, segments, [unsaturated(s.roots, "not searched yet") for s in segments])
    inputs = {
        member.name: (ref, contiguous(len(ref.shape)))
        for ref, members in graph.original.items()
        for member in members
        if isinstance(member, Input)
    }
    roots = tuple((root, contiguous(len(root.shape))) for root in dict.fromkeys(graph.roots))
    results = tuple(s for s in roots if not s[0].constant and s not in inputs.values())
    plan, span = Plan((), inputs, roots, 0.0), Span(0, 0, results)
    if within_s < 2 * COMPILE_S or not results:
        return graph, []
    order = sorted(engines, key=is_slow)
    return graph, [step for e in order for step in handed(graph, plan, span, (e, ORIGINAL))]


def timed_soon(
    first: Sequence[Kernel], calls_s: Mapping[Kernel, float], left_s: float
) -> list[Kernel]:
    """The kernels of ``first_asked`` that are timed before any other kernel, since that takes next
    to nothing: a twentieth of the time that is left, for all of them together.

    Sliding-window attention by a gather took engines 1 to 6 s a call on a busy machine. Timing them
    took all of 100 s, no other kernel was timed, and the original of 2.4 s a call stayed, where
    eqsynth's own kernels take 0.015 s.

    Args:
        calls_s: about how long a call takes; kernels that aren't in it are not ready.
    """
    most_s = SOON * left_s / (CALLS * max(len(first), 1))
    return [kernel for kernel in first if calls_s.get(kernel, math.inf) <= most_s]


def reserved_s(left_s: float, builds_s: Sequence[float]) -> float:
    """The seconds of the remaining time to reserve for engines: for compiling the chosen program
    twice, to time it and to use it, and some parts of it. It is at most half of the remaining time.
    It is 0 if no engine is ready, or if that is too short for an engine to get ready, since kernels
    can be timed instead. (Swin of 2 layers in 60 s, Inductor not ready after 20 s: 2.6 ms with time
    reserved for it all the same, 0.9 without engines.)

    Args:
        builds_s: for each engine that is ready with the original, the seconds that it took.
    """
    needed_s = min(left_s / 2, max(2 * COMPILE_S, 3 * sum(builds_s)))
    return needed_s if builds_s and needed_s >= 2 * COMPILE_S else 0.0


def with_engines(
    graph: EGraph,
    found: Extraction,
    engines: Sequence[Backend],
    costs: CostModel,
    measure: Measure,
    deadline_s: float,
    tell: Callable[[Sequence[PlanStep], bool], None] = lambda _steps, _whole: None,
    in_turns: Callable[[Sequence[Kernel], float], Mapping[Kernel, Timing]] = lambda _k, _until: {},
    compiled_s: float = math.inf,
) -> Extraction:
    """Return the extraction, with regions on engines where these were measured to be faster.

    First the whole program is tried, then its halves unless one side is clearly faster, then their
    halves, as long as the last step gained at least a hundredth: an engine takes seconds to compile
    each. A slow engine first gets a sample of the chosen program, and the whole only if it saves
    enough of the sample's time (`SAMPLE`) and was ready with it in time: within `compiled_s`, but
    at least twice `COMPILE_S`. A region is timed as a whole, so it is compared with the time of the
    plan's own kernels as a program (``Extraction.together``). No compilation is begun in the last
    half of ``deadline_s``, nor if less time is left than one takes. At the deadline the
    measurements so far decide.

    Args:
        tell: called with steps before their kernels are measured, and with whether each is the
            whole program.
        in_turns: measures whole programs in turns, after they were measured one after another.
        compiled_s: seconds that all engines together took to compile the original. A slow engine
            that wasn't ready by then gets neither the original nor parts of it in less time.
    """
    end = time.monotonic() + deadline_s
    begin_until = time.monotonic() + min(deadline_s / 2, deadline_s - COMPILE_S)
    parted = spans(found.plan)
    plan, parts = parted.plan, parted.parts
    if costs.objective != "time" or not parts or not engines:
        return found
    choices: dict[tuple[int, int], tuple[float, PlanStep]] = {}
    by: dict[tuple[int, int], OnEngine] = {}
    timed, ended = 0, found.ended
    weights = [_own_s(plan, part, found.together) for part in parts]
    total_s = sum(weights)
    every = _tries(engines)
    late = [tried for tried in every if tried[1] == CHOSEN and is_slow(tried[0])]
    if late and time.monotonic() < begin_until:
        all_ = parted.joined(0, len(parts))
        as_a_whole = {t: step for t in every for step in handed(graph, plan, all_, t)}
        never = [
            t for t, step in as_a_whole.items()
            if t[1] == ORIGINAL and is_slow(t[0])
            and _cannot_be_ready(step.kernel, costs, end, compiled_s)
        ]  # fmt: skip
        ended = ended and not never
        every = tuple(tried for tried in every if tried not in never)
        as_a_whole = {tried: step for tried, step in as_a_whole.items() if tried not in never}
        others = [step for tried, step in as_a_whole.items() if tried not in late]
        tell(others, True)
        timed += _time([step.kernel for step in others], costs, measure, end)
        best_s = min([total_s, *(_placed(step, plan, all_, costs).cost_s for step in others)])
        # What the chosen terms gain with the plan's own kernels; 0 if that is unknown.
        own = found.plain_s / found.plan.cost_s if found.plan.cost_s else 0.0
        worth = _is_worth_compiling(plan, found.together, best_s)
        hopeless = [
            tried for tried in late
            if _promised_s(tried[0], as_a_whole, own, costs) > CLEAR * best_s
            or not worth and _original_s(tried[0], as_a_whole, costs) > NEAR * best_s
        ]  # fmt: skip
        every = tuple(tried for tried in every if tried not in hopeless)
        samples = _samples(graph, parted, every, weights, costs)
        tell([step for step, _ in samples.values()], False)
        for tried, (step, own_s) in samples.items():
            if time.monotonic() < begin_until:
                until = time.monotonic() + max(2 * COMPILE_S, compiled_s)
                timed += _time([step.kernel], costs, measure, min(end, until))
            not_ready = not costs.measured(step.kernel) or step.kernel in costs.overdue
            sample_s = costs.timed_only(step.kernel)
            if not_ready or (1 - LIGHT) * best_s / total_s < sample_s / own_s < math.inf:
                every = tuple(t for t in every if t != tried)
    level: list[tuple[int, int, tuple[Try, ...]]] = [(0, len(parts), every)]
    while level:
        halves: list[tuple[int, int, tuple[Try, ...]]] = []
        refused: list[tuple[int, int, tuple[Try, ...]]] = []
        for first, last, tries in level:
            span = parted.joined(first, last)
            ways = [(tried, step) for tried in tries for step in handed(graph, plan, span, tried)]
            if time.monotonic() >= begin_until:
                ended = False
                ways = [way for way in ways if costs.measured(way[1].kernel)]
                if not ways:
                    break
            tell([step for _, step in ways], (first, last) == (0, len(parts)))
            kernels = [step.kernel for _, step in ways]
            timed += _time(kernels, costs, measure, end)
            if (first, last) == (0, len(parts)):
                leading = _leading(kernels, costs, end - time.monotonic())
                costs.record(_at_best(in_turns(leading, end) if len(leading) > 1 else {}, costs))
            ended = ended and all(map(costs.measured, kernels))
            placed = {tried: _placed(step, plan, span, costs) for tried, step in ways}
            took = {t: s.cost_s for t, s in placed.items() if s.cost_s < math.inf}
            # An engine that can't run the whole range may run parts of it.
            without = tuple(tried for tried in tries if tried not in took)
            own_s = sum(weights[first:last])
            # The span of the shared values is too light to be a half.
            halved = _halves(first + (first == 0 and bool(parted.shared)), last, weights)
            again: dict[tuple[int, int], tuple[Try, ...]] = {}
            if took:
                best = min(took, key=lambda tried: (took[tried], tried[1]))
                if took[best] < choices.get((first, last), (math.inf,))[0]:
                    choices[first, last] = (took[best], placed[best])
                    by[first, last] = OnEngine(len(parts), first, last, best[0].name, best[1])
                # If the other half is too light, the heavy one is nearly the whole range again: it
                # isn't tried.
                if 1 / CLEAR < own_s / took[best] < CLEAR and len(halved) == 2:
                    again = dict.fromkeys(halved, _near(took))
            offered = {tried for tried, _ in ways}
            for tried in without:
                takes = partial(_is_taken, graph, parted, tried)
                trimmed = () if tried in offered else _trimmed(first, last, weights, takes)
                for part in trimmed or halved:
                    again[part] = (*again.get(part, ()), tried)
                    refused.append((*part, (tried,)))
            halves += [(*part, tries) for part, tries in again.items()]
        before_s, (total_s, way) = total_s, _cheapest(parted, choices, weights)
        whole = level[0][:2] == (0, len(parts))
        level = halves if whole or total_s <= (1 - NEGLIGIBLE) * before_s else refused
    ended = ended and not costs.overdue
    joined = _joined(found.plan, plan, total_s, way)
    chosen = [step for _, step in way if step is not None]
    regions = tuple(by[at] for at, (_, step) in choices.items() if any(step is s for s in chosen))
    result = replace(found, plan=joined, timed=found.timed + timed, ended=ended, regions=regions)
    entire = choices.get((0, len(parts)))
    if entire is None or entire[1] in chosen or entire[0] > RIVAL * total_s:
        return result
    on_engine = by[0, len(parts)]
    slow = any(is_slow(engine) for engine in engines if engine.name == on_engine.engine)
    if slow and time.monotonic() + 2 * COMPILE_S > end:
        return result
    alone = _joined(found.plan, plan, entire[0], [(parted.joined(0, len(parts)), entire[1])])
    return replace(result, rival=replace(result, plan=alone, regions=(on_engine,)))


def on_engines(
    graph: EGraph, found: Extraction, regions: Sequence[OnEngine], engines: Sequence[Backend]
) -> Extraction | None:
    """Return the extraction with these regions on engines, untimed. Return None if its plan is
    split into other parts, or an engine doesn't take a region."""
    parted, by_name = spans(found.plan), {engine.name: engine for engine in engines}
    plan, parts = parted.plan, parted.parts
    way: _Way = []
    begin = 0
    for region in sorted(regions, key=lambda region: region.first):
        engine = by_name.get(region.engine)
        if engine is None or region.parts != len(parts) or region.first < begin:
            return None
        span = parted.joined(region.first, region.last)
        step = next(handed(graph, plan, span, (engine, region.side)), None)
        if step is None:
            return None
        way += [*((part, None) for part in parts[begin : region.first]), (span, step)]
        begin = region.last
    way += [(part, None) for part in parts[begin:]]
    return replace(found, plan=_joined(found.plan, plan, plan.cost_s, way), regions=tuple(regions))


def _tries(engines: Sequence[Backend]) -> tuple[Try, ...]:
    """Each engine with each form of the terms. Engines that compile fast come first, and for each
    of them the original's terms. (Swin of 4 stages: Inductor and ONNX Runtime took 29 s to compile,
    so OpenVINO, which needs two, wasn't tried at all.)"""
    tries = [(engine, side) for side in (ORIGINAL, CHOSEN) for engine in engines]
    return tuple(sorted(tries, key=lambda tried: is_slow(tried[0])))


def is_slow(engine: Backend) -> bool:
    """Whether an engine takes about a second for each kernel that it compiles."""
    return isinstance(engine, Compiling) and engine.slow


def _samples(
    graph: EGraph,
    parted: Spans,
    tries: Sequence[Try],
    weights: Sequence[float],
    costs: CostModel,
) -> dict[Try, tuple[PlanStep, float]]:
    """For each slow engine, a sample with the chosen terms, as one step, and the seconds of the
    plan's own kernels for it. There is no sample if the whole compiles fast or was measured before:
    a plan of few steps, or the terms of the original."""
    own_s, first, last = _sample(parted, weights)
    plan, found = parted.plan, dict[Try, tuple[PlanStep, float]]()
    if len(plan.steps) <= FEW or first == last:
        return found
    whole, part = parted.joined(0, len(parted.parts)), parted.joined(first, last)
    for engine, side in tries:
        if side != CHOSEN or not is_slow(engine):
            continue
        ways = (handed(graph, plan, whole, (engine, own)) for own in SIDES)
        chosen, original = ({step.kernel for step in way} for way in ways)
        costs.load([*chosen])
        if not chosen <= original and not all(map(costs.measured, chosen)):
            for step in handed(graph, plan, part, (engine, side)):
                found[engine, side] = step, own_s
    return found


def _sample(parted: Spans, weights: Sequence[float]) -> tuple[float, int, int]:
    """Return the seconds, the first part and the last part of the lightest range of spans that can
    stand for the plan: it is from `LIGHT` to `SAMPLE` of the plan, or it is one span whose equals
    together are at least `SAMPLE` of it. Return zeros if there is none.

    BERT: with 2 layers the sample is one of 4 spans. With 12 layers 3 of 24 spans would be a tenth
    of the plan, and one of 12 equal spans says as much.
    """
    ends, total_s = [0.0, *accumulate(weights)], sum(weights)
    ranges = ((ends[b] - ends[a], a, b) for a, b in combinations(range(len(ends)), 2))
    fit = [r for r in ranges if LIGHT * total_s <= r[0] <= SAMPLE * total_s]
    steps = parted.plan.steps
    kernels = [tuple(s.kernel for s in steps[part.first : part.last]) for part in parted.parts]
    equal_s = defaultdict[tuple[Kernel, ...], float](float)
    for key, own_s in zip(kernels, weights, strict=True):
        equal_s[key] += own_s
    fit += [
        (own_s, at, at + 1)
        for at, (key, own_s) in enumerate(zip(kernels, weights, strict=True))
        if own_s >= LONG_S and own_s < SAMPLE * total_s <= equal_s[key]
    ]
    return min(fit, default=(0.0, 0, 0))


def _cannot_be_ready(kernel: Kernel, costs: CostModel, end: float, compiled_s: float) -> bool:
    """Whether an engine wasn't ready with a program in the seconds that it had during saturation,
    and has fewer seconds now. (BERT of 12 layers on a slow machine: Inductor had 30 s for the
    original, was asked again, and took 8 to 12 more of 80 s, in vain.)"""
    costs.load([kernel])
    return not costs.measured(kernel) and end - time.monotonic() < compiled_s < math.inf


def _is_worth_compiling(plan: Plan, together: float, best_s: float) -> bool:
    """Whether a slow engine may gain something with the chosen terms. For contractions it calls the
    libraries that the plan's kernels were timed beside, so it could save time on the other steps
    only: a half of it, at a guess. That has to be more than what is too `LIGHT` for an engine.

    CSRNet: 85% of 19 ms are products of tiles. Inductor takes 36 ms for the original, and compiling
    the chosen terms, which lost, took 20 of the 38 s of ``optimize``.

    Args:
        together: ``Extraction.together``, the plan's time over the sum of its steps' times.
        best_s: seconds of the fastest program so far.
    """
    contracting_s = sum(step.cost_s for step in plan.steps if _contracts(step.kernel.term))
    return together * contracting_s < (1 - 2 * LIGHT) * best_s


def _contracts(term: Tensor) -> bool:
    return flops(term) * ITEMSIZE[term.dtype] >= CONTRACTING * bytes_moved(term)


def _original_s(engine: Backend, whole: Mapping[Try, PlanStep], costs: CostModel) -> float:
    """The seconds that an engine takes for the original; infinite if it hasn't run it."""
    step = whole.get((engine, ORIGINAL))
    return math.inf if step is None else costs.timed_only(step.kernel)


def _promised_s(
    engine: Backend, whole: Mapping[Try, PlanStep], own: float, costs: CostModel
) -> float:
    """About the least seconds that an engine may take for the whole chosen program: its seconds for
    the original, divided by what the chosen terms gain at most elsewhere: with the plan's own
    kernels, on another engine that has run both forms, or in floating-point operations. It is 0 if
    the gain with own kernels isn't known, if the engine hasn't run the original, or if it doesn't
    take the chosen terms.

    LSTM of 10 steps: Inductor takes 8.4 ms for the original, and the chosen terms are 4.3 times as
    fast as the original's with own kernels, so 2 ms are promised, while OpenVINO takes 0.44 ms.
    NasRNN: 9 ms by 5.6 are 1.6 ms, as much as own kernels take, so Inductor is asked (0.9 ms).

    Args:
        whole: the whole program as one step, for each engine and form.
        own: the gain with own kernels.
    """
    took: dict[Try, float] = {t: costs.timed_only(step.kernel) for t, step in whole.items()}
    others = {e for e, _ in took if e is not engine}
    both = [(took.get((e, ORIGINAL), math.inf), took.get((e, CHOSEN), math.inf)) for e in others]
    gains = [before_s / after_s for before_s, after_s in both if max(before_s, after_s) < math.inf]
    original_s = _original_s(engine, whole, costs)
    if not own or original_s == math.inf or (engine, CHOSEN) not in whole:
        return 0.0
    before, after = (flops(whole[engine, side].member) for side in (ORIGINAL, CHOSEN))
    return original_s / max(1.0, own, before / max(after, 1), *gains)


def _time(kernels: Sequence[Kernel], costs: CostModel, measure: Measure, until: float) -> int:
    """Measure each kernel that has no measured time yet; return how many were measured."""
    costs.load(kernels)
    timed = 0
    for kernel in dict.fromkeys(kernels):
        if not costs.measured(kernel):
            times = measure([kernel], until)
            costs.record(times)
            timed += len(times)
    return timed


def _leading(kernels: Sequence[Kernel], costs: CostModel, left_s: float) -> list[Kernel]:
    """The kernels that may be the fastest, by times that were measured one after another. Empty if
    timing them in turns (three turns each, of at least two calls) would take more than half of the
    time that is left."""
    took = {kernel: costs.timed_only(kernel) for kernel in dict.fromkeys(kernels)}
    least_s = min(took.values(), default=0.0)
    near = [kernel for kernel, s in took.items() if s <= APART * least_s and s < math.inf]
    return near if 6 * sum(took[kernel] for kernel in near) < left_s / 2 else []


def _at_best(turns: Mapping[Kernel, Timing], costs: CostModel) -> dict[Kernel, Timing]:
    """Scale times that were measured in turns by one factor: the least ratio of a kernel's earlier
    time, measured in a row, to its time in turns. A turn begins with sleeping threads, so times in
    turns are too long in comparison with those of the plan's own kernels, which were measured in a
    row."""
    pace = min((costs.timed_only(k) / t.q1_s for k, t in turns.items()), default=1.0)
    return {
        k: replace(t, median_s=pace * t.median_s, q1_s=pace * t.q1_s, q3_s=pace * t.q3_s)
        for k, t in turns.items()
    }


def _placed(step: PlanStep, plan: Plan, span: Span, costs: CostModel) -> PlanStep:
    """Return the step with its cost in the plan: its own time, and the conversions of layouts at
    its borders."""
    cost_s = costs.timed_only(step.kernel) + _conversions_s(plan, span, step, costs)
    return replace(step, cost_s=cost_s)


def _near(took: Mapping[Try, float]) -> tuple[Try, ...]:
    """The engines and forms to try on the parts of a range: for each engine the forms that were
    nearly its best one, unless the engine was far slower than the best engine."""
    best: dict[str, float] = {}
    for (engine, _), cost_s in took.items():
        best[engine.name] = min(cost_s, best.get(engine.name, cost_s))
    far_s = CLEAR * min(best.values())
    return tuple(t for t, s in took.items() if s <= min(NEAR * best[t[0].name], far_s))


def _own_s(plan: Plan, part: Span, together: float) -> float:
    return together * sum(step.cost_s for step in plan.steps[part.first : part.last])


def _halves(first: int, last: int, weights: Sequence[float]) -> list[tuple[int, int]]:
    """The two halves, by weight, of a range of spans, without a half that is too light."""
    if last - first < 2:
        return []
    own, middle = sum(weights[first:last]), first + 1
    while middle < last - 1 and sum(weights[first:middle]) < own / 2:
        middle += 1
    least = LIGHT * sum(weights)
    return [(a, b) for a, b in ((first, middle), (middle, last)) if sum(weights[a:b]) >= least]


def _trimmed(
    first: int, last: int, weights: Sequence[float], takes: Callable[[int, int], bool]
) -> list[tuple[int, int]]:
    """A range of spans without the spans at one of its ends that the engine refuses, if these are
    light."""
    within = range(first + 1, last)
    begin = bisect_left(within, True, key=lambda k: takes(k, last)) + first + 1
    end = last - 1 - bisect_left(within, True, key=lambda k: takes(first, last + first - k))
    least = (1 - LIGHT) * sum(weights[first:last])
    ends = ((begin, last), (first, end))
    return [(a, b) for a, b in ends if a < b and sum(weights[a:b]) >= least][:1]


def _is_taken(graph: EGraph, parted: Spans, tried: Try, first: int, last: int) -> bool:
    return any(True for _ in handed(graph, parted.plan, parted.joined(first, last), tried))


def _conversions_s(plan: Plan, span: Span, step: PlanStep, costs: CostModel) -> float:
    """The seconds for converting the region's arguments and results to and from the layouts around
    it."""
    before = _layouts(plan.steps[: span.first], plan)
    total = 0.0
    for ref, layout in step.args:
        if layout not in before[ref]:
            total += costs(copy_kernel(ref.type, before[ref][0], layout))
    for ref, wanted in span.results:
        layout = contiguous(len(wanted))
        if wanted != layout:
            total += costs(copy_kernel(ref.type, layout, wanted))
    return total


def _layouts(steps: Sequence[PlanStep], plan: Plan) -> dict[ClassRef, list[Layout]]:
    """The layouts in which each class has been computed after some steps."""
    found: dict[ClassRef, list[Layout]] = {}
    states = [*plan.inputs.values(), *(s for step in steps for s in (step.result, *step.also))]
    for ref, layout in states:
        found.setdefault(ref, []).append(layout)
    return found


_Way = list[tuple[Span, PlanStep | None]]


def _cheapest(
    parted: Spans,
    choices: Mapping[tuple[int, int], tuple[float, PlanStep]],
    weights: Sequence[float],
) -> tuple[float, _Way]:
    """The cheapest sequence that covers all spans: each span is run by the plan's own kernels, at
    its weight, or is part of a region."""
    best: list[tuple[float, _Way]] = [(0.0, [])]
    for last, part in enumerate(parted.parts, 1):
        ways = [(best[last - 1][0] + weights[last - 1], [*best[last - 1][1], (part, None)])]
        for (first, end), (cost_s, step) in choices.items():
            if end == last:
                way = [*best[first][1], (parted.joined(first, last), step)]
                ways.append((best[first][0] + cost_s, way))
        best.append(min(ways, key=lambda way: way[0]))
    return best[-1]


def _joined(found: Plan, plan: Plan, total_s: float, way: _Way) -> Plan:
    """Return the plan with regions in place of their spans; ``found`` if there are no regions."""
    if all(step is None for _, step in way):
        return found
    steps: list[PlanStep] = []
    for span, region in way:
        if region is None:
            steps += plan.steps[span.first : span.last]
            continue
        steps += _converted(steps, plan, region.args)
        steps.append(region)
        steps += _converted(steps, plan, span.results)
    return replace(plan, steps=tuple(_needed(steps, plan)), cost_s=total_s)


def _converted(steps: Sequence[PlanStep], plan: Plan, wanted: Sequence[State]) -> list[PlanStep]:
    """Copies into the layouts that are wanted and that no step has computed."""
    at_hand = _layouts(steps, plan)
    copies = []
    for ref, layout in wanted:
        if layout not in at_hand[ref]:
            source = at_hand[ref][0]
            kernel = copy_kernel(ref.type, source, layout)
            copies.append(PlanStep(kernel, ref, ((ref, source),), {}, (ref, layout), 0.0))
    return copies


def _needed(steps: Sequence[PlanStep], plan: Plan) -> list[PlanStep]:
    """The steps whose results are read. A copy for a span that a region has replaced may not be."""
    wanted, kept = set(plan.outputs), []
    for step in reversed(steps):
        if wanted.intersection((step.result, *step.also)):
            wanted.update(step.args)
            kept.append(step)
    return kept[::-1]
