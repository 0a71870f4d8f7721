"""A program as plain data and arrays (``to_parts``), and back (``from_parts``).

Terms, kernels, steps and the calling convention become JSON; a tensor is replaced by its position
in a list of arrays: ``["constant0", 3]`` is the constant whose value is ``arrays[3]``.

Not here: the file that holds the data (``bundle.py``), how fields are checked (``manifest.py``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from eqsynth.errors import LoweringError
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.target import Target
from eqsynth.ir.tensor import Op, Region, Tensor, topological
from eqsynth.ir.types import TensorType
from eqsynth.lower import calling
from eqsynth.lower.carrying import Code, carrier_of
from eqsynth.lower.engines.table import ENGINES
from eqsynth.lower.graphs import Graphs
from eqsynth.lower.kernel_data import kernel_from_data, kernel_to_data
from eqsynth.lower.manifest import (
    below,
    check_kernel,
    check_steps,
    fields,
    memory,
    memory_to_data,
    parameter,
    row,
    rows,
    shape,
    terms_from_data,
    terms_to_data,
    text,
    texts,
)
from eqsynth.lower.places import ported
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.steps import Step, build_kernels
from eqsynth.lower.torch_calls import TorchCall, call_from_data, call_to_data
from eqsynth.lower.torch_graph import Kind, TorchGraph, as_graph
from eqsynth.lower.weights import Recipe

Data = Any


@dataclass(frozen=True)
class Parts:
    """The contents of a file.

    Attributes:
        program: the program as JSON data.
        tensors: the arrays that the data refers to by position.
        library: the code of the generated kernels.
        machine: the kind of machine that this code runs on.
    """

    program: Data
    tensors: list[torch.Tensor]
    library: bytes = b""
    machine: list[str] = field(default_factory=list)


class _Arrays(list[torch.Tensor]):
    """A list of arrays in which each array stands once."""

    def keep(self, value: torch.Tensor) -> int:
        """The position of an array in the list; the array is appended if it isn't there."""
        found = next((n for n, known in enumerate(self) if known is value), None)
        if found is None:
            found = len(self)
            self.append(value)
        return found


# ---- to data --------------------------------------------------------------------------------


def to_parts(program: CompiledProgram) -> Parts:
    """The contents of the file that holds a program.

    Raises:
        LoweringError: a part of the program isn't plain data, such as a Python function.
    """
    explained = program.explain()
    told = {
        "report": str(program.report),
        "explanation": [str(explained), str(getattr(explained, "full", explained))],
    }
    arrays = _Arrays()
    if program.original is not None:
        return Parts({"original": _graph_to_data(program, arrays)} | told, arrays)
    target = program.place.target
    carrier = carrier_of(target)
    kernels = list(dict.fromkeys(step.kernel for step in program.steps))
    generated = [k for k in kernels if k.backend == carrier.generated]
    library, entries = carrier.export(generated) if generated else (b"", {})
    used = {arg for step in program.steps for arg in step.args} | set(program.outputs)
    constants = {name: value for name, value in program.constants.items() if name in used}
    recipe = program.recipe or Recipe()
    terms = {name: term for name, term in recipe.terms.items() if name in used}
    opaque = _opaque(program, list(terms.values()))
    buffers = list(program.state())
    mutations = [[n, arrays.keep(buffer)] for n, buffer in program.mutations.items()]
    data = {
        "inputs": [
            [
                p.input.name,
                list(p.input.shape),
                p.input.dtype,
                list(p.layout),
                memory_to_data(p.memory),
            ]
            for p in program.inputs
        ],
        "device": None if target is None else json.loads(target.to_json()),
        "kernels": [kernel_to_data(kernel) | {"entry": entries.get(kernel)} for kernel in kernels],
        "steps": [
            [step.name, kernels.index(step.kernel), list(step.args), step.label]
            for step in program.steps
        ],
        "outputs": list(program.outputs),
        "constants": [[name, arrays.keep(value)] for name, value in constants.items()],
        "buffers": [arrays.keep(buffer) for buffer in buffers],
        "mutations": mutations,
        "calling": calling.to_data(getattr(program.calling, "convention", program.calling)),
        "library": hashlib.blake2b(library).hexdigest(),
        "opaque": [[name, call_to_data(call, arrays.keep)] for name, call in opaque.items()],
        "recipe": _recipe_to_data(recipe, terms, arrays),
    }
    return Parts({"kernels": data} | told, arrays, library, carrier.machine())


