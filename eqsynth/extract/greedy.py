"""Greedy DAG extraction: the choices below each state, shared work counted once.

A state is (e-class, layout), here a number. Each state keeps the set of choices below it, and a
choice is priced over the union of its arguments' sets. Classes are taken in the order in which
values are computed, and again when one below them has got cheaper.

    best(x) = {x: 1}, best(y) = {x: 1, y: 2}   ->   best(x + y) = {x: 1, y: 2, +: 1}, 4 and not 5

Not here: what is tried beyond single choices (``select.py``).
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import ExtractionError
from eqsynth.extract.candidates import VIEW_S, Candidate, copy_kernel, placeholder
from eqsynth.extract.kernel import Kernel, Layout, contiguous
from eqsynth.extract.layout import normalized, view_kernel
from eqsynth.extract.plan import Plan, PlanStep, State
from eqsynth.extract.prices import Choice, Prices, Way, Ways
from eqsynth.ir.printing import render_alone
from eqsynth.ir.tensor import ClassRef, Input, Tensor, args_of

# Classes that are looked at between two looks at the clock.
_TURNS = 256
# A choice replaces another if it is cheaper by more than this part: sums are rounded.
_LESS = 1 - 1e-9


class OutOfTime(Exception):
    """The deadline came in the middle of a selection."""


class _Best(NamedTuple):
    total_s: float
    choices: dict[int, Choice]


Members = Mapping[ClassRef, Sequence[Tensor]]


class Viewing(NamedTuple):
    """A member that reads one other class, which it may be a view of.

    Attributes:
        source: the place of that class.
        views: by its states, what ``Greedy.view`` has said.
    """

    member: Tensor
    source: int
    views: dict[int, tuple[int, Choice] | None]


class Greedy:
    """The states and views of one e-graph, and the choices of least cost for given prices.

    Attributes:
        states: by their numbers.
        places: of the states' classes, by the states' numbers.
        kernels: those of all ways; one that many classes have candidates of is there once.
        readers: of each class, by its place, the classes that may read it and aren't constant.
    """

    def __init__(self, graph: EGraph) -> None:
        self.graph = graph
        self.states: list[State] = []
        self.places: list[int] = []
        self.kernels: list[Kernel] = []
        self._kernel_numbers: dict[Kernel, int] = {}
        self._copies: dict[tuple[int, int], Candidate] = {}
        self._numbers: dict[State, int] = {}
        self._views: dict[tuple[ClassRef, Tensor, int], tuple[int, Choice] | None] = {}
        # By identity; the members are held, so that no other takes their place.
        self._viewed: dict[int, tuple[Members, list[list[Viewing]]]] = {}
        self.order = _in_order(graph)
        self.rank = {ref: n for n, ref in enumerate(self.order)}
        self.users: dict[int, list[int]] = {n: [] for n in range(len(self.order))}
        for n, ref in enumerate(self.order):
            for arg in dict.fromkeys(a for m in graph.classes[ref] for a in _below(m)):
                self.users[self.rank[arg]].append(n)
        self.readers = [
            sum(not self.order[user].constant for user in users) for users in self.users.values()
        ]

    def number(self, ref: ClassRef, layout: Layout) -> int:
        state = (ref, layout)
        found = self._numbers.get(state)
        if found is None:
            found = self._numbers[state] = len(self.states)
            self.states.append(state)
            self.places.append(self.rank.get(ref, -1))
        return found

    def ways(self, ref: ClassRef, options: Iterable[Candidate]) -> list[Way]:
        """The candidates of a class by what they give and need."""
        found: dict[tuple[int, tuple[int, ...]], list[Candidate]] = {}
        for option in options:
            kernel = option.kernel
            needs = tuple(
                self.number(arg, normalized(layout, arg.shape))
                for arg, layout in zip(option.args, kernel.inputs, strict=True)
                if not arg.constant
            )
            state = self.number(ref, normalized(kernel.output, ref.shape))
            found.setdefault((state, needs), []).append(option)
        return [
            Way(state, needs, tuple(own), tuple(self._kernel_number(c.kernel) for c in own))
            for (state, needs), own in found.items()
        ]

    def _kernel_number(self, kernel: Kernel) -> int:
        number = self._kernel_numbers.setdefault(kernel, len(self.kernels))
        if number == len(self.kernels):
            self.kernels.append(kernel)
        return number

    def plan(
        self,
        ways: Ways,
        members: Members,
        prices: Prices,
        until: float = math.inf,
        shared: bool = False,
    ) -> Plan:
        """The plan of the choices that cost least one by one.

        Args:
            members: where views are looked for.
            prices: of this table's kernels.
            shared: choices are made as if what a class costs were divided among all classes that
                may read it, so that a product of all steps is chosen where each step takes its
                slice. The plan's steps cost what they do.
            until: what the monotonic clock says when :class:`OutOfTime` is raised.

        Raises:
            ExtractionError: a root has no member that any backend can run.
            OutOfTime: the deadline has passed.
        """
        return _Run(self, ways, members, prices, shared).plan(until)

    def view(self, ref: ClassRef, member: Tensor, source: int) -> tuple[int, Choice] | None:
        """The state that a member of a class gives if it is a view of a state, and its choice."""
        key = (ref, member, source)
        if key not in self._views:
            self._views[key] = self._view(*key)
        return self._views[key]

    def viewed(self, members: Members) -> list[list[Viewing]]:
        """Members of each class that read one other class, which it may be a view of."""
        if id(members) not in self._viewed:
            self._viewed[id(members)] = members, [self._reads(members, ref) for ref in self.order]
        return self._viewed[id(members)][1]

    def _reads(self, members: Members, ref: ClassRef) -> list[Viewing]:
        return [
            Viewing(member, self.rank[args[0]], {})
            for member in members.get(ref, ())
            if len(args := args_of(member)) == 1
            and isinstance(args[0], ClassRef)
            and not args[0].constant
        ]

    def copy(self, source: int, state: int, prices: Prices) -> Choice:
        """The choice of making a state from another of its class."""
        known = prices.copies.get((source, state))
        if known is not None:
            return known
        candidate = self._copies.get((source, state))
        if candidate is None:
            (ref, before), (_, after) = self.states[source], self.states[state]
            candidate = Candidate(ref, copy_kernel(ref.type, before, after), (ref,))
            self._copies[source, state] = candidate
        choice = Choice(candidate, (source,), prices.costs(candidate.kernel))
        prices.copies[source, state] = choice
        return choice

    def steps(
        self, wanted: Sequence[int], choice_of: Callable[[int], Choice]
    ) -> tuple[PlanStep, ...] | None:
        """The steps that make the wanted states, arguments first; None if choices form a circle."""
        order = _ordered(wanted, choice_of)
        if order is None:
            return None
        return tuple(self.step(s, c, c.candidate) for s, c in order if c.candidate is not None)

    def step(self, state: int, choice: Choice, candidate: Candidate) -> PlanStep:
        return PlanStep(
            candidate.kernel,
            candidate.member,
            tuple(self.states[need] for need in choice.needs),
            {n: arg for n, arg in enumerate(candidate.args) if arg.constant},
            self.states[state],
            choice.cost_s,
        )

    def _view(self, ref: ClassRef, member: Tensor, source: int) -> tuple[int, Choice] | None:
        arg, layout = self.states[source]
        kernel = view_kernel(placeholder(member, {})[0], layout)
        if kernel is None:
            return None
        choice = Choice(Candidate(member, kernel, (arg,)), (source,), VIEW_S)
        return self.number(ref, normalized(kernel.output, member.shape)), choice


class _Run:
    """One selection. A class is its place in ``Greedy.order``."""

    def __init__(
        self,
        table: Greedy,
        ways: Ways,
        members: Members,
        prices: Prices,
        shared: bool,
    ) -> None:
        self._table, self._prices, self._shared = table, prices, shared
        self._ways = prices.priced(ways, table.order)
        if shared:
            self._ways = [list(map(self._per_reader, own)) for own in self._ways]
        self._views = table.viewed(members)
        self._best: dict[int, _Best] = {}
        # States that are made, by class, and those that are reached in whatever way.
        self._made: list[list[int]] = [[] for _ in table.order]
        self._reached: list[dict[int, _Best | None]] = [{} for _ in table.order]

    def _per_reader(self, way: tuple[int, Choice]) -> tuple[int, Choice]:
        """A way with the part of its cost that falls to each class that may read what it gives."""
        state, choice = way
        readers = self._table.readers[self._table.places[state]]
        if readers < 2:
            return way
        return state, choice._replace(cost_s=choice.cost_s / readers)

    def plan(self, until: float) -> Plan:
        table, inputs = self._table, dict[str, State]()
        for place, ref in enumerate(table.order):
            for member in table.graph.classes[ref]:
                if isinstance(member, Input):
                    inputs[member.name] = (ref, contiguous(len(ref.shape)))
                    state = table.number(*inputs[member.name])
                    self._best[state] = _Best(0.0, {state: Choice(None, (), 0.0)})
                    self._made[place].append(state)
        # Numbers in order are a heap.
        work = [n for n, ref in enumerate(table.order) if not ref.constant]
        queued, turns = set(work), 0
        while work:
            turns += 1
            if turns % _TURNS == 0 and time.monotonic() >= until:
                raise OutOfTime
            place = heapq.heappop(work)
            queued.discard(place)
            if not self._improve(place):
                continue
            for user in table.users[place]:
                if user not in queued and not table.order[user].constant:
                    queued.add(user)
                    heapq.heappush(work, user)
        return self._result(inputs)

    # ---- one class ---------------------------------------------------------

    def _improve(self, place: int) -> bool:
        """Tries every way to a class; True if some layout got cheaper."""
        better = False
        for state, choice in self._ways[place]:
            below = self._below(choice)
            if below is not None:
                better |= self._offer(place, state, choice, below)
        for member, source, views in self._views[place]:
            for known in tuple(self._made[source]):
                if known not in views:
                    views[known] = self._table.view(self._table.order[place], member, known)
                found = views[known]
                if found is not None:
                    below = self._below(found[1])
                    if below is not None:
                        better |= self._offer(place, found[0], found[1], below)
        return better

    def _below(self, choice: Choice) -> list[_Best] | None:
        """What a choice needs, in the best way; None if some of it isn't reached yet."""
        found = []
        for state in choice.needs:
            best = self._state(state)
            if best is None:
                return None
            found.append(best)
        return found

    def _offer(self, place: int, state: int, choice: Choice, below: list[_Best]) -> bool:
        known = self._best.get(state)
        limit = math.inf
        if known is not None:
            limit = known.total_s * _LESS
            # What is below costs at least as much together as its dearest part.
            if choice.cost_s + max((best.total_s for best in below), default=0.0) >= limit:
                return False
        if any(state in best.choices for best in below):
            return False
        total, choices = choice.cost_s, dict[int, Choice]()
        if len(below) == 1:
            total, choices = total + below[0].total_s, below[0].choices
        elif below:
            largest = max(below, key=lambda best: len(best.choices))
            total, choices = total + largest.total_s, dict(largest.choices)
            for best in below:
                if best is not largest:
                    for other, needed in best.choices.items():
                        if other not in choices:
                            choices[other] = needed
                            total += needed.cost_s
        if known is None:
            self._made[place].append(state)
        elif total >= limit:
            return False
        self._best[state] = _Best(total, {**choices, state: choice})
        self._reached[place].clear()
        return True

    def _state(self, state: int) -> _Best | None:
        """The best way to a state: made so, or copied from another layout of the class."""
        place = self._table.places[state]
        reached = self._reached[place]
        if state not in reached:
            reached[state] = self._made_or_copied(place, state)
        return reached[state]

    def _made_or_copied(self, place: int, state: int) -> _Best | None:
        best = self._best.get(state)
        for other in self._made[place]:
            source = self._best[other]
            if other == state or (best is not None and source.total_s >= best.total_s):
                continue
            choice = self._table.copy(other, state, self._prices)
            total = source.total_s + choice.cost_s
            if (best is None or total < best.total_s) and state not in source.choices:
                best = _Best(total, {**source.choices, state: choice})
        return best

    # ---- the result ----------------------------------------------------------

    def _result(self, inputs: Mapping[str, State]) -> Plan:
        choices: dict[int, Choice] = {}
        outputs: list[State] = []
        wanted: list[int] = []
        for position, root in enumerate(self._table.graph.roots):
            outputs.append((root, contiguous(len(root.shape))))
            if root.constant:
                continue
            wanted.append(self._table.number(*outputs[-1]))
            best = self._state(wanted[-1])
            if best is None:
                raise ExtractionError(
                    what="no backend can run an output of the program",
                    where=f"output {position}",
                    got="; ".join(map(render_alone, self._table.graph.classes[root])),
                    expected="a member that some backend has a kernel for",
                    hint="add a backend, or load fewer rules",
                )
            for state, choice in best.choices.items():
                choices.setdefault(state, choice)
        # Sets that were made at different times may need each other's states in a circle. The last
        # choice of each state is cheaper than all that need it, so that these have none.
        steps = self._table.steps(wanted, choices.__getitem__)
        if steps is None:
            steps = self._table.steps(wanted, self._last)
        assert steps is not None
        if self._shared:
            steps = tuple(replace(step, cost_s=self._prices.costs(step.kernel)) for step in steps)
        return Plan(steps, inputs, tuple(outputs), sum(s.cost_s for s in steps))

    def _last(self, state: int) -> Choice:
        best = self._state(state)
        assert best is not None
        return best.choices[state]


