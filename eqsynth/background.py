"""Searches that go on while their programs are in use already, as ``mode="fast-start"`` of
``torch.compile`` wants it.

A search runs in a process of its own, so that nothing in this one waits for it: it captures,
checks and measures there, and sets random generators and threads as it likes. What it finds comes
back as the file that ``save`` would write, and a thread puts it in its place. Searches run one
after another. At the interpreter's exit those that are left are given up. Not here: what stands in
a program's place until then (``compile_backend.py``).
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

_JOIN_S: Final = 30.0  # for a race or a compilation that was begun before the exit


class ClosingError(Exception):
    """The interpreter exits, and the search is given up."""


@dataclass(frozen=True)
class Found:
    """A program that was found in a worker, and the route of its plan."""

    program: CompiledProgram
    route: Route


def found_elsewhere(
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    options: Mapping[str, Any],
    ambient: Ambient,
) -> Found | str:
    """Optimizes a module in a worker. Called by a job; see :func:`submit`.

    Returns:
        What was found, or why the original stays.

    Raises:
        ClosingError: the interpreter exits.
        Exception: what ``optimize`` raises, and what pickling a module does.
    """
    # Here, so that a module that can't be sent is an error of its own and no worker's.
    sent = pickle.dumps((module, tuple(inputs), dict(options), ambient))
    with borrowed() as worker, _jobs.using(worker):
        data: bytes | str = worker.run(_task, sent)
    return data if isinstance(data, str) else pickle.loads(data)


def _task(sent: bytes) -> bytes | str:
    """In the worker."""
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
    """Jobs, and the thread that runs them while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._last: threading.Thread | None = None  # which may be at its end
        self._worker: Worker | None = None
        self._closing = False

    def put(self, job: Callable[[], None]) -> None:
        with self._lock:
            if self._closing:
                return
            self._waiting.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="eqsynth", daemon=True)
                self._last = self._thread
                self._thread.start()

    def _run(self) -> None:
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
        """Says which worker the exit of the interpreter ends."""
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
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            while self._thread is not None:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._lock.wait(left)
        return True

    def close(self) -> None:
        with self._lock:
            self._closing = True
            thread = self._last
            self._waiting.clear()
            if self._worker is not None:
                end(self._worker.pid)
        if thread is not None:
            # To its very end: one that still wants the interpreter's lock when that has gone is
            # ended in the middle of its C++, which aborts the process.
            thread.join(_JOIN_S)


_jobs = _Jobs()
atexit.register(lambda: _jobs.close())


def _after_fork() -> None:
    """The searches are the parent's: in the child its programs stay as they are."""
    global _jobs
    _jobs = _Jobs()


os.register_at_fork(after_in_child=_after_fork)


def submit(job: Callable[[], None]) -> None:
    """Runs a job after those before it. It has to tell of its errors itself, but for
    :class:`ClosingError`."""
    _jobs.put(job)


def wait(timeout_s: float | None = None) -> bool:
    """Waits for all searches in the background; false if there are some left after the time."""
    return _jobs.wait(timeout_s)
