"""A worker's task in the long run: a batch of random torch modules through ``optimize``.

It isn't in ``long_run.py``, since a task must be a function of a module that can be imported.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from dataclasses import asdict
from typing import Any

from hypothesis import strategies as st

from benchmarks.batches import Batch, Draws, operators, told
from eqsynth.errors import CaptureError
from eqsynth.frontend.torch_export import capture
from eqsynth.testing.module_case import ModuleCase
from eqsynth.testing.optimized import assert_optimize_sound
from eqsynth.testing.strategies import torch_modules

BATCH = 8

KINDS = ("normal", "zeros", "ties")
"""Kinds of arguments that are tried besides those that ``optimize`` tries."""

TIMED = 8
"""One in this many batches is optimized for time; the others for FLOPs, which is faster."""


def _modules(number: int) -> st.SearchStrategy[ModuleCase]:
    dtypes = ("float32", "float32", "float32", "int64", "bool", "float64", "float16", "bfloat16")
    return torch_modules(steps=6, dtypes=dtypes, empty=number % 8 == 1)


MODULES = Draws(_modules, BATCH, tries=50)


def run_modules(number: int, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    """The task of the worker.

    Args:
        extra: rule files that are loaded after eqsynth's own.
    """
    start, batch = time.monotonic(), Batch(number)
    warnings.simplefilter("ignore")  # torch's, of odd modules
    for case in dict.fromkeys(MODULES.of(number)):
        batch.programs.append(hashlib.blake2b(repr(case).encode(), digest_size=8).hexdigest())
        if error := _failure(case, number, extra, batch):
            last, error = MODULES.shrunk(number, case, error, lambda c: _failure(c, number, extra))
            batch.failures.append({"program": repr(last), "error": error})
    batch.seconds = time.monotonic() - start
    return asdict(batch)


def _failure(
    case: ModuleCase, number: int, extra: tuple[str, ...], batch: Batch | None = None
) -> str:
    """What is wrong with a module; empty if nothing is."""
    objective = "time" if number % TIMED == 0 else "flops"
    arguments = [case.arguments(kind) for kind in KINDS]
    try:
        program = assert_optimize_sound(
            case.module(), *arguments, objective=objective, again=number % 2 == 1, rules=extra
        )
    except Exception as error:
        return told(error)
    if batch is not None:
        report = program.report
        batch.operators.append(_operators(case))
        flops = (report.flops_before, report.flops_after)
        batch.searched(report.enodes, report.stop, report.rules_fired, flops)
    return ""


def _operators(case: ModuleCase) -> int:
    """The number of terms of the captured module; 0 if it can't be captured."""
    try:
        return operators(capture(case.module(), case.arguments()).program.outputs)
    except CaptureError:
        return 0
