"""Running a compiled program step by step.

``noisy_results`` adds noise to the arguments of every step; ``faulty_step`` compares every kernel's
result with its term computed by torch; ``losing_step`` finds the step whose rounding makes a result
wrong. Not here: what is done about such a step (``eqsynth/checking.py``, ``extract/losing.py``).
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
from eqsynth.lower.rounding import MOVE, Evidence, Wrong, distance, judge
from eqsynth.lower.steps import Step
from eqsynth.lower.torch_backend import lay_out
from eqsynth.lower.torch_ops import Opaque
from eqsynth.lower.torch_scalars import torch_dtype

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


def losing_step(
    program: CompiledProgram, values: Values, wrong: Wrong, opaque: Opaque | None = None
) -> int | None:
    """The number of the step by whose rounding an element of the results is wrong.

    The element is right if this step and all steps before it are computed in float64, and wrong if
    only those before it are:

        a = sum x·x,  b = n·m·m,  a - b,  1 / (a - b)    ->    the subtraction

    An element may also be wrong because a step overflows, in float64 too: exp(1e4). Then it is the
    first step with an infinite result of finite arguments.

    Returns:
        None if rounding isn't the cause: the element is wrong in float64 throughout, and nothing
        overflows; or the step's kernel differs from its term.
    """

    def element(number: int) -> torch.Tensor:
        """The element if the first ``number`` steps are computed in float64."""
        return _with_exact(program, values, number, opaque)[wrong.output][wrong.index]

    def is_right(found: torch.Tensor) -> bool:
        expected = torch.tensor(wrong.expected, dtype=found.dtype)
        return float(distance(found, expected)) <= wrong.allowed

    with torch.no_grad():
        low, high = 0, len(program.steps)
        whole = element(high)
        if is_right(element(low)):
            return None
        if is_right(whole):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if is_right(element(middle)) else (middle, high)
        elif bool(torch.isfinite(whole)):
            return None
        known = _exactly(program, values, low, opaque)
        for number, (step, args, results) in enumerate(
            _steps(program, known, lambda _, x: x, low), low
        ):
            if high == low + 1 or _overflows(args, results):
                right = _wrong(step.kernel.term, args, results, opaque) is None
                return number if right else None
    return None


def _overflows(args: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> bool:
    """Whether a step has an infinite result of finite arguments."""
    return any(bool(x.isinf().any()) for x in results) and all(
        bool(x.isfinite().all()) for x in args
    )


def _with_exact(
    program: CompiledProgram, values: Values, number: int, opaque: Opaque | None
) -> list[torch.Tensor]:
    """The program's results if its first ``number`` steps are computed in float64."""
    known = _exactly(program, values, number, opaque)
    inputs = [known[parameter.input.name] for parameter in program.inputs]
    for _ in _steps(program, known, lambda _, x: x, number):
        pass
    return _results(program, [known[name] for name in program.outputs], inputs)


def _exactly(
    program: CompiledProgram, values: Values, number: int, opaque: Opaque | None
) -> Known:
    """The values that the program knows after ``number`` steps, if these steps are computed in
    float64 and their results are rounded to their dtypes."""
    known = _leaves(program, values)
    exact = {
        name: x.to(torch.float64) if x.is_floating_point() else x for name, x in known.items()
    }
    for step in program.steps[:number]:
        term = step.kernel.term
        terms, names = _terms_of(term)
        given = {name: exact[arg] for name, arg in zip(names, step.args, strict=True)}
        made = evaluate(terms, given, opaque, True)
        exact |= zip(step.results, made, strict=True)
        rounded = (x.to(torch_dtype(t.dtype)) for x, t in zip(made, terms, strict=True))
        known |= zip(step.results, rounded, strict=True)
    return known


def _terms_of(term: Tensor) -> tuple[list[Tensor], list[str]]:
    """The terms that a step computes, and the names of its arguments in them. The outputs of a
    region are terms over inputs that are named by the arguments' positions."""
    if isinstance(term, Region):
        return list(term.outputs), [str(n) for n in range(len(args_of(term)))]
    return [term], [arg.label for arg in args_of(term)]


def _wrong(
    term: Tensor, args: list[torch.Tensor], results: list[torch.Tensor], opaque: Opaque | None
) -> Wrong | None:
    """The worst wrong element of one step's results; None if they are right."""
    terms, names = _terms_of(term)
    inner = topological(terms) if isinstance(term, Region) else terms
    opaque_within = any(isinstance(part, Op) and part.name == "Opaque" for part in inner)

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
    program: CompiledProgram, known: Known, change: Change, first: int = 0
) -> Iterator[tuple[Step, list[torch.Tensor], list[torch.Tensor]]]:
    """Each step, from number ``first`` on, with its arguments (``change`` applied to all but
    constants) and its results. The results are added to ``known``."""
    number = 0
    for step in program.steps[first:]:
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
