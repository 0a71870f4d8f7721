"""Extraction: choose one member of each needed class, and layouts, so that the plan costs least.

Greedy choices give a first plan (``greedy.py``). Starting from it, a solver (``joint.py``) looks
for a cheaper plan, whose choices may pay only together: a merged product of three weights pays if
all three of its slices are read, but isn't worth its cost for one slice. The plan of the original's
operators, unchanged, is taken if it is cheaper than both. Constants cost nothing and are available
in any layout.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import ExtractionError
from eqsynth.extract import joint
from eqsynth.extract.blocks import Problem, Solved, improved, least_s
from eqsynth.extract.candidates import Candidate, Copies
from eqsynth.extract.forms import Forms
from eqsynth.extract.greedy import Greedy
from eqsynth.extract.kernel import contiguous
from eqsynth.extract.one_part import OutOfTime
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.prices import Choice, Costs, Prices, Worth
from eqsynth.extract.states import States
from eqsynth.extract.steady import Bar, steadily
from eqsynth.ir.tensor import ClassRef, Input, Tensor, args_of

# Building the model for the solver may take this many seconds. If less time is left, the solver
# isn't asked.
_JOINTLY_S = 1.0

AT_FIRST, AGAIN = 6, 2
"""The most greedy plans for which costs are divided among readers, each by the readers of the one
before: at first, and when costs have changed since. (NasRNN, the sums of costs in ms: full costs
1.28; divided among all that may read a class 1.32, then among those that read it 0.90, 0.90,
0.87.)"""


class Selection:
    """Extraction over the candidates of one e-graph.

    Attributes:
        until: the time of the monotonic clock at which :class:`OutOfTime` is raised. The clock is
            read only now and then, so a short selection ends in any case. :meth:`plain` always
            ends.
        gains: for each answer of the solver, the part that it has saved of the cost of the plan
            with which it began. A solver that had no time has no answer.
    """

    def __init__(
        self,
        graph: EGraph,
        found: Mapping[ClassRef, list[Candidate]],
        until: float = math.inf,
        copies: Copies | None = None,
    ) -> None:
        """
        Args:
            copies: lists the kernels that copy a value into another layout; by default torch's.
        """
        self.graph, self.until, self._found = graph, until, found
        self.gains: list[float] = []
        self._states = States(graph, copies)
        # For each class, by its place, the number of readers by which the best plan with divided
        # costs was found, and that which this plan has.
        self._readers: Sequence[int] = ()
        self._followed: Sequence[int] = ()
        # The solver's answers, by the share of its work that it was allowed.
        self._solved: dict[float, Solved] = defaultdict(Solved)
        # Members that no plan may compute classes by (``steady.py``).
        self._barred: set[Tensor] = set()
        self._ways = {ref: self._states.ways(ref, options) for ref, options in found.items()}

    def best(
        self,
        costs: Costs,
        worth: Worth | None = None,
        known: Plan | None = None,
        share: float = 1.0,
    ) -> Plan:
        """Return the plan of least cost that was found. It costs no more than the plan of the
        original's operators.

        Args:
            worth: when to keep a measured kernel, if the plan is one to be measured.
            known: a plan of this e-graph. The solver starts from it if it is cheaper than the
                greedy plan at the present costs.
            share: the part of its work that the solver may do.

        Raises:
            ExtractionError: a root has no member that any backend can run.
            OutOfTime: the deadline has passed.
        """

        def select(bar: Bar, costs: Costs) -> Plan:
            return self._best(Prices(self._states.kernels, costs, worth, barred=bar), known, share)

        def quick(bar: Bar, costs: Costs) -> Plan:
            return self._one_by_one(Prices(self._states.kernels, costs, worth, barred=bar))

        plan = steadily(select, costs, self._barred, quick)
        if not self._barred or not self.graph.original:
            return plan
        # Among the barred members may be some of the original's. (A mixture of densities: 9,153
        # FLOPs, and 10,497 after eight members were barred.) What the original subtracts is right.
        with suppress(ExtractionError, OutOfTime):
            plain = self._plain(Prices(self._states.kernels, costs, worth), self.until)
            return plain if plain.cost_s < plan.cost_s else plan
        return plan

    def _best(self, prices: Prices, known: Plan | None, share: float) -> Plan:
        plan = self._one_by_one(prices)
        if known is not None:
            known = _priced(known, prices.step_s)
            plan = known if known.cost_s < plan.cost_s else plan
        plan = self._jointly(plan, prices, share)
        if not self.graph.original:
            return plan
        try:
            plain = self._plain(prices, self.until)
        except ExtractionError:
            return plan  # no backend runs some operator of the original
        return plan if plan.cost_s <= plain.cost_s else plain

    def with_forms(self, costs: Costs, forms: Forms) -> Plan:
        """Return a greedy plan for which reading the forms of constants costs what ``forms`` says,
        beside the kernels' costs, which are those of its steps."""

        def select(bar: Bar, costs: Costs) -> Plan:
            prices = Prices(self._states.kernels, costs, beside_s=forms.beside_s, barred=bar)
            return _priced(self._one_by_one(prices), prices.step_s)

        return steadily(select, costs, self._barred)

    def one_by_one(self, costs: Costs, worth: Worth | None = None) -> Plan:
        """Return the cheapest of some greedy plans, in a fraction of the time of :meth:`best`. For
        the first plan, a choice pays the full cost of all that it needs; for the others, the cost
        of each class is divided among the classes that read it.

        Args:
            worth: when to keep a measured kernel, if the plan is one to be measured.

        Raises:
            ExtractionError: a root has no member that any backend can run.
            OutOfTime: the deadline has passed.
        """

        def select(bar: Bar, costs: Costs) -> Plan:
            return self._one_by_one(Prices(self._states.kernels, costs, worth, barred=bar))

        return steadily(select, costs, self._barred)

    def _one_by_one(self, prices: Prices) -> Plan:
        plan = self._greedy.plan(prices, self.until)
        try:
            return min(plan, self._with_shares(prices), key=lambda each: each.cost_s)
        except OutOfTime:
            return plan

    def _with_shares(self, prices: Prices) -> Plan:
        """The cheapest of the plans for which the costs of classes are divided among readers."""
        best: Plan | None = None
        readers, followed = self._readers, self._followed
        for _ in range(AGAIN if readers else AT_FIRST):
            among = readers or self._states.readers
            plan = self._greedy.plan(prices, self.until, among)
            counted = _readers(self._states, plan)
            now = [counted.get(place, others) for place, others in enumerate(among)]
            if best is None or plan.cost_s < best.cost_s:
                best = plan
                if math.isfinite(plan.cost_s):
                    self._readers, self._followed = among, now
            if now in (among, followed) or not math.isfinite(plan.cost_s):
                break
            readers = now
        assert best is not None
        return best

    def same_ways(self, plan: Plan, costs: Costs, worth: Worth | None = None) -> Plan:
        """Return the plan with each kernel replaced by the present cheapest kernel that computes
        the same state from the same states, such as another schedule of the same member."""
        table = self._states
        prices, steps = Prices(table.kernels, costs, worth, barred=self._barred), []
        for step in plan.steps:
            state, needs = table.number(*step.result), tuple(table.number(*a) for a in step.args)
            for way in self._ways[step.result[0]]:
                if (way.state, way.needs) == (state, needs):
                    now = prices.cheapest(way)[1]
                    if now.candidate is not None and now.cost_s < costs(step.kernel):
                        step = table.step(state, now, now.candidate)
            steps.append(step)
        return _priced(replace(plan, steps=tuple(steps)), prices.step_s)

    def plain(self, costs: Costs) -> Plan:
        """Return the best plan of the original's operators, unchanged. The deadline doesn't apply.

        Raises:
            ExtractionError: no backend can run the original's operator of some root.
        """
        return self._plain(Prices(self._states.kernels, costs), math.inf)

    @cached_property
    def _greedy(self) -> Greedy:
        return Greedy(self._states, self._ways, self.graph.classes)

    def _plain(self, prices: Prices, until: float) -> Plan:
        return self._plainly.plan(prices, until)

    @cached_property
    def _plainly(self) -> Greedy:
        original = self.graph.original
        ways = {
            ref: self._states.ways(ref, (c for c in options if c.member in original.get(ref, ())))
            for ref, options in self._found.items()
        }
        return Greedy(self._states, ways, original)

    def _jointly(self, plan: Plan, prices: Prices, share: float) -> Plan:
        """Return a cheaper plan whose members the solver has chosen together; the given plan if
        none is found, or if there is too little time."""
        if not math.isfinite(plan.cost_s) or time.monotonic() + _JOINTLY_S >= self.until:
            return plan
        table, choices = self._states, self._choices(prices)
        steps_of = {table.rank[step.result[0]]: step for step in reversed(plan.steps)}
        hint = {
            place: _place(choices[place], *self._as_choice(step))
            for place, step in steps_of.items()
        }
        hint |= {table.rank[ref]: 0 for ref, _ in plan.inputs.values()}
        problem = self._problem(choices, prices)
        ways, wanted = problem.ways, problem.wanted
        found = improved(
            problem, {p: ways[p][n] for p, n in hint.items()}, self.until, self._solved[share],
            share=share,
        )  # fmt: skip
        if found is None:
            self.gains.append(0.0)
            return plan
        chosen = {
            state: table.copy(source, state, prices) for state, source in found.copies.items()
        }
        for place, way in found.ways.items():
            chosen[way.state] = choices[place][ways[place].index(way)][1]
        steps = table.steps(wanted, chosen.__getitem__)
        assert steps is not None  # the solver's model excludes cycles
        cost_s = sum(step.cost_s for step in steps)
        self.gains.append(max(0.0, 1 - cost_s / plan.cost_s))
        return replace(plan, steps=steps, cost_s=cost_s) if cost_s < plan.cost_s else plan

    def least_s(self, plan: Plan, costs: Costs, until: float = math.inf) -> float:
        """Return a lower bound of the costs of all plans of the e-graph, the best that is known at
        the deadline. It is at most the cost of ``plan``; if it equals that cost, ``plan`` is a
        cheapest plan."""
        prices = Prices(self._states.kernels, costs)
        problem = self._problem(self._choices(prices), prices)
        return least_s(problem, plan.cost_s, until, self._solved[1.0])

    def _problem(self, choices: Mapping[int, list[tuple[int, Choice]]], prices: Prices) -> Problem:
        table = self._states
        roots = [root for root in dict.fromkeys(self.graph.roots) if not root.constant]
        return Problem(
            {
                place: [joint.Way(state, c.needs, c.cost_s) for state, c in own]
                for place, own in choices.items()
            },
            [table.number(root, contiguous(len(root.shape))) for root in roots],
            table.places.__getitem__,
            lambda source, state: table.copy(source, state, prices).cost_s,
            lambda state: (table.states[state][0].type, table.states[state][1]),
        )

    def _as_choice(self, step: PlanStep) -> tuple[int, Choice]:
        table, args = self._states, args_of(step.member)
        candidate = Candidate(
            step.member, step.kernel, tuple(a for a in args if isinstance(a, ClassRef))
        )
        needs = tuple(table.number(*arg) for arg in step.args)
        return table.number(*step.result), Choice(candidate, needs, step.cost_s)

    def _choices(self, prices: Prices) -> dict[int, list[tuple[int, Choice]]]:
        """Return for each class, by its place, the states that it may be computed in, each with its
        choice: one for each way, and one for each view of a state of another class. The first
        choice of an input is the given state, which costs nothing."""
        table = self._states
        found: dict[int, list[tuple[int, Choice]]] = {}
        states: dict[int, set[int]] = {place: set() for place in range(len(table.order))}
        for place, ref in enumerate(table.order):
            if ref.constant:
                continue
            own = prices.priced(self._ways[ref])
            found[place] = [(s, choice) for s, choice in own if math.isfinite(choice.cost_s)]
            if any(isinstance(member, Input) for member in self.graph.classes[ref]):
                given = table.number(ref, contiguous(len(ref.shape)))
                found[place].insert(0, (given, Choice(None, (), 0.0)))
            states[place].update(state for state, _ in found[place])
            for state in (need for _, choice in own for need in choice.needs):
                states[table.places[state]].add(state)
        for root in self.graph.roots:
            if not root.constant:
                states[table.rank[root]].add(table.number(root, contiguous(len(root.shape))))
        work = deque(found)
        seen: set[tuple[int, int, int]] = set()
        while work:
            place = work.popleft()
            for n, viewing in enumerate(self._greedy.views[place]):
                for state in sorted(states[viewing.source]):
                    if (place, n, state) in seen:
                        continue
                    seen.add((place, n, state))
                    viewed = table.view(place, viewing, state)
                    if viewed is None:
                        continue
                    found[place].append(viewed)
                    if viewed[0] not in states[place]:
                        states[place].add(viewed[0])
                        work.extend(user for user in table.users[place] if user in found)
        return found


