"""The worker's side of ``executor.py``: read tasks from standard input, run them, and write the
answers.

A task may send intermediate values before its answer (:func:`hand_over`). Not here: starting,
keeping and ending workers.
"""

from __future__ import annotations

import errno
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

# The header of a message: its size in bytes, and whether the task goes on after it.
HEADER: Final = struct.Struct("<Q?")

# Environment variables that a process may read at any time. Each task is sent with their present
# values. All other variables are read while libraries load, so a worker that was started with other
# values of them can't be used.
TOLD: Final = ("EQSYNTH_CACHE", "PYTEST_CURRENT_TEST")

# The exit status of a worker that has too little memory left to answer.
NO_MEMORY: Final = 112


class WorkerError(EqsynthError):
    """A worker ended or took too long; ``reason`` is ``killed``, ``deadline`` or ``memory``.

    Attributes:
        status: the exit status of the process, or minus the number of the signal that killed it;
            None if it hasn't ended.
    """

    def __init__(
        self, what: str, *, reason: str, got: str = "", hint: str = "", status: int | None = None
    ) -> None:
        super().__init__(what, got=got, hint=hint)
        self.reason, self.status = reason, status


def out_of_memory() -> WorkerError:
    """The error of a worker that has reached its memory limit."""
    return WorkerError("a worker reached its memory limit", reason="memory")


def _resolve(name: tuple[str, str]) -> Callable[..., Any]:
    target: Any = importlib.import_module(name[0])
    for part in name[1].split("."):
        target = getattr(target, part)
    return target  # type: ignore[no-any-return]


# The stream that answers are written to; None outside a worker.
_answers: BinaryIO | None = None


def is_worker() -> bool:
    """Whether this process is a worker, so that :func:`hand_over` has a receiver."""
    return _answers is not None


def hand_over(value: Any) -> None:
    """Send an intermediate value of the present task to the process that has submitted it. That
    process keeps the last one. Outside a worker this does nothing."""
    if _answers is not None:
        _send(_answers, pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL), goes_on=True)


def _send(answers: BinaryIO, payload: bytes, *, goes_on: bool = False) -> None:
    answers.write(HEADER.pack(len(payload), goes_on) + payload)
    answers.flush()


def serve(memory_limit: int) -> None:
    """Run tasks one after another until standard input ends."""
    global _answers
    # Text that libraries print goes to standard error, so that it can't mix with the answers.
    _answers = answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    if memory_limit:
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    try:
        _serve_tasks(sys.stdin.buffer, answers, memory_limit)
    except MemoryError:  # too little memory is left for saying so
        os._exit(NO_MEMORY)


def _serve_tasks(tasks: BinaryIO, answers: BinaryIO, memory_limit: int) -> None:
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
                error = out_of_memory()
            error.add_note("in a worker process:\n" + traceback.format_exc())
            payload = pickle.dumps((True, _portable(error)))
        _send(answers, payload)


def _end_with(parent: int) -> None:
    """End this process if its parent was killed, even in the middle of a task: nobody waits for the
    answer."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _out_of_memory(error: Exception) -> bool:
    """Whether an error means that memory has run out. A library that can't be loaded for lack of
    memory raises ImportError, and a folder that can't be read OSError."""
    if isinstance(error, ImportError):
        return not isinstance(error, ModuleNotFoundError)
    lacking = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return lacking or isinstance(error, MemoryError)


def _portable(error: Exception) -> Exception:
    """Return the error, or an error with its text if it can't be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return EqsynthError(f"{type(error).__name__} in a worker process", got=str(error))
    return error
