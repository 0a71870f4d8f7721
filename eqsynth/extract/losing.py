"""Plans that lose digits, and what the next plan does without.

Members of a class are equal over the reals, but not all of them keep the digits of float32:

    sum (x - m)·(x - m)    keeps them,    sum x·x - n·m·m    loses them where |m| is large

Rules don't say which is which, as that depends on the values: a plan is checked, and if rounding
makes a result wrong, the check names the step that loses the digits
(``lower/stepping.losing_step``). The member that the step computes is barred, and a plan is
selected again from the same e-graph. So a sum that cancels costs its own speed, and not that of the
whole program.

Not here: exponents that must subtract the extremum of their own scores, which is seen without any
values (``steady.py``); how a plan is checked (``eqsynth/checking.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from eqsynth.egraph.graph import EGraph
from eqsynth.extract.candidates import Candidate
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.ir.tensor import ClassRef, Tensor


@dataclass(frozen=True)
class Without:
    """What a plan does without.

    Attributes:
        members: classes, each with a member that no step computes it by.
        classes: classes that are computed as in the original program only.
    """

    members: frozenset[tuple[ClassRef, Tensor]] = frozenset()
    classes: frozenset[ClassRef] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.members or self.classes)

    def __or__(self, other: Without) -> Without:
        return Without(self.members | other.members, self.classes | other.classes)

    def covers(self, other: Without) -> bool:
        """Whether a plan without these does without the others, too."""
        return other.members <= self.members and other.classes <= self.classes

    def of(
        self, graph: EGraph, found: Mapping[ClassRef, list[Candidate]]
    ) -> Mapping[ClassRef, list[Candidate]]:
        """The candidates of each class that are left."""
        return {
            ref: [
                each
                for each in options
                if each.member in graph.original.get(ref, ())
                or not (ref in self.classes or (ref, each.member) in self.members)
            ]
            for ref, options in found.items()
        }


NOTHING: Final = Without()
"""A plan that does without nothing."""


def losing(plan: Plan, graph: EGraph, without: Without, number: int) -> Without:
    """What the next plan should do without, if step ``number`` of this plan loses digits: the
    step's member, and those that other steps compute by the same term (equal layers). If members of
    a step's class were barred before, the class stays as it was in the original program.

    A member of the original is what the result is compared with, so it is never barred. Its
    rounding can only count because an argument was computed in another way than in the original:
    the members of its arguments are barred instead, or of theirs.

    Args:
        without: what this plan does without.

    Returns:
        Nothing if only members of the original lead to the step.
    """
    makers = {state: n for n, step in enumerate(plan.steps) for state in (step.result, *step.also)}
    level, seen = [number], {number}
    while level:
        new = [plan.steps[n] for n in level if not _is_original(plan.steps[n], graph)]
        if new:
            terms = {step.kernel.term for step in new}
            alike = [step for step in plan.steps if step.kernel.term in terms]
            members = frozenset((step.result[0], step.member) for step in alike)
            before = {ref for ref, _ in without.members}
            return Without(members, frozenset(ref for ref, _ in members if ref in before))
        states = (state for n in level for state in plan.steps[n].args)
        level = [n for n in dict.fromkeys(map(makers.get, states)) if n is not None]
        level = [n for n in level if n not in seen]
        seen.update(level)
    return NOTHING


def _is_original(step: PlanStep, graph: EGraph) -> bool:
    return step.member in graph.original.get(step.result[0], ())
