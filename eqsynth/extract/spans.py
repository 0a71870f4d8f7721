"""Where a plan can be parted: at values that are alone.

Between two spans exactly one computed value is live, but for those that nobody has to hand on:
results of the program that nothing reads any more (keys and values of a cache), and what was
computed from next to nothing before all else and is read throughout (a mask of attention, rotations
by position). The steps that compute these are moved to the front, as a span of their own:

    embed, mask, layer(mask), layer(mask)    ->    mask | embed, layer | layer

Not here: what a span runs on (``regions.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from eqsynth.extract.plan import Plan, State

LITTLE = 0.02
"""The part of the plan's time that computing a value may take, from the inputs on, to be shared."""

LONG = 1 / 3
"""The part of the plan's time for which a value has to be live to be shared."""


@dataclass(frozen=True)
class Span:
    """Steps ``first`` to ``last`` (not included) of a plan; ``results`` are what is read of theirs
    afterwards, and of the program's results those that they compute."""

    first: int
    last: int
    results: tuple[State, ...]


@dataclass(frozen=True)
class Spans:
    """A plan and the spans that it falls into.

    Attributes:
        plan: the plan, maybe with its steps in another order.
        parts: spans in order; none where the plan computes nothing.
        shared: values that any span may read; the first span computes them and nothing else.
    """

    plan: Plan
    parts: tuple[Span, ...]
    shared: tuple[State, ...]

    def joined(self, first: int, last: int) -> Span:
        """Parts ``first`` to ``last`` (not included) as one."""
        begin, end = self.parts[first].first, self.parts[last - 1].last
        return _span(self.plan, begin, end)


def spans(plan: Plan) -> Spans:
    """The spans of a plan: one for each value that is alone, and one of what is shared."""
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
    """The plan with what computes shared values in front, these, and how many steps that are."""
    total = sum(step.cost_s for step in plan.steps)
    last_use = _last_use(plan)
    made: dict[State, int] = {}
    # The steps that a step needs, with itself; of steps that need little.
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
