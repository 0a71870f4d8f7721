"""A plan: which kernels run, in which order, on which values. Extraction hands it to lowering.

    onednn.linear(x, W) -> c1  |  tvm rows(c1) -> c2  |  output c2

Not here: choosing a plan (``search.py``), running one (``lower/``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from eqsynth.extract.kernel import Kernel, Layout
from eqsynth.ir.tensor import ClassRef, Tensor

State = tuple[ClassRef, Layout]
"""The value of a class, dense in a layout."""


@dataclass(frozen=True)
class PlanStep:
    """One kernel of a plan.

    Attributes:
        member: the e-node that the step computes, over classes.
        args: states of the arguments that aren't constant, in the kernel's order.
        constants: classes of the constant arguments, by position.
        cost_s: seconds of the step by the cost model.
        also: further results, if the step is a region with several.
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
    """Steps in order of execution. ``outputs`` are states, or constant classes."""

    steps: tuple[PlanStep, ...]
    inputs: Mapping[str, State]
    outputs: tuple[State, ...]
    cost_s: float

    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(dict.fromkeys(step.kernel for step in self.steps))

    def runs_as(self, other: Plan) -> bool:
        """Whether both plans run the same kernels on the same values, whatever their costs."""
        return self.outputs == other.outputs and [
            (s.kernel, s.result, s.args, s.constants) for s in self.steps
        ] == [(s.kernel, s.result, s.args, s.constants) for s in other.steps]

    def owners(self) -> dict[State, State]:
        """The state whose memory each state uses: itself, or for a view the state that it views."""
        found = {state: state for state in self.inputs.values()}
        for step in self.steps:
            view = step.kernel.implementation == "torch.view"
            found[step.result] = found[step.args[0]] if view and step.args else step.result
            found.update({state: state for state in step.also})
        return found

    def peak_bytes(self) -> int:
        """The most bytes of values, including inputs, that live at the same time. Views count
        nothing."""
        owner, last = self.owners(), dict[State, int]()
        for n, step in enumerate(self.steps):
            last |= {owner[state]: n for state in (*step.args, step.result, *step.also)}
        for state in (*self.inputs.values(), *self.outputs):
            last[owner.get(state, state)] = len(self.steps)
        dying = defaultdict[int, int](int)
        for (ref, _), n in last.items():
            dying[n] += ref.type.nbytes
        live = sum(ref.type.nbytes for ref, _ in self.inputs.values())
        peak = live
        for n, step in enumerate(self.steps):
            made = (s for s in (step.result, *step.also) if owner[s] == s)
            live += sum(ref.type.nbytes for ref, _ in made)
            peak = max(peak, live)
            live -= dying[n]
        return peak
