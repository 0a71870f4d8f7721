"""Greedy choices in one part: the cheapest set of choices for each state, shared work counted once.

Each state keeps the set of all choices that it needs. A new choice costs the total of the union of
its arguments' sets, plus its own cost. Classes are visited arguments first, and again when a class
that they read has become cheaper.

    best(x) = {x: 1}, best(y) = {x: 1, y: 2}   ->   best(x + y) = {x: 1, y: 2, +: 1}, 4 and not 5

Not here: what parts pass on to each other, and the plan of the whole program (``greedy.py``).
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from eqsynth.extract.kernel import contiguous
from eqsynth.extract.parts import Part, Views
from eqsynth.extract.prices import Choice, Prices
from eqsynth.extract.states import States
from eqsynth.ir.tensor import Input

# The clock is read after this many visits of classes.
_TURNS = 256
# A choice replaces another if it costs less than this part of the other's cost. The margin is for
# the rounding of sums.
_LESS = 1 - 1e-9


class OutOfTime(Exception):
    """The deadline came in the middle of a selection."""


class Best(NamedTuple):
    """The best known way to compute a state: the choices of all states that it needs, its own
    included (state -> choice), and what they cost together."""

    total_s: float
    choices: dict[int, Choice]


class OnePart:
    """Choices in one part at given prices. A class is represented by its place in ``States.order``.

    Attributes:
        ways: for each class, the state that each of its ways computes, and the way's cheapest
            choice.
        made: for each class and the border, the states that some way or view computes.
        copied_s: the cost of copying the first state of a pair into the second, for pairs that were
            asked for.
        turns: the number of visits of classes.
        prices: the prices of copies that are asked for from now on.
    """

    def __init__(
        self,
        table: States,
        part: Part,
        ways: Mapping[int, list[tuple[int, Choice]]],
        views: Views,
        prices: Prices,
        border: Sequence[tuple[int, Best]],
    ) -> None:
        """
        Args:
            views: the views of each class, by its place.
            border: the computed states of the border's class, each with its best way.
        """
        self.part, self.turns = part, 0
        self._table, self.prices = table, prices
        self.ways, self._views = ways, views
        self.best: dict[int, Best] = dict(border)
        self.made: dict[int, list[int]] = {place: [] for place in part.places}
        if part.border is not None:
            self.made[part.border] = [state for state, _ in border]
        self.copied_s: dict[tuple[int, int], float] = {}
        # For each class, the best way to each state that was asked for, copies included.
        self._reached: dict[int, dict[int, Best | None]] = {place: {} for place in self.made}

    def choose(self, until: float) -> None:
        """Try choices for all classes of the part until none becomes cheaper.

        Args:
            until: the time of the monotonic clock at which :class:`OutOfTime` is raised.

        Raises:
            OutOfTime: the deadline has passed.
        """
        table = self._table
        for place in self.part.places:
            ref = table.order[place]
            if any(isinstance(member, Input) for member in table.graph.classes[ref]):
                state = table.number(ref, contiguous(len(ref.shape)))
                self.best[state] = Best(0.0, {state: Choice(None, (), 0.0)})
                self.made[place].append(state)
        work = list(self.part.places)  # places in ascending order are a heap
        queued = set(work)
        while work:
            self.turns += 1
            if self.turns % _TURNS == 0 and time.monotonic() >= until:
                raise OutOfTime
            place = heapq.heappop(work)
            queued.discard(place)
            if not self._improve(place):
                continue
            for user in table.users[place]:
                if user not in queued and user in self.ways:
                    queued.add(user)
                    heapq.heappush(work, user)

    # ---- one class ---------------------------------------------------------

    def _improve(self, place: int) -> bool:
        """Try every way and view of a class; return whether one of its states became cheaper."""
        better = False
        for state, choice in self.ways[place]:
            below = self._below(choice)
            if below is not None:
                better |= self._offer(place, state, choice, below)
        for viewing in self._views[place]:
            for known in tuple(self.made[viewing.source]):
                found = self._table.view(place, viewing, known)
                if found is not None:
                    below = self._below(found[1])
                    if below is not None:
                        better |= self._offer(place, found[0], found[1], below)
        return better

    def _below(self, choice: Choice) -> list[Best] | None:
        """The best ways to the states that a choice needs; None if one isn't reached yet."""
        found = []
        for state in choice.needs:
            best = self.state(state)
            if best is None:
                return None
            found.append(best)
        return found

    def _offer(self, place: int, state: int, choice: Choice, below: list[Best]) -> bool:
        """Keep a choice if it is the cheapest known for its state; return whether it is.

        Args:
            below: the best way to each state that the choice needs.
        """
        known = self.best.get(state)
        limit = math.inf
        if known is not None:
            limit = known.total_s * _LESS
            # All arguments together cost at least as much as the most expensive argument.
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
            self.made[place].append(state)
        elif total >= limit:
            return False
        self.best[state] = Best(total, {**choices, state: choice})
        self._reached[place].clear()
        return True

    def state(self, state: int) -> Best | None:
        """Return the best way to a state: computed by a way or a view, or copied from another state
        of the class. None if the class isn't reached yet."""
        place = self._table.places[state]
        reached = self._reached[place]
        if state not in reached:
            reached[state] = self._made_or_copied(place, state)
        return reached[state]

    def _made_or_copied(self, place: int, state: int) -> Best | None:
        best = self.best.get(state)
        for other in self.made[place]:
            source = self.best[other]
            if other == state or (best is not None and source.total_s >= best.total_s):
                continue
            choice = self._table.copy(other, state, self.prices)
            self.copied_s[other, state] = choice.cost_s
            total = source.total_s + choice.cost_s
            if (best is None or total < best.total_s) and state not in source.choices:
                best = Best(total, {**source.choices, state: choice})
        return best
