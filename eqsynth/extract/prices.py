"""Ways of computing a state, and the cheapest candidate of each way at given costs.

    2 kernels for Matmul in the same layouts    ->    one Way, at the price of the faster kernel

Not here: the costs of kernels (``cost.py``), which ways a plan takes (``greedy.py``, ``joint.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from eqsynth.extract.candidates import Candidate
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.plan import PlanStep
from eqsynth.ir.tensor import ClassRef, Tensor

Costs = Callable[[Kernel], float]


@dataclass(frozen=True, eq=False, slots=True)
class Way:
    """The candidates that compute one state from the same states. The cheapest of them stands for
    all.

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
    """When to keep a measured kernel. An unmeasured kernel replaces a measured one, which computes
    the same state from the same states, only if the measured one costs more than ``seconds`` more.

    Attributes:
        known: whether a kernel has a measured time.
    """

    known: Callable[[Kernel], bool]
    seconds: float


class Choice(NamedTuple):
    """A candidate, the states that it reads, and its cost."""

    candidate: Candidate | None
    needs: tuple[int, ...]
    cost_s: float


class Prices:
    """The cost of every kernel at one time. Equal layers are priced once, and all plans that are
    selected at that time share the prices.

    Attributes:
        copies: the cost of copying one state of a class into another, for pairs that were asked
            for.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        costs: Costs,
        worth: Worth | None = None,
        beside_s: Callable[[Candidate], float] | None = None,
        barred: Set[Tensor] = frozenset(),
    ) -> None:
        """
        Args:
            beside_s: what a candidate costs beside its kernel (``forms.py``).
            barred: members whose candidates cost infinitely much (``steady.py``).
        """
        self.costs, self._beside_s, self._barred = costs, beside_s, barred
        self.copies: dict[tuple[int, int], Choice] = {}
        self._kernels, self._worth = kernels, worth
        self._known: dict[int, float] = {}
        self._cheapest: dict[tuple[int, ...], int] = {}
        self._choices: dict[Way, tuple[int, Choice]] = {}

    def priced(self, ways: Sequence[Way]) -> list[tuple[int, Choice]]:
        """The cheapest candidates of ways."""
        return list(map(self.cheapest, ways))

    def cheapest(self, way: Way) -> tuple[int, Choice]:
        """The state that a way computes, and its cheapest candidate."""
        found = self._choices.get(way)
        if found is None:
            cost_s, place = self._least(way)
            found = way.state, Choice(way.candidates[place], way.needs, cost_s)
            self._choices[way] = found
        return found

    def _least(self, way: Way) -> tuple[float, int]:
        """The cost and the position of the candidate that stands for all of a way."""
        if self._beside_s is not None or self._barred:
            both = zip(way.kernels, way.candidates, strict=True)
            costs_s = [self._cost_s(kernel) + self._extra_s(each) for kernel, each in both]
            place = self._place(way.kernels, costs_s)
            return costs_s[place], place
        known = self._cheapest.get(way.kernels)
        if known is None:
            costs_s = list(map(self._cost_s, way.kernels))
            known = self._cheapest[way.kernels] = self._place(way.kernels, costs_s)
        return self._cost_s(way.kernels[known]), known

    def step_s(self, step: PlanStep) -> float:
        """The cost of a step without what it costs beside its kernel; infinite if it is barred."""
        return math.inf if step.member in self._barred else self.costs(step.kernel)

    def _extra_s(self, candidate: Candidate) -> float:
        if candidate.member in self._barred:
            return math.inf
        return self._beside_s(candidate) if self._beside_s is not None else 0.0

    def _cost_s(self, number: int) -> float:
        known = self._known.get(number)
        if known is None:
            known = self._known[number] = self.costs(self._kernels[number])
        return known

    def _place(self, kernels: tuple[int, ...], costs_s: Sequence[float]) -> int:
        """The position of the candidate that stands for all: the cheapest, or a measured one that
        costs little more (see :class:`Worth`)."""
        priced = [(cost_s, n) for n, cost_s in enumerate(costs_s)]
        least_s, place = min(priced)
        worth = self._worth
        if worth is not None and not worth.known(self._kernels[kernels[place]]):
            timed = (p for p in priced if worth.known(self._kernels[kernels[p[1]]]))
            known = min(timed, default=None)
            if known is not None and known[0] <= least_s + worth.seconds:
                return known[1]
        return place
