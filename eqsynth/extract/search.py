"""Search for the plan of least cost: select, time what was selected and has no time, select again.

Not here: what a kernel costs (``cost.py``), how a plan is selected for given costs (``select.py``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import ExtractionError
from eqsynth.extract.candidates import candidates
from eqsynth.extract.cost import CostModel
from eqsynth.extract.greedy import OutOfTime
from eqsynth.extract.in_place import Run, fastest
from eqsynth.extract.kernel import Backend, Kernel
from eqsynth.extract.memory import Bound, within
from eqsynth.extract.plan import Plan
from eqsynth.extract.prices import Costs, Worth
from eqsynth.extract.select import Selection, priced
from eqsynth.extract.timing import Timing

NEGLIGIBLE = 0.01
"""Part of the program's time for which nothing more is timed: when what might still be gained, if
every estimate came true, is less, the best plan that is measured is the result."""

# Seconds that the choice after the deadline may take, where there is a plan already.
_SETTLE_S = 0.5

IN_PLACE = 0.15
"""Part of the time in which no kernels are timed, but plans are built and run (``in_place.py``)."""

HOPE = 0.05
"""Part of a plan's cost that the solver has to promise, to be asked again after what it promised
last has gained next to nothing: it takes seconds, and there are hopeful estimates to the end (GPT-2
of 4 layers: five times 8 s for a promise of 0.05 that didn't come true)."""

PLAIN_ROUNDS = 4
"""Rounds in which the original's operators as they are are timed before anything else."""

PATIENCE = 3
"""Rounds that may together gain next to nothing while no more than `HOPE` is promised. (GPT-2 of 4
layers: 38 rounds, the last 25 of them for 0.35 hundredths, most to time one kernel.)"""

QUICK = 0.25
"""Of its work the solver does this part while the answers lead to kernels that have no time. A
quarter of it takes as long as 30 kernels take to build and time."""

TOLD = 0.5
"""Gap from which on it isn't told: such a bound says nothing of the plan."""

Measure = Callable[[Sequence[Kernel], float], Mapping[Kernel, Timing | None]]
"""Builds and times kernels until the monotonic clock says the second argument; None for one that
can't be built or run, `OVERDUE` for one that takes too long to. What it didn't reach is missing."""


@dataclass(frozen=True)
class OnEngine:
    """A part of a plan that runs on an engine.

    Attributes:
        parts: spans that the plan of eqsynth's own kernels falls into.
        first, last: of these, from the first to before the last.
        side: whose terms the engine gets; see ``regions.py``.
    """

    parts: int
    first: int
    last: int
    engine: str
    side: int


@dataclass(frozen=True)
class Extraction:
    """The plan, and how it was found.

    Attributes:
        rounds: of selecting and measuring.
        timed: kernels that were timed.
        estimated: kernels of the plan that have no time, so that an estimate chose them.
        considered: kernels among which was chosen.
        ended: whether the search came to its own end, and not to the deadline.
        together: what the plan's program took, over the sum of its kernels' times alone; 1 if it
            wasn't built.
        gap: what part of the plan's cost another choice among the kernels could save at most, by
            times and estimates; None where no bound is known that is worth telling.
        regions: what of the plan runs on engines.
    """

    plan: Plan
    rounds: int
    timed: int
    estimated: int
    considered: int
    ended: bool = True
    together: float = 1.0
    gap: float | None = None
    regions: tuple[OnEngine, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every kernel of the plan is measured."""
        return not self.estimated


def extract(
    graph: EGraph,
    backends: Sequence[Backend],
    costs: CostModel,
    measure: Measure,
    deadline_s: float,
    reserve_s: Callable[[Plan], float] = lambda _plan: 0.0,
    limit_bytes: float = math.inf,
    run: Run | None = None,
    bound: Bound | None = None,
) -> Extraction:
    """Extract, time the winner's unmeasured kernels, extract again, until nothing is new.

    At the deadline the best plan whose kernels are all measured is taken. If there is none, the
    times so far and cautious estimates choose, and the plan of the original's operators as they
    are is one of those chosen from: there is always a plan.

    Args:
        deadline_s: seconds from now in which kernels are looked for and timed.
        reserve_s: how much of them is to be left over for building a plan.
        limit_bytes: of a value that a plan computes.
        run: builds a plan and times its kernels in their places; see ``in_place.py``. Without it
            the plan is chosen by the sum of its kernels' times.
        bound: on the memory of the plan's program, see ``memory.py``; where no plan that keeps it
            is found, it is one that needs little.

    Raises:
        ExtractionError: an output can't be run by any backend, or not without a larger value.
    """
    try:
        return _extract(
            graph, backends, costs, measure, deadline_s, reserve_s, limit_bytes, run, bound
        )
    except ExtractionError as error:
        huge = [ref for ref in graph.original if ref.type.nbytes > limit_bytes and not ref.constant]
        if not huge:
            raise
        raise ExtractionError(
            "a value of the program is too large to be computed",
            got=", ".join(f"{ref.type}: {ref.type.nbytes:,} bytes" for ref in huge[:3]),
            expected=f"at most {limit_bytes:,.0f} bytes",
            hint="raise memory_limit and peak_memory; the original runs as it is",
        ) from error


def _extract(
    graph: EGraph,
    backends: Sequence[Backend],
    costs: CostModel,
    measure: Measure,
    deadline_s: float,
    reserve_s: Callable[[Plan], float],
    limit_bytes: float,
    run: Run | None,
    bound: Bound | None,
) -> Extraction:
    end = time.monotonic() + deadline_s
    found = candidates(graph, backends, end, limit_bytes)
    kernels = {c.kernel for options in found.values() for c in options}
    search = _Search(Selection(graph, found, end), costs)
    costs.load(list(kernels))
    ended = True

    def until(plan: Plan) -> float:
        return end - reserve_s(plan) - (IN_PLACE * deadline_s if run else 0.0)

    try:
        search.recall()
        search.begin(measure, until)
        while not search.round():
            assert search.plan is not None
            at = until(search.plan)
            if time.monotonic() >= at or not search.measure(measure, at):
                ended = False
                search.settle()
                break
    except OutOfTime:
        ended = False
        search.settle()
    except ExtractionError:
        if time.monotonic() < end:
            raise
        # Some operator runs in another form only, for which the time was too short.
        ended = False
        search.selection = Selection(graph, candidates(graph, backends, limit_bytes=limit_bytes))
        search.settle()
    together = 1.0 if run is None else search.put_in_place(run, end, reserve_s)
    if bound is not None:
        search.fit(bound, end)
    result = search.result(len(kernels))
    ended = ended and not costs.overdue
    return replace(result, ended=ended, together=together, gap=search.gap(end))


@dataclass
class _Search:
    """Rounds of selecting and measuring.

    Attributes:
        plan: of the last round.
        unknown: its kernels that have no time, those first of which most is at stake.
        incumbent: the best plan all of whose kernels have times.
        solved_s, promised_s: what the incumbent cost when all choices were last made at once, and
            what the plan of these choices was hoped to cost.
        costs_s: of the incumbent at the beginning of each round since then.
        share: of its work that the solver does when it is asked next.
        joint: its last plan, so long as other kernels in the places of its kernels are hopeful.
    """

    selection: Selection
    costs: CostModel
    plan: Plan | None = None
    unknown: Sequence[Kernel] = ()
    incumbent: Plan | None = None
    solved_s: float = math.inf
    promised_s: float = 0.0
    costs_s: list[float] = field(default_factory=list)
    share: float = QUICK
    joint: Plan | None = None
    rounds: int = 0
    timed: int = 0

    def recall(self) -> None:
        """What was measured before may make a plan: others are then tried if that is worth it."""
        if self.costs.objective == "flops":
            return
        with suppress(ExtractionError):
            known = self.selection.one_by_one(self.costs.timed_only)
            self.incumbent = known if math.isfinite(known.cost_s) else None

    def begin(self, measure: Measure, until: Callable[[Plan], float]) -> None:
        """Searches for the best plan of the original's operators as they are, if no plan is known,
        which takes little time. Whenever the deadline comes then, what was timed is a plan, and
        each further time can only improve it. (ResNet-18 with limits of 5 to 9 s: some 25 kernels
        of better plans were timed, none of these plans wholly, and estimates chose programs slower
        than the original.)"""
        if self.incumbent is not None or self.costs.objective == "flops":
            return
        with suppress(ExtractionError):
            for _ in range(PLAIN_ROUNDS):
                self._look_at(self.selection.plain(self.costs))
                assert self.plan is not None
                at = until(self.plan)
                if not self.unknown or self._near() or time.monotonic() >= at:
                    break
                if not self.measure(measure, at):
                    break

    def round(self) -> bool:
        """Selects; true if that was the last one."""
        self.rounds += 1
        flops = self.costs.objective == "flops"
        # What greedy choices alone take is timed first: that costs less than the best plan.
        worth = self._worth()
        if self._places_are_open(worth):
            return False
        self._look_at(self.selection.one_by_one(self.costs, worth))
        if not self.unknown or flops or self._near() or self._is_tired():
            if not self._is_idle():
                self.share = QUICK
            elif self.share < 1:
                self.share = 1.0
            else:
                self.settle()
                return True
            self._ask_solver(1.0 if flops else self.share, worth)
            if not self.unknown and not flops and self.share < 1:
                self._keep()
                self.share = 1.0
                self._ask_solver(self.share, worth)
        if not self.unknown:
            self._keep()
            return True
        if flops:
            self.incumbent = self.plan
            return True
        if not self._near():
            return False
        self.settle()
        return True

    def _ask_solver(self, share: float, worth: Worth | None) -> None:
        self._look_at(self.selection.best(self.costs, worth, self.incumbent, share))
        assert self.plan is not None
        self.joint, self.promised_s = self.plan, self.plan.cost_s
        self.costs_s.clear()

    def _places_are_open(self, worth: Worth | None) -> bool:
        """Whether the solver's plan would be the best one with kernels that have no time in some of
        its places. They are timed before the solver is asked again, which would mostly name them
        one after the other (LSTM: 9 answers of 3.5 s, four of them to time 2, 2, 2 and 1)."""
        if self.joint is None:
            return False
        self._look_at(self.selection.same_ways(self.joint, self.costs, worth))
        assert self.plan is not None
        best_s = _cost(self.incumbent, self.costs) if self.incumbent else math.inf
        if self.unknown and self.plan.cost_s < (1 - NEGLIGIBLE) * best_s:
            return True
        self.joint = None
        if not self.unknown:
            self._keep()
        return False

    def _is_tired(self) -> bool:
        """Whether the last rounds have gained next to nothing, and little more is hoped for."""
        if self.incumbent is None:
            return False
        assert self.plan is not None
        now_s = _cost(self.incumbent, self.costs)
        self.costs_s.append(now_s)
        if len(self.costs_s) <= PATIENCE or self.plan.cost_s < (1 - HOPE) * now_s:
            return False
        return now_s > (1 - NEGLIGIBLE) * self.costs_s[-1 - PATIENCE]

    def _is_idle(self) -> bool:
        """Whether what was timed since all choices were last made at once has gained next to
        nothing, and no more than a little was promised."""
        if self.incumbent is None:
            return False
        before_s, self.solved_s = self.solved_s, _cost(self.incumbent, self.costs)
        gained = self.solved_s <= (1 - NEGLIGIBLE) * before_s
        return not gained and self.promised_s >= (1 - HOPE) * self.solved_s

    def _worth(self) -> Worth | None:
        """Each step may leave its part of what is negligible ungained."""
        if self.incumbent is None or self.costs.objective == "flops":
            return None
        total_s, steps = _cost(self.incumbent, self.costs), self.incumbent.steps
        return Worth(self.costs.measured, NEGLIGIBLE * total_s / max(len(steps), 1))

    def _near(self) -> bool:
        """Whether a measured plan takes hardly more than what is hoped for."""
        assert self.plan is not None
        if self.incumbent is None:
            return False
        return _cost(self.incumbent, self.costs) <= (1 + NEGLIGIBLE) * self.plan.cost_s

    def measure(self, measure: Measure, until: float) -> bool:
        """Times what is unknown; false if nothing was reached."""
        times = measure(self.unknown, until)
        self.costs.record(times)
        self.timed += len(times)
        if all(math.isfinite(self.costs.timed_only(kernel)) for kernel in self.unknown):
            self._keep()
        return bool(times)

    def settle(self) -> None:
        """Nothing more can be measured. If some plan is wholly measured, what has a time chooses;
        else cautious estimates help, and the original's operators are one of the plans."""
        if self.incumbent is not None:
            plans, costs = [self.incumbent], self.costs.timed_only
        else:
            plans, costs = [], self.costs.cautious
            with suppress(ExtractionError):
                plans.append(self.selection.plain(costs))
        self.selection.until = time.monotonic() + _SETTLE_S if plans else math.inf
        with suppress(OutOfTime):
            plans.append(self.selection.best(costs, known=self.incumbent))
        self.incumbent = min(plans, key=lambda plan: _cost(plan, costs))

    def put_in_place(
        self, run: Run, until: float, reserve_s: Callable[[Plan], float]
    ) -> float:
        """The incumbent becomes the plan whose program was the fastest; what that took over the sum
        of its kernels' times alone."""
        assert self.incumbent is not None
        self.selection.until = until

        def select(costs: Costs, known: Plan) -> Plan:
            with suppress(OutOfTime, ExtractionError):
                return self.selection.best(costs, known=known)
            return known

        self.incumbent, together = fastest(
            self.incumbent, self.costs, select, run, until, reserve_s
        )
        return together

    def fit(self, bound: Bound, until: float) -> None:
        """The incumbent becomes a plan that keeps a bound on memory, if one is found."""
        assert self.incumbent is not None
        known = self.incumbent
        self.selection.until = max(until, time.monotonic() + _SETTLE_S)

        def select(costs: Costs) -> Plan:
            with suppress(OutOfTime, ExtractionError):
                return self.selection.one_by_one(costs)
            return known

        self.incumbent = within(known, self.costs.cautious, select, bound)

    def result(self, considered: int) -> Extraction:
        assert self.incumbent is not None
        estimated = len(_unknown(self.incumbent, self.costs))
        plan = priced(self.incumbent, self.costs)
        return Extraction(plan, self.rounds, self.timed, estimated, considered)

    def gap(self, until: float) -> float | None:
        """What part of its cost the plan may be above the best one, if that is known by then."""
        assert self.incumbent is not None
        if self.costs.objective == "flops" or time.monotonic() + _SETTLE_S >= until:
            return None
        plan = priced(self.incumbent, self.costs)
        least_s = self.selection.least_s(plan, self.costs, until)
        return 1 - least_s / plan.cost_s if least_s > plan.cost_s * (1 - TOLD) else None

    def _look_at(self, plan: Plan) -> None:
        unknown = set(_unknown(plan, self.costs))
        stake = sorted(plan.steps, key=lambda step: -step.cost_s)
        self.plan = plan
        self.unknown = [k for k in dict.fromkeys(s.kernel for s in stake) if k in unknown]

    def _keep(self) -> None:
        """The plan that was just measured, unless the incumbent is better."""
        assert self.plan is not None
        best = _cost(self.incumbent, self.costs) if self.incumbent else float("inf")
        if _cost(self.plan, self.costs) <= best:
            self.incumbent = self.plan


def _cost(plan: Plan, costs: Callable[[Kernel], float]) -> float:
    return sum(costs(step.kernel) for step in plan.steps)


def _unknown(plan: Plan, costs: CostModel) -> list[Kernel]:
    """The plan's kernels that have no time yet, in the profile neither."""
    costs.load([k for k in plan.kernels() if not costs.measured(k)])
    return [k for k in plan.kernels() if not costs.measured(k)]
