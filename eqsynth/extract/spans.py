"""Split a plan into spans, between which exactly one computed value is passed on.

Two kinds of values don't count as passed on: results of the program that nothing reads any more
(keys and values of a cache), and shared values, which take little time to compute and are read
throughout (an attention mask, rotations by position). The steps that compute shared values are
moved to the front, as a span of their own:

    embed, mask, layer(mask), layer(mask)    ->    mask | embed, layer | layer

Not here: what runs a span (``regions.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from eqsynth.extract.plan import Plan, State

LITTLE = 0.02
"""A value is shared only if computing it from the inputs takes at most this part of the plan's
time."""

LONG = 1 / 3
"""A value is shared only if it is live for at least this part of the plan's time."""


@dataclass(frozen=True)
class Span:
    """The steps from ``first`` to before ``last`` of a plan. ``results`` are those of their results
    that later steps read or that the program returns."""

    first: int
    last: int
    results: tuple[State, ...]


@dataclass(frozen=True)
class Spans:
    """A plan, and the spans that it is split into.

    Attributes:
        plan: the plan; its steps may be in another order than before.
        parts: spans in order; empty if the plan computes nothing.
        shared: the shared values, which any span may read. The first span computes them and nothing
            else.
    """

    plan: Plan
    parts: tuple[Span, ...]
    shared: tuple[State, ...]

    def joined(self, first: int, last: int) -> Span:
        """Return the parts from ``first`` to before ``last`` as one span."""
        begin, end = self.parts[first].first, self.parts[last - 1].last
        return _span(self.plan, begin, end)


def spans(plan: Plan) -> Spans:
    """Split a plan at every value that alone is passed on, and after the steps that compute shared
    values."""
    plan, shared, front = _shared_first(plan)
    inputs = {*plan.inputs.values()}
    if all(s in inputs or s[0].constant for s in plan.outputs) or not plan.steps:
        return Spans(plan, (), ())
    last_use = _last_use(plan)
    cuts = [front] if front else []
    live: set[State] = set()
    for number, step in enumerate(plan.steps[:-1]):
        live.update((step.result, *step.also))
        live = {state for state in live if last_use.get(state, -1) > number}
        alone = step.result not in plan.outputs and live - {*shared} == {step.result}
        if alone and number >= front:
            cuts.append(number + 1)
    ends = [*cuts, len(plan.steps)]
    parts = (_span(plan, a, b) for a, b in zip([0, *ends], ends, strict=False))
    return Spans(plan, tuple(parts), shared)


def _span(plan: Plan, first: int, last: int) -> Span:
    made = [s for step in plan.steps[first:last] for s in (step.result, *step.also)]
    read = {s for step in plan.steps[last:] for s in step.args}
    results = [s for s in made if s in read] + [s for s in plan.outputs if s in made]
    return Span(first, last, tuple(dict.fromkeys(results)))


def _last_use(plan: Plan) -> dict[State, int]:
    return {state: n for n, step in enumerate(plan.steps) for state in step.args}


def _shared_first(plan: Plan) -> tuple[Plan, tuple[State, ...], int]:
    """Return the plan with the steps that compute shared values in front, these values, and the
    number of these steps."""
    total = sum(step.cost_s for step in plan.steps)
    last_use = _last_use(plan)
    made: dict[State, int] = {}
    # For steps that take little time with all steps that they depend on: these steps and the step
    # itself.
    needed: dict[int, frozenset[int]] = {}
    shared: list[int] = []
    for number, step in enumerate(plan.steps):
        made.update(dict.fromkeys((step.result, *step.also), number))
        before = [made[arg] for arg in step.args if arg in made]
        if not all(n in needed for n in before):
            continue
        own = frozenset({number}).union(*(needed[n] for n in before))
        if sum(plan.steps[n].cost_s for n in own) > LITTLE * total:
            continue
        needed[number] = own
        until = last_use.get(step.result, number)
        while_live = sum(s.cost_s for s in plan.steps[number + 1 : until])
        if while_live >= LONG * total and step.result not in plan.outputs:
            shared.append(number)
    if not shared:
        return plan, (), 0
    moved = frozenset[int]().union(*(needed[n] for n in shared))
    front = [step for n, step in enumerate(plan.steps) if n in moved]
    rest = [step for n, step in enumerate(plan.steps) if n not in moved]
    read = {arg for step in rest for arg in step.args}
    values = tuple(s for step in front for s in (step.result, *step.also) if s in read)
    return replace(plan, steps=(*front, *rest)), values, len(front)
