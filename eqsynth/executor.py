"""Tasks in worker processes: what takes long, or might crash, runs outside of the user's process.

A task is a module-level function with picklable arguments and result. A worker is a fresh Python
process (not a fork, and it doesn't import the user's script) with a memory limit; it is killed
when a task outlives its deadline. A worker that dies is an error with a reason, never a hang.
"""

from __future__ import annotations

import importlib
import os
import pickle
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, BinaryIO, TypeVar

from eqsynth.errors import EqsynthError

Result = TypeVar("Result")

_HEADER = struct.Struct("<Q")


class WorkerError(EqsynthError):
    """A worker died or was late; ``reason`` is ``killed``, ``deadline`` or ``memory``."""

    def __init__(self, what: str, *, reason: str, got: str = "", hint: str = "") -> None:
        super().__init__(what, got=got, hint=hint)
        self.reason = reason


class Worker:
    """A process that runs one task at a time.

    Args:
        memory_limit: bytes of address space; None for no limit.
        threads: CPU threads that its libraries may use.

    >>> with Worker() as worker:
    ...     worker.run(pow, 2, 10)
    1024
    """

    def __init__(self, memory_limit: int | None = None, threads: int | None = None) -> None:
        environment = dict(os.environ)
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        paths = [package, environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        self._memory_limit, self._environment = memory_limit or 0, environment
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "eqsynth.executor", str(self._memory_limit)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(
        self, task: Callable[..., Result], *args: Any, timeout_s: float | None = None
    ) -> Result:
        """Runs ``task(*args)`` in the worker; in a new process if the last one has ended.

        Raises:
            WorkerError: the worker died, or the task outlived ``timeout_s``.
            Exception: whatever the task raised.
        """
        name = (task.__module__, task.__qualname__)
        payload = pickle.dumps((name, args), protocol=pickle.HIGHEST_PROTOCOL)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if self._process.poll() is not None:
            self.close()
            self._process = self._start()
        try:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(_HEADER.pack(len(payload)) + payload)
            self._process.stdin.flush()
            (size,) = _HEADER.unpack(self._read(_HEADER.size, deadline))
            failed, value = pickle.loads(self._read(size, deadline))
        except (BrokenPipeError, EOFError):
            raise self._death() from None
        except BaseException:
            # Interrupted or late: the answer to this task must not meet the next one.
            self.close()
            raise
        if failed:
            raise value
        return value  # type: ignore[no-any-return]

    def _read(self, size: int, deadline: float | None) -> bytes:
        assert self._process.stdout is not None
        descriptor, parts = self._process.stdout.fileno(), bytearray()
        while len(parts) < size:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([descriptor], [], [], left)[0]:
                raise WorkerError(
                    "a task in a worker process outlived its deadline",
                    reason="deadline",
                    hint="give more time, or less work",
                )
            part = os.read(descriptor, min(size - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def _death(self) -> WorkerError:
        code = self._process.wait()
        self.close()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return WorkerError(
            "a worker process died",
            reason="killed",
            got=how,
            hint="it was killed, ran out of memory, or a library crashed in it",
        )

    def close(self) -> None:
        """Ends the process, at once."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()


def _resolve(name: tuple[str, str]) -> Callable[..., Any]:
    target: Any = importlib.import_module(name[0])
    for part in name[1].split("."):
        target = getattr(target, part)
    return target  # type: ignore[no-any-return]


def _serve(memory_limit: int) -> None:
    # Whatever a library prints must not get between the answers.
    answers: BinaryIO = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    if memory_limit:
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    tasks = sys.stdin.buffer
    while header := tasks.read(_HEADER.size):
        (size,) = _HEADER.unpack(header)
        task = tasks.read(size)
        try:
            name, args = pickle.loads(task)
            result: tuple[bool, Any] = (False, _resolve(name)(*args))
            payload = pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            if memory_limit and _out_of_memory(error):
                error = WorkerError("a worker reached its memory limit", reason="memory")
            error.add_note("in a worker process:\n" + traceback.format_exc())
            payload = pickle.dumps((True, _portable(error)))
        answers.write(_HEADER.pack(len(payload)) + payload)
        answers.flush()


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


if __name__ == "__main__":
    # The module under its own name: what is raised as __main__.WorkerError can't cross processes.
    importlib.import_module("eqsynth.executor")._serve(int(sys.argv[1]))
