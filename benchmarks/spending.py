"""The cost of an optimization: wall-clock seconds, CPU seconds and memory of all its processes.

The functions are tasks for processes of their own (``eqsynth.executor.Worker``). Not here: which
tasks are run, and their tables (``bench_optimize.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch

import eqsynth
from benchmarks.peers import building
from benchmarks.workloads import MEASURED
from eqsynth import peers
from eqsynth.report import KernelTime


@dataclass
class Spent:
    """The cost of a block of code, in this process and its child processes.

    Attributes:
        peak_bytes: the largest resident memory of all of them together, from samples.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0


@contextmanager
def spending(period_s: float = 0.05) -> Iterator[Spent]:
    """Measure a block; the yielded :class:`Spent` is filled in at its end."""
    spent, stop = Spent(), threading.Event()

    def sample() -> None:
        while not stop.wait(period_s):
            resident = sum(memory for memory, _ in map(_used, _processes()))
            spent.peak_bytes = max(spent.peak_bytes, resident)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    begin, before_s = time.perf_counter(), cpu_s()
    try:
        yield spent
    finally:
        spent.wall_s, spent.cpu_s = time.perf_counter() - begin, cpu_s() - before_s
        stop.set()
        thread.join()


def cpu_s() -> float:
    """The CPU seconds of this process, its child processes, and the ended children of these."""
    return sum(seconds for _, seconds in map(_used, _processes()))


def _processes() -> list[psutil.Process]:
    process = psutil.Process()
    return [process, *process.children(recursive=True)]


def _used(process: psutil.Process) -> tuple[int, float]:
    try:
        return process.memory_info().rss, sum(process.cpu_times()[:4])
    except psutil.NoSuchProcess:
        return 0, 0.0


@dataclass(frozen=True)
class Run:
    """One optimization."""

    spent: Spent
    stages_s: dict[str, float]
    enodes: int
    timed: int
    considered: int
    before_s: float
    after_s: float
    kernels: tuple[KernelTime, ...] = ()


def optimized(workload: str, reduced: bool, threads: int, times: int) -> list[Run]:
    """The task of a process: optimize a workload several times."""
    torch.set_num_threads(threads)
    runs = []
    for _ in range(times):
        module, inputs = built(workload, reduced)
        with spending() as spent:
            report = eqsynth.optimize(module, inputs, progress=False).report
        runs.append(
            Run(
                spent, dict(report.stages_s), report.enodes, report.kernels_timed,
                report.kernels_considered, report.time_before_s, report.time_after_s,
                report.kernels,
            )
        )  # fmt: skip
    return runs


def compiled(workload: str, reduced: bool, threads: int) -> Spent:
    """The task of a process: compile a workload by frozen Inductor."""
    (inductor,) = (engine for engine in peers.ENGINES if engine.name == "inductor")
    with spending() as spent:
        peers.prepare(inductor, building(workload, 1, reduced), threads)
    return spent


def built(workload: str, reduced: bool) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    chosen = MEASURED[workload]
    return chosen.reduced() if reduced else chosen.build(1)
