"""Ways of computing a state, and which candidate of each is the cheapest at given costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eqsynth.extract.candidates import Candidate
from eqsynth.extract.kernel import Kernel
from eqsynth.ir.tensor import ClassRef

Costs = Callable[[Kernel], float]


@dataclass(frozen=True, eq=False, slots=True)
class Way:
    """Candidates that give one state from the same states: the cheapest stands for all.

    Attributes:
        kernels: the candidates' kernels, by their numbers in ``Greedy.kernels``.
    """

    state: int
    needs: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    kernels: tuple[int, ...]


Ways = Mapping[ClassRef, Sequence[Way]]


@dataclass(frozen=True)
class Worth:
    """What is worth measuring: a kernel without a time doesn't take the place of one that has a
    time, gives the same from the same, and costs no more than so many seconds more.

    Attributes:
        known: whether a kernel has a time.
    """

    known: Callable[[Kernel], bool]
    seconds: float


class Choice(NamedTuple):
    candidate: Candidate | None
    needs: tuple[int, ...]
    cost_s: float


class Prices:
    """What every kernel costs at one time, so that layers that are equal are priced once, and all
    plans that are made at that time ask for a price once.

    Attributes:
        copies: what it costs to make the second state of a class from the first, as far as somebody
            has asked.
    """

    def __init__(self, kernels: Sequence[Kernel], costs: Costs, worth: Worth | None = None) -> None:
        self.costs = costs
        self.copies: dict[tuple[int, int], Choice] = {}
        self._kernels, self._worth = kernels, worth
        self._known: dict[int, float] = {}
        self._cheapest: dict[tuple[int, ...], int] = {}
        self._choices: dict[Way, tuple[int, Choice]] = {}
        # By identity; the ways are held, so that no others take their place.
        self._priced: dict[int, tuple[Ways, list[list[tuple[int, Choice]]]]] = {}

    def priced(self, ways: Ways, order: Sequence[ClassRef]) -> list[list[tuple[int, Choice]]]:
        """The cheapest candidates of all ways, class by class; none of constants. Asked for again
        it is the same list: plans that are made at one time have it in common."""
        if id(ways) not in self._priced:
            found = [[] if ref.constant else list(map(self.cheapest, ways[ref])) for ref in order]
            self._priced[id(ways)] = ways, found
        return self._priced[id(ways)][1]

    def cheapest(self, way: Way) -> tuple[int, Choice]:
        """The state that a way gives, and the choice of its cheapest candidate."""
        found = self._choices.get(way)
        if found is None:
            place = self._cheapest.get(way.kernels)
            if place is None:
                place = self._cheapest[way.kernels] = self._place(way.kernels)
            cost_s = self._cost_s(way.kernels[place])
            found = way.state, Choice(way.candidates[place], way.needs, cost_s)
            self._choices[way] = found
        return found

    def _cost_s(self, number: int) -> float:
        known = self._known.get(number)
        if known is None:
            known = self._known[number] = self.costs(self._kernels[number])
        return known

    def _place(self, kernels: tuple[int, ...]) -> int:
        priced = [(self._cost_s(kernel), n) for n, kernel in enumerate(kernels)]
        least_s, place = min(priced)
        worth = self._worth
        if worth is not None and not worth.known(self._kernels[kernels[place]]):
            timed = (p for p in priced if worth.known(self._kernels[kernels[p[1]]]))
            known = min(timed, default=None)
            if known is not None and known[0] <= least_s + worth.seconds:
                return known[1]
        return place
