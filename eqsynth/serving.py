"""The worker's side of ``executor.py``: takes tasks, runs them, sends what comes of them.

A task may hand over what it has so far. Not here: starting, keeping and ending workers.
"""

from __future__ import annotations

import importlib
import os
import pickle
import resource
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from eqsynth.errors import EqsynthError

# The size of a message, and whether the task goes on after it.
HEADER: Final = struct.Struct("<Q?")

# What a process may read at any time. It is told with each task. All other variables are read
# while a library loads, so a worker that was started with other values is of no use.
TOLD: Final = ("EQSYNTH_CACHE", "PYTEST_CURRENT_TEST")


class WorkerError(EqsynthError):
    """A worker died or was late; ``reason`` is ``killed``, ``deadline`` or ``memory``.

    Attributes:
        status: how the process ended, if it did: its exit status, or the signal's number negated.
    """

    def __init__(
        self, what: str, *, reason: str, got: str = "", hint: str = "", status: int | None = None
    ) -> None:
        super().__init__(what, got=got, hint=hint)
        self.reason, self.status = reason, status


def _resolve(name: tuple[str, str]) -> Callable[..., Any]:
    target: Any = importlib.import_module(name[0])
    for part in name[1].split("."):
        target = getattr(target, part)
    return target  # type: ignore[no-any-return]


# Where answers go; None outside of a worker.
_answers: BinaryIO | None = None


def is_worker() -> bool:
    """Whether this process is one, so that what is handed over goes somewhere."""
    return _answers is not None


def hand_over(value: Any) -> None:
    """Called by a task: gives what it has so far to the process that runs it, which keeps the last
    value. Outside of a worker it does nothing."""
    if _answers is not None:
        _send(_answers, pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL), goes_on=True)


def _send(answers: BinaryIO, payload: bytes, *, goes_on: bool = False) -> None:
    answers.write(HEADER.pack(len(payload), goes_on) + payload)
    answers.flush()


def serve(memory_limit: int) -> None:
    """Runs the tasks that come in, one after the other, until there are no more."""
    global _answers
    # Whatever a library prints must not get between the answers.
    _answers = answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    if memory_limit:
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    tasks = sys.stdin.buffer
    while header := tasks.read(HEADER.size):
        size, _ = HEADER.unpack(header)
        task = tasks.read(size)
        try:
            name, args, told = pickle.loads(task)
            for variable in TOLD:
                os.environ.pop(variable, None)
            os.environ.update(told)
            result: tuple[bool, Any] = (False, _resolve(name)(*args))
            payload = pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            if memory_limit and _out_of_memory(error):
                error = WorkerError("a worker reached its memory limit", reason="memory")
            error.add_note("in a worker process:\n" + traceback.format_exc())
            payload = pickle.dumps((True, _portable(error)))
        _send(answers, payload)


def _end_with(parent: int) -> None:
    """Ends this process when its parent was killed in the middle of a task: nobody waits for it."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _out_of_memory(error: Exception) -> bool:
    """Also a library that doesn't fit any more, which is an error of importing it."""
    if isinstance(error, ImportError):
        return not isinstance(error, ModuleNotFoundError)
    return isinstance(error, MemoryError)


def _portable(error: Exception) -> Exception:
    """The error, or one with its text if it can't cross processes."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return EqsynthError(f"{type(error).__name__} in a worker process", got=str(error))
    return error
