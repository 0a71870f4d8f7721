"""Search for the plan of least cost: select a plan, time those of its kernels that aren't measured,
and select again.

    plan A, estimated 1.0 ms  ->  its kernels timed: 1.4 ms  ->  plan B, estimated 1.2 ms  ->  …

Not here: the cost of a kernel (``cost.py``), the plan of least cost for given costs
(``select.py``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import ExtractionError
from eqsynth.extract.candidates import candidates, copies_by
from eqsynth.extract.cost import CostModel
from eqsynth.extract.forms import in_few_forms
from eqsynth.extract.in_place import Run, fastest
from eqsynth.extract.kernel import Backend, Kernel
from eqsynth.extract.losing import NOTHING, Without
from eqsynth.extract.memory import Bound, within
from eqsynth.extract.one_part import OutOfTime
from eqsynth.extract.plan import Plan
from eqsynth.extract.prices import Costs, Worth
from eqsynth.extract.select import Selection, priced
from eqsynth.extract.timing import Timing

NEGLIGIBLE = 0.01
"""The search ends when the best measured plan takes no more than this part longer than the best
plan would if all estimates came true."""

# Seconds that selecting after the deadline may take if there is a plan already.
_SETTLE_S = 0.5

IN_PLACE = 0.15
"""The last part of the time, in which plans are built and timed (``in_place.py``) and no further
kernels are timed alone."""

HOPE = 0.05
"""After an answer of the solver has gained next to nothing, the solver is asked again only if its
last plan promised to save more than this part of the cost. It takes seconds, and some estimates
stay optimistic to the end. (GPT-2 of 4 layers: five answers of 8 s each that promised 0.05, and
didn't gain it.)"""

PLAIN_ROUNDS = 4
"""The most rounds at the beginning in which the original's operators are timed before other
kernels."""

PLAIN_PART = 0.2
"""The part of the time for measuring after which no third of these rounds begins, if there is a
measured plan. (Swin of 2 layers, limit of 12 s: two rounds took 1.5 s and gave a plan of 2.40 ms by
the kernels' times, two more took 1.3 s and gained nothing, and no time was left for others.)"""

PATIENCE = 3
"""Greedy rounds end after this many rounds have gained next to nothing together, if no more than
`HOPE` is promised. (GPT-2 of 4 layers: of 38 rounds the last 25 gained 0.35%, and most of them
timed one kernel each.)"""

QUICK = 0.25
"""The part of its full work that the solver does as long as its answers have unmeasured kernels. A
quarter of the full work takes as long as building and timing 30 kernels. The same goes for answers
by times in place, which begin with a plan that is nearly the best. (BERT of 4 layers: two such
answers took 4.8 s with the full work, and gained nothing.)"""

BEATEN = 2.5
"""If the greedy plan takes more than so many times what an engine takes for the original, the
solver isn't asked for a better plan, and no plan is built to be timed in place. (NasRNN: the solver
took the plan from 2.6 to 1.45 ms, and OpenVINO takes 1.4, so a factor of 1.5 was too small.)"""

TOLD = 0.5
"""A gap of this size or more isn't reported, since such a bound says nothing about the plan."""

Measure = Callable[[Sequence[Kernel], float], Mapping[Kernel, Timing | None]]
"""A function that builds and times kernels until a deadline by the monotonic clock. It returns a
time for each kernel that it has reached: None if the kernel can't be built or run, `OVERDUE` if
that takes too long."""


class Rival(NamedTuple):
    """What engines do with the whole original.

    Attributes:
        took_s: its time on the fastest engine; infinite if none is ready.
        until: the monotonic clock at which the rest of the time is for engines.
    """

    took_s: float = math.inf
    until: float = math.inf


@dataclass(frozen=True)
class OnEngine:
    """A part of a plan that an engine runs.

    Attributes:
        parts: number of spans that the plan of eqsynth's own kernels is split into.
        first, last: the spans that the engine runs, ``last`` not included.
        side: the form of the terms that the engine gets: chosen or original (``handing.py``).
    """

    parts: int
    first: int
    last: int
    engine: str
    side: int


@dataclass(frozen=True)
class Extraction:
    """A plan, and how it was found.

    Attributes:
        rounds: number of rounds of selecting and measuring.
        timed: number of kernels that were timed.
        estimated: number of kernels of the plan that have no measured time, and were chosen by
            estimates.
        considered: number of kernels that the plan was chosen from.
        ended: whether the search ended by itself, and not at the deadline.
        together: time of the plan's program over the sum of its kernels' times alone; 1 if it
            wasn't built.
        gap: the largest part of the plan's cost that another choice among the kernels could save,
            by times and estimates; None if no useful bound is known.
        regions: the parts of the plan that run on engines.
        plain_s: cost of the plan of the original's operators by measured times; 0 if it wasn't
            measured.
        rival: the whole program on the engine that was the fastest with it, if that is expected to
            take little more time than the plan; such programs are raced.
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
    plain_s: float = 0.0
    rival: Extraction | None = None

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
    reserve_s: Callable[[Sequence[Kernel]], float] = lambda _kernels: 0.0,
    limit_bytes: float = math.inf,
    run: Run | None = None,
    bound: Bound | None = None,
    rival: Callable[[], Rival] = Rival,
    without: Without = NOTHING,
) -> Extraction:
    """Return the plan of least cost: select a plan, time its unmeasured kernels, and select again,
    until nothing changes.

    At the deadline the best plan with only measured kernels is returned. If there is none, a plan
    is selected by the times so far and by cautious estimates. The plan of the original's operators
    is always a candidate, so there is always a plan.

    Args:
        deadline_s: seconds from now for finding and timing kernels, unless ``rival`` allows less.
        reserve_s: estimates the seconds for building kernels that were timed, which are left of
            these.
        limit_bytes: the most bytes of a value that a plan computes.
        run: builds a plan and times its kernels in the program (``in_place.py``). Without it the
            plan is chosen by the sum of its kernels' times.
        bound: the bound on the memory of the plan's program (``memory.py``). If no plan is found
            within it, a plan that needs little memory is returned.
        rival: returns what engines do with the original. Where no plan can come near their time,
            the greedy plan is good enough: its terms are handed to engines. (LSTM: OpenVINO wins by
            far, and the solver took 8 to 20 s.) It is asked once the kernels are listed, since
            engines may still be compiling the original until then.
        without: what the plan does without.

    Raises:
        ExtractionError: no backend can compute an output, or only with a value above
            ``limit_bytes``.
    """
    try:
        return _extract(
            graph, backends, costs, measure, deadline_s, reserve_s, limit_bytes, run, bound, rival,
            without,
        )  # fmt: skip
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
    reserve_s: Callable[[Sequence[Kernel]], float],
    limit_bytes: float,
    run: Run | None,
    bound: Bound | None,
    rival: Callable[[], Rival],
    without: Without,
) -> Extraction:
    """See :func:`extract`, which explains the errors of this function to the user."""
    begin = time.monotonic()
    end = begin + deadline_s
    found = without.of(graph, candidates(graph, backends, end, limit_bytes))
    kernels = {c.kernel for options in found.values() for c in options}
    copies = copies_by(backends)
    costs.load(list(kernels))
    beside = rival()
    end = min(end, beside.until)
    search = _Search(Selection(graph, found, end, copies), costs, rival_s=beside.took_s)
    ended = True

    def until(plan: Plan) -> float:
        # Timing a kernel builds it, and what isn't timed isn't used.
        timed = [kernel for kernel in plan.kernels() if costs.measured(kernel)]
        return end - reserve_s(timed) - (IN_PLACE * (end - begin) if run else 0.0)

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
        # Some operator has no kernel in its original form, and the time was too short for other
        # forms.
        ended = False
        found = without.of(graph, candidates(graph, backends, limit_bytes=limit_bytes))
        search.selection = Selection(graph, found, copies=copies)
        search.settle()
    in_place = run is not None and not search.is_beaten(search.incumbent)
    together = search.put_in_place(run, end, reserve_s) if run and in_place else 1.0
    if bound is not None:
        search.fit(bound, end)
    result = search.result(len(kernels))
    ended = ended and not costs.overdue
    return replace(result, ended=ended, together=together, gap=search.gap(end))


@dataclass
class _Search:
    """The rounds of selecting and measuring.

    Attributes:
        rival_s: time of the whole original on the fastest engine, or infinity.
        plan: the plan of the last round.
        unknown: its kernels without measured times, the most expensive first.
        incumbent: the best plan whose kernels all have measured times.
        solved_s, promised_s: cost of the incumbent when the solver was last asked, and the cost
            that the solver's plan promised.
        costs_s: cost of the incumbent at the beginning of each round since the solver was last
            asked.
        share: part of its full work that the solver does when it is asked next.
        joint: the solver's last plan, as long as unmeasured kernels in place of its kernels promise
            a gain.
        plain_s: cost of the plan of the original's operators, if it was measured.
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
    plain_s: float = 0.0
    rounds: int = 0
    timed: int = 0
    rival_s: float = math.inf

    def recall(self) -> None:
        """Take a plan whose kernels were all measured by earlier searches as the incumbent, if
        there is one."""
        if self.costs.objective == "flops":
            return
        with suppress(ExtractionError):
            known = self.selection.one_by_one(self.costs.timed_only)
            self.incumbent = known if math.isfinite(known.cost_s) else None

    def begin(self, measure: Measure, until: Callable[[Plan], float]) -> None:
        """If there is no incumbent, search for the best plan of the original's operators, which
        takes little time. From then on there is a measured plan whenever the deadline comes, and
        each further round can only improve it. (ResNet-18 with limits of 5 to 9 s: without this
        step about 25 kernels of better plans were timed, but no plan completely, and programs that
        estimates chose were slower than the original.)"""
        if self.incumbent is not None or self.costs.objective == "flops":
            return
        begin = time.monotonic()
        with suppress(ExtractionError):
            for number in range(PLAIN_ROUNDS):
                self._look_at(self.selection.plain(self.costs))
                assert self.plan is not None
                at = until(self.plan)
                if not self.unknown or self._near() or time.monotonic() >= at:
                    break
                enough = begin + PLAIN_PART * (at - begin)
                if self.incumbent is not None and number > 1 and time.monotonic() >= enough:
                    break
                if not self.measure(measure, at):
                    break
            if self.incumbent is not None:
                self.plain_s = _cost(self.incumbent, self.costs.timed_only)

    def round(self) -> bool:
        """Run one round of selection; return whether it was the last one."""
        self.rounds += 1
        flops = self.costs.objective == "flops"
        # The kernels of greedy plans are timed first: a greedy plan takes less time to find than
        # the best.
        worth = self._worth()
        if self._places_are_open(worth):
            return False
        self._look_at(self.selection.one_by_one(self.costs, worth))
        if not self.unknown or flops or self._near() or self._is_tired():
            if self.incumbent is not None and self.is_beaten(self.plan):
                if not self.unknown:
                    self._keep()
                return True
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
        """Select the best plan by the solver, which chooses for all classes at once."""
        self._look_at(self.selection.best(self.costs, worth, self.incumbent, share))
        assert self.plan is not None
        self.joint, self.promised_s = self.plan, self.plan.cost_s
        self.costs_s.clear()

    def _places_are_open(self, worth: Worth | None) -> bool:
        """Whether the solver's last plan, with unmeasured kernels in some of its places, would be
        the best plan. These kernels are timed before the solver is asked again, since its answers
        would mostly contain them one after another. (LSTM: 9 answers of 3.5 s each, four of them to
        time 2, 2, 2 and 1 kernels.)"""
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

    def is_beaten(self, plan: Plan | None) -> bool:
        """Whether an engine takes so little for the original that the plan can't come near it."""
        return plan is not None and _cost(plan, self.costs) > BEATEN * self.rival_s

    def _is_tired(self) -> bool:
        """Whether the last rounds have gained next to nothing, and little more is promised."""
        if self.incumbent is None:
            return False
        assert self.plan is not None
        now_s = _cost(self.incumbent, self.costs)
        self.costs_s.append(now_s)
        if len(self.costs_s) <= PATIENCE or self.plan.cost_s < (1 - HOPE) * now_s:
            return False
        return now_s > (1 - NEGLIGIBLE) * self.costs_s[-1 - PATIENCE]

    def _is_idle(self) -> bool:
        """Whether next to nothing was gained since the solver was last asked, and its plan promised
        little more."""
        if self.incumbent is None:
            return False
        before_s, self.solved_s = self.solved_s, _cost(self.incumbent, self.costs)
        gained = self.solved_s <= (1 - NEGLIGIBLE) * before_s
        return not gained and self.promised_s >= (1 - HOPE) * self.solved_s

    def _worth(self) -> Worth | None:
        """For each step of a plan, the gain that isn't worth measuring a kernel for: the step's
        share of what is `NEGLIGIBLE` for the plan."""
        if self.incumbent is None or self.costs.objective == "flops":
            return None
        total_s, steps = _cost(self.incumbent, self.costs), self.incumbent.steps
        return Worth(self.costs.measured, NEGLIGIBLE * total_s / max(len(steps), 1))

    def _near(self) -> bool:
        """Whether the incumbent takes hardly more time than the last plan promises."""
        assert self.plan is not None
        if self.incumbent is None:
            return False
        return _cost(self.incumbent, self.costs) <= (1 + NEGLIGIBLE) * self.plan.cost_s

    def measure(self, measure: Measure, until: float) -> bool:
        """Time the unmeasured kernels of the last plan; return False if none was reached."""
        times = measure(self.costs.distinct(self.unknown), until)
        self.costs.record(times)
        self.timed += len(times)
        if all(math.isfinite(self.costs.timed_only(kernel)) for kernel in self.unknown):
            self._keep()
        return bool(times)

    def settle(self) -> None:
        """Choose the final plan; nothing more can be measured. If there is an incumbent, plans of
        measured kernels are compared. Otherwise cautious estimates are used, and the plan of the
        original's operators is one of the candidates."""
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
        self, run: Run, until: float, reserve_s: Callable[[Sequence[Kernel]], float]
    ) -> float:
        """Replace the incumbent by the plan whose program is the fastest; return the program's time
        over the sum of its kernels' times alone.

        Where the solver has saved next to nothing so far, or with the last times in place, plans
        are greedy. (NasRNN: four answers of 3.3 s each saved 0.4, 0.4, 0.3 and 0.2 % of the greedy
        plan's cost. LSTM: 3.9, 4.9, 4.3 and 4.7 %.)"""
        assert self.incumbent is not None
        self.selection.until = until
        gains = self.selection.gains

        def select(costs: Costs, known: Plan) -> Plan:
            with suppress(OutOfTime, ExtractionError):
                if gains and max(gains) < NEGLIGIBLE:
                    return self.selection.one_by_one(costs)
                gains.clear()
                return self.selection.best(costs, known=known, share=QUICK)
            return known

        known, few = self.incumbent, self.incumbent
        with suppress(OutOfTime, ExtractionError):
            measured = self.costs.timed_only
            few = in_few_forms(
                known, partial(self.selection.with_forms, measured), self.costs.target,
                self.costs.far,
            )  # fmt: skip
        others = () if few is known else (few,)
        self.incumbent, together = fastest(
            known, self.costs, select, run, until, reserve_s, others
        )
        return together

    def fit(self, bound: Bound, until: float) -> None:
        """Replace the incumbent by a plan within a bound on memory, if one is found."""
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
        return Extraction(
            plan, self.rounds, self.timed, estimated, considered, plain_s=self.plain_s
        )

    def gap(self, until: float) -> float | None:
        """The part of its cost that the plan may be above the best plan, if that can be computed in
        time. A plan that an engine beats by far isn't the one that runs, so its bound says nothing.
        (NasRNN: 2.6 s of a core went into bounds of ten blocks, all near 0.)"""
        assert self.incumbent is not None
        if self.costs.objective == "flops" or time.monotonic() + _SETTLE_S >= until:
            return None
        if self.is_beaten(self.incumbent):
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
        """Make the plan that was just measured the incumbent, unless the incumbent is cheaper."""
        assert self.plan is not None
        best = _cost(self.incumbent, self.costs) if self.incumbent else float("inf")
        if _cost(self.plan, self.costs) <= best:
            self.incumbent = self.plan


def _cost(plan: Plan, costs: Callable[[Kernel], float]) -> float:
    return sum(costs(step.kernel) for step in plan.steps)


def _unknown(plan: Plan, costs: CostModel) -> list[Kernel]:
    """The plan's kernels that have no measured time, neither here nor in the profile."""
    costs.load([k for k in plan.kernels() if not costs.measured(k)])
    return [k for k in plan.kernels() if not costs.measured(k)]
