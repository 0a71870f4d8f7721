"""Running a compiled program step by step.

``noisy_results`` adds noise to the arguments of every step; ``faulty_step`` compares every kernel's
result with its term computed by torch. Not here: what is done about a step that is wrong
(``eqsynth/checking.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from eqsynth.ir.tensor import Op, Region, Tensor, args_of, topological
from eqsynth.lower.accumulation import added_in_a_row
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.reruns import Values, evaluate, off_by_rounding
from eqsynth.lower.rounding import MOVE, Evidence, Wrong, judge
from eqsynth.lower.steps import Step
from eqsynth.lower.torch_backend import lay_out
from eqsynth.lower.torch_ops import Opaque

Change = Callable[[int, torch.Tensor], torch.Tensor]
Known = dict[str, torch.Tensor]


def noisy_results(
    program: CompiledProgram, values: Values, seed: int, roundings: float = MOVE
) -> list[torch.Tensor]:
    """The program's results (in the order of ``reruns.results``) with each argument of each step
    off by a few roundings, differently for each argument and step.

    Example: x·x - 2 x·y + y·y loses digits that (x - y)² would keep. This shows if the three
    products are off by a rounding each; it doesn't show if only x and y are off.
    """

    def off(number: int, value: torch.Tensor) -> torch.Tensor:
        return off_by_rounding(value, seed=seed, part=number, roundings=roundings)

    with torch.no_grad():
        known = _leaves(program, values)
        inputs = [known[parameter.input.name] for parameter in program.inputs]
        for _ in _steps(program, known, off):
            pass
        return _results(program, [known[name] for name in program.outputs], inputs)


def _results(
    program: CompiledProgram, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The tensors of a call's result, then the buffers as the call leaves them."""
    whole = program.calling.unflatten(outputs, inputs)
    found = [leaf for leaf in tree_leaves(whole) if isinstance(leaf, torch.Tensor)]
    changed = {id(buffer): outputs[n] for n, buffer in program.mutations.items()}
    # In `inputs` the buffers come after the user's arguments.
    buffers = zip(program.state(), inputs[len(inputs) - len(program.state()) :], strict=True)
    return [*found, *(changed.get(id(buffer), given) for buffer, given in buffers)]


def summed(program: CompiledProgram) -> list[int]:
    """For each of the program's results (in the order of ``reruns.results``), the most terms that
    are added up one after the other on a path to it: the losses of sums of one sign add up."""
    most: dict[str, int] = {}
    for step in program.steps:
        before = max((most.get(name, 0) for name in step.args), default=0)
        most |= dict.fromkeys(step.results, before + added_in_a_row(step.kernel.term))
    outputs = [torch.tensor(most.get(name, 0)) for name in program.outputs]
    given = [torch.tensor(0) for _ in program.inputs]
    return [int(count) for count in _results(program, outputs, given)]


def faulty_step(
    program: CompiledProgram, values: Values, opaque: Opaque | None = None
) -> tuple[Step, Wrong] | None:
    """The first step whose kernel is wrong by itself: its result is compared with its term computed
    by torch on the step's own arguments. None if every kernel is right."""
    with torch.no_grad():
        for step, args, results in _steps(program, _leaves(program, values), lambda _, x: x):
            wrong = _wrong(step.kernel.term, args, results, opaque)
            if wrong is not None:
                return step, wrong
    return None


def _wrong(
    term: Tensor, args: list[torch.Tensor], results: list[torch.Tensor], opaque: Opaque | None
) -> Wrong | None:
    """The worst wrong element of one step's results; None if they are right."""
    # The outputs of a region are terms over inputs that are named by the arguments' positions.
    region = isinstance(term, Region)
    terms = list(term.outputs) if isinstance(term, Region) else [term]
    inner = topological(terms) if region else terms
    opaque_within = any(isinstance(part, Op) and part.name == "Opaque" for part in inner)
    names = [str(n) if region else arg.label for n, arg in enumerate(args_of(term))]

    def plain(given: list[torch.Tensor], exact: bool = False) -> list[torch.Tensor]:
        return evaluate(terms, dict(zip(names, given, strict=True)), opaque, exact)

    def moved(seed: int) -> list[torch.Tensor]:
        return plain([off_by_rounding(x, seed=seed, part=n) for n, x in enumerate(args)])

    def exact() -> list[torch.Tensor] | None:
        return None if opaque_within else plain(args, True)

    expected = plain(args)
    for n, (result, value) in enumerate(zip(results, expected, strict=True)):
        if (result.shape, result.dtype) != (value.shape, value.dtype):
            return Wrong(n, (), float("nan"), float("nan"), 0.0)
    evidence = Evidence(moved, exact, summed=[added_in_a_row(term)] * len(terms))
    return judge(results, expected, evidence).wrong


def _leaves(program: CompiledProgram, values: Values) -> Known:
    """The values that the steps begin with: constants, and inputs in the layouts that kernels
    read."""
    given = program.calling.bind(*values[0], **values[1])
    known = dict(program.constants)
    for parameter, value in zip(program.inputs, given, strict=True):
        known[parameter.input.name] = lay_out(value, parameter.input.shape, parameter.layout)
    return known


def _steps(
    program: CompiledProgram, known: Known, change: Change
) -> Iterator[tuple[Step, list[torch.Tensor], list[torch.Tensor]]]:
    """Each step with its arguments (``change`` applied to all but constants) and its results. The
    results are added to ``known``."""
    number = 0
    for step in program.steps:
        args, given = [], []
        kernel = step.kernel
        for name, constant, layout in zip(step.args, kernel.constants, kernel.inputs, strict=True):
            number += 1
            value = known[name]
            if not constant:
                value = lay_out(change(number, value), value.shape, layout)
                given.append(value)
            args.append(value)
        made: Any = step.runner(*given)
        results = list(made) if len(step.results) > 1 else [made]
        known |= zip(step.results, results, strict=True)
        yield step, args, results
