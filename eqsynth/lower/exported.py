"""A compiled program as an ``ExportedProgram`` of torch, in which torch computes every step.

Each step's term is run by torch's own operators, so the result needs no library but torch.
``torch.export`` traces these steps, and the result is compared with the program. Not here: ONNX
(``onnx_out/``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_unflatten

from eqsynth.errors import LoweringError
from eqsynth.ir.tensor import Op, Region, args_of
from eqsynth.lower.check import check_equivalence
from eqsynth.lower.functional import quiet, specs_copied, tracing
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lower.torch_ops import function_of, region_function
from eqsynth.lower.torch_scalars import torch_dtype

if TYPE_CHECKING:
    from eqsynth.lower.program import CompiledProgram


def exported(program: CompiledProgram) -> torch.export.ExportedProgram:
    """The program as an ``ExportedProgram`` that is called as the program's module was.

    Raises:
        LoweringError: the program changes buffers, takes objects that hold tensors, is an original
            that wasn't captured, or torch can't trace a step.
        EquivalenceError: the ``ExportedProgram`` differs from the program by more than rounding.
    """
    if program.original is not None:
        raise LoweringError(
            what="this program is the original, and what it computes isn't known here",
            got=type(program.original).__name__,
            expected="a program of eqsynth's own steps",
            hint="export the module itself: torch.export.export",
        )
    if program.mutations or program.state():
        raise LoweringError(
            what="a program that changes buffers of its module can't be exported",
            got=f"{len(program.state())} buffers",
            expected="a function of its inputs",
            hint="make the buffers inputs and results of forward()",
        )
    if program.opens:
        raise LoweringError(
            what="a program that takes or gives objects that hold tensors can't be exported",
            expected="tensors, and containers that torch's trees know",
            hint="give the tensors themselves to forward()",
        )
    if any(parameter.memory for parameter in program.inputs):
        raise LoweringError(
            what="a program whose inputs must have certain strides can't be exported: an "
            "ExportedProgram would take others",
            got=", ".join(f"{p.input.name}: {p.memory}" for p in program.inputs if p.memory),
            expected="a module without as_strided, stride and is_contiguous of its inputs",
            hint="save the program with eqsynth.save, which checks the strides",
        )
    args, kwargs = _examples(program)
    with tracing(), torch.no_grad(), specs_copied():
        try:
            with quiet():
                made = torch.export.export(_Steps(program), args, kwargs)
        except Exception as error:  # torch.export raises whatever went wrong anywhere below it
            raise LoweringError(
                what="torch.export can't trace the program",
                got=f"{type(error).__name__}: {error}"[:500],
                expected="steps that are operators of torch, whatever the values of the inputs",
                hint="save the program with eqsynth.save",
            ) from error
    check_equivalence(made.module(), program, args, kwargs)
    return made


def _examples(program: CompiledProgram) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call, with random tensors of the types that the program takes."""
    generator = torch.Generator().manual_seed(0)

    def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if not dtype.is_floating_point:
            return torch.zeros(shape, dtype=dtype)
        return torch.randn(shape, generator=generator).to(dtype)

    convention: Any = getattr(program.calling, "convention", program.calling)
    values = [drawn(p.input.shape, torch_dtype(p.input.dtype)) for p in program.inputs]
    leaves = [values[p] if isinstance(p, int) else p.value for p in convention.arguments]
    if convention.spec is None:
        return tuple(leaves), {}
    args, kwargs = tree_unflatten(leaves, convention.spec)
    return tuple(args), dict(kwargs)


class _Steps(torch.nn.Module):
    """The steps of a program, each computed by operators of torch."""

    def __init__(self, program: CompiledProgram) -> None:
        super().__init__()
        self.program = [program]  # in a list, so that it is no submodule
        self.held: dict[str, str] = {}
        for n, (name, value) in enumerate(program.constants.items()):
            self.held[name] = f"constant_{n}"
            self.register_buffer(f"constant_{n}", value.clone())
        opaque: Mapping[str, Callable[..., torch.Tensor]] = {}
        for backend in program._backends:
            if isinstance(backend, TorchBackend):
                opaque = backend.opaque
        self.functions = [_function(step.kernel.term, opaque) for step in program.steps]
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        (program,) = self.program
        convention: Any = getattr(program.calling, "convention", program.calling)
        given = {
            place: leaf
            for place, leaf in zip(convention.arguments, tree_leaves((args, kwargs)), strict=True)
            if isinstance(place, int)
        }
        inputs = [given[n] for n in range(len(program.inputs))]
        names = (parameter.input.name for parameter in program.inputs)
        values: dict[str, torch.Tensor] = dict(zip(names, inputs, strict=True))
        values |= {name: getattr(self, own) for name, own in self.held.items()}
        for step, function in zip(program.steps, self.functions, strict=True):
            results = function(*(values[name] for name in step.args))
            values |= zip(step.results, results, strict=True)
        # Outputs are copied: one that is a constant, or a view of another, has memory of its own,
        # as in the program.
        outputs = [values[name].clone() for name in program.outputs]
        return program.calling.unflatten(outputs, inputs)


def _function(term: Any, opaque: Mapping[str, Any]) -> Callable[..., list[torch.Tensor]]:
    """The function of a term's arguments that gives the list of its results."""
    if isinstance(term, Region):
        return region_function(term, opaque)
    function, distinct = function_of(term, opaque), args_of(term)
    # A step has once an argument that its operator takes twice, as in x * x.
    order = [distinct.index(arg) for arg in (term.args if isinstance(term, Op) else distinct)]
    return lambda *args: [function(*(args[n] for n in order))]
