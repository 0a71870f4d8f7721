"""From a plan to the parts of a compiled program.

``assemble`` evaluates the constants (terms over weights), builds the kernels over them, and names
the values: ``t0 = kernel(x, constant0)``, ``t1 = kernel(t0)``. Not here: which kernels are used
(``extract/plan.py``), the program as a module (``program.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import LoweringError
from eqsynth.extract.constants import constant_terms
from eqsynth.extract.kernel import Backend, Kernel, contiguous
from eqsynth.extract.plan import Plan, State
from eqsynth.ir.program import Program
from eqsynth.ir.tensor import Op, Tensor
from eqsynth.lower.memory_reads import Memory
from eqsynth.lower.steps import Parameter, Step, build_kernels
from eqsynth.lower.tvm_backend import not_kept
from eqsynth.lower.weights import Recipe

# Seconds of CPU that importing TVM takes, and that compiling one of several kernels takes.
_COMPILER_S, _COMPILE_S = 1.1, 0.03


@dataclass(frozen=True)
class Assembly:
    """What a ``CompiledProgram`` is made of.

    Attributes:
        constants: the values of the constants, by name (``constant0``, ``constant1``, …).
        terms: for each constant, the term over weights that it was computed from.
    """

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
    memories: Mapping[str, Memory] | None = None,
) -> Assembly:
    """Build the kernels of a plan over the evaluated constants.

    Args:
        constant_limit_bytes: the largest size that all constants together may have.
        opaque: for each ``Opaque`` operator in a constant's term, the function that runs it.
        own: whether every constant gets memory of its own. If not, a constant that is a weight
            without any change shares the weight's memory.
        device: the device that is to hold the constants; None leaves them on the CPU.
        memories: how inputs have to lie in memory, by name, where it matters.

    Raises:
        LoweringError: a kernel of the plan doesn't build, or the constants are larger than the
            limit.
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
    memories = memories or {}
    parameters = tuple(
        Parameter(i, contiguous(len(i.shape)), memories.get(i.name)) for i in program.inputs
    )
    return Assembly(parameters, tuple(steps), outputs, values, terms)


def build_s(kernels: Sequence[Kernel], in_worker: bool = False) -> float:
    """Estimate how many seconds ``assemble`` takes for these kernels: compiling those that aren't
    kept, and importing TVM if that hasn't happened yet.

    Args:
        in_worker: whether a worker that has imported TVM compiles them.
    """
    compiled = len(not_kept(kernels))
    imports = compiled and not in_worker and "tvm" not in sys.modules
    return _COMPILE_S * compiled + (_COMPILER_S if imports else 0.0)
