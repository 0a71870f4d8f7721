"""The steps of a program: kernels over named values, and the code that runs them.

Not here: the program as a module (``program.py``), what a kernel does (the backends).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from eqsynth.errors import DtypeError, LoweringError, ShapeError
from eqsynth.extract.kernel import (
    Backend,
    Kernel,
    Layout,
    Runner,
    Writing,
    channels_last,
    contiguous,
    strides,
    written,
)
from eqsynth.ir.tensor import Input, Op, Region, args_of
from eqsynth.lower.results import Results
from eqsynth.lower.torch_backend import VIEW, lay_out
from eqsynth.lower.torch_modes import plain
from eqsynth.lower.torch_ops import run_term
from eqsynth.lower.torch_scalars import torch_dtype
from eqsynth.lower.workspace import Value, Workspaces


@dataclass(frozen=True)
class Parameter:
    """An input, and the layout in which the program's first kernels read it."""

    input: Input
    layout: Layout


def as_read(parameter: Parameter) -> tuple[int, ...] | None:
    """The strides in which kernels read an input; None where users have others as a rule."""
    shape, layout = parameter.input.type.shape, parameter.layout
    return strides(shape, layout) if layout == contiguous(len(shape)) else None


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


def packed(step: Step, constants: Mapping[str, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The constants that a step takes, by their positions among its arguments."""
    known = enumerate(step.kernel.constants)
    return {n: constants[step.args[n]] for n, constant in known if constant}


def build_kernels(
    jobs: Sequence[tuple[Kernel, Mapping[int, torch.Tensor]]], backends: Sequence[Backend]
) -> list[Runner]:
    """Runners of kernels over their constants. Each backend builds its kernels together.

    A constant is laid out once for all kernels that take it so, and steps that are equal have one
    runner: where ten steps of a loop had a packed copy of a weight each, they read 40 MB that
    don't fit into a cache, and not 4 MB that do.

    Raises:
        LoweringError: a kernel doesn't build.
    """
    places: dict[tuple[Kernel, tuple[tuple[int, int], ...]], int] = {}
    distinct: list[tuple[Kernel, Mapping[int, torch.Tensor]]] = []
    place_of: list[int] = []
    laid_out: dict[tuple[int, Layout], torch.Tensor] = {}
    for kernel, constants in jobs:
        key = kernel, tuple((n, id(value)) for n, value in sorted(constants.items()))
        if key not in places:
            places[key] = len(distinct)
            distinct.append((kernel, _laid_out(kernel, constants, laid_out)))
        place_of.append(places[key])
    runners: dict[int, Runner | None] = {}
    for backend in backends:
        own = [n for n, (kernel, _) in enumerate(distinct) if kernel.backend == backend.name]
        runners |= zip(own, backend.build([distinct[n] for n in own]), strict=True)
    built = []
    for n in place_of:
        runner = runners.get(n)
        if runner is None:
            kernel = distinct[n][0]
            raise LoweringError(
                what="a kernel that was measured doesn't build",
                where=kernel.implementation,
                got=str(kernel.term),
                hint="please report it; the original program is used",
            )
        built.append(runner)
    return built


def _laid_out(
    kernel: Kernel,
    constants: Mapping[int, torch.Tensor],
    known: dict[tuple[int, Layout], torch.Tensor],
) -> dict[int, torch.Tensor]:
    """The constants as the kernel takes them; ``known`` has those that were laid out before."""
    args, found = args_of(kernel.term), dict[int, torch.Tensor]()
    for n, value in constants.items():
        key = id(value), kernel.inputs[n]
        if key not in known:
            known[key] = lay_out(value.detach(), args[n].shape, kernel.inputs[n])
        found[n] = known[key]
    return found


# ---- the code -------------------------------------------------------------------------------


def straight_line(
    inputs: Sequence[Parameter],
    steps: Sequence[Step],
    outputs: Sequence[str],
    constants: Mapping[str, torch.Tensor],
    device: torch.device,
) -> tuple[Callable[..., list[torch.Tensor]], str]:
    """One Python function, and its source: checks of the inputs (unless the argument after them
    says that they are as they have to be, but for strides where ``as_read`` has none),
    then a call a step; values die at their last use.

    Raises:
        LoweringError: a step reads what isn't computed before it.
    """
    names: dict[str, str] = {}
    scope: dict[str, Any] = {"wrong": _wrong, "lay_out": lay_out}
    scope |= {"Tensor": torch.Tensor, "plain": plain, "dense": torch.strided}
    scope["as_strided"] = torch.as_strided
    checks: list[str] = []
    laid_out: list[str] = []
    body: list[str] = []
    for position, (name, value) in enumerate(constants.items()):
        names[name] = f"c{position}"
        scope[f"c{position}"] = value
    for position, parameter in enumerate(inputs):
        names[parameter.input.name] = f"x{position}"
        checks += _check(position, parameter, device, scope)
        (laid_out if as_read(parameter) is None else checks).append(_lay_out(position))
    views = _views(steps)
    reads = [(views[s.name].source,) if s.name in views else s.args for s in steps]
    last_use = {arg: k for k, args in enumerate(reads) for arg in args}
    kept = {*outputs, *constants}
    inside = _between(steps, outputs)
    placed = {f"t{k}_0" for k, step in enumerate(steps) if step.name in inside}
    for position, (step, args) in enumerate(zip(steps, reads, strict=True)):
        used = [_local(arg, names, step) for arg in args]
        made = {name: f"t{position}_{k}" for k, name in enumerate(step.results)}
        names |= made
        view, how = views.get(step.name), written(step.runner)
        constant = zip(used, step.kernel.constants, strict=True)
        given = [name for name, is_constant in constant if not is_constant] if not view else []
        if how is not None:
            code = _writing(position, how, given, placed, scope)
            body += code if step.name in inside else [_fresh(position, how, scope), *code]
        elif view is None:
            scope[f"k{position}"] = step.runner
            body.append(f"{', '.join(made.values())} = k{position}({', '.join(given)})")
        elif step.name in last_use or step.name in kept:
            body.append(f"t{position}_0 = {view.code(used[0])}")
        else:
            made = {}  # only views of it are read, and these are taken of its source
        dying = {arg for arg in args if last_use[arg] == position} - kept
        dying |= {name for name in made if name not in last_use and name not in kept}
        if dying - inside.keys():
            body.append(f"del {', '.join(sorted(names[arg] for arg in dying - inside.keys()))}")
    body.append(f"return [{', '.join(_results(inputs, steps, outputs, constants, names))}]")
    if inside:
        memory = Workspaces(list(inside.values()), device)
        scope |= {"take": memory.take, "give": memory.give}
        locals_ = [names[name] for name in inside]
        locals_ += [f"d{name}" for name in locals_]
        body = [
            "w = take()",
            "try:",
            *(f"    {line}" for line in (f"{', '.join(locals_)} = w", *body)),
            "finally:",
            "    give(w)",
        ]
    head = f"def run({''.join(f'x{k}, ' for k in range(len(inputs)))}checked=False):"
    checks = ["if not checked:", *(f"    {line}" for line in checks)] if checks else []
    source = "\n    ".join([head, *checks, *laid_out, *body]) + "\n"
    exec(compile(source, "<eqsynth program>", "exec"), scope)
    run: Callable[..., list[torch.Tensor]] = scope["run"]
    return run, source


def _between(steps: Sequence[Step], outputs: Sequence[str]) -> dict[str, Value]:
    """The values that lie in the program's workspace: their kernels write where they are told to,
    no result is the same memory, and no function of the user's sees them, which may keep them."""
    origin = _origins(steps)
    last = {origin.get(arg, arg): k for k, step in enumerate(steps) for arg in step.args}
    seen = {origin.get(name, name) for name in outputs}
    seen |= {origin.get(arg, arg) for step in steps if step.kernel.opaque for arg in step.args}
    return {
        step.name: Value(k, last.get(step.name, k), how.shape, how.strides, how.dtype)
        for k, step in enumerate(steps)
        if (how := written(step.runner)) is not None and step.name not in seen
    }


def _origins(steps: Sequence[Step]) -> dict[str, str]:
    """The values that are views, and what they are views of."""
    found: dict[str, str] = {}
    for step in steps:
        if step.kernel.implementation == VIEW:
            found[step.name] = found.get(step.args[0], step.args[0])
    return found


def _writing(
    position: int, how: Writing, given: Sequence[str], placed: set[str], scope: dict[str, Any]
) -> list[str]:
    """The call of a kernel that writes its result where it lies. TVM takes a tensor of its own in
    half the time of one of torch's."""
    scope[f"f{position}"] = how.function
    args = []
    for n, arg in enumerate(how.args):
        name = given[arg] if isinstance(arg, int) else f"f{position}_{n}"
        if not isinstance(arg, int):
            scope[name] = arg
        args.append(f"d{name}" if name in placed else name)
    result = f"t{position}_0"
    args.append(f"d{result}" if result in placed else result)
    return [f"f{position}({', '.join(args)})"]


def _fresh(position: int, how: Writing, scope: dict[str, Any]) -> str:
    scope[f"fresh{position}"] = Results(how.shape, how.strides, how.dtype).take
    return f"t{position}_0 = fresh{position}()"


@dataclass(frozen=True)
class _View:
    """A view of a value that is dense: its sizes and strides, and its offset into the value."""

    source: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def code(self, source: str) -> str:
        """Makes the view by one call. A value may begin anywhere in its storage, as a user's input
        and an engine's result do."""
        begin = f"{source}.storage_offset()"
        begin = f"{self.offset} + {begin}" if self.offset else begin
        return f"as_strided({source}, {self.shape}, {self.strides}, {begin})"


def _views(steps: Sequence[Step]) -> dict[str, _View]:
    """The steps that only view a value, by name, each as one view of what a kernel has computed.

    slice -> reshape, of the gates of an LSTM: two calls of torch through Python, 5 us in their
    place; one view, 1 us.
    """
    found: dict[str, _View] = {}
    for step in steps:
        kernel = step.kernel
        # A scope that only views stays a step: it isn't known which of torch's views it runs as.
        known = isinstance(kernel.term, Op) and not any(kernel.constants)
        if kernel.implementation == VIEW and known:
            assert isinstance(kernel.term, Op)
            (arg,), (layout,) = args_of(kernel.term), kernel.inputs
            dense = torch.empty_strided(
                arg.shape, strides(arg.shape, layout), dtype=torch_dtype(arg.dtype), device="meta"
            )
            view = run_term(kernel.term, [dense] * len(kernel.term.args))
            before = found.get(step.args[0], _View(step.args[0], (), (), 0))
            offset = before.offset + int(view.storage_offset())
            found[step.name] = _View(before.source, tuple(view.shape), view.stride(), offset)
    return found


def _check(
    position: int, parameter: Parameter, device: torch.device, scope: dict[str, Any]
) -> list[str]:
    kind, x = parameter.input.type, f"x{position}"
    scope |= {
        f"input{position}": parameter.input,
        f"shape{position}": kind.shape,
        f"dtype{position}": torch_dtype(kind.dtype),
        f"strides{position}": strides(kind.shape, parameter.layout),
        f"layout{position}": parameter.layout,
        "device": device,
    }
    return [
        f"if type({x}) is not Tensor or {x}.is_neg(): {x} = plain({x})",
        f"if {x}.shape != shape{position} or {x}.dtype is not dtype{position} "
        f"or {x}.device != device or {x}.layout is not dense: wrong({x}, input{position}, device)",
    ]


def _lay_out(position: int) -> str:
    x = f"x{position}"
    return (
        f"if {x}.stride() != strides{position}: "
        f"{x} = lay_out({x}, shape{position}, layout{position})"
    )


def _local(name: str, names: Mapping[str, str], step: Step) -> str:
    if name not in names:
        raise LoweringError(
            what="a step reads a value that isn't computed before it",
            where=step.label or step.name,
            got=name,
            expected=", ".join(names),
            hint="order the steps by what they read",
        )
    return names[name]


def _results(
    inputs: Sequence[Parameter],
    steps: Sequence[Step],
    outputs: Sequence[str],
    constants: Mapping[str, torch.Tensor],
    names: Mapping[str, str],
) -> list[str]:
    """Outputs, copied where the same memory is an input, a constant or an earlier output."""
    origin = {name: name for name in names} | _origins(steps)
    taken = {p.input.name for p in inputs} | set(constants)
    results = []
    for name in outputs:
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


# ---- for people -----------------------------------------------------------------------------


def listing(
    title: str, inputs: Sequence[Parameter], steps: Sequence[Step], outputs: Sequence[str]
) -> str:
    """A program for people: a line a value."""
    rows = [(p.input.name, "=", "input", f"{p.input.type}{_order(p.layout)}", "") for p in inputs]
    for step in steps:
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
    lines = [f"{title}("]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
        lines.append("  " + "  ".join((*cells, row[4])).rstrip())
    return "\n".join([*lines, f"  return {', '.join(outputs)}", ")"])


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
        what="an input has another dtype, layout or device than the program was compiled for",
        where=where,
        got=f"{value.dtype}, {value.layout} on {value.device}",
        expected=f"torch.{kind.dtype}, torch.strided on {device}",
        hint="cast or move it, or optimize once more for it",
    )
