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
    """

    kernel: Kernel
    member: Tensor
    args: tuple[State, ...]
    constants: Mapping[int, ClassRef]
    result: State
    cost_s: float


@dataclass(frozen=True)
class Plan:
    """Steps in order of execution; ``outputs`` are states, or constant classes."""

    steps: tuple[PlanStep, ...]
    inputs: Mapping[str, State]
    outputs: tuple[State, ...]
    cost_s: float

    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(dict.fromkeys(step.kernel for step in self.steps))
