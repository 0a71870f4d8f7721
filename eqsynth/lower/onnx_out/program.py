"""A compiled program as an ONNX model: the terms of its steps, over its inputs and constants."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from torch.utils._pytree import tree_leaves

from eqsynth.errors import EqsynthError, LoweringError, UnsupportedOperatorError
from eqsynth.ir.tensor import Region, args_of
from eqsynth.lower.calling import Interface
from eqsynth.lower.onnx_out.graph import Graph, Value
from eqsynth.lower.onnx_out.model import to_model
from eqsynth.lower.onnx_out.operators import emit, region_values
from eqsynth.lower.torch_calls import plain_calls
from eqsynth.written import written

if TYPE_CHECKING:
    from eqsynth.lower.program import CompiledProgram

# If weights take more bytes, they go to a separate file: a protobuf message has at most 2 GiB.
_LARGE: Final = 1 << 30


def write(program: CompiledProgram, path: str | os.PathLike[str]) -> None:
    """Write a program to a file that passes ``onnx.checker``. The file is written as a whole or not
    at all.

    Raises:
        UnsupportedOperatorError: ONNX can't express a step; ``where`` names the step's place.
        LoweringError: the program changes buffers.
        EqsynthError: the ``onnx`` package isn't installed.
        FileError: the file can't be written.
    """
    if find_spec("onnx") is None:
        raise EqsynthError(
            "writing ONNX needs the package onnx",
            got="no such package",
            hint="pip install 'eqsynth[onnx]'",
        )
    import onnx

    model = program_model(program)
    with written(path) as place:
        if sum(x.nbytes for x in program.constants.values()) > _LARGE:
            data = f"{place.name}.data"
            onnx.save(model, place, save_as_external_data=True, location=data)
            onnx.checker.check_model(str(place))
        else:
            onnx.checker.check_model(model, full_check=True)
            onnx.save(model, place)


def program_model(program: CompiledProgram) -> Any:
    """Return the program as a ``ModelProto``. Its inputs have their own names, in the order of a
    call's arguments. Its outputs are ``output0``, ``output1``, …, the tensors in the result of a
    call from left to right. If the program was an ONNX model, both have that model's names.

    Raises:
        UnsupportedOperatorError, LoweringError: as :func:`write`.
    """
    if program.original is not None:
        raise LoweringError(
            what="this program is the original, and what it computes isn't known here",
            got=type(program.original).__name__,
            expected="a program of eqsynth's own steps",
            hint="write it where it was optimized; or use torch.onnx.export",
        )
    if program.mutations or program.state():
        raise LoweringError(
            what="a program that changes buffers of its module can't be written as ONNX",
            got=f"{len(program.state())} buffers",
            expected="a function of its inputs",
            hint="make the buffers inputs and results of forward()",
        )
    opaque = program.recipe.opaque if program.recipe is not None else {}
    places = _results(program)
    inputs, outputs = _names(program, places)
    prefix = _unlike((*inputs, *outputs))
    graph = Graph(plain_calls(opaque), exported=True, prefix=prefix)
    values: dict[str, Value] = {}
    for name, parameter in zip(inputs, program.inputs, strict=True):
        values[parameter.input.name] = Value(name, parameter.input.shape, parameter.input.dtype)
    for n, (name, array) in enumerate(program.constants.items()):
        dtype = str(array.dtype).removeprefix("torch.")
        values[name] = Value(f"{prefix}w{n}", tuple(array.shape), dtype)
        graph.arrays[f"{prefix}w{n}"] = array
    for step in program.steps:
        term = step.kernel.term
        known = dict(zip(args_of(term), (values[name] for name in step.args), strict=True))
        try:
            if isinstance(term, Region):
                results = region_values(graph, term, [known[arg] for arg in term.args])
            else:
                results = emit(graph, (term,), known)
        except UnsupportedOperatorError as error:
            error.where = step.label or f"{step.name} ({error.where})"
            raise
        values |= zip(step.results, results, strict=True)
    kinds = {
        name: parameter.input.type for name, parameter in zip(inputs, program.inputs, strict=True)
    }
    results = [values[name] for name in places]
    return to_model(graph, kinds, list(zip(outputs, results, strict=True)))


def _names(
    program: CompiledProgram, places: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """The names of the file's inputs and outputs: those of the ONNX model that the program was read
    from, if it was.

    A sequence of tensors among that model's inputs or outputs is several inputs or outputs here,
    which that model has no names for.

    Args:
        places: the names of the values that a call returns.
    """
    inputs = [parameter.input.name for parameter in program.inputs]
    convention: Any = getattr(program.calling, "convention", program.calling)
    told: Interface | None = getattr(convention, "interface", None)
    if told is not None and len(told.outputs) == len(set(told.outputs)) == len(places):
        if len(told.inputs) == len(convention.arguments) == len(inputs):
            for name, place in zip(told.inputs, convention.arguments, strict=True):
                inputs[place] = name
            return inputs, told.outputs
    stem = "output"
    while any(f"{stem}{n}" in inputs for n in range(len(places))):
        stem += "_"
    return inputs, [f"{stem}{n}" for n in range(len(places))]


def _unlike(names: Sequence[str]) -> str:
    """A beginning that none of these names has: a dot, or several."""
    found = "."
    while any(name.startswith(found) for name in names):
        found += "."
    return found


@dataclass(frozen=True)
class _Place:
    """A placeholder for a tensor in the result of a call."""

    name: str


def _results(program: CompiledProgram) -> Sequence[str]:
    """The names of the values that a call returns, in the order in which the user gets them."""
    outputs: Any = [_Place(name) for name in program.outputs]
    inputs: Any = [_Place(parameter.input.name) for parameter in program.inputs]
    whole = program.calling.unflatten(outputs, inputs)
    return [leaf.name for leaf in tree_leaves(whole) if isinstance(leaf, _Place)]