def _readers(table: States, plan: Plan) -> dict[int, int]:
    """For each class that a plan computes, by its place, the number of steps that read it, directly
    or through views."""
    found: dict[int, int] = {}
    for step in reversed(plan.steps):
        own = found.setdefault(table.rank[step.result[0]], 1)
        is_view = step.kernel.implementation == "torch.view"
        for ref in {ref for ref, _ in step.args}:
            place = table.rank[ref]
            found[place] = found.get(place, 0) + (own if is_view else 1)
    return found


def _place(choices: list[tuple[int, Choice]], state: int, choice: Choice) -> int:
    """Return the position of the choice that computes ``state`` from the same states as ``choice``.
    If there is none, ``choice`` is appended."""
    for place, (other, known) in enumerate(choices):
        if (other, known.needs) == (state, choice.needs):
            return place
    choices.append((state, choice))
    return len(choices) - 1


def priced(plan: Plan, costs: Costs) -> Plan:
    """Return the plan with the present costs of its steps, some of which may have been timed since
    the plan was made."""
    return _priced(plan, lambda step: costs(step.kernel))


def _priced(plan: Plan, step_s: Callable[[PlanStep], float]) -> Plan:
    steps = tuple(replace(step, cost_s=step_s(step)) for step in plan.steps)
    return replace(plan, steps=steps, cost_s=sum(step.cost_s for step in steps))
