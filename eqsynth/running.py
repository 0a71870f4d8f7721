"""One optimization after the capture: the search, and the races that its plan has to win.

search -> lower -> check -> race against the program of own kernels -> race against the original.

Not here: capturing a program, and refusing programs (``pipeline.py``); the search itself
(``searching.py``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from eqsynth import telling
from eqsynth.checking import Stage, warn_of_fault
from eqsynth.egraph.graph import EGraph
from eqsynth.errors import EqsynthError, LoweringError
from eqsynth.explain import Page, explain_plan
from eqsynth.extract.in_place import InPlace
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.losing import NOTHING, Without, losing
from eqsynth.extract.plan import Plan
from eqsynth.extract.route import Route
from eqsynth.extract.search import Extraction
from eqsynth.extract.timing import time_one
from eqsynth.frontend.captured import Captured
from eqsynth.lower.backends import backends_of
from eqsynth.lower.check import Mismatch
from eqsynth.lower.engines import bounded
from eqsynth.lower.holders import Opened, Opening, inside
from eqsynth.lower.kernel_tuning import TunedKernel
from eqsynth.lower.measurer import Measurer
from eqsynth.lower.plan_tuning import tuned_kernels, with_faster
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.reruns import results, unchanged
from eqsynth.lower.step_times import kernel_times, opaque_share, step_times
from eqsynth.lower.tuning_told import told
from eqsynth.lowered import lowered, mutations_of
from eqsynth.original import Original
from eqsynth.progress import Progress
from eqsynth.race import LONGEST_S, Race, race
from eqsynth.report import WHOLE, Report
from eqsynth.rules import RuleSet
from eqsynth.searching import Search, Searched
from eqsynth.settings import Settings
from eqsynth.why_not import heaviest, operator_times, why_not

# Steps are timed one by one, for the explanation and the report, in at least this many calls. They
# aren't timed if these calls would take longer than the rest of the time limit and longer than this
# many seconds.
_TOLD_CALLS, _LONG_S = 2, 1.0

# Seconds that a race needs to tell two programs apart. Calls of the original in a check; and in a
# race of long calls, those of both programs.
_RACE_S, _CHECK_CALLS, _RACE_CALLS = 0.3, 60, 8

MENDED = 8
"""The most times that another plan is selected, because the last one loses digits."""


@dataclass
class Run:
    """One optimization; its stages fill the report.

    Attributes:
        measurer: times kernels; it may be loading its libraries already.
        begin: the monotonic clock at the start of the time limit. This is when ``optimize`` was
            called; or later, if the capture took more than half of the limit, so that half of the
            limit is always left for the search.
        route: the route of a plan to follow, or None.
        strict: raise errors that are faults of eqsynth.
        search: the search; set before anything is lowered.
        built: the fastest program that was built for timing a plan: the plan, the program, and its
            seconds.
        without: what a plan does without, since earlier plans have lost digits there.
    """

    settings: Settings
    captured: Captured
    original: Original
    rules: RuleSet
    report: Report
    bar: Progress
    measurer: Measurer
    begin: float
    route: Route | None = None
    strict: bool = False
    search: Search = field(init=False)
    built: tuple[Plan, CompiledProgram, float] | None = None
    without: Without = NOTHING

    def __post_init__(self) -> None:
        self.begin = max(self.begin, time.monotonic() - self.settings.time_limit_s / 2)

    def pipeline(self) -> CompiledProgram:
        """Run all stages, and return the compiled program or the original."""
        self.report.count_before(self.captured.program)
        telling.captured(self.captured, self.report)
        mutations_of(self.captured)  # no search for a program that changes an input
        self.original.refuse_nan()
        self.original.try_inputs()
        weights = self.captured.program.weights()
        far = self.original.target.far(sum(w.type.nbytes for w in weights))
        target = self.original.target
        self.measurer.serve(target, self.captured.opaque)
        self.measurer.far = far
        try:
            searched = self._searched()
        finally:
            self.measurer.stop_loading()
        graph, own, found = searched.graph, searched.own, searched.found
        if self.settings.tune and self.settings.objective == "time":
            self.measurer.close()  # tuning borrows the same worker
            own, found = self._tuned(graph, own, found)
        searched = replace(searched, own=own, found=found)
        for _ in range(MENDED):
            try:
                return self._finished(searched)
            except Mismatch as error:
                if self.without.covers(error.losing) or self._end <= time.monotonic():
                    raise
                telling.refused("a plan that loses digits", error)
                self.report.mended = (*self.report.mended, error.where)
                self.without = self.without | error.losing
            self.built = None
            with self._stage("extract"):
                searched = self.search.extract(graph, self.without)
        return self._finished(searched)

    def _finished(self, searched: Searched) -> CompiledProgram:
        """Build, check and race what was found.

        Raises:
            LoweringError: the plan of eqsynth's own kernels doesn't build.
            Mismatch: its program differs from the original.
        """
        graph, own, found = searched.graph, searched.own, searched.found
        settle, used = searched.settle, found
        self.report.route = searched.route
        try:
            compiled = self._built(graph, found)
            if found.plan is not own.plan and not self._engines_win(own, compiled):
                used, compiled = own, self._built(graph, own)
            if found.rival is not None:
                used, compiled = self._beside(graph, found.rival, used, compiled)
            self._check(graph, used.plan, compiled)
        except (LoweringError, Mismatch) as error:
            if used.plan is own.plan:
                raise
            # An engine's region is wrong or doesn't build: use the plan of eqsynth's own kernels.
            telling.refused("regions on engines", error)
            self.report.engine_refused = str(error)
            settle(own, None, False)
            used, settle = own, Searched.settle
            compiled = self._built(graph, own)
            self._check(graph, own.plan, compiled)
        # The search refers to this run, so a losing program's constants would stay in memory.
        self.built = None
        with self._stage("race"), unchanged(self.captured.buffers):
            result = self._race(graph, used.plan, compiled)
        settle(own, used, result is compiled)
        telling.explained(result)
        return result

    @property
    def _end(self) -> float:
        """The monotonic clock at the end of the time limit."""
        return self.begin + self.settings.time_limit_s

    def _race_s(self) -> float:
        """Seconds for a race: half of the seconds that are left, within two bounds. At least as
        many as a race needs to tell two programs apart, and at most a tenth of the time limit more
        than that."""
        most_s = _RACE_S + 0.1 * self.settings.time_limit_s
        return max(_RACE_S, min(most_s, (self._end - time.monotonic()) / 2))

    def _closing_s(self) -> float:
        """Seconds of the limit to leave for the check and the race, by the time of a call of the
        original; a quarter of the limit at most."""
        limit_s, clock = self.settings.time_limit_s, self.original.place.clock
        if math.isinf(limit_s):
            return 0.0
        if _RACE_S >= limit_s / 4:
            return limit_s / 4
        # The call runs on copies of the inputs, since a module that changes its inputs is refused
        # only later. The first call may have to load something.
        values = self.original.args, dict(self.original.kwargs)
        call = partial(results, self.original.call, values, self.captured.buffers)
        call_s = clock(call, 1)
        if call_s < limit_s / 100:
            call_s = min(call_s, clock(call, 1))
        race_s = _RACE_S + min(0.1 * limit_s, LONGEST_S + _RACE_CALLS * call_s)
        check_s = _CHECK_CALLS * call_s if self.settings.check else 0.0
        return min(limit_s / 4, race_s + check_s)

    def _searched(self) -> Searched:
        """Search, or follow the route of a plan for other sizes if that is possible."""
        search = Search(
            self.captured, self.original, self.settings, self.rules, self.report, self.bar,
            self.measurer, self._end - self._closing_s(), self._in_place, self._needs,
        )  # fmt: skip
        self.search = search
        if self.route is not None:
            with self._stage("follow"):
                followed = search.follow(self.route)
            if followed is not None:
                return followed
        with self._stage("saturate"):
            graph = search.saturate()
        if self.report.certified is not None:
            self.begin += self.report.certified.seconds
        with self._stage("extract"):
            searched = search.extract(graph)
        self.report.part("extract", "measure", self.measurer.spent_s)
        return searched

    def _built(self, graph: EGraph, found: Extraction) -> CompiledProgram:
        """Lower a plan to a program.

        Raises:
            LoweringError: a kernel doesn't build, or the program needs too much memory.
        """
        with self._stage("lower"), bounded.until(self._end):
            self.measurer.compile(found.plan.kernels())
            compiled = self._lowered(graph, found.plan)
        self._count(found.plan, compiled)
        needed, allowed = self.report.peak_memory_bytes, self.settings.peak_memory
        if needed > allowed:
            raise LoweringError(
                "no program was found that needs so little memory",
                where=f"peak_memory={allowed:,.0f}",
                got=f"{needed:,} bytes, {self.report.constant_bytes:,} of them constants",
                expected=f"at most {allowed:,.0f} bytes",
                hint="raise peak_memory; the original runs as it is, whatever it needs",
            )
        return compiled

    def _count(self, plan: Plan, compiled: CompiledProgram) -> None:
        memory = compiled.constant_bytes(), compiled.scratch_bytes()
        self.report.count_after(plan, compiled.constants, *memory)

    def _check(self, graph: EGraph, plan: Plan, compiled: CompiledProgram) -> None:
        """Compare the program of a plan with the original, if the user wants it.

        Raises:
            Mismatch: they differ by more than rounding explains. If the program's own rounding
                explains it, the error says which members lose the digits, unless ``strict``.
        """
        with self._stage("check"):
            if self.settings.check:
                settings, rules = self.settings, self.rules
                stage = Stage(self.captured, rules, settings.rules, settings.numerics, self.report)
                members = partial(losing, plan, graph, self.without)
                stage.hold(compiled, self.original, None if self.strict else members)

    def _lowered(self, graph: EGraph, plan: Plan) -> CompiledProgram:
        """Lower a plan, or return the program in ``built`` if it runs the same kernels."""
        if self.built is not None and self.built[0].runs_as(plan):
            return self.built[1]
        captured, original = self.captured, self.original
        compiled = lowered(
            captured,
            graph,
            plan,
            backends_of(original.target, captured.opaque),
            place=original.place,
            limit_bytes=self.settings.memory_limit,
            own=self.settings.own_constants,
            module=original.module,
            report=self.report,
            mutations=mutations_of(self.captured),
            explanation=self._explanation(graph, plan),
        )
        return compiled

    # ---- stages ------------------------------------------------------------------

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Time the block as a stage of the report, and show it on the progress bar."""
        begin = time.monotonic()
        self.bar.stage(name)
        try:
            yield
        finally:
            spent = self.report.stages_s.get(name, 0.0) + time.monotonic() - begin
            self.report.stages_s = {**self.report.stages_s, name: spent}

    def _in_place(self, graph: EGraph, plan: Plan, until: float) -> InPlace | None:
        """Build a plan's program and time it, and each of its kernels as a step of the whole
        program; None if the program doesn't build. The fastest of these programs is kept in
        ``built``, since it is the likely result."""
        args, kwargs = self.original.args, self.original.kwargs
        with suppress(LoweringError), torch.no_grad(), unchanged(self.captured.buffers):
            self.measurer.compile(plan.kernels(), until)
            compiled = self._lowered(graph, plan)
            place = self.original.place
            call = partial(compiled, *args, **kwargs)
            total_s = time_one(call, until=until, clock=place.clock).q1_s
            if self.built is None or total_s < self.built[2]:
                self.built = plan, compiled, total_s
            timed = place.alone and time.monotonic() < until
            return InPlace(total_s, kernel_times(compiled, args, kwargs) if timed else {})
        return None

    def _tuned(
        self, graph: EGraph, own: Extraction, found: Extraction
    ) -> tuple[Extraction, Extraction]:
        """Tune the kernels of the two plans. Return the plans with tuned schedules, if their
        program is faster than the untuned one.

        Its time is on top of the limit. An error costs the tuning only.
        """
        begin = time.monotonic()
        try:
            with self._stage("tune"):
                faster = self._tuned_kernels(graph, found)
        except Exception as error:
            telling.refused("tuning", error)
            self.report.tuning_refused = f"{type(error).__name__}: {error}"
            if not isinstance(error, EqsynthError):
                if self.strict:
                    raise
                warn_of_fault(error, "the untuned program")
            faster = {}
        finally:
            self.begin += time.monotonic() - begin
        if not faster:
            return own, found
        chosen = replace(found, plan=with_faster(found.plan, faster))
        if own.plan is found.plan:
            return chosen, chosen
        return replace(own, plan=with_faster(own.plan, faster)), chosen

    def _tuned_kernels(self, graph: EGraph, found: Extraction) -> Mapping[Kernel, TunedKernel]:
        """Tune the kernels of a plan; return those whose tuned schedules its program takes."""
        target, far = self.original.target, self.measurer.far
        tried = tuned_kernels(found.plan, target, far, self.settings.tune, self.bar.told)
        faster = {k: one for k, one in tried.items() if one.faster and one.kernel != k}
        used = self._faster_in_place(graph, found, faster) if faster else {}
        self.report.tuned = tuple(
            told(one, target, k in used or one.kernel == k) for k, one in tried.items()
        )
        return used

    def _faster_in_place(
        self, graph: EGraph, found: Extraction, faster: Mapping[Kernel, TunedKernel]
    ) -> Mapping[Kernel, TunedKernel]:
        """Return those kernels that are no slower with their tuned schedules as steps of the
        program, if the program with all of these schedules is faster; none if it isn't.

        A kernel is tuned alone, and in a program it reads what other cores have just written.
        (ResNet-18: alone six of ten kernels were 3 to 33 % faster, and the program took 17.1 ms
        with them, 16.6 without; their quartiles overlap.)
        """
        args, kwargs = self.original.args, self.original.kwargs
        with suppress(LoweringError), torch.no_grad(), unchanged(self.captured.buffers):
            untuned = self._lowered(graph, found.plan)
            before = kernel_times(untuned, args, kwargs)
            tuned = self._lowered(graph, with_faster(found.plan, faster))
            after = kernel_times(tuned, args, kwargs)
            used = {
                k: one
                for k, one in faster.items()
                if after.get(one.kernel, 0.0) <= before.get(k, math.inf)
            }
            if used:
                plan = with_faster(found.plan, used)
                compiled = self._lowered(graph, plan) if len(used) < len(faster) else tuned
                result = self._both(untuned, compiled)
                telling.tuned(len(used), result)
                if result.won:
                    self.built = plan, compiled, result.after.median_s
                    return used
        return {}

    def _needs(self, graph: EGraph, plan: Plan) -> float:
        """The bytes that a plan's program needs; infinite if it doesn't build."""
        with suppress(LoweringError):
            made = self._lowered(graph, plan)
            return plan.peak_bytes() + made.constant_bytes() + made.scratch_bytes()
        return math.inf

    def _engines_win(self, own: Extraction, compiled: CompiledProgram) -> bool:
        """Whether the program with regions on engines is faster than the program of eqsynth's own
        kernels, if the latter was built for timing. Extraction chose between the two by times of
        single regions and kernels that were measured minutes apart, so the whole programs are raced
        here."""
        if self.built is None or not self.built[0].runs_as(own.plan):
            return True
        result = self._both(self.built[1], compiled)
        telling.raced(result)
        return result.won

    def _beside(
        self, graph: EGraph, rival: Extraction, used: Extraction, compiled: CompiledProgram
    ) -> tuple[Extraction, CompiledProgram]:
        """Return the faster one of the program and of the whole program on an engine, with its
        extraction. If the latter doesn't build, it is the program."""
        with suppress(LoweringError):
            with self._stage("lower"), bounded.until(self._end):
                alone = self._lowered(graph, rival.plan)
            result = self._both(compiled, alone)
            telling.beside(rival, result)
            if result.won:
                self._count(rival.plan, alone)
                return rival, alone
        return used, compiled

    def _both(self, one: CompiledProgram, other: CompiledProgram) -> Race:
        """Race two programs; ``won`` says whether the second is faster."""
        args, kwargs = self.original.args, self.original.kwargs
        with self._stage("race"), unchanged(self.captured.buffers):
            return race(
                lambda: one(*args, **kwargs),
                lambda: other(*args, **kwargs),
                seconds=self._race_s(),
                clock=self.original.place.clock,
            )

    def _race(self, graph: EGraph, plan: Plan, compiled: CompiledProgram) -> CompiledProgram:
        """Race the program against the original. Return the original unless the program is faster
        by more than the noise (or time isn't the objective)."""
        args, kwargs, original = self.original.args, self.original.kwargs, self.original.call
        compiled.opens = isinstance(original, Opened)
        result = race(
            self._as_called(inside(original) if isinstance(original, Opened) else original),
            self._as_called(compiled),
            seconds=self._race_s(),
            clock=self.original.place.clock,
        )
        must_win = self.settings.objective == "time" and self.original.module is not None
        kept = must_win and not result.won
        self.report.timed(result.before, result.after, kept)
        telling.timed(result, kept)
        if any(step.kernel.opaque for step in compiled.steps):
            self.report.opaque_share = opaque_share(compiled, args, kwargs)
        limit_bytes = self.settings.memory_limit
        facts = self.captured, graph, plan, compiled
        told_s = _TOLD_CALLS * (result.before.median_s + result.after.median_s)
        in_time = told_s < max(_LONG_S, self._end - time.monotonic())
        if not kept:
            if must_win and in_time:
                steps_s = step_times(compiled, args, kwargs)
                self.report.kernels = heaviest(plan, steps_s, self.original.target)
                self.report.operator_times = operator_times(
                    *facts, steps_s, args, kwargs, limit_bytes
                )
            return compiled
        self.report.reason = "nothing faster was found"
        if self.report.remembered_plan:
            self.report.reason += " (the plan of an earlier search lost; nothing was searched)"
        if in_time:
            self.report.why_not = why_not(*facts, args, kwargs, limit_bytes)
        return self.original.program(self.report)

    def _as_called(self, function: Callable[..., object]) -> Callable[[], object]:
        """Return a function that calls ``function`` with the user's arguments. If arguments hold
        tensors in objects that a call may change (a cache grows), each call gets fresh objects,
        which costs both sides of a race the same."""
        args, kwargs = self.original.args, self.original.kwargs
        if not isinstance(self.original.module, Opened):
            return lambda: function(*args, **kwargs)

        def call() -> object:
            given, named = Opening().closed((args, dict(kwargs)))
            return function(*given, **named)

        return call

    # ---- parts ---------------------------------------------------------------------

    def _explanation(self, graph: EGraph, plan: Plan) -> Callable[[], object]:
        """Return a function that computes the explanation of a plan by replaying the logs."""
        why = partial(
            explain_plan,
            self.captured.program,
            tuple(self.search.segments),
            {key: g.log for key, g in self.search.graphs.items()},
            graph,
            plan,
            {
                key: g.stop
                for key, g in self.search.graphs.items()
                if self.settings.explain and g.stop not in WHOLE
            },
            partial(getattr, self.report, "operator_times"),
        )
        self.report.page = Page(why)
        return why
