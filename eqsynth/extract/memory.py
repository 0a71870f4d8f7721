"""Plans within a bound on memory.

    plan of 3.1 ms, 180 MB    ->    the same steps in another order, 150 MB
    bound 120 MB              ->    plan of 4.0 ms, 96 MB: a convolution as it is, not by tiles

First the steps of the fastest plan are put into an order in which fewer bytes live at the same
time. If that isn't enough, each byte of a result is given a price in seconds, and the plan is
selected again: with a higher price the selection takes kernels that write less [Lagrangian
relaxation of the bound].

Not here: the memory that a library's kernel takes while it runs, which isn't reported. (What a
generated kernel takes is part of what the program needs.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from eqsynth.extract.kernel import Kernel
from eqsynth.extract.plan import Plan, PlanStep, State
from eqsynth.extract.prices import Costs
from eqsynth.extract.select import priced
from eqsynth.ir.tensor import args_of

RAISES = 10
"""The most times that the price of a byte is multiplied by `FACTOR` until a plan keeps
the bound."""

FACTOR = 4.0

HALVINGS = 3
"""The number of prices that are tried, by bisection, between the last price that was too low and
the first that was high enough: a lower price leaves a faster plan."""


@dataclass(frozen=True)
class Bound:
    """A bound on the memory of a program.

    Attributes:
        limit_bytes: bytes for inputs, constants, and the values that live at the same time.
        needs: returns the bytes that a plan's program needs, with constants as its kernels have
            packed them; infinite if the program doesn't build.
    """

    limit_bytes: float
    needs: Callable[[Plan], float]

    def keeps(self, plan: Plan) -> bool:
        return plan.peak_bytes() <= self.limit_bytes and self.needs(plan) <= self.limit_bytes


def within(plan: Plan, costs: Costs, select: Callable[[Costs], Plan], bound: Bound) -> Plan:
    """Return the cheapest plan that was found within the bound; if none was found, the plan whose
    values need least memory.

    Args:
        select: returns the best plan for given costs.
    """
    found = ordered(plan)
    if bound.keeps(found) or not plan.steps:
        return found
    fitting, least = list[Plan](), found
    low, price = 0.0, plan.cost_s / max(plan.peak_bytes(), 1)
    for _ in range(RAISES):
        found = ordered(priced(select(_charged(costs, price)), costs))
        if bound.keeps(found):
            fitting.append(found)
            break
        least = min(least, found, key=Plan.peak_bytes)
        low, price = price, FACTOR * price
    for _ in range(HALVINGS if fitting else 0):
        middle = (low + price) / 2
        found = ordered(priced(select(_charged(costs, middle)), costs))
        if bound.keeps(found):
            fitting.append(found)
            price = middle
        else:
            low = middle
    return min(fitting, key=lambda one: one.cost_s, default=least)


def ordered(plan: Plan) -> Plan:
    """Return the plan with its steps in an order in which fewer bytes live at the same time, or
    unchanged if none is found. The order is greedy: of the steps whose arguments are computed, the
    next is the one after which the fewest bytes live.

        a = big(x); b = big(y); c = sum(a); d = sum(b)    ->    a, c, b, d: one of a and b at a time
    """
    made = {state: step for step in plan.steps for state in (step.result, *step.also)}
    owner = plan.owners()
    readers: dict[State, set[int]] = {}
    for step in plan.steps:
        for arg in step.args:
            readers.setdefault(owner[arg], set()).add(id(step))
    kept = {owner.get(state, state) for state in plan.outputs} | set(plan.inputs.values())
    waiting = {id(step): sum(arg in made for arg in set(step.args)) for step in plan.steps}
    users: dict[State, list[PlanStep]] = {}
    for step in plan.steps:
        for arg in set(step.args):
            users.setdefault(arg, []).append(step)

    def grows(step: PlanStep) -> int:
        """Bytes that live after a step, minus those that live before it."""
        own = (s for s in (step.result, *step.also) if owner[s] == s)
        ends = {
            owner[arg] for arg in step.args
            if owner[arg] not in kept and readers[owner[arg]] == {id(step)}
        }  # fmt: skip
        return _bytes(own) - _bytes(ends)

    place = {id(step): n for n, step in enumerate(plan.steps)}
    ready = [step for step in plan.steps if not waiting[id(step)]]
    steps: list[PlanStep] = []
    while ready:
        step = min(ready, key=lambda one: (grows(one), place[id(one)]))
        ready.remove(step)
        steps.append(step)
        for arg in step.args:
            readers[owner[arg]].discard(id(step))
        for state in (step.result, *step.also):
            for user in users.get(state, ()):
                waiting[id(user)] -= 1
                if not waiting[id(user)]:
                    ready.append(user)
    other = replace(plan, steps=tuple(steps))
    return other if other.peak_bytes() < plan.peak_bytes() else plan


def _charged(costs: Costs, price: float) -> Costs:
    """The costs of kernels plus the price of the bytes that they write."""
    return lambda kernel: costs(kernel) + price * _written(kernel)


def _written(kernel: Kernel) -> int:
    """Bytes that a kernel adds to the program's memory: its result, and the constants that it
    reads."""
    if kernel.implementation == "torch.view":
        return 0
    args = args_of(kernel.term)
    read = (arg.type.nbytes for arg, known in zip(args, kernel.constants, strict=True) if known)
    return kernel.term.type.nbytes + sum(read)


def _bytes(states: Iterable[State]) -> int:
    return sum(ref.type.nbytes for ref, _ in states)
