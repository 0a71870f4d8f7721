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
    call from left to right.

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
    graph, values = Graph(plain_calls(opaque), exported=True), dict[str, Value]()
    for parameter in program.inputs:
        given = parameter.input
        values[given.name] = Value(given.name, given.shape, given.dtype)
    for n, (name, array) in enumerate(program.constants.items()):
        dtype = str(array.dtype).removeprefix("torch.")
        values[name] = Value(f".w{n}", tuple(array.shape), dtype)
        graph.arrays[f".w{n}"] = array
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
    places = [values[name] for name in _results(program)]
    inputs = {parameter.input.name: parameter.input.type for parameter in program.inputs}
    return to_model(graph, inputs, [(f"output{n}", value) for n, value in enumerate(places)])


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
