"""A compiled program: straight-line Python over kernels, as a ``torch.nn.Module``.

Lives here: the steps of a program, the code that runs them, checks of the inputs. Not here: what
a kernel does (the backends), how a user's arguments become inputs (``calling.py``), files
(``bundle.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

from eqsynth.errors import DtypeError, LoweringError, ShapeError
from eqsynth.extract.kernel import Kernel, Layout, Runner, channels_last, contiguous, strides
from eqsynth.ir.tensor import Input, Region
from eqsynth.lower.torch_backend import VIEW, lay_out
from eqsynth.lower.torch_scalars import torch_dtype


class Calling(Protocol):
    """How a program is called. ``Captured`` of the frontend is one; ``calling.Convention`` too."""

    def bind(self, *args: Any, **kwargs: Any) -> Sequence[torch.Tensor]:
        """The program's inputs, in order, from the arguments of a call."""
        ...

    def unflatten(self, outputs: Sequence[torch.Tensor]) -> Any:
        """The result as the user knows it, from the program's outputs."""
        ...


@dataclass(frozen=True)
class Parameter:
    """An input, and the layout in which the program's first kernels read it."""

    input: Input
    layout: Layout


@dataclass(frozen=True)
class Step:
    """One kernel applied to values.

    Attributes:
        name: of the value that it computes.
        args: names of values (inputs, constants, earlier steps), in the order of ``args_of``.
        label: the operator's place in the user's model, for people.
    """

    name: str
    kernel: Kernel
    runner: Runner
    args: tuple[str, ...]
    label: str = ""

    @property
    def results(self) -> tuple[str, ...]:
        """``name``, and ``name.1``, ``name.2``, … for the further outputs of a region."""
        term = self.kernel.term
        more = len(term.outputs) if isinstance(term, Region) else 1
        return (self.name, *(f"{self.name}.{k}" for k in range(1, more)))


