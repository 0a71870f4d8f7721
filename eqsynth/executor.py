"""Worker processes: tasks that take long or might crash run outside of the user's process.

A task is a module-level function with picklable arguments and result. A worker is a fresh Python
process (not a fork, and it doesn't import the user's script) with a memory limit. A worker whose
task exceeds its deadline is killed. If a worker dies, the caller gets an error with the reason, and
never waits forever.

A task may send intermediate values with ``serving.hand_over``, as often as it likes. A caller that
runs the task with a :class:`Latest` has the last of these values even if the task then fails or its
worker dies.

Importing torch, TVM and egglog takes longer than most searches, so workers are kept: ``borrow``
returns an idle worker if one was started with the present environment, directory and code, and
otherwise a new worker. All workers end when the program exits.
"""

from __future__ import annotations

import atexit
import math
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from eqsynth.serving import HEADER, NO_MEMORY, TOLD, WorkerError, out_of_memory, serve

Result = TypeVar("Result")

MAX_IDLE: Final = 4
"""The most idle workers that are kept. If there are more, those that were idle for longest are
ended."""

MAX_RESIDENT_BYTES: Final = 1 << 30
"""A worker that is given back with more resident memory than this isn't kept."""

# Environment variables that have no effect on a worker, so they may differ: of the shell, and an
# address in this process that Inductor stores when it first compiles a kernel. (With the address
# among a worker's variables, this kernel cost all kept workers, and TVM was loaded again: 5 s.)
_WITHOUT_EFFECT: Final = (
    "PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
)  # fmt: skip


class Latest:
    """The last value that a task has handed over; None if it hasn't handed over any."""

    def __init__(self) -> None:
        self._payload: bytes | None = None

    def put(self, payload: bytes) -> None:
        """Store a value as the worker sent it: pickled."""
        self._payload = payload

    def value(self) -> Any:
        return None if self._payload is None else pickle.loads(self._payload)


@dataclass(frozen=True)
class _Kind:
    """Everything that a worker is started with. Two workers of the same kind differ only in the
    tasks that they have run.

    Attributes:
        memory_limit: bytes of address space; 0 for no limit.
        processors: the CPUs on which the worker may run.
        code: the number of eqsynth's files and their last change (:func:`_code`).
    """

    memory_limit: int
    environment: tuple[tuple[str, str], ...]
    directory: str
    processors: frozenset[int]
    code: tuple[int, int]

    @staticmethod
    def now(memory_limit: int | None, threads: int | None) -> _Kind:
        """Return the kind of a worker that would be started now."""
        environment = _environment()
        package = str(_PACKAGE.parent)
        paths = [package, environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        try:
            directory = os.getcwd()
        except FileNotFoundError:
            directory = ""
        return _Kind(
            memory_limit or 0,
            tuple(sorted(environment.items())),
            directory,
            frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()),
            _code(),
        )


def _environment() -> dict[str, str]:
    """Return the variables that have an effect on a worker.

    The directory of Inductor's cache isn't one of them if it is torch's default: torch sets the
    variable when it first asks for the directory, and does the same in a worker. (Workers that were
    kept from an expression couldn't be used for the first module.)
    """
    found = {k: v for k, v in os.environ.items() if k not in (*TOLD, *_WITHOUT_EFFECT)}
    inductor = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    if inductor is not None and found.get(_INDUCTORS) == inductor.default_cache_dir():
        del found[_INDUCTORS]
    return found


_INDUCTORS: Final = "TORCHINDUCTOR_CACHE_DIR"
_PACKAGE: Final = Path(__file__).resolve().parent


def _code() -> tuple[int, int]:
    """Return the number of eqsynth's Python files and the time of their last change. After an edit
    of the code, the workers that run the old code are no longer used."""
    changed = list(_changed_ns(str(_PACKAGE)))
    return len(changed), max(changed, default=0)