def _opaque(program: CompiledProgram, constants: Sequence[Tensor]) -> dict[str, TorchCall]:
    """The calls of torch that the steps and constants of a program contain, by their names."""
    known = program.recipe.opaque if program.recipe is not None else {}
    places: dict[Tensor, str] = {}
    for step in program.steps:
        term = step.kernel.term
        inner = topological(term.outputs) if isinstance(term, Region) else [term]
        places |= dict.fromkeys(inner, step.label or step.name)
    found = {}
    for term in (*places, *topological(constants)):
        if isinstance(term, Op) and term.name == "Opaque":
            name = str(term.attrs[0])
            call = known.get(name)
            if not isinstance(call, TorchCall):
                raise LoweringError(
                    what="an opaque operator is a Python function, which can't be saved",
                    where=places.get(term, term.origin),
                    got=name,
                    expected="operators that eqsynth or torch knows",
                    hint="save the original module instead",
                )
            found[name] = call
    return found


def _recipe_to_data(recipe: Recipe, terms: Mapping[str, Tensor], arrays: _Arrays) -> Data:
    kept = Recipe(terms).weights()
    return {
        "terms": terms_to_data(terms),
        "paths": [[name, list(recipe.paths.get(name, ()))] for name in kept],
        "kept": [[n, arrays.keep(value)] for n, value in recipe.kept.items() if n in kept],
        "fixed": dict(recipe.fixed),
        "settings": dict(recipe.settings),
        "buffers": list(recipe.buffers),
    }


def _graph_to_data(program: CompiledProgram, arrays: _Arrays) -> Data:
    original = program.original
    if isinstance(original, Graphs):
        raise LoweringError(
            what="this program is several graphs that Python joins, which can't be saved",
            got=f"the graphs of {type(original.module).__name__}",
            expected="a program of one graph",
            hint="save the module itself, and optimize it where it is loaded",
        )
    if isinstance(original, torch.nn.Module) and program.examples is not None:
        original = as_graph(original, *program.examples())
    if not isinstance(original, TorchGraph):
        raise LoweringError(
            what="this program is the original, of which eqsynth knows no example inputs",
            got=type(program.original).__name__,
            expected="a module that optimize was given",
            hint="save the module itself, with torch.export or torch.save",
        )
    return {
        "inputs": [
            [
                kind.name,
                list(kind.shape),
                str(kind.dtype).removeprefix("torch."),
                memory_to_data(kind.memory),
            ]
            for kind in original.inputs
        ],
        "buffers": [arrays.keep(buffer) for buffer in original.calling.buffers],
        "tensors": [arrays.keep(value) for value in original.tensors],
        "calls": [call_to_data(call, arrays.keep) for call in original.calls],
        "outputs": list(original.outputs),
        "mutations": [[place, buffer] for place, buffer in original.mutations.items()],
        "calling": calling.to_data(original.calling),
    }


# ---- from data ------------------------------------------------------------------------------


class Text(str):
    """The explanation of a program that was loaded: the text of its summary, and ``full``, the text
    in full."""

    full: str

    @staticmethod
    def of(summary: str, full: str) -> Text:
        found = Text(summary)
        found.full = full
        return found


def _told(data: Data) -> Text:
    summary, full = map(text, row(data, 2))
    return Text.of(summary, full)