def _ordered(
    wanted: Sequence[int], choice_of: Callable[[int], Choice]
) -> list[tuple[int, Choice]] | None:
    """The states that are needed, with their choices, arguments first; None for a circle."""
    order: dict[int, Choice] = {}
    entered: set[int] = set()
    stack = [(state, False) for state in reversed(wanted)]
    while stack:
        state, ready = stack.pop()
        if state in order:
            continue
        choice = choice_of(state)
        if ready:
            order[state] = choice
        elif state in entered:
            return None
        else:
            entered.add(state)
            stack.append((state, True))
            stack.extend((arg, False) for arg in reversed(choice.needs) if arg not in order)
    return list(order.items())


def _below(member: Tensor) -> list[ClassRef]:
    return [arg for arg in args_of(member) if isinstance(arg, ClassRef)]


def _in_order(graph: EGraph) -> list[ClassRef]:
    """The classes that the roots need, arguments before users but where they need each other."""
    order: list[ClassRef] = []
    seen: set[ClassRef] = set()
    stack = [(root, False) for root in reversed(graph.roots)]
    while stack:
        ref, ready = stack.pop()
        if ready:
            order.append(ref)
        elif ref not in seen:
            seen.add(ref)
            stack.append((ref, True))
            args = (arg for member in graph.classes[ref] for arg in _below(member))
            stack.extend((arg, False) for arg in args if arg not in seen)
    return order
