"""Searches in the background, for ``torch.compile`` with ``mode="fast-start"``: the program of
Inductor is in use while eqsynth still searches for a faster one.

Each search runs in a worker process. So the user's process doesn't wait for it, and the search may
capture, check, measure, seed random generators and set the number of threads without changing the
user's process. The worker sends back the file that ``save`` would write; a thread of the user's
process loads it and puts the program in place. Searches run one after another. When the interpreter
exits, searches that run or wait are given up.

Not here: the program that runs until a search has ended (``compile_backend.py``).
"""

from __future__ import annotations

import atexit
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import torch

from eqsynth.ambient import Ambient
from eqsynth.executor import Worker, borrowed, end
from eqsynth.extract.route import Route
from eqsynth.lower.program import CompiledProgram
from eqsynth.pipeline import optimize

_JOIN_S: Final = 30.0  # time for a race or a compilation to end that was begun before the exit


class ClosingError(Exception):
    """The interpreter exits, so the search is given up."""


@dataclass(frozen=True)
class Found:
    """A program that a worker has found, and the route of its plan."""

    program: CompiledProgram
    route: Route


def found_elsewhere(
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    options: Mapping[str, Any],
    ambient: Ambient,
) -> Found | str:
    """Optimize a module in a worker. Called by a job: see :func:`submit`.

    Returns:
        The program, or the reason why the original is kept.

    Raises:
        ClosingError: the interpreter exits.
        Exception: an error of ``optimize``, or of pickling the module.
    """
    # Pickled here and not by the worker, so that a module that can't be pickled raises its own
    # error and the worker isn't blamed.
    sent = pickle.dumps((module, tuple(inputs), dict(options), ambient))
    with borrowed() as worker, _jobs.using(worker):
        data: bytes | str = worker.run(_task, sent)
    return data if isinstance(data, str) else pickle.loads(data)


def _task(sent: bytes) -> bytes | str:
    """Optimize a pickled module. Runs in the worker; returns the pickled :class:`Found`, or the
    reason why the original is kept."""
    module, inputs, options, ambient = pickle.loads(sent)
    with ambient.applied(), torch.no_grad():
        program = optimize(module, inputs, **options)
    if program.original is not None:
        return str(program.report.reason or program.report.stop)
    if program.mutations:
        return "it changes tensors of the module in place"
    return pickle.dumps(Found(program, program.report.route))


# ---- one after another ---------------------------------------------------------------------


class _Jobs:
    """A queue of jobs, and a thread that runs them one after another. The thread ends when the
    queue is empty."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        # The last thread that was started; it may have ended.
        self._last: threading.Thread | None = None
        self._worker: Worker | None = None
        self._closing = False

    def put(self, job: Callable[[], None]) -> None:
        """Append a job to the queue, and start the thread if none runs."""
        with self._lock:
            if self._closing:
                return
            self._waiting.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="eqsynth", daemon=True)
                self._last = self._thread
                self._thread.start()

    def _run(self) -> None:
        """Run jobs until the queue is empty. This is the function of the thread."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    self._lock.notify_all()
                    return
                job = self._waiting.popleft()
            with suppress(ClosingError):
                job()

    @contextmanager
    def using(self, worker: Worker) -> Iterator[None]:
        """Register the worker that a job uses for the length of the block, so that :meth:`close`
        can end it."""
        with self._lock:
            if self._closing:
                raise ClosingError
            self._worker = worker
        try:
            yield
        except Exception as error:
            if self._closing:
                raise ClosingError from error
            raise
        finally:
            with self._lock:
                self._worker = None

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until no job runs or waits; return False if the time is over before."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            while self._thread is not None:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._lock.wait(left)
        return True

    def close(self) -> None:
        """Drop the jobs that wait, end the worker of the job that runs, and wait for the thread."""
        with self._lock:
            self._closing = True
            thread = self._last
            self._waiting.clear()
            if self._worker is not None:
                end(self._worker.pid)
        if thread is not None:
            # Wait until the thread has ended. A thread that asks for the interpreter's lock after
            # the interpreter has gone is ended in the middle of its C++ code, which aborts the
            # process.
            thread.join(_JOIN_S)


_jobs = _Jobs()
atexit.register(lambda: _jobs.close())


def _after_fork() -> None:
    """Give a forked child an empty queue. The jobs belong to the parent; in the child, graphs keep
    the programs that they have now."""
    global _jobs
    _jobs = _Jobs()


os.register_at_fork(after_in_child=_after_fork)


def submit(job: Callable[[], None]) -> None:
    """Run a job in the background, after the jobs that were submitted before it. The job has to
    handle its own errors, except for :class:`ClosingError`."""
    _jobs.put(job)


def wait(timeout_s: float | None = None) -> bool:
    """Wait until all searches in the background have ended; return False if some are left after
    ``timeout_s`` seconds."""
    return _jobs.wait(timeout_s)
