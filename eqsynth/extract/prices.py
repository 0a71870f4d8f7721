"""Ways of computing a state, and which candidate of each is the cheapest at given costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eqsynth.extract.candidates import Candidate
from eqsynth.extract.kernel import Kernel

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
    """What every kernel costs at one time, so that layers that are equal are priced once."""

    def __init__(self, kernels: Sequence[Kernel], costs: Costs, worth: Worth | None) -> None:
        self._kernels, self._worth = kernels, worth
        self._costs = [costs(kernel) for kernel in kernels]
        self._cheapest: dict[tuple[int, ...], int] = {}

    def cheapest(self, way: Way) -> tuple[int, Choice]:
        """The state that a way gives, and the choice of its cheapest candidate."""
        place = self._cheapest.get(way.kernels)
        if place is None:
            place = self._cheapest[way.kernels] = self._place(way.kernels)
        cost_s = self._costs[way.kernels[place]]
        return way.state, Choice(way.candidates[place], way.needs, cost_s)

    def _place(self, kernels: tuple[int, ...]) -> int:
        priced = [(self._costs[kernel], n) for n, kernel in enumerate(kernels)]
        least_s, place = min(priced)
        worth = self._worth
        if worth is not None and not worth.known(self._kernels[kernels[place]]):
            timed = (p for p in priced if worth.known(self._kernels[kernels[p[1]]]))
            known = min(timed, default=None)
            if known is not None and known[0] <= least_s + worth.seconds:
                return known[1]
        return place
