"""``eqsynth bench``: a model timed in eqsynth and in the other engines that are installed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eqsynth.cli import models
from eqsynth.cli.output import AsJson, fail, print_json, say, table
from eqsynth.errors import EqsynthError

if TYPE_CHECKING:
    from eqsynth.peers import Engine, Given
    from eqsynth.side_by_side import SideBySide


def bench(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A file .pt2 or .onnx, or module:function (file.py:function), as for optimize.",
        ),
    ],
    program: Annotated[
        Path | None,
        typer.Option(help="A program that optimize has written of it; without one, it searches."),
    ] = None,
    time_limit_s: Annotated[
        float, typer.Option("--time-limit", min=0.1, help="Seconds of the search.")
    ] = 120.0,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="Beside eager, this engine only; may be given again."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each engine.")] = 11,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of each; by default torch's number.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Times a model in eager, Inductor, other engines and eqsynth, by turns.

    eqsynth bench model.pt2 --program fast.eqsynth

    Each engine has a process of its own, builds the model there (a function is called with torch's
    random generator at 0), and is held against eager in float64. Medians with quartiles in ms;
    "eager /" is eager's median over the engine's.
    """
    import torch

    from eqsynth.peers import OURS, load_written
    from eqsynth.side_by_side import side_by_side

    chosen, missing = _engines(engine, program, time_limit_s)
    number = threads or torch.get_num_threads()
    try:
        given(model)
        if program is not None:
            load_written(given(model), number, program)
    except (EqsynthError, OSError) as error:
        fail(error if isinstance(error, EqsynthError) else EqsynthError(str(error)))
    found = side_by_side(
        model, partial(given, model), chosen, threads=number, rounds=rounds,
        show=False if as_json else None,
    )  # fmt: skip
    if as_json:
        print_json({"model": model, "threads": number, "rounds": rounds, **_data(found, missing)})
    else:
        _print(found, chosen, missing)
    if OURS not in found.times:
        raise typer.Exit(1)


def given(name: str) -> Given:
    """The model of a name from the command line, with the same random weights in each process."""
    import torch

    from eqsynth.frontend.onnx import module_of
    from eqsynth.peers import Given

    torch.manual_seed(0)
    found = models.model(name)
    if isinstance(found.program, str):
        module, args = module_of(found.program, (), {})
        return Given(module.eval(), args, onnx=Path(found.program))
    return Given(found.program, found.args, found.kwargs)


def _engines(
    asked: list[str] | None, program: Path | None, time_limit_s: float
) -> tuple[list[Engine], list[str]]:
    """The engines to time, eqsynth last, and the names of those that aren't installed.

    Args:
        asked: names of engines; None for all. Eager and eqsynth are always timed.
        program: a program that was optimized before; without one, eqsynth searches.
    """
    from eqsynth.peers import ENGINES, OURS, Engine, load_eqsynth, load_written

    known = {engine.name: engine for engine in ENGINES}
    for name in asked or ():
        if name not in known:
            fail(
                EqsynthError(
                    "there is no such engine",
                    where="--engine",
                    got=name,
                    expected=", ".join(known),
                    hint="leave it out to time all that are installed",
                )
            )
    ours = partial(load_eqsynth, time_limit_s=time_limit_s)
    if program is not None:
        ours = partial(load_written, path=program)
    wanted = {OURS, "eager", *(known if asked is None else asked)}
    others = [e for e in ENGINES if e.name in wanted and e.name != OURS]
    installed = [e for e in others if e.installed]
    missing = [e.name for e in others if not e.installed]
    return [*installed, Engine(OURS, ours)], missing


def _data(found: SideBySide, missing: Sequence[str]) -> dict[str, Any]:
    rows = [
        {
            "engine": name,
            "median_s": time.median_s,
            "q1_s": time.q1_s,
            "q3_s": time.q3_s,
            "samples": time.samples,
            "error": found.errors.get(name),
        }
        for name, time in found.times.items()
    ]
    return {
        "engines": rows,
        "failed": dict(found.failed),
        "not_installed": list(missing),
        "facts": dict(found.facts),
    }


def _print(found: SideBySide, chosen: Sequence[Engine], missing: Sequence[str]) -> None:
    eager = found.times.get("eager")
    rows: list[tuple[str, ...]] = []
    for engine in chosen:
        if engine.name not in found.times:
            continue
        time = found.times[engine.name]
        ratio = f"{eager.median_s / time.median_s:.2f}" if eager else ""
        off = found.errors.get(engine.name)
        rows.append((
            engine.name, f"{time.median_s * 1e3:.3f}",
            f"{time.q1_s * 1e3:.3f} .. {time.q3_s * 1e3:.3f}", ratio,
            "" if off is None else f"{off:.0e}",
        ))  # fmt: skip
    if rows:
        table(("engine", "ms", "quartiles", "eager /", "error"), rows)
    for name, reason in found.failed.items():
        say(f"{name} failed: {reason}", "red")
    if why := found.facts.get("reason"):
        say(f"eqsynth runs the original: {why}")
    if missing:
        say(f"not installed: {', '.join(missing)} (pip install 'eqsynth[peers]')")
