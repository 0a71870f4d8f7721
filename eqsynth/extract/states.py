"""States, and the ways to compute them: one table for all selections from an e-graph.

A state is an e-class in a layout. The table numbers the states, and represents an e-class by its
place in ``States.order``. A state is computed by a way (a kernel of a member), is a view of another
state, or is a copy of another state of its class:

    Matmul(x, w) row-major -> state 5, Transpose of state 5 -> state 6, state 6 copied -> state 7

Not here: which of these a plan takes (``greedy.py``, ``select.py``), what they cost
(``prices.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from eqsynth.egraph.graph import EGraph
from eqsynth.extract.candidates import VIEW_S, Candidate, Copies, copies_by, placeholder
from eqsynth.extract.kernel import Kernel, Layout, contiguous
from eqsynth.extract.layout import normalized, view_kernel
from eqsynth.extract.plan import PlanStep, State
from eqsynth.extract.prices import Choice, Prices, Way
from eqsynth.ir.tensor import ClassRef, Input, Tensor, args_of

Members = Mapping[ClassRef, Sequence[Tensor]]


class Viewing(NamedTuple):
    """A member that reads a single class and may be a view of that class.

    Attributes:
        term: the member over a placeholder for the class that it reads.
        source: the place of the class that it reads.
        views: the results of ``States.view`` so far, by the state of the class that it reads.
    """

    member: Tensor
    term: Tensor
    source: int
    views: dict[int, tuple[int, Choice] | None]


class States:
    """The states, ways and views of one e-graph.

    Attributes:
        states: the state of each number.
        places: the place of each state's class, by the number of the state.
        kernels: the kernels of all ways. A kernel of candidates of many classes is listed once.
        order: the classes that the roots need, arguments first.
        rank: class -> its place in ``order``.
        users: for each class, the classes with a member that reads it. Classes are places here.
        readers: for each class, by its place, the number of ``users`` that aren't constant.
    """

    def __init__(self, graph: EGraph, copies: Copies | None = None) -> None:
        """
        Args:
            copies: lists the kernels that copy a state into another; by default torch's.
        """
        self.graph, self._listed = graph, copies or copies_by()
        self.states: list[State] = []
        self.places: list[int] = []
        self.kernels: list[Kernel] = []
        self._kernel_numbers: dict[Kernel, int] = {}
        self._copies: dict[tuple[int, int], Way] = {}
        self._numbers: dict[State, int] = {}
        self._terms: dict[Tensor, Tensor] = {}
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
        """Return the number of a state; a state that is asked for first gets the next number."""
        state = (ref, layout)
        found = self._numbers.get(state)
        if found is None:
            found = self._numbers[state] = len(self.states)
            self.states.append(state)
            self.places.append(self.rank.get(ref, -1))
        return found

    def ways(self, ref: ClassRef, options: Iterable[Candidate]) -> list[Way]:
        """The candidates of a class, grouped by the state they make and the states they need."""
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

    def view(self, place: int, viewing: Viewing, source: int) -> tuple[int, Choice] | None:
        """Return the state that a member computes if it is a view of the state ``source``, with its
        choice; None if it is no view of that state.

        Args:
            place: the place of the member's class.
        """
        if source not in viewing.views:
            viewing.views[source] = self._view(self.order[place], viewing, source)
        return viewing.views[source]

    def viewed(self, members: Members) -> list[list[Viewing]]:
        """Return for each class, by its place, the members that may be views of a class."""
        return [self._reads(members, ref) for ref in self.order]

    def _reads(self, members: Members, ref: ClassRef) -> list[Viewing]:
        return [
            Viewing(member, self._term(member), self.rank[args[0]], {})
            for member in members.get(ref, ())
            if len(args := args_of(member)) == 1
            and isinstance(args[0], ClassRef)
            and not args[0].constant
        ]

    def _term(self, member: Tensor) -> Tensor:
        if member not in self._terms:
            self._terms[member] = placeholder(member, {})[0]
        return self._terms[member]

    def copy(self, source: int, state: int, prices: Prices) -> Choice:
        """The choice that makes ``state`` by copying ``source``, a state of the same class."""
        known = prices.copies.get((source, state))
        if known is not None:
            return known
        way = self._copies.get((source, state))
        if way is None:
            (ref, before), (_, after) = self.states[source], self.states[state]
            kernels = self._listed(ref.type, before, after)
            options = tuple(Candidate(ref, kernel, (ref,)) for kernel in kernels)
            way = Way(state, (source,), options, tuple(map(self._kernel_number, kernels)))
            self._copies[source, state] = way
        _, choice = prices.cheapest(way)
        prices.copies[source, state] = choice
        return choice

    def inputs(self) -> dict[str, State]:
        """The states in which the program's inputs are given, by name."""
        return {
            member.name: (ref, contiguous(len(ref.shape)))
            for ref in self.order
            for member in self.graph.classes[ref]
            if isinstance(member, Input)
        }

    def steps(
        self, wanted: Sequence[int], choice_of: Callable[[int], Choice]
    ) -> tuple[PlanStep, ...] | None:
        """The steps that compute the wanted states, arguments first; None if the choices form a
        cycle."""
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

    def _view(self, ref: ClassRef, viewing: Viewing, source: int) -> tuple[int, Choice] | None:
        arg, layout = self.states[source]
        kernel = view_kernel(viewing.term, layout)
        if kernel is None:
            return None
        choice = Choice(Candidate(viewing.member, kernel, (arg,)), (source,), VIEW_S)
        return self.number(ref, normalized(kernel.output, viewing.member.shape)), choice


def _ordered(
    wanted: Sequence[int], choice_of: Callable[[int], Choice]
) -> list[tuple[int, Choice]] | None:
    """The states that the wanted states need, with their choices, arguments first; None if the
    choices form a cycle."""
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
    """The classes that the roots need, arguments before users. Only classes that need each other
    (in a cycle of the e-graph) may be in another order."""
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
