"""``eqsynth optimize``, ``run``, ``explain`` and ``profile``."""

from __future__ import annotations

import math
import time
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from eqsynth import written
from eqsynth.cli import models
from eqsynth.cli.output import AsJson, Certify, fail, print_json, say, table
from eqsynth.errors import EqsynthError
from eqsynth.report import WHOLE

# ``eqsynth optimize`` searches twice, so that Ctrl-C during the second search leaves the result of
# the first. The first search gets this share of the time limit.
_FIRST = 0.25
# With a time limit below this, there is only one search.
_SHORT_S = 20.0

Program = Annotated[Path, typer.Argument(help="A file that eqsynth optimize or save has written.")]
Inputs = Annotated[
    Path | None,
    typer.Option(help="Tensors that torch.save has written; without them, random ones."),
]


def optimize(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A file .pt2 (torch.export.save) or .onnx, or module:function or file.py:function "
            "of a function that returns a module and a tuple of example inputs.",
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the program is written.")],
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="Example inputs that torch.save has written, in place of the model's own. An ONNX "
            "model needs them where it leaves a size open."
        ),
    ] = None,
    time_limit_s: Annotated[
        float, typer.Option("--time-limit", min=0.1, help="Seconds of the search.")
    ] = 120.0,
    objective: Annotated[str, typer.Option(help="What is to be less: time or flops.")] = "time",
    numerics: Annotated[
        str, typer.Option(help="What rules may do to rounding: bitwise, real, cancels, approx.")
    ] = "real",
    rules: Annotated[
        list[Path] | None, typer.Option(help="A rule file of your own; may be given again.")
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="An engine for parts of the program; none: --engine ''."),
    ] = None,
    tune: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds for other schedules of the heaviest kernels, on top."),
    ] = 0.0,
    peak_memory: Annotated[
        float,
        typer.Option(help="Bytes that the program may need: inputs, constants, values at once."),
    ] = math.inf,
    certify: Certify = False,
    as_json: AsJson = False,
) -> None:
    """Searches for a faster program, checks it, and writes it to a file.

    eqsynth optimize model.pt2 -o fast.eqsynth --time-limit 60

    A file that ends in .onnx is written as ONNX, one that ends in .pt2 as an exported program of
    torch, whatever the model came from.

    eqsynth optimize model.onnx -o fast.onnx --inputs x.pt

    Where nothing faster is found the file holds the original. Ctrl-C ends the search: what was
    found until then is written. What was measured and searched is kept for the next time.
    """
    from eqsynth.lower.bundle import save

    begin = time.monotonic()
    try:
        written.check(out)
        found = models.model(model, inputs)
        options: dict[str, Any] = {
            "objective": objective,
            "numerics": numerics,
            "rules": rules or [],
            "tune": tune,
            "peak_memory": peak_memory,
            "certify": certify,
        }
        if engine is not None:
            options["engines"] = tuple(filter(None, engine))
        best, interrupted = _searched(found, time_limit_s, options, begin)
        if out.suffix == ".onnx":
            best.to_onnx(out)
        elif out.suffix == ".pt2":
            import torch

            exported = best.to_exported()
            with written.written(out) as place:
                torch.export.save(exported, place)
        else:
            save(best, out)
    except EqsynthError as error:
        fail(error)
    if as_json:
        print_json(_report_data(best.report) | {"out": str(out), "interrupted": interrupted})
        return
    say(str(best.report))
    say("")
    say(str(best.explain()))
    say("")
    say(f"written to {out}")


def _searched(
    found: models.Model, limit_s: float, options: dict[str, Any], begin: float
) -> tuple[Any, bool]:
    """Search for the best program.

    There are two searches. The second one reuses the first one's measurements and saturated
    e-graphs from the cache, so that little time is lost. Kernels are tuned in the last search.

    Returns:
        The best program, and whether Ctrl-C ended the search.

    Raises:
        typer.Exit: Ctrl-C before there was a program.
    """
    from eqsynth import pipeline

    tune = options.pop("tune")
    limits = [limit_s * _FIRST, limit_s * (1 - _FIRST)]
    if limit_s < _SHORT_S:
        limits = [limit_s, limit_s] if tune else [limit_s]
    best: Any = None
    console = Console(stderr=True)
    for number, seconds in enumerate(limits, 1):
        try:
            program = pipeline.optimize(
                found.program,
                found.args,
                example_kwargs=found.kwargs or None,
                time_limit_s=seconds,
                tune=tune if number == len(limits) else 0.0,
                **options,
            )
        except KeyboardInterrupt:
            if best is None:
                console.print("interrupted before there was a program")
                raise typer.Exit(130) from None
            console.print("interrupted: what was found is kept")
            return best, True
        tuned = program.report.tuned and program.original is None
        if best is None or tuned or program.report.time_after_s < best.report.time_after_s:
            best = program
        report = best.report
        console.print(f"{report.speedup:.2f}x at {time.monotonic() - begin:.0f} s")
        if _is_whole(report) and not (tune and report.route):
            break
    return best, False


def _is_whole(report: Any) -> bool:
    """Whether the search came to its own end, so that a longer one would find nothing more."""
    return report.stop in (*WHOLE, "unsteady", "capture") and (report.complete or not report.rounds)


def _report_data(report: Any) -> dict[str, Any]:
    """The fields of a report that are plain data."""
    data = {f.name: getattr(report, f.name) for f in fields(report)}
    data |= {"speedup": report.speedup, "faster": not report.reason}
    data["certified"] = str(report.certified or "")
    data["why_not"] = [str(step) for step in report.why_not]
    plain = (str, int, float, bool, tuple, list, dict)
    return {name: value for name, value in data.items() if isinstance(value, plain)}


