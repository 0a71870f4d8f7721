"""Joint selection: members of all classes chosen at once, by a constraint solver (OR-tools CP-SAT).

Greedy choices miss members that pay only together. One step of a loop needs a slice of one product
over all ten steps, or a product of its own. Its own product costs less, so a greedy choice takes it
for each step, but ten such products cost more than the one over all steps.

The solver starts from the greedy plan and looks for a cheaper one. In a plan, each class that is
computed has one *native* way, which gives one state of it; other states of the class are copies of
that state. Not here: greedy choices (``greedy.py``), the costs of ways (``cost.py``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import networkx as nx

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver, IntVar

UNITS = 10**8
"""The cost of the plan to improve, in the integers that the solver adds up."""

PROVE_WORK, BOUND_WORK, TURN_WORK, MOST_WORK = 0.02, 0.05, 0.5, 1.0
"""Limits in the solver's own measure of work (1.0 is about half a second of a core), which unlike
time gives the same plan for the same e-graph on a busy machine. ``PROVE_WORK`` is for proving that
the best plan of a small problem is found, ``BOUND_WORK`` for a lower bound, ``TURN_WORK`` for one
turn of the search for better plans of a large problem, ``MOST_WORK`` for all turns."""

PROVABLE = 400
"""The most ways of a problem that is tried to be solved to its optimum before the search in turns.
(One run each: of 38 blocks of ResNet-18, of 4 to 309 ways, 36 are proved with 0.01 of work and all
with 0.05; of 46 blocks of NasRNN, LSTM and BERT, of 179 to 2,518 ways, none is with 0.05.)"""

GAIN, LITTLE = 0.01, 0.001
"""Parts of the plan's cost. The search ends after two turns in a row that each gained less than
``GAIN``, or after one turn that gained less than ``LITTLE``. Each turn searches around the plan
that the last one found (LSTM, 2,985 ways, four turns: 0.90, 0.85, 0.81, 0.79 of the greedy plan;
two turns of twice the work: 0.87, 0.80. BERT: 1.00 after the first turn)."""

CYCLIC = 2
"""The fewest classes of a strongly connected component whose cycles the model has to exclude. Ways
that read their own class were removed before."""


class Way(NamedTuple):
    """One way of computing a class: the state that it gives, the states that it needs, the cost."""

    state: int
    needs: tuple[int, ...]
    cost_s: float


@dataclass(frozen=True)
class Joint:
    """The solver's answer.

    Attributes:
        ways: the native way of each class that is computed.
        copies: for each state that is a copy, the state that it is copied from.
    """

    ways: Mapping[int, Way]
    copies: Mapping[int, int]


def improved(
    ways: Mapping[int, Sequence[Way]],
    wanted: Sequence[int],
    class_of: Callable[[int], int],
    copy_s: Callable[[int, int], float],
    hint: Mapping[int, Way],
    hint_s: float,
    until: float = math.inf,
    given: Set[int] = frozenset(),
    share: float = 1.0,
) -> Joint | None:
    """Return a cheaper choice than the hint, or None if none was found.

    Classes and states are numbers.

    Args:
        ways: the ways of each class that isn't constant. The ways of the program's inputs cost
            nothing and need nothing. A way that needs its own class (a view of a view, equal to the
            class) is ignored.
        wanted: the states that are the program's results.
        class_of: returns the class of a state.
        copy_s: returns the cost of copying the first state of a class into the second.
        hint: the way of each class in the plan to improve.
        hint_s: the cost of that plan. If it is infinite (a kernel doesn't work), the answer is
            None.
        until: the time of the monotonic clock at which the search ends with what it has found.
        given: classes whose states are all available at no cost.
        share: the part of the solver's work that may be done.
    """
    useful = _useful(ways, wanted, class_of, hint_s, given)
    if not 0 < hint_s < math.inf or all(
        len(own) == 1 for place, own in useful.items() if place not in given
    ):
        return None
    problem = _Problem(useful, wanted, class_of, copy_s, hint_s, given)
    problem.suggest(hint)
    return problem.solve(until, share)


def least_s(
    ways: Mapping[int, Sequence[Way]],
    wanted: Sequence[int],
    needed: Sequence[int],
    class_of: Callable[[int], int],
    copy_s: Callable[[int, int], float],
    most_s: float,
    until: float,
    given: Set[int],
) -> float:
    """Return a lower bound, found with little work, of the cost of all choices that make the wanted
    states, compute the needed classes and cost at most ``most_s``. It is 0 if ``most_s`` is
    infinite (a kernel of the known plan doesn't work), or if a needed class has no usable way."""
    if not 0 < most_s < math.inf or not all(ways[place] for place in needed):
        return 0.0
    results = [*wanted, *(ways[place][0].state for place in needed)]
    useful = _useful(ways, results, class_of, most_s, given)
    if not all(useful.get(place) for place in needed):
        return 0.0
    problem = _Problem(useful, wanted, class_of, copy_s, most_s, given)
    return problem.bound_s(needed, until)


def _useful(
    ways: Mapping[int, Sequence[Way]],
    wanted: Sequence[int],
    class_of: Callable[[int], int],
    most_s: float,
    given: Set[int],
) -> dict[int, list[Way]]:
    """Return the ways that a cheapest choice may use: no way that needs its own class, that another
    way makes superfluous, or that can't be completed."""
    kept = {
        place: own if place in given
        else _undominated([w for w in own if place not in map(class_of, w.needs)], most_s)
        for place, own in ways.items()
    }  # fmt: skip
    return reachable(kept, wanted, class_of)


def _undominated(ways: Sequence[Way], most_s: float) -> list[Way]:
    """Return the ways that cost at most ``most_s``, without a way for which another one computes
    the same state, costs no more, and needs no other states."""
    kept: list[Way] = []
    enough: dict[int, list[Set[int]]] = {}  # state -> what the kept ways that compute it need
    for way in sorted(ways, key=lambda w: (w.cost_s, len(w.needs))):
        needs, known = set(way.needs), enough.setdefault(way.state, [])
        if way.cost_s <= most_s and not any(other <= needs for other in known):
            kept.append(way)
            known.append(needs)
    return kept


def reachable(
    ways: Mapping[int, Sequence[Way]], wanted: Sequence[int], class_of: Callable[[int], int]
) -> dict[int, list[Way]]:
    """Return the classes that the wanted states may need, without ways that can't be completed: a
    way can be if each class that it needs has such a way."""
    users: dict[int, list[tuple[int, int]]] = {}
    missing: dict[tuple[int, int], int] = {}  # way -> how many classes it still waits for
    done: set[int] = set()
    ready: list[int] = []
    for place, own in ways.items():
        for n, way in enumerate(own):
            needed = set(map(class_of, way.needs))
            missing[place, n] = len(needed)
            for below in needed:
                users.setdefault(below, []).append((place, n))
        if any(not way.needs for way in own):
            ready.append(place)
    while ready:
        place = ready.pop()
        if place in done:
            continue
        done.add(place)
        for user in users.get(place, ()):
            missing[user] -= 1
            if not missing[user]:
                ready.append(user[0])
    found: dict[int, list[Way]] = {}
    stack = list(map(class_of, wanted))
    while stack:
        place = stack.pop()
        if place not in found:
            found[place] = [way for n, way in enumerate(ways[place]) if not missing[place, n]]
            stack.extend(class_of(need) for way in found[place] for need in way.needs)
    return found


class _Problem:
    """The selection problem as a model of the solver."""

    def __init__(
        self,
        ways: Mapping[int, Sequence[Way]],
        wanted: Sequence[int],
        class_of: Callable[[int], int],
        copy_s: Callable[[int, int], float],
        hint_s: float,
        given: Set[int],
    ) -> None:
        from ortools.sat.python import cp_model  # loads in half a second

        self._solver: Callable[[], CpSolver] = cp_model.CpSolver
        self._found = (cp_model.OPTIMAL, cp_model.FEASIBLE)
        self._optimal = cp_model.OPTIMAL
        self.model: CpModel = cp_model.CpModel()
        self.ways, self._class_of, self._given = ways, class_of, given
        self._most_s, self._unit_s = hint_s, hint_s / UNITS
        self._names = map(str, count())
        self._prices: list[tuple[IntVar, float]] = []
        self._uses = {place: [self._bool() for _ in own] for place, own in ways.items()}
        self._computed = {place: self._bool() for place in ways}
        every = [way for own in ways.values() for way in own]
        states = {*wanted, *(w.state for w in every), *(need for w in every for need in w.needs)}
        self._at_hand = {state: self._bool() for state in sorted(states)}
        self._copies: dict[tuple[int, int], IntVar] = {}
        for place in ways:
            self._one_native_way(place)
        for state in self._at_hand:
            self._available(state, copy_s)
        self._without_cycles()
        for state in wanted:
            self.model.add(self._at_hand[state] == 1)
        self.model.minimize(sum(var * self._units(cost_s) for var, cost_s in self._prices))

    def _units(self, cost_s: float) -> int:
        """Return a cost in units, at least 1 unless the cost is 0. Counted in FLOPs, a copy costs
        almost nothing; rounded to 0, copies would be made without need."""
        return max(round(cost_s / self._unit_s), int(cost_s > 0))

    def _bool(self) -> IntVar:
        return self.model.new_bool_var(next(self._names))

    def _one_native_way(self, place: int) -> None:
        if place in self._given:
            for use in (*self._uses[place], self._computed[place]):
                self.model.add(use == 1)
            return
        self.model.add(sum(self._uses[place]) == self._computed[place])
        for use, way in zip(self._uses[place], self.ways[place], strict=True):
            self._prices.append((use, way.cost_s))
            for state in way.needs:
                self.model.add_implication(use, self._at_hand[state])

    def _available(self, state: int, copy_s: Callable[[int, int], float]) -> None:
        """A state is available if the native way of its class gives it, or if it is a copy of the
        state that the native way gives."""
        place = self._class_of(state)
        given: dict[int, list[IntVar]] = {}
        for use, way in zip(self._uses[place], self.ways[place], strict=True):
            given.setdefault(way.state, []).append(use)
        sources = list(given.get(state, ()))
        for other, uses in given.items():
            cost_s = copy_s(other, state) if other != state else math.inf
            if cost_s <= self._most_s:
                copied = self._bool()
                self._copies[other, state] = copied
                self._prices.append((copied, cost_s))
                self.model.add(sum(uses) >= copied)
                sources.append(copied)
        self.model.add(self._at_hand[state] <= sum(sources))

    def _without_cycles(self) -> None:
        """In each component of the e-graph with cycles, a class has a level above the levels of the
        classes that its native way needs."""
        graph = nx.DiGraph()
        graph.add_nodes_from(self.ways)
        below = {
            place: [{self._class_of(need) for need in way.needs} for way in own]
            for place, own in self.ways.items()
        }
        graph.add_edges_from((p, arg) for p, own in below.items() for args in own for arg in args)
        for component in nx.strongly_connected_components(graph):
            if len(component) < CYCLIC:
                continue
            level = {
                place: self.model.new_int_var(0, len(component) - 1, next(self._names))
                for place in sorted(component)
            }
            for place in level:
                for use, args in zip(self._uses[place], below[place], strict=True):
                    for arg in sorted(args & component):
                        self.model.add(level[place] > level[arg]).only_enforce_if(use)

    def suggest(self, hint: Mapping[int, Way]) -> None:
        """Let the solver start from the ways of a known plan."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for place, uses in self._uses.items():
            if place in self._given:
                continue
            known = hint.get(place)
            self.model.add_hint(self._computed[place], known is not None)
            for use, way in zip(uses, self.ways[place], strict=True):
                same = known and (way.state, way.needs) == (known.state, known.needs)
                self.model.add_hint(use, bool(same))

    def solve(self, until: float, share: float) -> Joint | None:
        """Return the best choice that was found; None if none is cheaper than the known plan. The
        best choice of a small problem is proved to be the best. In a large problem, or one for
        which this takes too long, the solver searches around the best known choice, in turns."""
        if sum(map(len, self.ways.values())) <= PROVABLE:
            solver, status = self._run(until, PROVE_WORK, num_workers=1)
            if status == self._optimal:
                return self._chosen(solver) if solver.objective_value < UNITS else None
        best, least, idle = None, float(UNITS), 0
        work, left = share * TURN_WORK, share * MOST_WORK
        while left >= work and idle < 2 and time.monotonic() < until:
            # The solver's workers are interleaved in a fixed order, so the result doesn't depend on
            # the machine. Each turn has another seed, so that it searches elsewhere. A batch is one
            # search: the default of 20 takes more work than a turn is allowed. No probing, which
            # takes as long as all searches (LSTM, part of the plan's cost and CPU time: 0.847 in
            # 3.1 s with the defaults; 0.788 in 1.3 s with these settings and a quarter of the
            # work).
            solver, status = self._run(
                until, work, random_seed=int(left / work),
                num_workers=4, interleave_search=True, use_lns_only=True,
                interleave_batch_size=1, cp_model_probing_level=0,
            )  # fmt: skip
            left -= work
            if status not in self._found:
                work *= 2  # the problem is so large that a turn found nothing
                continue
            gained = (least - solver.objective_value) / UNITS
            if gained > 0:
                best, least = self._chosen(solver), solver.objective_value
                self.suggest(best.ways)
            if gained < LITTLE:
                break
            idle = idle + 1 if gained < GAIN else 0
        return best

    def bound_s(self, needed: Sequence[int], until: float) -> float:
        """Return a lower bound of the cost of all choices that also compute the needed classes."""
        for place in needed:
            self.model.add(self._computed[place] == 1)
        solver, _ = self._run(until, BOUND_WORK, num_workers=1)
        # Each price may have been rounded up by a unit.
        return max(0.0, (solver.best_objective_bound - len(self._prices)) * self._unit_s)

    def _run(self, until: float, work: float, **parameters: Any) -> tuple[CpSolver, Any]:
        solver = self._solver()
        solver.parameters.max_deterministic_time = work
        solver.parameters.max_time_in_seconds = max(0.01, min(until - time.monotonic(), 1e6))
        solver.parameters.random_seed = 1
        # Otherwise the solver leaves behind a handler of Ctrl-C that ends the process without a
        # message.
        solver.parameters.catch_sigint_signal = False
        for name, value in parameters.items():
            setattr(solver.parameters, name, value)
        return solver, solver.solve(self.model)

    def _chosen(self, solver: CpSolver) -> Joint:
        ways = {
            place: way
            for place, uses in self._uses.items()
            for use, way in zip(uses, self.ways[place], strict=True)
            if place not in self._given and solver.value(use)
        }
        copies = {to: source for (source, to), var in self._copies.items() if solver.value(var)}
        return Joint(ways, copies)
