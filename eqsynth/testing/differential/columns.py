"""The columns of the table: all the ways in which eqsynth computes a case.

``interpreter`` evaluates the terms that the entry builds, in NumPy. ``torch``, ``onednn`` and
``tvm`` run the same terms, or the scopes that define them, by the kernels of that backend where it
has any, else by torch. ``onnx``, ``onnxruntime`` and others run them as ONNX (``onnx_columns.py``),
if asked. ``compiled`` captures torch's operator by ``torch.export`` (or takes an expression) and
lowers it without a search, by torch. All cases of a batch share one export, one e-graph and one
build of each backend. ``optimized`` is ``optimize`` itself, if asked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms, unsaturated
from eqsynth.egraph.schedule import Limits, Phase
from eqsynth.errors import CaptureError
from eqsynth.extract.candidates import candidates
from eqsynth.extract.kernel import Backend, Kernel
from eqsynth.extract.select import Selection
from eqsynth.frontend.captured import Captured, Convention, capture_expression
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.torch_export import by_entry, capture
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.program import Program
from eqsynth.ir.tensor import Input, Tensor
from eqsynth.ir.types import TensorType, is_float
from eqsynth.lower.assemble import Assembly, assemble
from eqsynth.lower.backends import cpu_backends
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.pipeline import optimize
from eqsynth.rules import load_rules
from eqsynth.testing.differential.onnx_columns import onnx_backends
from eqsynth.testing.differential.row import Case, to_torch

Run = Callable[[Sequence[torch.Tensor]], list["torch.Tensor | None"]]
"""From the values of a case's operands to its results; None for a result that isn't computed."""

COLUMNS: Final = ("interpreter", "torch", "onednn", "tvm", "compiled")


@dataclass(frozen=True)
class Built:
    """The terms of a case, built by its entry; None for a result that the entry doesn't give."""

    inputs: tuple[Input, ...]
    outputs: tuple[Tensor | None, ...]


def tensors(result: Any) -> list[Any]:
    """The results of an operator, as a list."""
    return list(result) if isinstance(result, list | tuple) else [result]


# ---- terms ----------------------------------------------------------------------------------


def _name(position: int, value: torch.Tensor) -> str:
    """The name of an operand. Cases share an input of the same position, dtype and shape."""
    dtype = str(value.dtype).removeprefix("torch.")
    return "_".join(["x", str(position), dtype, *map(str, value.shape)])


def built(case: Case, values: Sequence[torch.Tensor], example: Any) -> Built | None:
    """Build the terms of a case; None if there is no entry, or it refuses, as it would in capture.

    Args:
        example: torch's result, whose shapes and dtypes the terms must have.
    """
    inputs = [
        Input(_name(k, v), TensorType(tuple(v.shape), str(v.dtype).removeprefix("torch.")))
        for k, v in enumerate(values)
    ]
    own = case.row.own
    if own is None:
        return None
    result = case.call(
        lambda *args, **options: by_entry(own, args, options, example),
        [Expr(term) for term in inputs],
    )
    if result is None:
        return None
    outputs = [r.tensor if isinstance(r, Expr) else None for r in tensors(result)]
    return Built(tuple(inputs), tuple(outputs))


# ---- columns over terms ---------------------------------------------------------------------


