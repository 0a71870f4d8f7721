"""The steps of a program, and the Python code that runs them.

A step is one kernel applied to named values. ``straight_line`` writes all steps as one function:

    def run(x0, checked=False):
        if not checked:
            if x0.shape != shape0 ...: wrong(x0, input0, device)
        t0_0 = k0(x0)
        t1_0 = k1(t0_0)
        del t0_0
        return [t1_0]

Not here: the program as a module (``program.py``), how a kernel computes its result (the backends).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from eqsynth.extract.target import CPU
from eqsynth.ir.tensor import Input, Op, Region, args_of
from eqsynth.lower import launches
from eqsynth.lower.memory_reads import Memory, misplaced
from eqsynth.lower.results import Results
from eqsynth.lower.torch_backend import VIEW, lay_out
from eqsynth.lower.torch_modes import plain
from eqsynth.lower.torch_ops import run_term
from eqsynth.lower.torch_scalars import torch_dtype
from eqsynth.lower.workspace import Value, View, Workspaces


@dataclass(frozen=True)
class Parameter:
    """An input of the program, and the layout in which the program's kernels read it.

    Attributes:
        memory: how the input has to lie in memory in each call; None if it doesn't matter, as for
            nearly all programs.
    """

    input: Input
    layout: Layout
    memory: Memory | None = None


def as_read(parameter: Parameter) -> tuple[int, ...] | None:
    """The strides in which the kernels read an input if its layout is contiguous, else None.

    ``Alike`` compares a call's arguments with these strides. Users pass contiguous tensors as a
    rule, so an input with another layout is laid out in each call, and its strides aren't compared.
    """
    shape, layout = parameter.input.type.shape, parameter.layout
    return strides(shape, layout) if layout == contiguous(len(shape)) else None


@dataclass(frozen=True)
class Step:
    """One kernel applied to named values.

    Attributes:
        name: the name of the value that the step computes.
        args: the names of the values that it reads (inputs, constants, results of earlier steps),
            in the order of ``args_of``.
        label: the operator's place in the user's model, for listings and messages.
    """

    name: str
    kernel: Kernel
    runner: Runner
    args: tuple[str, ...]
    label: str = ""

    @property
    def results(self) -> tuple[str, ...]:
        """The names of the step's results: ``name``, and for a region with several outputs also
        ``name.1``, ``name.2``, …."""
        term = self.kernel.term
        more = len(term.outputs) if isinstance(term, Region) else 1
        return (self.name, *(f"{self.name}.{k}" for k in range(1, more)))


def packed(step: Step, constants: Mapping[str, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The constants among a step's arguments, by their positions among these."""
    known = enumerate(step.kernel.constants)
    return {n: constants[step.args[n]] for n, constant in known if constant}


