"""Joint selection: members of all classes chosen at once, by a constraint solver (OR-tools CP-SAT).

Greedy choices miss what pays only together: ten products of one step each cost less than the
product of all ten steps, and all ten of them cost more. The solver starts from the greedy plan and
looks for a better one. Each class has one *native* way of being computed, with its layout; other
layouts of it are copies. Not here: greedy choices (``select.py``), which way costs what
(``cost.py``).
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
"""What the plan that is to be improved costs, in the integers that the solver adds up."""

PROVE_WORK, TURN_WORK, MOST_WORK = 0.05, 0.5, 1.0
"""The solver's own measure of work (about half a second of a core), so that the same e-graph gives
the same plan on a busy machine: to prove that small ones are at their optimum; for one turn of
looking for better plans of large ones; and for all turns."""

GAIN, LITTLE = 0.01, 0.001
"""Parts of the plan's cost. After two turns in a row that gained less than the first, or one that
gained less than the second, the solver has ended. Each turn looks around the plan that the last one
found (LSTM, 2,985 ways, four turns: 0.90, 0.85, 0.81, 0.79 of the greedy plan; two turns of twice
the work: 0.87, 0.80. BERT: 1.00 at once)."""

CYCLIC = 2
"""Classes from which a component of the e-graph has cycles to be kept out of a plan."""


class Way(NamedTuple):
    """One way of computing a class: the state that it gives, the states that it needs, the cost."""

    state: int
    needs: tuple[int, ...]
    cost_s: float


@dataclass(frozen=True)
class Joint:
    """What was chosen: native ways by class, and the copies that are made of them.

    Attributes:
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
    """A cheaper choice than the hint, or None where none was found.

    Classes and states are numbers.

    Args:
        ways: of each class that isn't constant; those of the program's inputs cost and need
            nothing. What a class needs of itself (a view of a view that is the class again) is left
            out.
        wanted: the states that are the program's results.
        class_of: the class of a state.
        copy_s: what it costs to make the second state of a class from the first.
        hint: a way for each class of the plan that is to be improved.
        hint_s: what that plan costs; nothing is looked for beside one that doesn't work (infinite).
        until: when the monotonic clock says so, what was found is returned.
        given: classes that are at hand in each of their states, for nothing.
        share: part of the work that may be done.
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
    """What every choice costs at least that makes the wanted states and computes the needed
    classes, as far as that can be told with little work; none that costs more than ``most_s`` is
    thought of. Nothing is told where that is infinite: a plan one of whose kernels doesn't work."""
    results = [*wanted, *(ways[place][0].state for place in needed)]
    useful = _useful(ways, results, class_of, most_s, given)
    if not 0 < most_s < math.inf or not all(useful.get(place) for place in needed):
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
    kept = {
        place: own if place in given
        else _undominated([w for w in own if place not in map(class_of, w.needs)], most_s)
        for place, own in ways.items()
    }  # fmt: skip
    return reachable(kept, wanted, class_of)


def _undominated(ways: Sequence[Way], most_s: float) -> list[Way]:
    """Ways that aren't dearer than the whole plan, and than one that needs no more than they."""
    kept: list[Way] = []
    for way in sorted(ways, key=lambda w: (w.cost_s, len(w.needs))):
        if way.cost_s <= most_s and not any(
            other.state == way.state and set(other.needs) <= set(way.needs) for other in kept
        ):
            kept.append(way)
    return kept


def reachable(
    ways: Mapping[int, Sequence[Way]], wanted: Sequence[int], class_of: Callable[[int], int]
) -> dict[int, list[Way]]:
    """The classes that the wanted states may need; ways that can't be completed are left out."""
    users: dict[int, list[tuple[int, int]]] = {}
    missing: dict[tuple[int, int], int] = {}  # classes that a way waits for
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
    """The choice as a model of the solver."""

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
        """What costs anything costs one unit: copies take no FLOPs, and aren't made for nothing."""
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
        """The state is there if a way gives it, or a copy of the state that a way gives."""
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
        """In a component of the e-graph with cycles each class stands above those that it needs."""
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
        """Where the solver begins: the ways of another plan."""
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
        """Proves a small problem to be at its optimum; else looks around the best that is known."""
        solver, status = self._run(until, PROVE_WORK, num_workers=1)
        if status == self._optimal:
            return self._chosen(solver) if solver.objective_value < UNITS else None
        best, least, idle = None, float(UNITS), 0
        work, left = share * TURN_WORK, share * MOST_WORK
        while left >= work and idle < 2 and time.monotonic() < until:
            # One thread in turns, so that the outcome doesn't depend on the machine; another seed
            # each time, so that it looks elsewhere. Batches of one look: by default they are of 20,
            # which takes longer than the work that is allowed; and no probing, which takes as long
            # as all looks (LSTM, plan and CPU: 0.847 in 3.1 s; so 0.788 in 1.3 s with a quarter of
            # the work).
            solver, status = self._run(
                until, work, random_seed=int(left / work),
                num_workers=4, interleave_search=True, use_lns_only=True,
                interleave_batch_size=1, cp_model_probing_level=0,
            )  # fmt: skip
            left -= work
            if status not in self._found:
                work *= 2  # a large problem, in which nothing was found yet
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
        """A lower bound of what computing these classes costs, too."""
        for place in needed:
            self.model.add(self._computed[place] == 1)
        solver, _ = self._run(until, PROVE_WORK, num_workers=1)
        # Each price may have been rounded up by a unit.
        return max(0.0, (solver.best_objective_bound - len(self._prices)) * self._unit_s)

    def _run(self, until: float, work: float, **parameters: Any) -> tuple[CpSolver, Any]:
        solver = self._solver()
        solver.parameters.max_deterministic_time = work
        solver.parameters.max_time_in_seconds = max(0.01, min(until - time.monotonic(), 1e6))
        solver.parameters.random_seed = 1
        # Else it leaves the process with a Ctrl-C that ends it without a word.
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
