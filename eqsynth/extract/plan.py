"""A plan: which kernels run, in which order, on what. What extraction hands to lowering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eqsynth.extract.kernel import Kernel, Layout
from eqsynth.ir.tensor import ClassRef, Tensor

State = tuple[ClassRef, Layout]
"""A class's value, dense in a layout."""


@dataclass(frozen=True)
class PlanStep:
    """One kernel of a plan.

    Attributes:
        member: the e-node that it computes, over classes.
        args: states of the arguments that aren't constant, in the kernel's order.
        constants: classes of the constant arguments, by position.
        cost_s: what the cost model says it takes.
        also: further results, of a region that has several.
    """

    kernel: Kernel
    member: Tensor
    args: tuple[State, ...]
    constants: Mapping[int, ClassRef]
    result: State
    cost_s: float
    also: tuple[State, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Steps in order of execution; ``outputs`` are states, or constant classes."""

    steps: tuple[PlanStep, ...]
    inputs: Mapping[str, State]
    outputs: tuple[State, ...]
    cost_s: float

    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(dict.fromkeys(step.kernel for step in self.steps))

    def runs_as(self, other: Plan) -> bool:
        """Whether both run the same kernels on the same, whatever they cost."""
        return self.outputs == other.outputs and [
            (s.kernel, s.result, s.args, s.constants) for s in self.steps
        ] == [(s.kernel, s.result, s.args, s.constants) for s in other.steps]

    def peak_bytes(self) -> int:
        """Bytes of the values that live at once at most, inputs among them; views count nothing."""
        owner = {state: state for state in self.inputs.values()}
        last: dict[State, int] = {}
        for n, step in enumerate(self.steps):
            view = step.kernel.implementation == "torch.view"
            owner[step.result] = owner[step.args[0]] if view and step.args else step.result
            owner.update({state: state for state in step.also})
            for arg in step.args:
                last[owner[arg]] = n
        for state in self.outputs:
            last[owner.get(state, state)] = len(self.steps)
        live = sum(state[0].type.nbytes for state in self.inputs.values())
        peak = live
        for n, step in enumerate(self.steps):
            if owner[step.result] == step.result:
                live += sum(ref.type.nbytes for ref, _ in (step.result, *step.also))
            peak = max(peak, live)
            dying = {owner[arg] for arg in step.args if last[owner[arg]] == n}
            live -= sum(s[0].type.nbytes for s in dying if s not in self.inputs.values())
        return peak
