"""The search of one optimization: the e-graph, and the plan that is extracted from it.

A search for a program of which another one was found for other sizes follows that one's route first
(``extract/route.py``). Not here: what is made of the plan (``pipeline.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial

from eqsynth import telling
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.schedule import collecting_seldom
from eqsynth.egraph.segments import Segment
from eqsynth.errors import EqsynthError
from eqsynth.extract import chosen
from eqsynth.extract.cost import CostModel
from eqsynth.extract.in_place import InPlace
from eqsynth.extract.kernel import Backend
from eqsynth.extract.memory import Bound
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.profile import Profile
from eqsynth.extract.regions import first_asked, reserved_s, with_engines
from eqsynth.extract.route import Route, follow
from eqsynth.extract.search import Extraction, extract
from eqsynth.frontend.captured import Captured
from eqsynth.lower.assemble import build_s
from eqsynth.lower.backends import backends_of
from eqsynth.lower.backends import engines as engines_of
from eqsynth.lower.measurer import Measurer
from eqsynth.lowered import small_constants
from eqsynth.original import Original
from eqsynth.progress import Progress
from eqsynth.report import Report
from eqsynth.rules import RuleSet
from eqsynth.segmented import Saturation
from eqsynth.settings import Settings

# Seconds that a worker takes to load its libraries at least: with less time none is begun.
_LOADING_S = 1.0


@dataclass(frozen=True)
class Searched:
    """What a search found.

    Attributes:
        graph: of the whole program.
        own, found: the plan of eqsynth's own kernels, and the plan with regions on engines.
        settle: is told which of the two is used, and whether it was faster than the original; keeps
            it. Of None, where an engine was wrong, it keeps nothing.
        route: of the plan.
    """

    graph: EGraph
    own: Extraction
    found: Extraction
    route: Route
    settle: Callable[[Extraction | None, bool], None] = lambda _used, _won: None


@dataclass
class Search:
    """Stages of a search; they fill the report.

    Attributes:
        end: what the monotonic clock says when the search has to have ended.
        run: builds a plan of an e-graph and times it, and its kernels in their places.
        needs: bytes that the program of a plan of an e-graph needs.
        segments: of the program, once there is an e-graph.
        graphs: of the segments, by their keys.
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
    graphs: Mapping[bytes, EGraph] = field(default_factory=dict)

    def follow(self, route: Route) -> Searched | None:
        """The plan that a route leads to; None where it leads nowhere."""
        graph = self._saturated(self.rules.only(route.rules), lambda _segments: None)
        target = self.original.target
        backends = backends_of(target, self.captured.opaque)
        with closing(Profile(target.key())) as profile:
            costs = CostModel(target, profile, self.settings.objective, self.measurer.far)
            engines = self._engines()
            limit_bytes = self.settings.value_bytes
            plans = follow(route, graph, backends, engines, costs, limit_bytes)
        bound = self._bound(graph)
        if plans is None or not (bound is None or bound.keeps(plans[1].plan)):
            telling.not_followed()
            return None
        self.report.followed = True
        self._told(*plans, remembered=False)
        return Searched(graph, *plans, route)

    def saturate(self) -> EGraph:
        """The e-graph of the whole program; engines are asked for the original meanwhile."""
        settings, measurer = self.settings, self.measurer
        timing = settings.objective == "time" and settings.time_limit_s > _LOADING_S
        # Kernels wait for the worker while it compiles: no longer than the e-graph takes, or a
        # quarter of the time.
        begin_s = settings.time_limit_s / 4
        engines = self._engines()

        def prepare(segments: Sequence[Segment]) -> None:
            # Of a program whose e-graphs are remembered, the times mostly are too.
            if timing:
                plain, first = first_asked(self.captured.program, segments, engines, begin_s)
                self._tell(plain, first, True)
                measurer.prepare([step.kernel for step in first], begin_s)

        return self._saturated(self.rules, prepare)

    def _saturated(self, rules: RuleSet, missed: Callable[[Sequence[Segment]], None]) -> EGraph:
        # Half of the time at most: extraction has to measure with the rest.
        now = time.monotonic()
        end = now + max(0.0, self.end - now) / 2
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
        """Which steps are the whole program, and what the small constants of steps are; if they
        can't be evaluated, the steps can't be built, and whoever builds them says so."""
        self.measurer.alone.update(step.kernel for step in steps if whole)
        with suppress(EqsynthError, RuntimeError):
            self.measurer.known |= small_constants(self.captured, graph, steps)

    def _engines(self) -> Sequence[Backend]:
        """Engines that may run a part of the program: none where its memory is bounded, since they
        don't tell how much they need."""
        if self.settings.bounded:
            return ()
        return engines_of(self.settings.engines, self.captured.opaque)

    def _bound(self, graph: EGraph) -> Bound | None:
        """On the memory that a program needs."""
        if not self.settings.bounded:
            return None
        return Bound(self.settings.peak_memory, partial(self.needs, graph))

    def _left_s(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def extract(self, graph: EGraph) -> Searched:
        """The plan of least time, or FLOPs."""
        target, settings, measurer = self.original.target, self.settings, self.measurer
        settle: Callable[[Extraction | None, bool], None] = Searched.settle
        # What is chosen from is as many objects as the e-graph, and no garbage.
        with closing(Profile(target.key())) as profile, collecting_seldom():
            costs = CostModel(target, profile, settings.objective, measurer.far)
            backends = backends_of(target, self.captured.opaque)
            tried = self._engines()
            path = chosen.path_of(graph, costs, tried, settings.peak_memory)
            timing = settings.objective == "time"
            limit_s = settings.time_limit_s
            recalled = chosen.recall(path, graph, costs, tried, limit_s) if timing else None
            if recalled is not None:
                own, found = recalled.own, recalled.found
            else:
                left_s = self._left_s()
                if tried and timing:
                    left_s -= reserved_s(left_s, measurer.preparing_s())
                own = extract(
                    graph, backends, costs, measurer, left_s,
                    reserve_s=build_s,
                    limit_bytes=settings.value_bytes,
                    run=partial(self.run, graph) if timing else None,
                    bound=self._bound(graph),
                )  # fmt: skip
                # What was chosen is compiled once more then, in this process.
                again_s = measurer.preparing_s() / max(len(tried), 1) + build_s(own.plan)
                found = with_engines(
                    graph, own, tried, costs, measurer, max(0.0, self._left_s() - again_s),
                    partial(self._tell, graph), measurer.in_turns,
                )  # fmt: skip
            if timing:
                told = recalled or chosen.Chosen(own, found, costs.relied_on(), limit_s)
                settle = partial(chosen.settle, path, told)
            costs.load(own.plan.kernels())
            route = Route.of(own, found, costs, graph)
        self._told(own, found, recalled is not None)
        return Searched(graph, own, found, route, settle)

    def _told(self, own: Extraction, found: Extraction, remembered: bool) -> None:
        report = self.report
        report.remembered_plan = remembered
        report.rounds, report.kernels_timed = found.rounds, found.timed
        report.kernels_considered, report.kernels_estimated = found.considered, found.estimated
        report.complete, report.gap = found.complete, own.gap
        telling.chosen(found, report)
