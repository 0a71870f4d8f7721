"""The time of each step of a program, measured in its place among the others on real values.

During extraction a kernel is timed by itself on random values, which gives other times
(``backends.py``).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from eqsynth.extract.kernel import Kernel, Runner, writing, written
from eqsynth.extract.timing import Clock, Timing
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.steps import straight_line

# The most runs.
_RUNS = 30


def step_times(
    program: CompiledProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any], seconds: float = 0.1
) -> tuple[float, ...]:
    """The seconds of each step: the lower quartile of as many runs as fit into ``seconds``, at
    least two; the first run isn't counted. A view that the program's code makes itself takes 0.
    Buffers of the user's module aren't changed."""
    samples: list[list[float]] = [[] for _ in program.steps]
    steps = [
        replace(step, runner=_clocked(step.runner, times, program.place.clock))
        for step, times in zip(program.steps, samples, strict=True)
    ]
    run, _ = straight_line(
        program.inputs, steps, program.outputs, program.constants, program.device
    )
    values = program.calling.bind(*args, **kwargs)
    end, runs = time.monotonic() + seconds, 0
    with torch.no_grad():
        while runs < 2 or (runs < _RUNS and time.monotonic() < end):
            run(*values)
            runs += 1
    return tuple(Timing.of(times[1:]).q1_s if times else 0.0 for times in samples)


def _clocked(runner: Runner, times: list[float], clock: Clock) -> Runner:
    """The runner, with the seconds of each call added to ``times``. It writes into given memory if
    the runner can, as it does in the program: new memory takes 1.4 us more."""

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            results: list[Any] = []
            times.append(clock(lambda: results.append(function(*args)), 1))
            return results[0]

        return run

    how = written(runner)
    run = timed(runner)
    return run if how is None else writing(run, replace(how, function=timed(how.function)))


def kernel_times(
    program: CompiledProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[Kernel, float]:
    """The seconds of each kernel in the program: the mean over the steps that run it."""
    times: dict[Kernel, list[float]] = {}
    for step, seconds in zip(program.steps, step_times(program, args, kwargs), strict=True):
        times.setdefault(step.kernel, []).append(seconds)
    return {kernel: statistics.fmean(own) for kernel, own in times.items()}


def opaque_share(
    program: CompiledProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> float:
    """The part of a program's time that its opaque operators take."""
    times = step_times(program, args, kwargs)
    pairs = zip(program.steps, times, strict=True)
    return sum(seconds for step, seconds in pairs if step.kernel.opaque) / sum(times)