def _loaded(path: Path, recompile: bool = False) -> Any:
    from eqsynth.lower.bundle import load

    try:
        return load(path, recompile)
    except EqsynthError as error:
        fail(error)
    except OSError as error:
        fail(EqsynthError("the program can't be read", where=str(path), got=str(error)))


def run(
    program: Program,
    inputs: Inputs = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Where torch.save writes the result.")
    ] = None,
    recompile: Annotated[
        bool, typer.Option("--recompile", help="Build the kernels again, for this machine.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Runs a program that was written, and says what comes out and how long it takes.

    eqsynth run fast.eqsynth --inputs x.pt -o y.pt
    """
    import torch
    from torch.utils._pytree import tree_leaves

    from eqsynth.extract.timing import time_one

    loaded = _loaded(program, recompile)
    try:
        if out is not None:
            written.check(out)
        args, kwargs = models.arguments(loaded, inputs)
        result = loaded(*args, **kwargs)
        took = time_one(lambda: loaded(*args, **kwargs))
        if out is not None:
            # A file and not a path: given a path, torch raises its own error for a full disk.
            with written.written(out) as place, place.open("wb") as file:
                torch.save(result, file)
    except EqsynthError as error:
        fail(error)
    values = [
        f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        for x in tree_leaves(result)
        if isinstance(x, torch.Tensor)
    ]
    if as_json:
        print_json({"outputs": values, "median_s": took.median_s, "q1_s": took.q1_s})
        return
    say(f"{', '.join(values)} in {took.median_s * 1e3:.3f} ms")


def explain(
    program: Program,
    full: Annotated[bool, typer.Option("--full", help="Every step, whole programs.")] = False,
) -> None:
    """Says what was changed, region by region, and by which rules.

    eqsynth explain fast.eqsynth
    """
    loaded = _loaded(program)
    say(str(loaded.report))
    say("")
    say(str(loaded.explain("full" if full else "summary")))


def profile(
    program: Annotated[
        Path | None, typer.Argument(help="A file that eqsynth optimize or save has written.")
    ] = None,
    inputs: Inputs = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Measure this machine's device instead: cuda or cpu."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Where the device's profile is written.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Times each step of a program in its place, beside the peaks of this machine.

    eqsynth profile fast.eqsynth

    A step is bound by arithmetic (its rate is in FLOP/s) or by memory (in bytes/s).

    With --device: measures the peaks of a device, and writes one file to carry; elsewhere
    optimize(target=FILE) plans programs for it.

    eqsynth profile --device cuda -o h100.json
    """
    if (device is None) == (program is None):
        wrong = "give either a program, whose steps are timed, or --device KIND"
        fail(EqsynthError("eqsynth profile times one thing", got=str(program), expected=wrong))
    if program is None:
        assert device is not None
        _profile_device(device, out, as_json)
        return
    _profile_program(program, inputs, as_json)


def _profile_device(kind: str, out: Path | None, as_json: bool) -> None:
    from eqsynth.extract import carried
    from eqsynth.extract.target import KINDS
    from eqsynth.lower.backends import target_here

    if kind not in KINDS:
        known = ", ".join(KINDS)
        fail(EqsynthError("there is no such kind of device", got=repr(kind), expected=known))
    try:
        target = target_here(kind, again=True)
        path = out or Path(f"{'-'.join(target.device.model.split())}.json")
        carried.write(target, path)
    except EqsynthError as error:
        fail(error)
    if as_json:
        say(target.to_json())
        return
    levels = ((level.name, level.bandwidth_bytes_per_s) for level in target.levels)
    rows = [(name, f"{rate / 1e9:,.0f} GB/s") for name, rate in levels]
    rows += [(dtype, f"{rate / 1e9:,.0f} GFLOPS") for dtype, rate in target.flops_per_s]
    rows.append(("a call", f"{target.dispatch_s * 1e6:.1f} us"))
    table((target.device.model, "peak"), rows)
    say(f"written to {path}")


def _profile_program(program: Path, inputs: Path | None, as_json: bool) -> None:
    from eqsynth.extract.target import CPU
    from eqsynth.ir.work import bytes_moved, flops
    from eqsynth.lower.backends import target_here
    from eqsynth.lower.step_times import step_times

    loaded = _loaded(program)
    if loaded.original is not None:
        fail(
            EqsynthError(
                "this program is the original: it has no steps",
                where=str(program),
                hint="torch.profiler tells of the original",
            )
        )
    try:
        args, kwargs = models.arguments(loaded, inputs)
        loaded(*args, **kwargs)
        times = step_times(loaded, args, kwargs)
        target = loaded.place.target or target_here(CPU)
    except EqsynthError as error:
        fail(error)
    steps, rows = [], []
    for step, seconds in zip(loaded.steps, times, strict=True):
        term = step.kernel.term
        what = step.label or type(term).__name__
        kernel = step.kernel.label
        share, rate = seconds / sum(times), ""
        found = {"step": step.name, "what": what, "kernel": kernel, "seconds": seconds}
        found |= {"share": share, "flops": flops(term), "bytes": bytes_moved(term)}
        if seconds:  # a view takes no time
            achieved = target.achieved(bytes_moved(term), flops(term), term.dtype, seconds)
            rate, found["of_peak"] = str(achieved), achieved.share
        steps.append(found)
        rows.append((step.name, f"{seconds * 1e3:.3f}", f"{share:.0%}", rate, kernel, what))
    if as_json:
        print_json(steps)
        return
    table(("step", "ms", "share", "rate", "kernel", "what"), rows)
