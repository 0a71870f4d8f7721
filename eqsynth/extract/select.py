"""Extraction: one member of each needed class, with layouts, at the least cost of all together.

A state is (e-class, layout). A member reaches a state through a kernel, or for nothing through a
view; a state reaches another layout of its class by a copy. Shared work counts once: each state
keeps the set of choices below it, and a choice is priced over the union of its arguments' sets
(greedy DAG extraction). Slices of one tensor (merged products) are then tried together. Constants
cost nothing and come in any layout.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.segments import over
from eqsynth.errors import ExtractionError
from eqsynth.extract.kernel import Backend, Kernel, Layout, contiguous
from eqsynth.extract.layout import free_view, normalized
from eqsynth.extract.plan import Plan, PlanStep, State
from eqsynth.ir.printing import render_alone
from eqsynth.ir.tensor import ClassRef, Input, Op, Scope, Tensor, args_of
from eqsynth.ir.types import TensorType
from eqsynth.ir.work import flops

# What a view costs to make at run time: a call of torch, no data.
VIEW_S = 4e-7

# Classes that are looked at between two looks at the clock.
_TURNS = 256

Costs = Callable[[Kernel], float]


@dataclass(frozen=True)
class Candidate:
    """One way to compute a member: a kernel over argument classes."""

    member: Tensor
    kernel: Kernel
    args: tuple[ClassRef, ...]


@dataclass(frozen=True, eq=False)
class _Way:
    """A candidate, the layout that it gives, and the states that it needs."""

    candidate: Candidate
    layout: Layout
    needs: tuple[State, ...]


@dataclass
class _Choice:
    candidate: Candidate | None
    args: tuple[State, ...]
    cost_s: float


# The layout that a view gives, the state that it is a view of, and the choice of it.
_View = tuple[Layout, State, _Choice]


@dataclass
class _Best:
    total_s: float
    choices: dict[State, _Choice]


def placeholder(member: Tensor) -> tuple[Tensor, tuple[ClassRef, ...]]:
    """The member over ``Input("0")…``, so that equal computations are equal, and its arguments."""
    args = args_of(member)
    images: dict[Tensor, Tensor] = {a: Input(str(n), a.type) for n, a in enumerate(args)}
    return over(member, images), tuple(a for a in args if isinstance(a, ClassRef))


def candidates(
    graph: EGraph, backends: Sequence[Backend], until: float = math.inf
) -> dict[ClassRef, list[Candidate]]:
    """Every kernel of every member that isn't constant; those of the original's operators first.

    Args:
        until: when the monotonic clock says so, kernels of other members are left out.
    """
    found: dict[ClassRef, list[Candidate]] = {ref: [] for ref in graph.classes}
    cache: dict[tuple[Tensor, tuple[bool, ...]], list[Kernel]] = {}
    for original in (True, False):
        for ref, members in graph.classes.items():
            if ref.constant:
                continue
            own = graph.original.get(ref, ())
            for member in members:
                if not isinstance(member, Op | Scope) or ref in args_of(member):
                    continue
                if (member in own) is not original:
                    continue
                if not original and time.monotonic() >= until:
                    return found
                term, args = placeholder(member)
                constants = tuple(arg.constant for arg in args)
                key = (term, constants)
                if key not in cache:
                    cache[key] = [k for b in backends for k in b.kernels(term, constants)]
                found[ref] += [Candidate(member, kernel, args) for kernel in cache[key]]
    return found


class OutOfTime(Exception):
    """The deadline came in the middle of a selection."""


class Selection:
    """Greedy DAG extraction over the candidates of one e-graph; see the module.

    Attributes:
        until: what the monotonic clock says when :class:`OutOfTime` is raised. What takes less
            than a look at the clock ends in any case, and so does :meth:`plain`.
    """

    def __init__(
        self,
        graph: EGraph,
        found: Mapping[ClassRef, list[Candidate]],
        until: float = math.inf,
    ) -> None:
        self.graph, self.until = graph, until
        self.found = {ref: [_way(ref, c) for c in options] for ref, options in found.items()}
        self.original = {
            ref: [w for w in ways if w.candidate.member in graph.original.get(ref, ())]
            for ref, ways in self.found.items()
        }
        self._known_views: dict[tuple[Tensor, Layout], _View | None] = {}
        self.users: dict[ClassRef, set[ClassRef]] = {}
        for ref, members in graph.classes.items():
            for member in members:
                for arg in args_of(member):
                    if isinstance(arg, ClassRef):
                        self.users.setdefault(arg, set()).add(ref)

    def best(self, costs: Costs) -> Plan:
        """The plan of least cost that was found: never one that costs more than the original's,
        though greedy choices may miss what is shared.

        Raises:
            ExtractionError: a root has no member that any backend can run.
            OutOfTime: the deadline has passed.
        """
        plan = self.one_by_one(costs)
        for whole, pieces in self._pieces(plan).items():
            together = self._together(whole, pieces)
            if together is not None and together.cost_s < plan.cost_s:
                plan = together
        if not self.graph.original:
            return plan
        try:
            plain = self._greedy(self.original, self.graph.original)
        except ExtractionError:
            return plan  # the original has an operator that no backend runs as it stands
        return plan if plan.cost_s <= plain.cost_s else plain

    def one_by_one(self, costs: Costs) -> Plan:
        """The plan of greedy choices alone, in a fraction of the time.

        Raises:
            ExtractionError: a root has no member that any backend can run.
            OutOfTime: the deadline has passed.
        """
        self._price(self.found, costs)
        return self._greedy(self.found, self.graph.classes)

    def plain(self, costs: Costs) -> Plan:
        """The best plan of the original's operators as they are, whatever the clock says.

        Raises:
            ExtractionError: a root has no such member that any backend can run.
        """
        until, self.until = self.until, math.inf
        try:
            self._price(self.original, costs)
            return self._greedy(self.original, self.graph.original)
        finally:
            self.until = until

    def _price(self, found: Mapping[ClassRef, Sequence[_Way]], costs: Costs) -> None:
        self._costs = costs
        self._prices = {w: costs(w.candidate.kernel) for ways in found.values() for w in ways}

    def _pieces(self, plan: Plan) -> dict[ClassRef, list[ClassRef]]:
        """Classes that the plan doesn't compute -> several that it does and that are slices of it.

        Choices are made one by one, and no slice alone is worth the whole.
        """
        computed = dict.fromkeys(step.result[0] for step in plan.steps)
        known = {*computed, *(ref for ref, _ in plan.inputs.values())}
        pieces: dict[ClassRef, list[ClassRef]] = {}
        for ref in computed:
            for member in self.graph.classes[ref]:
                whole = _sliced(member)
                if whole is not None and whole not in known:
                    pieces.setdefault(whole, []).append(ref)
        return {whole: refs for whole, refs in pieces.items() if len(set(refs)) > 1}

    def _together(self, whole: ClassRef, pieces: Sequence[ClassRef]) -> Plan | None:
        """The plan in which the pieces are slices of the whole."""
        found, members = dict(self.found), dict(self.graph.classes)
        for ref in pieces:
            found[ref] = [w for w in self.found[ref] if _sliced(w.candidate.member) == whole]
            members[ref] = tuple(m for m in members[ref] if _sliced(m) == whole)
        try:
            return self._greedy(found, members)
        except ExtractionError:
            return None

    def _greedy(
        self,
        found: Mapping[ClassRef, Sequence[_Way]],
        members: Mapping[ClassRef, Sequence[Tensor]],
    ) -> Plan:
        self._found, self._members = found, members
        self._states: dict[ClassRef, dict[Layout, _Best]] = {}
        self._reached: dict[ClassRef, dict[Layout, _Best | None]] = {}
        inputs: dict[str, State] = {}
        work: deque[ClassRef] = deque()
        for ref, terms in self.graph.classes.items():
            for member in terms:
                if isinstance(member, Input):
                    layout = contiguous(len(ref.shape))
                    inputs[member.name] = (ref, layout)
                    self._states.setdefault(ref, {})[layout] = _Best(
                        0.0, {(ref, layout): _Choice(None, (), 0.0)}
                    )
            work.append(ref)
        queued, turns = set(work), itertools.count(1)
        while work:
            if next(turns) % _TURNS == 0 and time.monotonic() >= self.until:
                raise OutOfTime
            ref = work.popleft()
            queued.discard(ref)
            if ref.constant or not self._improve(ref):
                continue
            for user in self.users.get(ref, ()):
                if user not in queued:
                    queued.add(user)
                    work.append(user)
        return self._plan(inputs)

    # ---- one class ---------------------------------------------------------

    def _improve(self, ref: ClassRef) -> bool:
        """Tries every candidate of a class; True if some layout got cheaper."""
        better = False
        for way in self._found[ref]:
            below = [self._state(state) for state in way.needs]
            if None not in below:
                choice = _Choice(way.candidate, way.needs, self._prices[way])
                better |= self._offer((ref, way.layout), choice, cast("list[_Best]", below))
        for member in self._members.get(ref, ()):
            for layout, state, choice in self._views(member):
                best = self._state(state)
                if best is not None:
                    better |= self._offer((ref, layout), choice, [best])
        return better

    def _views(self, member: Tensor) -> Iterator[_View]:
        args = args_of(member)
        if len(args) != 1 or not isinstance(args[0], ClassRef) or args[0].constant:
            return
        for layout in list(self._states.get(args[0], ())):
            key = (member, layout)
            if key not in self._known_views:
                self._known_views[key] = _view(member, layout)
            found = self._known_views[key]
            if found is not None:
                yield found

    def _offer(self, state: State, choice: _Choice, below: list[_Best]) -> bool:
        ref, layout = state
        known = self._states.setdefault(ref, {}).get(layout)
        if known is not None:
            # What is below costs at least as much together as its dearest part.
            least = max((best.total_s for best in below), default=0.0) + choice.cost_s
            if least >= known.total_s * (1 - 1e-9):
                return False
        choices: dict[State, _Choice] = {}
        for best in below:
            if state in best.choices:
                return False
            choices.update(best.choices)
        choices[state] = choice
        total = sum(c.cost_s for c in choices.values())
        if known is not None and total >= known.total_s * (1 - 1e-9):
            return False
        self._states[ref][layout] = _Best(total, choices)
        self._reached.pop(ref, None)
        return True

    def _state(self, state: State) -> _Best | None:
        """The best way to a state: made so, or copied from another layout of the class."""
        ref, layout = state
        reached = self._reached.setdefault(ref, {})
        if layout not in reached:
            reached[layout] = self._made_or_copied(state)
        return reached[layout]

    def _made_or_copied(self, state: State) -> _Best | None:
        ref, layout = state
        known = self._states.get(ref, {})
        best = known.get(layout)
        for other, source in known.items():
            if other == layout or (best is not None and source.total_s >= best.total_s):
                continue
            kernel = copy_kernel(ref.type, other, layout)
            cost_s = self._costs(kernel)
            total = source.total_s + cost_s
            if (best is None or total < best.total_s) and state not in source.choices:
                choice = _Choice(Candidate(ref, kernel, (ref,)), ((ref, other),), cost_s)
                best = _Best(total, {**source.choices, state: choice})
        return best

    # ---- the result ----------------------------------------------------------

    def _plan(self, inputs: Mapping[str, State]) -> Plan:
        choices: dict[State, _Choice] = {}
        outputs: list[State] = []
        for position, root in enumerate(self.graph.roots):
            state = (root, contiguous(len(root.shape)))
            outputs.append(state)
            if root.constant:
                continue
            best = self._state(state)
            if best is None:
                raise ExtractionError(
                    what="no backend can run an output of the program",
                    where=f"output {position}",
                    got="; ".join(map(render_alone, self.graph.classes[root])),
                    expected="a member that some backend has a kernel for",
                    hint="add a backend, or load fewer rules",
                )
            choices.update({s: c for s, c in best.choices.items() if s not in choices})
        steps = tuple(self._steps(outputs, choices))
        return Plan(steps, inputs, tuple(outputs), sum(s.cost_s for s in steps))

    def _steps(
        self, outputs: Sequence[State], choices: Mapping[State, _Choice]
    ) -> Iterator[PlanStep]:
        done: set[State] = set()
        stack = [(state, False) for state in reversed(outputs) if not state[0].constant]
        while stack:
            state, ready = stack.pop()
            if state in done:
                continue
            choice = choices[state]
            if ready:
                done.add(state)
                if choice.candidate is not None:
                    yield _step(state, choice)
            else:
                stack.append((state, True))
                stack.extend((arg, False) for arg in reversed(choice.args) if arg not in done)


def _way(ref: ClassRef, candidate: Candidate) -> _Way:
    kernel = candidate.kernel
    needs = tuple(
        (arg, normalized(layout, arg.shape))
        for arg, layout in zip(candidate.args, kernel.inputs, strict=True)
        if not arg.constant
    )
    return _Way(candidate, normalized(kernel.output, ref.shape), needs)


def _view(member: Tensor, layout: Layout) -> _View | None:
    """The layout of a view of its one argument, the state that it needs, and the choice."""
    out = free_view(member, layout)
    if out is None:
        return None
    term, (arg,) = placeholder(member)
    kernel = Kernel(term, (False,), "torch.view", (layout,), out)
    choice = _Choice(Candidate(member, kernel, (arg,)), ((arg, layout),), VIEW_S)
    return normalized(out, member.shape), (arg, layout), choice


def _sliced(member: Tensor) -> ClassRef | None:
    """What a slice is a slice of."""
    whole = member.args[0] if isinstance(member, Op) and member.name == "Slice" else None
    return whole if isinstance(whole, ClassRef) else None


@lru_cache(maxsize=1 << 14)
def copy_kernel(type_: TensorType, source: Layout, target: Layout) -> Kernel:
    """The same value in another layout."""
    identity = Op("Reshape", (Input("0", type_),), (type_.shape,))
    return Kernel(identity, (False,), "torch", (source,), target)


def _step(state: State, choice: _Choice) -> PlanStep:
    candidate = choice.candidate
    assert candidate is not None
    constants = {n: arg for n, arg in enumerate(candidate.args) if arg.constant}
    return PlanStep(
        candidate.kernel, candidate.member, choice.args, constants, state, choice.cost_s
    )


def constant_terms(graph: EGraph, wanted: Sequence[ClassRef]) -> dict[ClassRef, Tensor]:
    """A term over weights for each wanted constant class, of the least work."""
    best: dict[ClassRef, tuple[float, Tensor]] = {}
    changed = True
    while changed:
        changed = False
        for ref, members in graph.classes.items():
            if not ref.constant:
                continue
            for member in members:
                args = [a for a in args_of(member) if isinstance(a, ClassRef)]
                if any(arg not in best for arg in args):
                    continue
                # On a tie the operator as it was written: there is less to explain.
                own = flops(member) + (2 if isinstance(member, Scope) else 1)
                cost = sum(best[arg][0] for arg in args) + own
                if ref not in best or cost < best[ref][0] * (1 - 1e-12):
                    best[ref] = (cost, over(member, {arg: best[arg][1] for arg in args}))
                    changed = True
    missing = [ref for ref in wanted if ref not in best]
    if missing:
        raise ExtractionError(
            what="a constant has no term over weights",
            where=str(missing[0].type),
            got="only members that contain the class itself",
            hint="this is a fault in a rule; please report it",
        )
    return {ref: best[ref][1] for ref in wanted}
