"""Time one model in several engines that take turns, and check their results.

In a round each engine has one turn: a pause of 50 ms, one call that isn't counted, and a block of
calls. Engines don't alternate call by call, since an engine's idle threads keep spinning after a
call and slow the next engine down; in the pause they go to sleep. Each round starts with another
engine. Not here: the engines themselves, and how they run in processes of their own (``peers.py``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import psutil

from eqsynth import peers
from eqsynth.executor import Worker
from eqsynth.extract.timing import Timing, turn_order
from eqsynth.peers import OURS, Arrays, Build, Engine, Prepared
from eqsynth.progress import Progress

REFERENCE: Final = "float64 reference"
PAUSE_S: Final = 0.05
BLOCK_S: Final = 0.1
"""Seconds that the calls of a turn take together, about, unless a single call takes longer."""
TASK_LIMIT_S: Final = 1800.0
"""An engine that takes longer to prepare, or for a turn, counts as failed."""
_MOST_CALLS: Final = 200
# A result is wrong if its error against float64, relative to the largest value, is more than this,
# and also more than this factor times the error of torch eager. A result computed in bfloat16 has
# an error of about 1e-3, and is wrong.
_SURE_ERROR: Final = 1e-4
_EAGER_FACTOR: Final = 16.0


@dataclass(frozen=True)
class SideBySide:
    """Times and errors by engine.

    Attributes:
        times: times over all turns, of engines whose results are right or couldn't be checked.
        errors: the largest difference to torch eager in float64, relative to the largest value. If
            the model doesn't run in float64, the difference to torch eager in the model's own dtype
            (and eager has the error 0).
        failed: why an engine, or the reference, has no result.
        facts: figures of eqsynth's optimization.
        rules: the rules that eqsynth's program was derived by, if asked for, the most used first.
        unexplained: why there are no rules, if the explanation failed.
    """

    times: Mapping[str, Timing]
    errors: Mapping[str, float]
    failed: Mapping[str, str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    rules: Sequence[str] = ()
    unexplained: str | None = None


def side_by_side(
    title: str,
    build: Build,
    engines: Sequence[Engine],
    *,
    threads: int,
    rounds: int = 11,
    explain: bool = False,
    show: bool | None = None,
) -> SideBySide:
    """Time a model in several engines, each in a process of its own.

    Args:
        title: the model's name on the progress bar.
        rounds: number of turns of each engine.
        explain: return the rules of the derivation, too.
        show: show a progress bar; by default on a terminal.
    """
    with ExitStack() as stack:
        bar = stack.enter_context(Progress(show))
        run = _Run(stack, threads, bar, title)
        expected = run.reference(build)
        for engine in engines:
            run.prepare(engine, build)
        if expected is None and "eager" in run.prepared:
            expected = [x.astype(np.float64) for x in run.prepared["eager"].results]
        errors = {
            name: relative_error(answer.results, expected)
            for name, answer in run.prepared.items()
            if expected is not None
        }
        for name in wrong(errors):
            run.fail(name, f"wrong: off by {errors[name]:.1e} of the largest value")
        run.time(rounds)
        rules = run.rules() if explain else []
    times = {name: Timing.of(samples) for name, samples in run.samples.items()}
    return SideBySide(times, errors, run.failed, run.facts, rules, run.unexplained)


class _Run:
    """The processes of one comparison. A process that fails is ended, and the reason is kept."""

    def __init__(self, stack: ExitStack, threads: int, bar: Progress, title: str) -> None:
        self._stack, self._threads, self._bar, self._title = stack, threads, bar, title
        self._workers: dict[str, Worker] = {}
        self.prepared: dict[str, Prepared] = {}
        self.samples: dict[str, list[float]] = {}
        self.facts: Mapping[str, Any] = {}
        self.failed: dict[str, str] = {}
        self.unexplained: str | None = None

    def reference(self, build: Build) -> Arrays | None:
        """Compute the results in float64, in a process with a memory limit: the model may need more
        memory than the machine has."""
        self._bar.stage(f"{self._title}: {REFERENCE}")
        limit = psutil.virtual_memory().available
        with Worker(memory_limit=limit, threads=self._threads) as worker:
            try:
                return worker.run(peers.reference, build, timeout_s=TASK_LIMIT_S)
            except Exception as error:
                self.failed[REFERENCE] = _reason(error)
                return None

    def prepare(self, engine: Engine, build: Build) -> None:
        """Let an engine prepare the model in a new process."""
        self._bar.stage(f"{self._title}: {engine.name} prepares")
        worker = self._stack.enter_context(Worker(threads=self._threads))
        self._workers[engine.name] = worker
        try:
            answer = worker.run(peers.prepare, engine, build, self._threads, timeout_s=TASK_LIMIT_S)
        except Exception as error:
            self.fail(engine.name, _reason(error))
            return
        self.prepared[engine.name] = answer
        if engine.name == OURS:
            self.facts = answer.facts

    def time(self, rounds: int) -> None:
        """Let the engines take turns."""
        self._bar.stage(f"{self._title}: turns")
        self._bar.total(rounds)
        names = tuple(self._workers)
        for round_ in range(rounds):
            for name in turn_order(names, round_):
                if name not in self.failed:
                    self._take_turn(name)
            self._bar.advance()

    def _take_turn(self, name: str) -> None:
        block = max(1, min(_MOST_CALLS, int(BLOCK_S / self.prepared[name].once_s)))
        time.sleep(PAUSE_S)
        try:
            samples = self._workers[name].run(peers.take_turn, block, timeout_s=TASK_LIMIT_S)
        except Exception as error:
            self.fail(name, _reason(error))
            return
        self.samples.setdefault(name, []).extend(samples)

    def rules(self) -> list[str]:
        """Return the rules of eqsynth's derivation. Called after the turns, since an explanation
        fills memory."""
        if OURS not in self.samples:
            return []
        self._bar.stage(f"{self._title}: explanation")
        try:
            return self._workers[OURS].run(peers.rules, timeout_s=TASK_LIMIT_S)
        except Exception as error:
            self.unexplained = _reason(error)
            return []

    def fail(self, name: str, reason: str) -> None:
        self.failed[name] = reason
        self.samples.pop(name, None)
        self._workers[name].close()


def relative_error(got: Arrays, expected: Arrays) -> float:
    """The largest difference over the largest expected value, over all results. Infinite if results
    are missing, have another shape, or aren't finite.

    >>> relative_error([np.array([1.0, 2.5])], [np.array([1.0, 2.0])])
    0.25
    """
    if [g.shape for g in got] != [e.shape for e in expected]:
        return float("inf")
    worst = 0.0
    for g, e in zip(got, expected, strict=True):
        difference = float(np.abs(g.astype(np.float64) - e).max(initial=0.0))
        largest = float(np.abs(e).max(initial=0.0))
        error = difference / largest if largest else difference
        # max() would ignore NaN, which compares as not larger.
        worst = max(worst, error) if np.isfinite(error) else float("inf")
    return worst


def wrong(errors: Mapping[str, float]) -> list[str]:
    """The engines whose error is more than the rounding of float32 explains.

    >>> wrong({"eager": 2e-7, "eqsynth": 3e-3, "openvino": 1e-6})
    ['eqsynth']
    """
    eager = errors.get("eager", 0.0)
    limit = max(_SURE_ERROR, _EAGER_FACTOR * eager if np.isfinite(eager) else 0.0)
    return [name for name, error in errors.items() if not error <= limit]


def _reason(error: Exception) -> str:
    """The error as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
