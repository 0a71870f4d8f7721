"""The work of one worker of the long run: a batch of random torch modules through ``optimize``.

Here, not in ``long_run.py``: a task has to be a function of a module that can be imported.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benchmarks.random_programs import Batch, operators, shrunk
from eqsynth.testing.module_case import ModuleCase

MODULES = 8
"""Modules in a batch."""

KINDS = ("normal", "zeros", "ties")
"""Of the arguments, besides those that ``optimize`` tries."""

TIMED = 8
"""One batch of so many is optimized for time; the others for FLOPs, which takes less."""


def modules(number: int, visit: Callable[[ModuleCase], None], shrink: bool = False) -> None:
    """Calls ``visit`` with the modules of a batch; they depend on its number only."""
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from eqsynth.testing.strategies import torch_modules

    dtypes = ("float32", "float32", "float32", "int64", "bool", "float64", "float16", "bfloat16")
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)

    @seed(number)
    @settings(
        max_examples=MODULES, database=None, deadline=None, phases=phases, print_blob=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(torch_modules(steps=6, dtypes=dtypes, empty=number % 8 == 1))
    def each(case: ModuleCase) -> None:
        visit(case)

    each()


def run_modules(number: int, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    """The task of the worker.

    Args:
        extra: rule files that are loaded after eqsynth's own.
    """
    start, batch, drawn = time.monotonic(), Batch(number), list[ModuleCase]()
    warnings.simplefilter("ignore")  # torch's, of odd modules
    modules(number, drawn.append)
    for case in dict.fromkeys(drawn):
        batch.programs.append(hashlib.blake2b(repr(case).encode(), digest_size=8).hexdigest())
        if error := _failure(case, number, extra, batch):
            last, error = shrunk(modules, number, case, error, lambda c: _failure(c, number, extra))
            batch.failures.append({"program": repr(last), "error": error})
    batch.seconds = time.monotonic() - start
    return asdict(batch)


def _failure(
    case: ModuleCase, number: int, extra: tuple[str, ...], batch: Batch | None = None
) -> str:
    """What is wrong with a module; nothing, most of the time."""
    from eqsynth.testing.optimized import assert_optimize_sound

    objective = "time" if number % TIMED == 0 else "flops"
    arguments = [case.arguments(kind) for kind in KINDS]
    try:
        program = assert_optimize_sound(
            case.module(), *arguments, objective=objective, again=number % 2 == 1, rules=extra
        )
    except Exception as error:  # whatever it is, it is a finding
        return f"{type(error).__name__}: {error}"
    if batch is not None:
        report = program.report
        batch.operators.append(_operators(case))
        batch.enodes.append(report.enodes)
        batch.stops = dict(Counter(batch.stops) + Counter([report.stop]))
        fired = Counter(name for name, count in report.rules_fired.items() if count)
        batch.fired = dict(Counter(batch.fired) + fired)
        batch.cheaper += report.flops_after < 0.999 * report.flops_before
    return ""


def _operators(case: ModuleCase) -> int:
    """How many terms the captured module has; none where it can't be captured."""
    from eqsynth.errors import CaptureError
    from eqsynth.frontend.torch_export import capture

    try:
        return operators(capture(case.module(), case.arguments()).program.outputs)
    except CaptureError:
        return 0
