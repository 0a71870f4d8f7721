"""A GPU that is played by the CPU: everything of the pipeline is real but for what the driver does.

The kernels are the text that nvrtc would compile, run on the CPU (``lower/cuda_on_cpu.h``). A graph
runs the steps again on the tensors that it was recorded with, as a replay does. The measuring
worker is this process, since another one wouldn't know that it plays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from eqsynth.extract.target import Target
from eqsynth.extract.timing import Clock, wall_s
from eqsynth.lower import measurer
from eqsynth.lower.cuda import backend, driver, measure, place, precision
from eqsynth.lower.other_steps import OtherSteps
from eqsynth.lower.places import Place, Run

sys.path.append(str(Path(__file__).parent / "lower"))

from gpu_cases import GPU, Cudnn, load_on_cpu  # noqa: E402

__all__ = ["GPU", "PLAYED", "Cudnn", "a_gpu", "load_on_cpu", "record"]

PLAYED = Target.from_json(GPU.to_json())


def record(
    run: Run, values: Sequence[torch.Tensor]
) -> tuple[Callable[[], None], list[torch.Tensor]]:
    results = run(*values)

    def replay() -> None:
        for own, value in zip(results, run(*values), strict=True):
            own.copy_(value)

    return replay, results


class Here:
    """A worker that is this process."""

    pid = 0

    def run(self, task: Callable[..., Any], *args: Any, timeout_s: float = 0.0) -> Any:
        return None if task is measurer.load_libraries else task(*args)


def _others(threads: int, far: int) -> OtherSteps:
    return OtherSteps(1 << 20, torch.zeros(1024), torch.ones(16, 16))


@contextmanager
def a_gpu(failed: list[str] | None = None, clock: Clock = wall_s) -> Iterator[None]:
    """A machine that has the GPU of ``gpu_cases.py``.

    Args:
        failed: is told when a kernel has failed.
    """
    there = Place(
        clock=clock,
        recorded=partial(place.Recorded, record=record, clock=wall_s),
        others=_others,
        in_full=partial(precision.full, PLAYED.numerics),
        after_failure=lambda: None if failed is None else failed.append("failed"),
        alone=False,
        target=PLAYED,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "missing", lambda: "")
        patch.setattr(measure, "describe_gpu", lambda: PLAYED.device)
        patch.setattr(measure, "measure_gpu_target", lambda again=False: PLAYED)
        patch.setattr(place, "place", lambda target: there)
        patch.setattr(backend, "load_here", load_on_cpu)
        patch.setattr(measurer, "borrow", lambda **_: Here())
        patch.setattr(measurer, "give_back", lambda worker: None)
        yield