def _changed_ns(folder: str) -> Iterator[int]:
    """Yield the time of the last change of each Python file in a folder and its subfolders. This
    runs whenever a worker is borrowed or given back, and pathlib would take four times as long."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry.stat().st_mtime_ns
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _changed_ns(entry.path)


class Worker:
    """A process that runs one task at a time, for one thread.

    Args:
        memory_limit: bytes of address space; None for no limit.
        threads: CPU threads that its libraries may use.

    >>> with Worker() as worker:
    ...     worker.run(pow, 2, 10)
    1024
    """

    def __init__(self, memory_limit: int | None = None, threads: int | None = None) -> None:
        self._asked = (memory_limit, threads)
        self._start()

    def _start(self) -> None:
        self._kind = kind = _Kind.now(*self._asked)
        self._owner, self._busy, self._tasks = os.getpid(), False, 0
        try:
            with uninterrupted():
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "eqsynth.executor", str(kind.memory_limit)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    env={**dict(kind.environment), **_told()},
                )
        except KeyboardInterrupt:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(
        self,
        task: Callable[..., Result],
        *args: Any,
        timeout_s: float | None = None,
        latest: Latest | None = None,
    ) -> Result:
        """Run ``task(*args)`` in the worker and return its result. If the process has ended, a new
        one is started first.

        A task that runs out of memory in a process that has run other tasks is run again in a new
        process, because the earlier tasks may have left the memory in use.

        Args:
            latest: receives the intermediate values that the task hands over.

        Raises:
            WorkerError: the worker died, ran out of memory, or the task took longer than
                ``timeout_s``.
            Exception: the exception that the task raised.
        """
        name = (task.__module__, task.__qualname__)
        payload = pickle.dumps((name, args, _told()), protocol=pickle.HIGHEST_PROTOCOL)
        timeout_s = math.inf if timeout_s is None else timeout_s
        deadline = None if math.isinf(timeout_s) else time.monotonic() + timeout_s
        if not self.is_clean():
            self.close()
            self._start()
        first = self._tasks == 0
        try:
            return self._attempt(payload, deadline, latest)  # type: ignore[no-any-return]
        except WorkerError as error:
            # A library written in Rust aborts the process when it can't allocate memory.
            aborted = error.status == -signal.SIGABRT
            if first or not self._kind.memory_limit or not (error.reason == "memory" or aborted):
                raise
        self.close()
        self._start()
        return self._attempt(payload, deadline, latest)  # type: ignore[no-any-return]

    def _attempt(self, payload: bytes, deadline: float | None, latest: Latest | None) -> Any:
        self._busy = True
        try:
            self._write(HEADER.pack(len(payload), False) + payload)
            goes_on = True
            while goes_on:
                size, goes_on = HEADER.unpack(self._read(HEADER.size, deadline))
                message = self._read(size, deadline)
                if goes_on and latest is not None:
                    latest.put(message)
            failed, value = pickle.loads(message)
            self._busy, self._tasks = False, self._tasks + 1
        except (BrokenPipeError, EOFError):
            raise self._death() from None
        except BaseException:
            # Interrupted or late. The process is ended, or the next task would read the answer to
            # this one.
            self.close()
            raise
        if failed:
            raise value
        return value

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        descriptor, left = self._process.stdin.fileno(), memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]

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
        if code == NO_MEMORY:
            return out_of_memory()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return WorkerError(
            "a worker process died",
            reason="killed",
            got=how,
            hint="it was killed, ran out of memory, or a library crashed in it",
            status=code,
        )

    def is_clean(self) -> bool:
        """Whether the process is alive, waits for a task, and was started by the present process
        (not by the process that this one was forked from)."""
        return self._owner == os.getpid() and not self._busy and self._process.poll() is None

    def is_worth_keeping(self) -> bool:
        """Whether the worker is as good as a new one for the next task: it was started as a new one
        would be now, and it holds little memory."""
        if not self.is_clean() or self._kind != _Kind.now(*self._asked):
            return False
        import psutil

        try:
            memory = psutil.Process(self.pid).memory_info()
        except psutil.Error:
            return False
        # The memory limit is one of address space. Half of it must be free for the next task.
        limit = self._kind.memory_limit
        return memory.rss <= MAX_RESIDENT_BYTES and (not limit or memory.vms <= limit // 2)

    def end(self) -> None:
        """End the process from another thread than the one that runs a task; that one gets a
        WorkerError."""
        if self._owner == os.getpid() and self._process.poll() is None:
            end(self.pid)

    def close(self) -> None:
        """End the process at once. If it is running a task, end the processes that it has started
        too."""
        if self._owner == os.getpid():
            if self._process.poll() is None:
                end(self.pid, with_others=self._busy)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()


def end(pid: int, with_others: bool = True) -> None:
    """Kill a process, and unless ``with_others`` is False all processes that it has started: a
    compiler would otherwise run on for minutes although nobody needs its result."""
    import psutil

    others: list[psutil.Process] = []
    with suppress(psutil.Error):
        others = psutil.Process(pid).children(recursive=True) if with_others else []
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for process in others:
        with suppress(psutil.Error):
            process.kill()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C (SIGINT) to the end of the block. A process that is only half started when the
    block is interrupted would never be ended.

    Ctrl-C sends the signal to all processes of the terminal. Only the user's process is to react,
    so a worker ignores the signal, and is started with the signal blocked until it does. Blocking
    the signal in this thread isn't enough to delay it in this process, since another thread (one of
    torch's) may receive it. So the handler is replaced as well.
    """
    came: list[int] = []
    mine = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if mine else None
    if handler is not None:
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
    if came:
        signal.raise_signal(signal.SIGINT)