def interpreter(case: Built) -> Run:
    """The column ``interpreter``."""

    def run(values: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        env = {i.name: _array(v) for i, v in zip(case.inputs, values, strict=True)}
        return [
            None if term is None else to_torch(_narrow(evaluate(term, env), term), term.dtype)
            for term in case.outputs
        ]

    return run


def _array(value: torch.Tensor) -> Any:
    return (value.double() if value.is_floating_point() else value).numpy()


def _narrow(value: Any, term: Tensor) -> Any:
    # Floats stay float64: a conversion to float32 on the way to bfloat16 would round twice.
    return np.asarray(value, np.float64) if is_float(term.dtype) else value


def over_backends(cases: Sequence[Built], wanted: Sequence[str] = COLUMNS) -> list[dict[str, Run]]:
    """The columns of the backends: for each case, backend -> program.

    A program uses the backend's kernels where it has any, else torch's. A case that the backend has
    no kernel for has no program.
    """
    roots = list(dict.fromkeys(t for case in cases for t in case.outputs if t is not None))
    runs: list[dict[str, Run]] = [{} for _ in cases]
    if not roots:
        return runs
    phases = (Phase("define", ("define",), 6),)
    graph = saturate_terms(roots, load_rules(), phases, Limits(10**6, 600.0), False)
    for backend in (b for b in (*cpu_backends(), *onnx_backends()) if b.name in wanted):
        used = [backend] if backend.name == "torch" else [backend, TorchBackend()]
        for own, program in zip(runs, _programs(graph, roots, cases, used), strict=True):
            if program is not None:
                own[backend.name] = program
    return runs


def _programs(
    graph: EGraph,
    roots: Sequence[Tensor],
    cases: Sequence[Built],
    backends: Sequence[Backend],
    captured: Captured | None = None,
) -> list[Run | None]:
    """A program for each case, out of one plan and one build for all cases.

    Kernels of the first backend are preferred. A case without a kernel of it has no program.
    """
    preferred = backends[0].name

    def cost(kernel: Kernel) -> float:
        return 1e-6 if kernel.backend == preferred else 1.0

    plan = Selection(graph, candidates(graph, backends)).one_by_one(cost)
    whole = Program(tuple(dict.fromkeys(i for case in cases for i in case.inputs)), tuple(roots))
    weights, opaque = (captured.weights, captured.opaque) if captured else ({}, {})
    parts = assemble(whole, graph, plan, weights, backends, 1 << 40, opaque)
    place = {root: name for root, name in zip(roots, parts.outputs, strict=True)}
    return [_program(parts, case, place, preferred) for case in cases]


def _program(
    parts: Assembly, case: Built, place: Mapping[Tensor, str], preferred: str
) -> Run | None:
    """The steps of one case, as a program of its own."""
    names = [place[term] for term in case.outputs if term is not None]
    needed, steps = set(names), []
    for step in reversed(parts.steps):
        if step.name in needed:
            needed.update(step.args)
            steps.append(step)
    if preferred != "torch" and all(step.kernel.backend != preferred for step in steps):
        return None
    parameters = {p.input: p for p in parts.parameters}
    program = CompiledProgram(
        [parameters[i] for i in case.inputs],
        steps[::-1],
        names,
        Captured(
            Program(case.inputs, tuple(t for t in case.outputs if t is not None)),
            {},
            Convention(
                tuple(range(len(case.inputs))), tuple(range(len(names))), out_spec=_spec(names)
            ),
        ),
        {name: value for name, value in parts.constants.items() if name in needed},
    )

    def run(values: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        results = iter(program(*values))
        return [None if term is None else next(results) for term in case.outputs]

    return run


def _spec(names: Sequence[str]) -> Any:
    return tree_flatten([0] * len(names))[1]


# ---- the compiled column --------------------------------------------------------------------


class _Batch(torch.nn.Module):
    """All cases in one module, since one export costs as much as a hundred operators in it."""

    def __init__(self, cases: Sequence[Case], names: Sequence[Sequence[str]]) -> None:
        super().__init__()
        self.cases, self.names = cases, names

    def forward(self, operands: dict[str, torch.Tensor]) -> list[list[torch.Tensor]]:
        return [
            tensors(case.call(case.row.function, [operands[name] for name in names]))
            for case, names in zip(self.cases, self.names, strict=True)
        ]


def _module(
    cases: Sequence[Case], values: Sequence[Sequence[torch.Tensor]]
) -> tuple[_Batch, dict[str, torch.Tensor], list[list[str]]]:
    """The cases as one module, its operands by name, and the names that each case reads."""
    names = [[_name(k, v) for k, v in enumerate(own)] for own in values]
    operands = {
        n: v for own, row in zip(values, names, strict=True) for v, n in zip(own, row, strict=True)
    }
    batch = _Batch(cases, names)
    batch.eval()
    return batch, operands, names


def compiled(cases: Sequence[Case], values: Sequence[Sequence[torch.Tensor]]) -> list[Run | None]:
    """The column ``compiled``: programs captured from torch's operators; None for a case that
    capture refuses.

    If capture refuses all cases together, each half of them is tried by itself.

    Args:
        values: the operands' values of each case, as example inputs.
    """
    module, operands, names = _module(cases, values)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            captured = capture(module, (operands,))
    except CaptureError:
        if len(cases) < 2:
            return [None] * len(cases)
        middle = len(cases) // 2
        return [
            *compiled(cases[:middle], values[:middle]),
            *compiled(cases[middle:], values[middle:]),
        ]
    results = captured.unflatten(captured.program.outputs, captured.program.inputs)  # type: ignore[arg-type]
    order = dict(zip(operands, captured.program.inputs, strict=True))
    parts = [
        Built(tuple(order[n] for n in row), tuple(own))
        for row, own in zip(names, results, strict=True)
    ]
    roots = tuple(dict.fromkeys(t for part in parts for t in part.outputs if t is not None))
    graph = unsaturated(roots, "original")
    backends = (TorchBackend(captured.opaque),)
    return _programs(graph, roots, parts, backends, captured)


def expressed(case: Built) -> Run | None:
    """The column ``compiled`` for a function of ``eqsynth.ops``: its expression, lowered without a
    search."""
    outputs = [term for term in case.outputs if term is not None]
    captured = capture_expression([Expr(term) for term in outputs])
    roots = captured.program.outputs
    places = dict(zip(outputs, roots, strict=True))
    made = Built(case.inputs, tuple(None if t is None else places[t] for t in case.outputs))
    graph = unsaturated(roots, "original")
    return _programs(graph, roots, [made], (TorchBackend(captured.opaque),), captured)[0]


# ---- the optimized column -------------------------------------------------------------------


def optimized(
    cases: Sequence[Case], values: Sequence[Sequence[torch.Tensor]], time_limit_s: float
) -> list[Run | None]:
    """The column ``optimized``: the cases as one module that is optimized; None if the result is
    the original.

    It should get few cases at a time, since each run of one case computes all of them.
    """
    module, operands, names = _module(cases, values)
    program = optimize(
        module, (operands,), objective="flops", check=False, progress=False,
        time_limit_s=time_limit_s,
    )  # fmt: skip
    if program.original is not None:
        return [None for _ in cases]

    def run_of(number: int) -> Run:
        def run(own: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
            given = operands | dict(zip(names[number], own, strict=True))
            return list(program(given)[number])

        return run

    return [run_of(number) for number in range(len(cases))]
