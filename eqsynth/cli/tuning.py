"""``eqsynth tune``: the search for faster schedules of generated kernels."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from eqsynth.cli import models
from eqsynth.cli.output import AsJson, Certify, fail, print_json, say
from eqsynth.errors import EqsynthError

if TYPE_CHECKING:
    from eqsynth.extract.kernel import Kernel
    from eqsynth.extract.schedule import Schedule
    from eqsynth.extract.target import Target
    from eqsynth.lower.tuning_told import Tuning
    from eqsynth.tuning.search import Search

PROFILE = "profile"
_MODELS = (".onnx", ".pt2")


def tune(
    what: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|profile",
            help="A model as optimize takes it, a file that optimize has written, or the word "
            "profile: every kernel that was tuned before on this machine.",
        ),
    ],
    seconds: Annotated[float, typer.Option(min=0.0, help="What tuning may take in all.")] = 60.0,
    time_limit_s: Annotated[
        float, typer.Option("--time-limit", min=0.1, help="Seconds of a model's search before.")
    ] = 120.0,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="An engine for parts of a model; none: --engine ''."),
    ] = None,
    certify: Certify = False,
    as_json: AsJson = False,
) -> None:
    """Tries other schedules for the generated kernels that weigh most.

    eqsynth tune model.pt2 --seconds 300

    What is found is used by every later eqsynth optimize on this machine. Each measurement is kept:
    Ctrl-C loses at most those of the last second, and the same command goes on where it was. Only
    one process of yours times at once on a machine; another one waits.
    """
    done: list[Tuning] = []
    interrupted = False
    try:
        for one in _tuned(what, seconds, time_limit_s, engine, certify):
            done.append(one)
    except EqsynthError as error:
        fail(error)
    except KeyboardInterrupt:
        interrupted = True
        Console(stderr=True).print("interrupted: what was measured is kept")
    if as_json:
        print_json({"tuned": [_data(one) for one in done], "interrupted": interrupted})
    else:
        for one in done:
            for line in one.lines():
                say(line)
    if interrupted and not done:
        raise typer.Exit(130)


def _tuned(
    what: str, seconds: float, limit_s: float, engine: list[str] | None, certify: bool
) -> Iterator[Tuning]:
    """Tune the kernels of a model, of a written program, or of the profile.

    Yields:
        The result for each kernel, once it is tuned.

    Raises:
        EqsynthError: there is nothing to tune.
    """
    from eqsynth.extract.measure import measure_cpu_target

    if what == PROFILE:
        target = measure_cpu_target()
        yield from _in_turn(_of_the_profile(target), target, 0, seconds, what)
    elif what.endswith(_MODELS) or ":" in what:
        yield from _of_a_model(what, seconds, limit_s, engine, certify)
    else:
        target = measure_cpu_target()
        yield from _in_turn(*_of_a_program(what, target), seconds, what)


def _of_a_model(
    name: str, seconds: float, limit_s: float, engine: list[str] | None, certify: bool
) -> Iterator[Tuning]:
    from eqsynth import pipeline

    found = models.model(name)
    report = pipeline.optimize(
        found.program, found.args, example_kwargs=found.kwargs or None, time_limit_s=limit_s,
        tune=seconds, engines=None if engine is None else tuple(filter(None, engine)),
        certify=certify,
    ).report  # fmt: skip
    if not report.tuned:
        raise _nothing(name, report.reason or f"a plan of {report.backend}")
    yield from report.tuned


def _of_the_profile(target: Target) -> dict[Kernel, float]:
    """The kernels that were tuned before on this machine, slowest first -> their best time."""
    from eqsynth.extract.profile import Profile
    from eqsynth.lower.tuning_records import records

    with closing(Profile(target.key())) as profile:
        known = [(record.kernel, record.best) for record in records(profile)]
    found = {kernel: best[1] for kernel, best in known if best is not None}
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _of_a_program(path: str, target: Target) -> tuple[dict[Kernel, float], Target, int]:
    """The generated kernels of a written program and the facts that tuning needs.

    Returns:
        Kernel -> its time in all its steps, heaviest first; the target; and ``Target.far``: the
        number of caches beyond the first that are too small for the program's constants.
    """
    from eqsynth.lower.bundle import load
    from eqsynth.lower.step_times import step_times

    found: dict[Kernel, float] = {}
    try:
        program = load(path)
    except OSError as error:
        raise EqsynthError("the program can't be read", where=path, got=str(error)) from error
    if program.original is None:
        args, kwargs = models.arguments(program, None)
        times = step_times(program, args, kwargs)
        for step, time_s in zip(program.steps, times, strict=True):
            if step.kernel.generated:
                found[step.kernel] = found.get(step.kernel, 0.0) + time_s
    heaviest = sorted(found.items(), key=lambda pair: -pair[1])
    return dict(heaviest), target, target.far(program.constant_bytes())


def _in_turn(
    weights: Mapping[Kernel, float], target: Target, far: int, seconds: float, what: str
) -> Iterator[Tuning]:
    from eqsynth.lower.plan_tuning import tune_kernels
    from eqsynth.lower.tuning_told import best_so_far, told, what_of

    if not weights:
        raise _nothing(what, "no generated kernel")
    with _bar(seconds) as tell:

        def watch(kernel: Kernel, search: Search[Schedule]) -> None:
            tell(f"{what_of(kernel)}: {best_so_far(kernel, search, target)}")

        for _, one in tune_kernels(weights, target, far, seconds, watch):
            yield told(one, target)


def _data(one: Tuning) -> dict[str, Any]:
    """A result as JSON data. JSON has no infinite numbers, so the ratio of a point that failed is
    the text "fails"."""
    near = {
        name: {value: "fails" if ratio == math.inf else ratio for value, ratio in values.items()}
        for name, values in one.around.items()
    }
    return {**asdict(one), "around": near}


def _nothing(what: str, got: str) -> EqsynthError:
    return EqsynthError(
        "there is nothing to tune",
        where=what,
        got=got,
        expected="a plan in which generated kernels weigh something",
        hint="--engine '' plans without engines; eqsynth profile FILE shows a program's kernels",
    )


@contextmanager
def _bar(seconds: float) -> Iterator[Callable[[str], None]]:
    """A progress bar of the seconds on standard error, if that is a terminal.

    Yields:
        A function that shows a text behind the bar.
    """
    console, begin = Console(stderr=True), time.monotonic()
    if not console.is_terminal:
        yield lambda _text: None
        return
    columns = BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=seconds)

        def tell(text: str) -> None:
            bar.update(task, completed=time.monotonic() - begin, description=text)

        yield tell
