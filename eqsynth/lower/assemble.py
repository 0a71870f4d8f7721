"""From a plan to a compiled program: constants evaluated, kernels built, steps in order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import LoweringError
from eqsynth.extract.constants import constant_terms
from eqsynth.extract.kernel import Backend, contiguous
from eqsynth.extract.plan import Plan, State
from eqsynth.ir.program import Program
from eqsynth.ir.tensor import Op, Tensor
from eqsynth.lower.steps import Parameter, Step, build_kernels
from eqsynth.lower.weights import Recipe

# Seconds of CPU: importing TVM, and compiling a kernel among several.
_COMPILER_S, _COMPILE_S = 1.1, 0.03


@dataclass(frozen=True)
class Assembly:
    """What a CompiledProgram is made of; ``terms`` are its constants over the weights."""

    parameters: tuple[Parameter, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, torch.Tensor]
    terms: Mapping[str, Tensor]


def assemble(
    program: Program,
    graph: EGraph,
    plan: Plan,
    weights: Mapping[str, torch.Tensor],
    backends: Sequence[Backend],
    constant_limit_bytes: float,
    opaque: Mapping[str, Callable[..., torch.Tensor]] | None = None,
    own: bool = True,
    device: torch.device | None = None,
) -> Assembly:
    """Builds the kernels of a plan over evaluated constants.

    Args:
        opaque: what runs the ``Opaque`` operators of constants.
        device: that holds the constants.
        own: no constant shares memory with a weight; else those that are weights as they stand do.

    Raises:
        LoweringError: a kernel that was chosen doesn't build, or the constants are too large.
    """
    wanted = [ref for step in plan.steps for ref in step.constants.values()]
    wanted += [ref for ref, _ in plan.outputs if ref.constant]
    distinct = list(dict.fromkeys(wanted))
    size = sum(ref.type.nbytes for ref in distinct)
    if size > constant_limit_bytes:
        raise LoweringError(
            what="the constants of the program are larger than the limit",
            got=f"{size} bytes",
            expected=f"at most {constant_limit_bytes} bytes",
            hint="raise memory_limit",
        )
    found = constant_terms(graph, distinct)
    constants = {ref: f"constant{n}" for n, ref in enumerate(distinct)}
    terms = {constants[ref]: found[ref] for ref in distinct}
    values = Recipe(terms, opaque=opaque or {}).constants(weights, own, device)
    names: dict[State, str] = {state: name for name, state in plan.inputs.items()}
    runners = build_kernels(
        [
            (step.kernel, {n: values[constants[ref]] for n, ref in step.constants.items()})
            for step in plan.steps
        ],
        backends,
    )
    steps = []
    for number, (step, runner) in enumerate(zip(plan.steps, runners, strict=True)):
        names[step.result] = f"t{number}"
        names |= {state: f"t{number}.{k}" for k, state in enumerate(step.also, 1)}
        given = iter(step.args)
        args = tuple(
            constants[step.constants[n]] if n in step.constants else names[next(given)]
            for n in range(len(step.kernel.constants))
        )
        origin = step.member.origin if isinstance(step.member, Op) else ""
        steps.append(Step(names[step.result], step.kernel, runner, args, origin))
    outputs = tuple(
        constants[state[0]] if state[0].constant else names[state] for state in plan.outputs
    )
    parameters = tuple(Parameter(i, contiguous(len(i.shape))) for i in program.inputs)
    return Assembly(parameters, tuple(steps), outputs, values, terms)


def build_s(plan: Plan) -> float:
    """About how long assembling takes: generated kernels are compiled."""
    generated = sum(kernel.generated for kernel in plan.kernels())
    if not generated:
        return 0.0
    return _COMPILE_S * generated + (0.0 if "tvm" in sys.modules else _COMPILER_S)
