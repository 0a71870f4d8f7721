"""Greedy DAG extraction, part by part (``parts.py``): for each state the choice that costs least.

The choices that all states of a border need are part of every plan above the border, so they are no
reason to prefer a plan. A part is told only in which choices the states of its border differ:

    the two states of a border need {a, b, x: 1} and {a, b, y: 2}   ->   {0: 1} and {1: 2}

The choices x and y are replaced by numbers and keep their costs (1 and 2). So a part is solved in
the same way wherever it stands in the program, and equal parts with equal borders are solved once.
Not here: choices within a part (``one_part.py``), searches that change several choices at once
(``select.py``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from eqsynth.errors import ExtractionError
from eqsynth.extract.kernel import contiguous
from eqsynth.extract.one_part import Best, OnePart, OutOfTime
from eqsynth.extract.parts import Part, parts_of
from eqsynth.extract.plan import Plan, State
from eqsynth.extract.prices import Choice, Prices, Ways
from eqsynth.extract.states import Members, States
from eqsynth.ir.printing import render_alone

# After this many visits of classes in one or more parts, the clock is read before the next part.
_TURNS = 256
# Of so many selections with different readers the runs are kept.
_KEPT = 3


class Greedy:
    """Greedy selections from some members of an e-graph: all of them, or the original's.

    Attributes:
        parts: the parts of the classes. A part stands behind the part that it reads.
        part_of: the place of a class -> the number of its part.
        views: the views of each class, by its place.
    """

    def __init__(self, table: States, ways: Ways, members: Members) -> None:
        self.table, self.ways, self.views = table, ways, table.viewed(members)
        self.parts = parts_of(table, ways, self.views)
        self.part_of = {place: n for n, part in enumerate(self.parts) for place in part.places}
        # The runs that the last plans were made of, by the readers, the oldest first.
        self._known: dict[tuple[int, ...], dict[Hashable, OnePart]] = {}

    def plan(
        self, prices: Prices, until: float = math.inf, readers: Sequence[int] | None = None
    ) -> Plan:
        """Return the plan of the choices that each cost least.

        Args:
            prices: the prices of the table's kernels.
            readers: for each class, by its place, the number of classes among which its cost is
                divided. Then one product for all steps of a loop is chosen, of which each step
                takes a slice. The steps of the returned plan have their full costs.
            until: the time of the monotonic clock at which :class:`OutOfTime` is raised.

        Raises:
            ExtractionError: a root has no member that any backend can run.
            OutOfTime: the deadline has passed.
        """
        name = () if readers is None else tuple(readers)
        chain = _Chain(self, prices, readers, self._known.pop(name, {}))
        chain.run(until)
        self._known[name] = chain.runs
        while len(self._known) > _KEPT:
            del self._known[next(iter(self._known))]
        return chain.plan()


@dataclass(frozen=True)
class _Border:
    """The choices that a part finds below it, and the border's states as the part sees them.

    The states and choices in ``common`` and ``others`` are those of the run of the part below.

    Attributes:
        common: the choices that all computed states of the border need.
        others: all other choices that a state of the border needs. The choices of the border's
            states themselves are among them, even if all states need them, since the part above
            may copy one state of the border into another.
        states: the border's computed states, as numbered in the run of the part above. The choices
            of each are *marks* that stand for choices in ``others``. A mark has no candidate, and
            its ``needs`` holds the position in ``others``. Its cost is the choice's, but 0 if the
            choice is in ``common``. The states of the marks have numbers below zero, except states
            of the border.
    """

    common: Mapping[int, Choice]
    others: Sequence[tuple[int, Choice]]
    states: tuple[tuple[int, Best], ...]

    def key(self) -> tuple[object, ...]:
        """Return a key that is equal for two borders if a part makes the same choices above
        them."""
        return tuple(
            (state, tuple((n, c.needs, c.cost_s) for n, c in best.choices.items()))
            for state, best in self.states
        )


def _divided(ways: list[tuple[int, Choice]], among: int) -> list[tuple[int, Choice]]:
    """The ways with their costs divided among so many classes."""
    if among < 2:
        return ways
    return [(state, choice._replace(cost_s=choice.cost_s / among)) for state, choice in ways]


def _is_mark(choice: Choice) -> bool:
    return choice.candidate is None and bool(choice.needs)


_NOTHING = _Border({}, (), ())
_Priced = Mapping[int, list[tuple[int, Choice]]]


@dataclass(frozen=True)
class _Link:
    """A part of the program, its border, and the run with its choices: a run of the part itself or
    of an equal part."""

    part: Part
    run: OnePart
    border: _Border


class _Chain:
    """One selection: solves the parts from the first to the last, then collects the plan from the
    last part back to the first.

    Args:
        known: the runs of the previous selection.

    Attributes:
        runs: the runs of this selection, by the number of the part that was solved, its prices and
            its border.
    """

    def __init__(
        self,
        greedy: Greedy,
        prices: Prices,
        readers: Sequence[int] | None,
        known: Mapping[Hashable, OnePart],
    ) -> None:
        self._greedy, self._table, self._prices = greedy, greedy.table, prices
        self._readers, self._known = readers, known
        self._priced: dict[tuple[int, tuple[int, ...]], tuple[_Priced, Hashable]] = {}
        self._links: list[_Link] = []
        self.runs: dict[Hashable, OnePart] = {}

    def run(self, until: float) -> None:
        turns = 0
        for n, part in enumerate(self._greedy.parts):
            like = self._greedy.parts[part.like]
            border = self._border(self._links[-1], part, like) if n else _NOTHING
            ways, price = self._ways_of(n)
            key = (part.like, price, border.key())
            run = self.runs.get(key) or self._as_before(key)
            if run is None:
                run = OnePart(
                    self._table, like, ways, self._greedy.views, self._prices, border.states
                )
                run.choose(until)
                turns += run.turns
                if turns >= _TURNS:
                    turns = 0
                    if time.monotonic() >= until:
                        raise OutOfTime
            self.runs[key] = run
            self._links.append(_Link(part, run, border))

    def _ways_of(self, number: int) -> tuple[_Priced, Hashable]:
        """Return the cheapest choice of each way of the part that is solved in a part's place, and
        a key that is equal as long as these choices and their costs are the same."""
        part = self._greedy.parts[number]
        readers = tuple(map(self._readers.__getitem__, part.places)) if self._readers else ()
        if (part.like, readers) not in self._priced:
            table, every, like = self._table, self._greedy.ways, self._greedy.parts[part.like]
            full = {p: self._prices.priced(every[table.order[p]]) for p in like.places}
            costs = ((c.cost_s, id(c.candidate)) for own in full.values() for _, c in own)
            price = tuple(costs), readers
            if readers:
                divided = zip(full.items(), readers, strict=True)
                full = {p: _divided(own, among) for (p, own), among in divided}
            self._priced[part.like, readers] = full, price
        return self._priced[part.like, readers]

    def _as_before(self, key: Hashable) -> OnePart | None:
        """Return the run of the previous selection with this key; None if there is none, or if one
        of its copies has another cost now."""
        run = self._known.get(key)
        if run is None or any(
            self._table.copy(*states, self._prices).cost_s != cost_s
            for states, cost_s in run.copied_s.items()
        ):
            return None
        run.prices = self._prices
        return run

    def _border(self, below: _Link, part: Part, like: Part) -> _Border:
        """Return the border of ``part``, with states numbered as in ``like``, the equal part that
        is solved in its place.

        Args:
            below: the link of the part below the border.
        """
        assert part.border is not None
        run, place = below.run, below.part.place_in(below.run.part, part.border)
        sets = {state: run.best[state].choices for state in run.made[place]}
        if not sets:
            return _NOTHING
        common = {
            state: choice
            for state, choice in next(iter(sets.values())).items()
            if all(choices.get(state) is choice for choices in sets.values())
        }
        others: list[tuple[int, Choice]] = []
        named: dict[int, int] = {}
        marks: dict[tuple[int, int], Choice] = {}
        states = []
        for made, choices in sets.items():
            further: dict[int, Choice] = {}
            for state, choice in choices.items():
                own = state >= 0 and self._table.places[state] == place
                if state in common and not own:
                    continue
                if state not in named:
                    number = self._state_in(below.part, run.part, state) if own else -1 - len(named)
                    named[state] = self._state_in(like, part, number) if own else number
                mark = marks.get((state, id(choice)))
                if mark is None:
                    cost_s = 0.0 if state in common else choice.cost_s
                    mark = marks[state, id(choice)] = Choice(None, (len(others),), cost_s)
                    others.append((state, choice))
                further[named[state]] = mark
            total_s = sum(choice.cost_s for choice in further.values())
            states.append((named[made], Best(total_s, further)))
        return _Border(common, others, tuple(states))

    def _state_in(self, part: Part, other: Part, state: int) -> int:
        """Return the state of ``part`` that corresponds to ``state`` of ``other``, an equal
        part."""
        if part is other:
            return state
        table = self._table
        ref = table.order[other.place_in(part, table.places[state])]
        return table.number(ref, table.states[state][1])

    # ---- the plan ------------------------------------------------------------

    def plan(self) -> Plan:
        table, choices = self._table, dict[int, Choice]()
        outputs: list[State] = []
        wanted: list[int] = []
        for position, root in enumerate(table.graph.roots):
            outputs.append((root, contiguous(len(root.shape))))
            if root.constant:
                continue
            wanted.append(table.number(*outputs[-1]))
            found = self._below(wanted[-1])
            if found is None:
                raise ExtractionError(
                    what="no backend can run an output of the program",
                    where=f"output {position}",
                    got="; ".join(map(render_alone, table.graph.classes[root])),
                    expected="a member that some backend has a kernel for",
                    hint="add a backend, or load fewer rules",
                )
            choices = {**found, **choices}
        # Two sets of choices that were made at different times may form a cycle, if each makes a
        # state that the other needs. The last choices of all states form no cycle: each state costs
        # less than every state that needs it.
        steps = table.steps(wanted, choices.__getitem__)
        if steps is None:
            steps = table.steps(wanted, self._last)
        assert steps is not None
        if self._readers is not None:
            steps = tuple(replace(step, cost_s=self._prices.step_s(step)) for step in steps)
        return Plan(steps, table.inputs(), tuple(outputs), sum(s.cost_s for s in steps))

    def _below(self, state: int) -> dict[int, Choice] | None:
        """Return the choices that a state needs, in all parts; None if the state isn't reached."""
        number, best = self._best(state)
        if best is None:
            return None
        found: dict[int, Choice] = {}
        chosen: Mapping[int, Choice] = best.choices
        while True:
            link = self._links[number]
            below = dict(link.border.common)
            for of_run, choice in chosen.items():
                if _is_mark(choice):
                    other, further = link.border.others[choice.needs[0]]
                    below[other] = further
                else:
                    found.update([self._own(link, of_run, choice)])
            if not number:
                return found
            number, chosen = number - 1, below

    def _last(self, state: int) -> Choice:
        """Return the last choice that was made for a state."""
        number, best = self._best(state)
        assert best is not None
        link = self._links[number]
        of_run = self._state_in(link.run.part, link.part, state)
        return self._own(link, of_run, best.choices[of_run])[1]

    def _best(self, state: int) -> tuple[int, Best | None]:
        """Return the number of a state's part, and the best way to the state in the part's run."""
        number = self._greedy.part_of[self._table.places[state]]
        link = self._links[number]
        return number, link.run.state(self._state_in(link.run.part, link.part, state))

    def _own(self, link: _Link, of_run: int, choice: Choice) -> tuple[int, Choice]:
        """Translate a state and its choice from the link's run to the link's own part."""
        table, own, run = self._table, link.part, link.run
        if run.part is own:
            return of_run, choice
        state = self._state_in(own, run.part, of_run)
        if choice.candidate is None:
            return state, choice
        needs = [self._state_in(own, run.part, need) for need in choice.needs]
        place, here = table.places[of_run], table.places[state]
        for n, (_, way) in enumerate(run.ways.get(place, ())):
            if way is choice:
                return self._prices.cheapest(self._greedy.ways[table.order[here]][n])
        for n, viewing in enumerate(self._greedy.views[place]):
            viewed = viewing.views.get(choice.needs[0])
            if viewed is not None and viewed[1] is choice:
                found = table.view(here, self._greedy.views[here][n], needs[0])
                assert found is not None
                return found
        return state, table.copy(needs[0], state, self._prices)