def from_parts(parts: Parts, recompile: bool = False) -> CompiledProgram:
    """Make the program again: the inverse of :func:`to_parts`. Malformed data raises one of
    Python's own errors.

    Args:
        recompile: build the generated kernels again instead of loading them from the library.

    Raises:
        LoweringError: a kernel can't be built here.
    """
    if type(parts.program) is dict and "original" in parts.program:
        graph, report, explanation = fields(parts.program, ("original", "report", "explanation"))
        return CompiledProgram.from_module(
            _graph_from_data(graph, parts.tensors), text(report), _told(explanation), loaded=True
        )
    data, report, explanation = fields(parts.program, ("kernels", "report", "explanation"))
    arrays = parts.tensors
    array = below(len(arrays))
    (device, inputs, kernel_data, step_data, outputs, constant_data, buffer_data, mutation_data,
     call_data, digest, opaque_data, recipe_data) = fields(
        data,
        ("device", "inputs", "kernels", "steps", "outputs", "constants", "buffers", "mutations",
         "calling", "library", "opaque", "recipe"),
    )  # fmt: skip
    if text(digest) != hashlib.blake2b(parts.library).hexdigest():
        raise ValueError("the library isn't the one that was saved")
    parameters = rows(inputs, parameter)
    opaque = dict(rows(opaque_data, lambda part: _named_call(part, arrays)))
    carrier = carrier_of(None if device is None else Target.from_json(json.dumps(device)))
    place = carrier.place()
    constants = dict(rows(constant_data, lambda part: _named_array(part, arrays)))
    constants = place.to(constants)
    code = Code(parts.machine, parts.library, _entries(kernel_data), recompile)
    backends = carrier.backends(ported(opaque, place), code)
    offered = {backend.name: backend.kernels for backend in backends}
    kernels = rows(kernel_data, lambda part: _kernel(part, carrier.generated, offered))
    for kernel in kernels:
        if recompile and kernel.backend == carrier.generated:
            carrier.check_schedule(kernel)
    calls = rows(step_data, lambda part: _call(part, kernels))
    names = rows(outputs, text)
    types = {name: _type(value) for name, value in constants.items()}
    check_steps(parameters, types, [(n, k, args) for n, k, args, _ in calls], names)
    arrays = place.to(arrays)
    buffers = [arrays[n] for n in rows(buffer_data, array)]
    for buffer, kind in zip(reversed(buffers), reversed(parameters), strict=False):
        if _type(buffer) != kind.input.type:
            raise ValueError(f"buffer {kind.input.name} has another type")
    kinds = {p.input.name: p.input.type for p in parameters} | types
    kinds |= {n: k.term.type for n, k, _, _ in calls}
    mutations = {}
    for pair in rows(mutation_data, lambda part: part):
        output, position = (read(x) for read, x in zip(
            (below(len(names)), array), row(pair, 2), strict=True))  # fmt: skip
        mutations[output] = arrays[position]
        if kinds.get(names[output], _type(arrays[position])) != _type(arrays[position]):
            raise ValueError("what a buffer becomes has another type")
    jobs = [
        (kernel, {n: constants[args[n]] for n, known in enumerate(kernel.constants) if known})
        for _, kernel, args, _ in calls
    ]
    try:
        runners = build_kernels(jobs, backends)
    except (RuntimeError, NotImplementedError) as error:
        raise _not_built(str(error)) from error
    steps = [
        Step(name, kernel, runner, args, label)
        for (name, kernel, args, label), runner in zip(calls, runners, strict=True)
    ]
    users = len(parameters) - len(buffers)
    return CompiledProgram(
        parameters,
        steps,
        names,
        calling.from_data(call_data, tuple(buffers), users, len(names)),
        constants,
        mutations,
        report=text(report),
        explanation=_told(explanation),
        recipe=_recipe_from_data(recipe_data, types, parts.tensors, opaque),
        place=place,
        backends=backends,
        loaded=True,
    )


def _not_built(got: str) -> LoweringError:
    return LoweringError(
        what="a kernel of the file can't be built here",
        got=got[:500],
        expected=f"torch {torch.__version__} to have it",
        hint="optimize and save the program again with this version of torch",
    )


def _type(value: torch.Tensor) -> TensorType:
    return TensorType(tuple(value.shape), str(value.dtype).removeprefix("torch."))


def _named_array(data: Data, arrays: Sequence[torch.Tensor]) -> tuple[str, torch.Tensor]:
    name, position = row(data, 2)
    return text(name), arrays[below(len(arrays))(position)]


def _named_call(data: Data, arrays: Sequence[torch.Tensor]) -> tuple[str, TorchCall]:
    name, call = row(data, 2)
    # The largest number of arguments; that it is the term's number is checked at the first call.
    made = call_from_data(call, arrays, 1 << 16)
    if repr(made) != text(name):
        raise ValueError(f"{name[:100]} is another call")
    return name, made


def _entries(kernels: Data) -> dict[Kernel, Data]:
    """For each generated kernel, its entry: what the carrier needs to find its code in the
    library."""
    return {
        kernel_from_data({k: v for k, v in data.items() if k != "entry"}): data["entry"]
        for data in kernels
        if data["entry"] is not None
    }