def _told() -> dict[str, str]:
    """The present values of the environment variables that are sent with each task."""
    return {name: os.environ[name] for name in TOLD if name in os.environ}


# ---- workers that are kept ------------------------------------------------------------


class _Idle:
    """The workers that wait to be borrowed again, in the order in which they were given back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: list[Worker] = []

    def take(self, kind: _Kind) -> Worker | None:
        with self._lock:
            for worker in reversed(self._workers):
                if worker._kind == kind:
                    self._workers.remove(worker)
                    return worker
        return None

    def put(self, worker: Worker) -> None:
        with self._lock:
            self._workers.append(worker)
            surplus, self._workers = self._workers[:-MAX_IDLE], self._workers[-MAX_IDLE:]
        for old in surplus:
            old.close()

    def close(self) -> None:
        with self._lock:
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()


_idle = _Idle()
_of_the_parent: list[_Idle] = []
atexit.register(lambda: _idle.close())


def _after_fork() -> None:
    """Start without idle workers in a forked process. The old ones belong to the parent process,
    and a thread that held their lock at the fork doesn't exist here, so the lock might never be
    released. The old object stays referenced, so that its workers' objects aren't collected."""
    global _idle
    _of_the_parent.append(_idle)
    _idle = _Idle()


os.register_at_fork(after_in_child=_after_fork)


def borrow(memory_limit: int | None = None, threads: int | None = None) -> Worker:
    """Return an idle worker, or a new one. The worker is the caller's alone until it is given back.

    An idle worker is used only if a new one would be started in the same way: the environment, the
    directory, the processors, the memory limit and eqsynth's code are the same.
    """
    kind = _Kind.now(memory_limit, threads)
    while (worker := _idle.take(kind)) is not None:
        if worker.is_clean():
            return worker
        worker.close()
    return Worker(memory_limit, threads)


def give_back(worker: Worker) -> None:
    """Keep a worker for the next caller of :func:`borrow`. It is ended instead if its task was late
    or interrupted, if it holds much memory, or if a new one would be started differently."""
    if worker.is_worth_keeping():
        _idle.put(worker)
    else:
        worker.close()


@contextmanager
def borrowed(memory_limit: int | None = None, threads: int | None = None) -> Iterator[Worker]:
    """Borrow a worker for a block.

    >>> with borrowed() as worker:
    ...     first = worker.run(os.getpid)
    >>> with borrowed() as worker:
    ...     worker.run(os.getpid) == first
    True
    """
    worker = borrow(memory_limit, threads)
    try:
        yield worker
    finally:
        give_back(worker)


def end_idle_workers() -> None:
    """End the idle workers. Borrowed workers continue."""
    _idle.close()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
