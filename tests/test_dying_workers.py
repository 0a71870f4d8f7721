"""Workers that die in the middle: what they handed over is used, and nothing is lost but time."""

from __future__ import annotations

import signal
import threading
from typing import Any

import psutil
import pytest
import torch

from benchmarks.workloads import WORKLOADS
from eqsynth.egraph import saturation
from eqsynth.executor import Worker, end_idle_workers
from eqsynth.pipeline import optimize
from tests.test_bad_input import agrees, mlp, quick


class Killer:
    """Kills workers of this process while they run, from a thread.

    Args:
        library: what a worker that is to die has loaded.
        times: how many die at most.
    """

    def __init__(self, library: str, times: int) -> None:
        self.library, self.times, self.killed = library, times, 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._end.wait(0.02) and self.killed < self.times:
            for child in psutil.Process().children():
                try:
                    maps = child.memory_maps()
                    if "eqsynth.executor" in child.cmdline() and any(
                        self.library in entry.path for entry in maps
                    ):
                        child.send_signal(signal.SIGKILL)
                        self.killed += 1
                        child.wait(5)
                except (psutil.Error, OSError):
                    continue

    def __enter__(self) -> Killer:
        end_idle_workers()  # they have the library already, and nothing to do
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


# What a worker does in the place of its task: it dies as soon as it has handed something over, or
# where it would.
_DIES = """
import os, signal
from eqsynth.egraph import saturation
hand_over = saturation.hand_over
def dies(graph):
    if hands_over:
        hand_over(graph)
    os.kill(os.getpid(), signal.SIGKILL)
saturation.hand_over = dies
saturation.saturate_sent(*args)
"""


def workers_die(patch: pytest.MonkeyPatch, times: int, hands_over: bool) -> list[int]:
    """So many workers kill themselves in the middle of saturating, and are listed."""
    run, dead = Worker.run, list[int]()

    def run_or_die(self: Worker, task: Any, *args: Any, **how: Any) -> Any:
        if task is not saturation.saturate_sent or len(dead) == times:
            return run(self, task, *args, **how)
        dead.append(self.pid)
        return run(self, exec, _DIES, {"args": args, "hands_over": hands_over}, **how)

    patch.setattr(Worker, "run", run_or_die)
    return dead


# No deadline that a loaded machine could reach: all segments saturate.
_NO_LIMIT = 3600.0


@pytest.mark.rotating
@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize("hands_over", [False, True])
def test_a_saturation_worker_that_is_killed_in_the_middle(
    hands_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = WORKLOADS["csrnet"].reduced()
    dead = workers_die(monkeypatch, 1, hands_over)
    program = quick(model, inputs, time_limit_s=_NO_LIMIT)
    # One segment is as far as it came; the others were saturated by the next worker.
    assert len(dead) == 1 and program.report.distinct_segments > 1
    assert program.report.stop == "worker killed"
    assert program.report.rules_fired
    explanation = program.explain()
    assert explanation.rules  # of the other segments
    assert "worker killed" in explanation.note
    agrees(program, model, *inputs)


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize("hands_over", [False, True])
def test_saturation_workers_that_are_killed_each_time(
    hands_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = WORKLOADS["transition"].reduced()
    dead = workers_die(monkeypatch, 100, hands_over)
    program = quick(model, inputs, time_limit_s=_NO_LIMIT)
    assert len(set(dead)) == len(dead) == program.report.distinct_segments
    # What is handed over first is the program as it is, before a rule has fired.
    assert program.report.stop == "worker killed" and not program.report.rules_fired
    agrees(program, model, *inputs)


@pytest.mark.rotating
def test_a_measuring_worker_that_is_killed() -> None:
    model = mlp()
    x = torch.ones(5, 4)  # a size of its own: its kernels are in no profile
    with Killer("libtorch_cpu", times=1) as killer:
        program = optimize(model, (x,), time_limit_s=60)
    assert killer.killed == 1
    agrees(program, model, x)