def build_kernels(
    jobs: Sequence[tuple[Kernel, Mapping[int, torch.Tensor]]], backends: Sequence[Backend]
) -> list[Runner]:
    """Build a runner for each job, which is a kernel and its constant arguments by position. Each
    backend builds all of its kernels in one call.

    Kernels that read the same constant in the same layout share one copy, and equal jobs share one
    runner. Ten steps of a loop that read one weight of 4 MB then read these 4 MB, which fit into a
    cache, instead of ten packed copies (40 MB).

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
    """The constants in the layouts that the kernel reads. ``known`` holds the constants that were
    laid out before, and gets the new ones."""
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
    """Write the program as one Python function; return the function and its source.

    The function checks the inputs, brings them into the layouts of ``inputs``, calls one kernel
    after the other, and deletes each value after its last use. With ``checked=True`` it skips the
    checks of type, shape, dtype and device; an input for which ``as_read`` gives None is still laid
    out.

    Raises:
        LoweringError: a step reads a value that isn't computed before it.
    """
    names: dict[str, str] = {}
    scope: dict[str, Any] = {"wrong": _wrong, "lay_out": lay_out}
    scope["misplaced"] = _misplaced
    scope |= {"Tensor": torch.Tensor, "plain": plain, "dense": torch.strided}
    scope["as_strided"] = torch.as_strided
    checks: list[str] = []
    laid_out: list[str] = []
    body: list[str | _Call] = []
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
    seen = {name: v for name, v in views.items() if v.source in inside and name in last_use}
    in_block = [*inside, *seen]
    at = {step.name: f"t{k}_0" for k, step in enumerate(steps)}
    placed = {at[name]: n for n, name in enumerate(in_block)}
    for position, (step, args) in enumerate(zip(steps, reads, strict=True)):
        used = [_local(arg, names, step) for arg in args]
        made = {name: f"t{position}_{k}" for k, name in enumerate(step.results)}
        names |= made
        view, how = views.get(step.name), written(step.runner)
        constant = zip(used, step.kernel.constants, strict=True)
        given = [name for name, is_constant in constant if not is_constant] if not view else []
        if how is not None:
            code = _writing(position, how, given, placed, scope)
            body += [code] if step.name in inside else [_fresh(position, how, scope), code]
        elif view is None:
            scope[f"k{position}"] = step.runner
            body.append(f"{', '.join(made.values())} = k{position}({', '.join(given)})")
        elif step.name in seen:
            pass  # the workspace has it
        elif step.name in last_use or step.name in kept:
            body.append(f"t{position}_0 = {_view_code(view, used[0])}")
        else:
            made = {}  # all its readers are views, which are made from its source instead
        dying = {arg for arg in args if last_use[arg] == position} - kept
        dying |= {name for name in made if name not in last_use and name not in kept}
        dying -= {*in_block}
        if dying:
            body.append(f"del {', '.join(sorted(names[arg] for arg in dying))}")
    body.append(f"return [{', '.join(_results(inputs, steps, outputs, constants, names))}]")
    lines, together = _together(body, scope if device.type == CPU else None)
    if inside:
        number = {name: n for n, name in enumerate(inside)}
        numbered = [replace(view, source=number[view.source]) for view in seen.values()]
        memory = Workspaces(list(inside.values()), device, numbered, together)
        scope |= {"take": memory.take, "give": memory.give}
        locals_ = [*placed, *(f"d{name}" for name in placed)]
        locals_ += [f"g{n}" for n in range(len(together))]
        lines = [
            "w = take()",
            "try:",
            *(f"    {line}" for line in (f"{', '.join(locals_)}, = w", *lines)),
            "finally:",
            "    give(w)",
        ]
    head = f"def run({''.join(f'x{k}, ' for k in range(len(inputs)))}checked=False):"
    checks = ["if not checked:", *(f"    {line}" for line in checks)] if checks else []
    source = "\n    ".join([head, *checks, *laid_out, *lines]) + "\n"
    exec(compile(source, "<eqsynth program>", "exec"), scope)
    run: Callable[..., list[torch.Tensor]] = scope["run"]
    return run, source


def _between(steps: Sequence[Step], outputs: Sequence[str]) -> dict[str, Value]:
    """The values that may lie in the program's workspace, memory that is used again in each call.

    A value qualifies if its kernel writes into memory that the caller passes, if no output of the
    program is this value or a view of it, and if no opaque kernel (a function of the user's, which
    might keep its argument) reads it.
    """
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
    """For each step that is a view, the value that it is a view of; a view of a view belongs to the
    first value."""
    found: dict[str, str] = {}
    for step in steps:
        if step.kernel.implementation == VIEW:
            found[step.name] = found.get(step.args[0], step.args[0])
    return found


@dataclass(frozen=True)
class _Call:
    """A call of a kernel on constants and values of the workspace: as a line, and as data.

    Attributes:
        args: constants, and numbers of values in the workspace.
    """

    line: str
    function: Any
    args: tuple[Any, ...]


def _writing(
    position: int,
    how: Writing,
    given: Sequence[str],
    placed: Mapping[str, int],
    scope: dict[str, Any],
) -> str | _Call:
    """The line that calls a kernel which writes its result into a given tensor: ``f3(t1_0, t3_0)``.

    A value in the workspace is passed as TVM's own tensor object (``dt1_0``): TVM takes one of
    these in half the time that it takes for a tensor of torch.
    """
    scope[f"f{position}"] = how.function
    written, data = [], list[Any]()
    for n, arg in enumerate((*how.args, None)):
        name = f"f{position}_{n}"
        if arg is None or isinstance(arg, int):
            name = f"t{position}_0" if arg is None else given[arg]
            data.append(placed.get(name))
        else:
            scope[name] = arg
            data.append(arg)
        written.append(f"d{name}" if name in placed else name)
    line = f"f{position}({', '.join(written)})"
    if None in data or not launches.is_callable(how.function, data):
        return line
    return _Call(line, how.function, tuple(data))


def _together(
    body: Sequence[str | _Call], scope: dict[str, Any] | None
) -> tuple[list[str], list[list[tuple[Any, tuple[Any, ...]]]]]:
    """The lines of a program, in which calls that follow one another are made together, and the
    calls of each such line. Without a scope, each call is a line of its own."""
    lines: list[str] = []
    found: list[list[tuple[Any, tuple[Any, ...]]]] = []
    run = launches.run() if scope is not None and any(map(_is_call, body)) else None
    for calls, group in itertools.groupby(body, _is_call):
        own = list(group)
        if not calls or run is None or len(own) < 2:
            lines += [part.line if isinstance(part, _Call) else part for part in own]
            continue
        name = f"g{len(found)}"
        lines.append(f"if launch({name}.address, {len(own)}) < {len(own)}: {name}.again()")
        found.append([(c.function, c.args) for c in own if isinstance(c, _Call)])
    if scope is not None and run is not None:
        scope["launch"] = run
    return lines, found


def _is_call(part: str | _Call) -> bool:
    return isinstance(part, _Call)


def _fresh(position: int, how: Writing, scope: dict[str, Any]) -> str:
    """The line that makes the tensor for a result outside of the workspace: ``t3_0 = fresh3()``."""
    scope[f"fresh{position}"] = Results(how.shape, how.strides, how.dtype).take
    return f"t{position}_0 = fresh{position}()"


def _view_code(view: View, source: str) -> str:
    """The expression that makes a view in one call. The value's own storage offset is added, since
    an input of the user's or an engine's result may begin anywhere in its storage."""
    begin = f"{source}.storage_offset()"
    begin = f"{view.offset} + {begin}" if view.offset else begin
    return f"as_strided({source}, {view.shape}, {view.strides}, {begin})"


def _views(steps: Sequence[Step]) -> dict[str, View]:
    """The steps that only view a value, by name, each as one view of a value that a kernel
    computed.

    Example: slice -> reshape, as of the gates of an LSTM, are two calls of torch that take 5 us; as
    one ``as_strided`` of the kernel's result they take 1 us. A scope that is a view would be read
    by Python in each call, which takes 50 us and more.
    """
    found: dict[str, View] = {}
    for step in steps:
        kernel, term = step.kernel, step.kernel.term
        if kernel.implementation != VIEW or any(kernel.constants):
            continue
        before = found.get(step.args[0], View(step.args[0], (), (), 0))
        if isinstance(term, Op):
            (arg,), (layout,) = args_of(term), kernel.inputs
            dense = torch.empty_strided(
                arg.shape, strides(arg.shape, layout), dtype=torch_dtype(arg.dtype), device="meta"
            )
            view = run_term(term, [dense] * len(term.args))
            steps_of, offset = tuple(view.stride()), int(view.storage_offset())
        else:  # all elements where they are, under other indices (``extract/layout.py``)
            steps_of, offset = strides(term.shape, kernel.output), 0
        found[step.name] = View(before.source, term.shape, steps_of, before.offset + offset)
    return found


def _check(
    position: int, parameter: Parameter, device: torch.device, scope: dict[str, Any]
) -> list[str]:
    """The lines that check type, shape, dtype, device and torch layout of one input."""
    kind, x = parameter.input.type, f"x{position}"
    scope |= {
        f"input{position}": parameter.input,
        f"shape{position}": kind.shape,
        f"dtype{position}": torch_dtype(kind.dtype),
        f"strides{position}": strides(kind.shape, parameter.layout),
        f"layout{position}": parameter.layout,
        "device": device,
    }
    lines = [
        f"if type({x}) is not Tensor or {x}.is_neg(): {x} = plain({x})",
        f"if {x}.shape != shape{position} or {x}.dtype is not dtype{position} "
        f"or {x}.device != device or {x}.layout is not dense: wrong({x}, input{position}, device)",
    ]
    if parameter.memory is not None:
        scope[f"memory{position}"] = parameter.memory
        told = f"input{position}, memory{position}"
        lines.append(f"if not memory{position}.holds({x}): misplaced({x}, {told})")
    return lines


def _lay_out(position: int) -> str:
    """The line that copies an input into the layout that the kernels read, unless it lies so
    already."""
    x = f"x{position}"
    return (
        f"if {x}.stride() != strides{position}: "
        f"{x} = lay_out({x}, shape{position}, layout{position})"
    )


def _local(name: str, names: Mapping[str, str], step: Step) -> str:
    """The local variable that holds a value; an error if the value isn't computed yet."""
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
    """The expressions of the outputs. An output is cloned if it would share memory with an input, a
    constant or an earlier output."""
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
    """The program as text, one line for each value: its name, operator, type, kernel and place."""
    rows = [(p.input.name, "=", "input", f"{p.input.type}{_order(p.layout)}", "") for p in inputs]
    for step in steps:
        term, kernel = step.kernel.term, step.kernel
        operator = term.label if isinstance(term, Region) else getattr(term, "name", "Scope")
        called = f"{operator}({', '.join(step.args)})"
        rows.append(
            (
                step.name,
                "=",
                called,
                f"{term.type}{_order(kernel.output)}",
                f"{kernel.label}  {step.label}",
            )
        )
    widths = [max((len(row[k]) for row in rows), default=0) for k in range(4)]
    lines = [f"{title}("]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
        lines.append("  " + "  ".join((*cells, row[4])).rstrip())
    return "\n".join([*lines, f"  return {', '.join(outputs)}", ")"])


def _order(layout: Layout) -> str:
    """The layout as text for a listing; empty for a contiguous layout."""
    if layout == contiguous(len(layout)):
        return ""
    return " channels last" if layout == channels_last(len(layout)) else f" {layout}"


def _misplaced(value: torch.Tensor, kind: Input, memory: Memory) -> NoReturn:
    raise misplaced(value, f"input {kind.name!r}", memory)


def _wrong(value: torch.Tensor, kind: Input, device: torch.device) -> NoReturn:
    """Raise the error that says how an input differs from the program's input."""
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
