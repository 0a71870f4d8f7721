"""The search of one optimization: from the program to its e-graph, and to the plan extracted from
it.

With ``optimize(like=…)`` the route of a plan for other sizes is followed first
(``extract/route.py``); nothing is searched if that leads to a plan. Not here: lowering, checking
and racing the plan (``running.py``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from eqsynth import telling
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.segments import Segment
from eqsynth.errors import EqsynthError
from eqsynth.executor import MAX_IDLE
from eqsynth.extract import chosen
from eqsynth.extract.cost import CostModel
from eqsynth.extract.disturbance import is_quiet
from eqsynth.extract.in_place import InPlace
from eqsynth.extract.kernel import Backend, Kernel
from eqsynth.extract.losing import NOTHING, Without
from eqsynth.extract.memory import Bound
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.profile import Profile
from eqsynth.extract.regions import first_asked, is_slow, reserved_s, timed_soon, with_engines
from eqsynth.extract.route import Route, follow
from eqsynth.extract.search import Extraction, Rival, extract
from eqsynth.frontend.captured import Captured
from eqsynth.garbage import collecting_seldom
from eqsynth.lower.assemble import build_s
from eqsynth.lower.backends import backends_of
from eqsynth.lower.backends import engines as engines_of
from eqsynth.lower.measurer import Measurer
from eqsynth.lower.same_code import code_of
from eqsynth.lower.tvm_backend import found_by_tuning
from eqsynth.lowered import small_constants
from eqsynth.original import Original
from eqsynth.progress import Progress
from eqsynth.report import Report
from eqsynth.rules import RuleSet
from eqsynth.segmented import Saturation
from eqsynth.settings import Settings

LOADING_S: Final = 1.0
"""With a time limit of so few seconds or less no worker is started for measuring, since it couldn't
load its libraries in time."""


SATURATING: Final = {"time": 1 / 3, "flops": 1 / 2}
"""For each objective, the largest part of the time for saturation. The rest is for extraction,
which measures kernels if time counts. (Two layers on images of 64 pixels in 60 s, a half and a
third: Segformer 3.1 and 1.8 ms, DETR 1.43 and 1.15, Swin 1.08 and 1.22.)"""


Settle = Callable[[Extraction, Extraction | None, bool], None]


@dataclass(frozen=True)
class Searched:
    """The result of a search.

    Attributes:
        graph: the e-graph of the whole program.
        own, found: the plan of eqsynth's own kernels, and the plan with regions on engines.
        settle: a function to call with the plan of eqsynth's own kernels, the plan that is used
            (both tuned, if they were), and whether the latter was faster than the original; it
            stores the choice for later searches. If an engine was wrong it is called with None for
            the plan that is used, and deletes a stored choice.
        route: the route of the plan.
    """

    graph: EGraph
    own: Extraction
    found: Extraction
    route: Route
    settle: Settle = lambda _own, _used, _won: None


@dataclass
class Search:
    """The stages of a search; they fill the report.

    Attributes:
        end: the monotonic clock at which the search has to be over.
        run: builds a plan's program and times it, and its kernels as steps of it.
        needs: returns the bytes that a plan's program needs.
        segments: the segments of the program, once they are saturated.
        first: the whole original, as one kernel on each engine that compiles it during saturation.
        builds_s: for each engine that may be ready with a part of the program in time, the seconds
            in which it compiled the original during saturation; 0 if it wasn't asked to.
        graphs: the e-graphs of the segments, by the segments' keys.
    """

    captured: Captured
    original: Original
    settings: Settings
    rules: RuleSet
    report: Report
    bar: Progress
    measurer: Measurer
    end: float
    run: Callable[[EGraph, Plan, float], InPlace | None]
    needs: Callable[[EGraph, Plan], float]
    segments: list[Segment] = field(default_factory=list)
    first: Sequence[Kernel] = ()
    builds_s: Sequence[float] = ()
    graphs: Mapping[bytes, EGraph] = field(default_factory=dict)

    def follow(self, route: Route) -> Searched | None:
        """Return the plan that a route leads to; None if it can't be followed for these sizes."""
        graph = self._saturated(self.rules.only(route.rules), lambda _segments: self._processors())
        target = self.original.target
        backends = backends_of(target, self.captured.opaque)
        with closing(Profile(target.key())) as profile:
            costs = CostModel(
                target, profile, self.settings.objective, self.measurer.far, code_of
            )
            engines = self._engines()
            limit_bytes = self.settings.value_bytes
            plans = follow(route, graph, backends, engines, costs, limit_bytes)
        bound = self._bound(graph)
        if plans is None or not (bound is None or bound.keeps(plans[1].plan)):
            telling.not_followed()
            self.report.unlike = True
            return None
        self.report.followed = True
        self._told(*plans, remembered=False)
        return Searched(graph, *plans, route)

    def saturate(self) -> EGraph:
        """Return the e-graph of the whole program. While the worker saturates, engines compile the
        original for timing."""
        settings, measurer = self.settings, self.measurer
        timing = settings.objective == "time" and settings.time_limit_s > LOADING_S
        # Kernels can't be measured while the measurer's worker compiles for the engines. So these
        # compilations may take a quarter of the time limit at most.
        begin_s = settings.time_limit_s / 4
        engines = self._engines()

        def prepare(segments: Sequence[Segment]) -> int:
            # Called only if an e-graph is missing from the cache: if none is, the profile mostly
            # has the engines' times, too.
            if timing:
                plain, first = first_asked(self.captured.program, segments, engines, begin_s)
                self._tell(plain, first, True)
                self.first = [step.kernel for step in first]
                measurer.prepare(self.first, begin_s)
            return max(1, self._processors() - bool(self.first))

        return self._saturated(self.rules, prepare)

    def _processors(self) -> int:
        """The number of segments that may be saturated at a time."""
        return max(1, min(MAX_IDLE, self.original.target.threads))

    def _saturated(self, rules: RuleSet, missed: Callable[[Sequence[Segment]], int]) -> EGraph:
        """Saturate the program's segments within a part of the time that is left (`SATURATING`),
        and record the figures."""
        now = time.monotonic()
        end = now + SATURATING[self.settings.objective] * max(0.0, self.end - now)
        saturation = Saturation(self.captured.program, self.settings, rules, self.bar, end, missed)
        try:
            graph = saturation.run()
        finally:
            self.report.certified = saturation.certified
            if saturation.certified is not None:
                self.end += saturation.certified.seconds
        self.segments, self.graphs = saturation.segments, saturation.graphs
        report = self.report
        report.remembered_segments = saturation.remembered
        report.segments, report.distinct_segments = len(self.segments), saturation.distinct
        report.enodes, report.eclasses, report.stop = graph.enodes, graph.eclasses, graph.stop
        report.rules_fired, report.over_budget = graph.matches, graph.over_budget
        report.law_faults, report.growth = graph.faults, graph.growth
        telling.found(graph, report)
        return graph

    def _tell(self, graph: EGraph, steps: Sequence[PlanStep], whole: bool) -> None:
        """Tell the measurer which steps are the whole program, and the values of the steps' small
        constants. If the constants can't be evaluated, the steps can't be built either, and the
        code that builds them reports it."""
        self.measurer.alone.update(step.kernel for step in steps if whole)
        with suppress(EqsynthError, RuntimeError):
            self.measurer.known |= small_constants(self.captured, graph, steps)

    def _engines(self) -> Sequence[Backend]:
        """The engines that may run a part of the program. None if its memory is bounded, since
        engines don't say how much they need."""
        if self.settings.bounded:
            return ()
        return engines_of(self.settings.engines, self.captured.opaque)

    def _bound(self, graph: EGraph) -> Bound | None:
        """The bound on the memory of programs, or None."""
        if not self.settings.bounded:
            return None
        return Bound(self.settings.peak_memory, partial(self.needs, graph))

    def _left_s(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def extract(self, graph: EGraph, without: Without = NOTHING) -> Searched:
        """Extract the plan of least time, or of fewest FLOPs.

        Args:
            without: what the plan does without. A plan that an earlier search has stored isn't used
                then.
        """
        target, settings, measurer = self.original.target, self.settings, self.measurer
        settle: Settle = Searched.settle
        # Extraction makes about as many objects as the e-graph has, and hardly any garbage, so
        # garbage collection is made rare.
        with closing(Profile(target.key())) as profile, collecting_seldom():
            if settings.objective == "time":
                profile.retry_disturbed(partial(is_quiet, target.threads))
            costs = CostModel(target, profile, settings.objective, measurer.far, code_of)
            backends = backends_of(target, self.captured.opaque)
            tried = self._engines()
            path = chosen.path_of(graph, costs, tried, settings.peak_memory)
            timing = settings.objective == "time"
            limit_s = settings.time_limit_s
            recalled = None
            if timing and not without:
                recalled = chosen.recall(path, graph, costs, tried, limit_s, found_by_tuning)
            if recalled is not None:
                own, found = recalled.own, recalled.found
            else:
                own = extract(
                    graph, backends, costs, measurer, self._left_s(),
                    reserve_s=partial(build_s, in_worker=True),
                    limit_bytes=settings.value_bytes,
                    run=partial(self.run, graph) if timing else None,
                    bound=self._bound(graph),
                    rival=partial(self._rival, tried, costs) if timing else Rival,
                    without=without,
                )  # fmt: skip
                # The seconds for compiling the chosen regions and kernels once more, in this
                # process.
                again_s = max(self.builds_s, default=0.0) + build_s(own.plan.kernels())
                found = with_engines(
                    graph, own, tried, costs, measurer, max(0.0, self._left_s() - again_s),
                    partial(self._tell, graph), measurer.in_turns, measurer.preparing_s(),
                )  # fmt: skip
            if timing:
                told = recalled or chosen.Chosen(own, found, costs.relied_on(), limit_s)
                settle = partial(self._settle, path, told)
            costs.load(own.plan.kernels())
            route = Route.of(own, found, costs, graph)
        self._told(own, found, recalled is not None)
        return Searched(graph, own, found, route, settle)

    def _settle(
        self,
        path: Path,
        told: chosen.Chosen,
        own: Extraction,
        used: Extraction | None,
        won: bool,
    ) -> None:
        """Store what was chosen, for later searches; after tuning with the plan that won, and with
        the times that tuning has measured."""
        if self.report.tuned:
            target = self.original.target
            with closing(Profile(target.key())) as profile:
                costs = CostModel(target, profile, far=self.measurer.far)
                costs.load(own.plan.kernels())
                times = profile.lower_quartiles(told.times) | costs.relied_on()
            told = replace(told, own=own, times=times)
        told = replace(told, tuned=chosen.tuned_of(own.plan, found_by_tuning))
        chosen.settle(path, told, used, won)

    def _rival(self, engines: Sequence[Backend], costs: CostModel) -> Rival:
        """Time the original on the engines that compiled it during saturation, and reserve time for
        them. Engines that weren't ready in time or are slow are left to ``with_engines``."""
        costs.load(self.first)
        builds_s: list[float] = []
        unknown = [kernel for kernel in self.first if not costs.measured(kernel)]
        if unknown:
            ready = self.measurer.ready(self.end)
            soon = timed_soon(unknown, {k: r.call_s for k, r in ready.items()}, self._left_s())
            costs.record(self.measurer(soon, self.end) if soon else {})
            builds_s += [built.build_s for built in ready.values()]
        # The limit may be too short for compiling beside saturation. Then only an engine that
        # compiles fast may be ready in time.
        others = len(engines) if self.first else sum(not is_slow(engine) for engine in engines)
        self.builds_s = builds_s + [0.0] * (others - len(unknown))
        until = self.end - reserved_s(self._left_s(), self.builds_s)
        return Rival(min(map(costs.timed_only, self.first), default=math.inf), until)

    def _told(self, own: Extraction, found: Extraction, remembered: bool) -> None:
        """Record the figures of the extraction in the report, and log the plan."""
        report = self.report
        report.remembered_plan = remembered
        report.rounds, report.kernels_timed = found.rounds, found.timed
        report.kernels_considered, report.kernels_estimated = found.considered, found.estimated
        report.complete, report.gap = found.complete, own.gap
        report.kernels_disturbed = self.measurer.disturbed
        telling.chosen(found, report)