class CompiledProgram(torch.nn.Module):
    """A program that was lowered. Call it as the module that it was made from.

    Constants are buffers that don't appear in ``state_dict``; there are no parameters, no
    gradients, and no difference between training and evaluation. Calls may run at once in several
    threads, but for programs that change buffers of the user's module, as for such modules.

    Attributes:
        report: what the optimizer has to tell.
        inputs: with the layouts in which they are read.
        steps: in order of execution.
        original: what is called instead of steps, where nothing faster was found.
    """

    def __init__(
        self,
        inputs: Sequence[Parameter],
        steps: Sequence[Step],
        outputs: Sequence[str],
        calling: Calling,
        constants: Mapping[str, torch.Tensor] | None = None,
        mutations: Mapping[int, torch.Tensor] | None = None,
        report: Any = None,
        explanation: object = "",
        device: str = "cpu",
    ) -> None:
        """
        Args:
            outputs: names of the values that come out.
            constants: values by name; the kernels hold what they need of them, packed.
            mutations: position of an output -> the buffer that its value is copied to after a run.
            explanation: what ``explain()`` gives: an object, or a function that makes it.

        Raises:
            LoweringError: a step reads what isn't computed before it.
        """
        super().__init__()
        self.inputs, self.steps, self.outputs = tuple(inputs), tuple(steps), tuple(outputs)
        self.calling, self.report, self._explanation = calling, report, explanation
        self.device = torch.device(device)
        self.original: Callable[..., Any] | None = None
        self._owned = frozenset[int]()
        self.mutations = dict(mutations or {})
        self.constants = {name: value.detach() for name, value in (constants or {}).items()}
        for position, value in enumerate(self.constants.values()):
            self.register_buffer(f"constant_{position}", value, persistent=False)
        self._run = self._compile()
        super().train(False)

    @classmethod
    def from_module(
        cls, original: Callable[..., Any], report: Any = None, explanation: object = ""
    ) -> CompiledProgram:
        """The original itself, where nothing faster was found: called as it is."""
        program = cls((), (), (), _AsItIs(), report=report, explanation=explanation)
        # Not a submodule: neither its parameters nor its mode are the program's business.
        program.__dict__["original"] = original
        if isinstance(original, torch.nn.Module):
            # Once: a walk over a large module takes longer than a small one takes to run.
            program._owned = _storages((*original.parameters(), *original.buffers()))
        return program

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs for these arguments, computed without gradients.

        Raises:
            ShapeError, DtypeError: an argument isn't what the program was compiled for.
        """
        if self.original is not None:
            with torch.no_grad():
                taken = self._owned | _storages(args, kwargs)
                return _unshared(self.original(*args, **kwargs), taken)
        values = self.calling.bind(*args, **kwargs)
        if len(values) != len(self.inputs):
            raise ShapeError(
                what="the program is called with another number of inputs",
                got=str(len(values)),
                expected=", ".join(f"{p.input.name}: {p.input.type}" for p in self.inputs)
                or "none",
                hint="give one tensor an input",
            )
        with torch.no_grad():
            results = self._run(*values)
            for position, buffer in self.mutations.items():
                buffer.copy_(results[position])
        return self.calling.unflatten(results)

    def explain(self) -> Any:
        """Why the program is equal to the original."""
        return self._explanation() if callable(self._explanation) else self._explanation

    def train(self, mode: bool = True) -> CompiledProgram:
        """Nothing: the program is what was optimized, in evaluation mode."""
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> CompiledProgram:
        probe = torch.zeros(1, device=self.device)
        result = fn(probe)
        if (result.device, result.dtype) != (probe.device, probe.dtype):
            raise LoweringError(
                what="a compiled program can't be moved or cast",
                got=f"{result.dtype} on {result.device}",
                expected=f"its own dtypes, on {self.device}",
                hint="move or cast the original module, and optimize that",
            )
        return self

    def __repr__(self) -> str:
        if self.original is not None:
            return f"{type(self).__name__}(original={type(self.original).__name__})"
        return "\n".join(self._listing())

    # ---- the code ---------------------------------------------------------------------------

    def _compile(self) -> Callable[..., list[torch.Tensor]]:
        """One Python function: checks, then a call a step; values die at their last use."""
        names: dict[str, str] = {}
        scope: dict[str, Any] = {"wrong": _wrong, "lay_out": lay_out}
        body: list[str] = []
        for position, (name, value) in enumerate(self.constants.items()):
            names[name] = f"c{position}"
            scope[f"c{position}"] = value
        for position, parameter in enumerate(self.inputs):
            names[parameter.input.name] = f"x{position}"
            body += self._check(position, parameter, scope)
        last_use = {arg: k for k, step in enumerate(self.steps) for arg in step.args}
        kept = {*self.outputs, *self.constants}
        for position, step in enumerate(self.steps):
            used = [self._local(arg, names, step) for arg in step.args]
            given = [
                u for u, constant in zip(used, step.kernel.constants, strict=True) if not constant
            ]
            made = {name: f"t{position}_{k}" for k, name in enumerate(step.results)}
            names |= made
            scope[f"k{position}"] = step.runner
            body.append(f"{', '.join(made.values())} = k{position}({', '.join(given)})")
            dying = {arg for arg in step.args if last_use[arg] == position} - kept
            dying |= {name for name in made if name not in last_use and name not in kept}
            if dying:
                body.append(f"del {', '.join(sorted(names[arg] for arg in dying))}")
        body.append(f"return [{', '.join(self._results(names))}]")
        head = f"def run({', '.join(f'x{k}' for k in range(len(self.inputs)))}):"
        self.source = "\n    ".join([head, *body]) + "\n"
        exec(compile(self.source, "<eqsynth program>", "exec"), scope)
        run: Callable[..., list[torch.Tensor]] = scope["run"]
        return run

    def _check(self, position: int, parameter: Parameter, scope: dict[str, Any]) -> list[str]:
        kind, x = parameter.input.type, f"x{position}"
        scope |= {
            f"input{position}": parameter.input,
            f"shape{position}": kind.shape,
            f"dtype{position}": torch_dtype(kind.dtype),
            f"strides{position}": strides(kind.shape, parameter.layout),
            f"layout{position}": parameter.layout,
            "device": self.device,
        }
        return [
            f"if {x}.shape != shape{position} or {x}.dtype is not dtype{position} "
            f"or {x}.device != device: wrong({x}, input{position}, device)",
            f"if {x}.stride() != strides{position}: "
            f"{x} = lay_out({x}, shape{position}, layout{position})",
        ]

    def _local(self, name: str, names: Mapping[str, str], step: Step) -> str:
        if name not in names:
            raise LoweringError(
                what="a step reads a value that isn't computed before it",
                where=step.label or step.name,
                got=name,
                expected=", ".join(names),
                hint="order the steps by what they read",
            )
        return names[name]

    def _results(self, names: Mapping[str, str]) -> list[str]:
        """Outputs, copied where the same memory is an input, a constant or an earlier output."""
        origin = {name: name for name in names}
        for step in self.steps:
            if step.kernel.implementation == VIEW:
                origin[step.name] = origin[step.args[0]]
        taken = {origin[p.input.name] for p in self.inputs} | set(self.constants)
        results = []
        for name in self.outputs:
            if name not in names:
                raise LoweringError(
                    what="an output isn't computed",
                    got=name,
                    expected=", ".join(names),
                    hint="name an input, a constant or a step",
                )
            copied = origin[name] in taken
            taken.add(origin[name])
            results.append(f"{names[name]}.clone()" if copied else names[name])
        return results

    # ---- for people -------------------------------------------------------------------------

    def _listing(self) -> list[str]:
        rows = [
            (p.input.name, "=", "input", f"{p.input.type}{_order(p.layout)}", "")
            for p in self.inputs
        ]
        for step in self.steps:
            term, kernel = step.kernel.term, step.kernel
            operator = term.label if isinstance(term, Region) else getattr(term, "name", "Scope")
            how = f"{kernel.implementation} {kernel.schedule}".strip()
            called = f"{operator}({', '.join(step.args)})"
            rows.append(
                (
                    step.name,
                    "=",
                    called,
                    f"{term.type}{_order(kernel.output)}",
                    f"{how}  {step.label}",
                )
            )
        widths = [max((len(row[k]) for row in rows), default=0) for k in range(4)]
        lines = [f"{type(self).__name__}("]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
            lines.append("  " + "  ".join((*cells, row[4])).rstrip())
        return [*lines, f"  return {', '.join(self.outputs)}", ")"]


def _order(layout: Layout) -> str:
    """A layout as text; nothing for a contiguous one."""
    if layout == contiguous(len(layout)):
        return ""
    return " channels last" if layout == channels_last(len(layout)) else f" {layout}"


def _wrong(value: torch.Tensor, kind: Input, device: torch.device) -> NoReturn:
    where = f"input {kind.name!r}"
    if tuple(value.shape) != kind.shape:
        raise ShapeError(
            what="an input has another shape than the program was compiled for",
            where=where,
            got=str(tuple(value.shape)),
            expected=str(kind.type),
            hint="shapes are fixed: optimize once more for this one",
        )
    raise DtypeError(
        what="an input has another dtype or device than the program was compiled for",
        where=where,
        got=f"{value.dtype} on {value.device}",
        expected=f"torch.{kind.dtype} on {device}",
        hint="cast or move it, or optimize once more for it",
    )


class _AsItIs:
    """The calling convention of a program without inputs and outputs of its own."""

    def bind(self) -> Sequence[torch.Tensor]:
        return ()

    def unflatten(self, outputs: Sequence[torch.Tensor]) -> Any:
        return outputs


def _storages(*values: Any) -> frozenset[int]:
    """Where the memory of the tensors in the values begins."""
    # torch's trees are walked in Python: tens of microseconds, for a tuple of tensors too.
    flat = [leaf for value in values if value for leaf in _leaves(value)]
    return frozenset(x.untyped_storage().data_ptr() for x in flat if isinstance(x, torch.Tensor))


def _leaves(value: Any) -> Iterable[Any]:
    plain = type(value) is tuple and all(isinstance(x, torch.Tensor) for x in value)
    return value if plain else tree_flatten(value)[0]


def _unshared(result: Any, taken: frozenset[int]) -> Any:
    """The result, with copies of the tensors whose memory is taken."""

    def own(x: torch.Tensor) -> torch.Tensor:
        shared = x.untyped_storage().data_ptr() in taken
        return x.clone() if shared else x.detach()

    if isinstance(result, torch.Tensor):
        return own(result)
    return tree_map_only(torch.Tensor, own, result)