def _kernel(data: Data, generated: str, offered: Mapping[str, Callable[..., Any]]) -> Kernel:
    """Read a kernel, and check that its backend offers it. A generated kernel may be any kernel of
    the generating backend, since the library has its code."""
    names = ("args", "term", "constants", "implementation", "inputs", "output", "schedule")
    plain = dict(zip((*names, "entry"), fields(data, (*names, "entry")), strict=True))
    text(plain["implementation"])
    kernel = kernel_from_data({name: plain[name] for name in names})
    if kernel.backend in ENGINES:
        kernel = _of_this_version(kernel)
    if kernel.backend not in offered:
        raise ValueError(f"there is no backend {kernel.backend[:100]}")
    check_kernel(kernel, None if kernel.backend == generated else offered[kernel.backend])
    return kernel


def _of_this_version(kernel: Kernel) -> Kernel:
    """The region's kernel with the version of the engine that is installed here; the engine
    compiles it again.

    Raises:
        LoweringError: the engine isn't installed.
    """
    engine = ENGINES[kernel.backend]
    version = engine.version()
    if version is None:
        raise LoweringError(
            what="a part of the program runs on an engine that isn't installed here",
            got=f"no {engine.name}",
            expected=f"{engine.name} {kernel.schedule}".strip(),
            hint="install it, or optimize the program again with other engines=(…)",
        )
    return replace(kernel, schedule=version)


def _call(data: Data, kernels: Sequence[Kernel]) -> tuple[str, Kernel, tuple[str, ...], str]:
    name, kernel, args, label = row(data, 4)
    return (
        text(name),
        kernels[below(len(kernels))(kernel)],
        tuple(rows(args, text)),
        text(label),
    )


def _recipe_from_data(
    data: Data,
    constants: Mapping[str, TensorType],
    arrays: Sequence[torch.Tensor],
    opaque: Mapping[str, TorchCall],
) -> Recipe | None:
    terms_data, paths_data, kept_data, fixed, settings, buffers = fields(
        data, ("terms", "paths", "kept", "fixed", "settings", "buffers")
    )
    terms = terms_from_data(terms_data)
    paths = {}
    for pair in rows(paths_data, lambda part: part):
        name, found = row(pair, 2)
        paths[text(name)] = tuple(rows(found, text))
    kept = dict(rows(kept_data, lambda part: _named_array(part, arrays)))
    recipe = Recipe(
        terms, paths, kept, texts(fixed), texts(settings), tuple(rows(buffers, text)), opaque
    )
    for name, kind in recipe.weights().items():
        if not paths.get(name) and (name not in kept or _type(kept[name]) != kind):
            raise ValueError(f"weight {name[:100]} comes from nowhere")
    if {name: term.type for name, term in terms.items()} != dict(constants):
        if terms:
            raise ValueError("terms of other constants")
        return None  # a program that was made from steps, not by optimize
    return recipe


def _graph_from_data(data: Data, arrays: Sequence[torch.Tensor]) -> TorchGraph:
    names = ("inputs", "buffers", "tensors", "calls", "outputs", "mutations", "calling")
    inputs, buffer_data, tensor_data, call_data, output_data, mutation_data, convention = fields(
        data, names
    )
    array = below(len(arrays))
    kinds = rows(inputs, _input)
    buffers = [arrays[n] for n in rows(buffer_data, array)]
    tensors = [arrays[n] for n in rows(tensor_data, array)]
    first = len(kinds) + len(tensors)
    calls = []
    for n, part in enumerate(rows(call_data, lambda part: part)):
        calls.append(call_from_data(part, arrays, first + n))
    outputs = rows(output_data, below(first + len(calls)))
    mutations = {}
    for pair in rows(mutation_data, lambda part: part):
        place, buffer = row(pair, 2)
        mutations[below(len(outputs))(place)] = below(len(buffers))(buffer)
    users = len(kinds) - len(buffers)
    for value, kind in zip(buffers, kinds[users:], strict=True):
        if (tuple(value.shape), value.dtype) != (kind.shape, kind.dtype):
            raise ValueError(f"buffer {kind.name} has another type")
    made = calling.from_data(convention, tuple(buffers), users, len(outputs))
    return TorchGraph(kinds, tensors, calls, outputs, made, mutations)


def _input(data: Data) -> Kind:
    name, extents, dtype, told = row(data, 4)
    found = getattr(torch, text(dtype))
    if not isinstance(found, torch.dtype):
        raise ValueError(f"no dtype: {dtype}")
    sizes = shape(extents)
    return Kind(text(name), sizes, found, memory(told, len(sizes)))
