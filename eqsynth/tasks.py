"""Run independent tasks in parallel: in processes of this machine, or on the machines of a Ray
cluster.

    with executor("local", processes=2) as tasks:
        futures = [tasks.submit(pow, 2, n) for n in range(10)]

A task is a module-level function with picklable arguments and a picklable result. On either
executor it runs in a worker (``executor.py``) with a memory limit and a deadline. Not here: the
tasks, and their order.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

from eqsynth.errors import UnsupportedOperatorError
from eqsynth.executor import Worker, borrowed

Result = TypeVar("Result")

NAMES: Final = ("local", "ray")


class Executor(Protocol):
    """Runs tasks in parallel.

    Attributes:
        processes: the number of tasks that run at a time. The arguments of all tasks that wait are
            held in memory, so a caller shouldn't submit many more than this at once.
    """

    processes: int

    def submit(
        self,
        task: Callable[..., Any],
        *args: Any,
        memory_limit: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[Any]:
        """Submit ``task(*args)`` and return its future result, which raises the task's error or a
        WorkerError.

        Args:
            memory_limit: address space of the worker, in bytes.
            timeout_s: seconds from the start of the task.
        """

    def __enter__(self) -> Executor: ...

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None: ...


def executor(name: str = "local", processes: int = 1) -> Executor:
    """Return the executor of a name, ``local`` or ``ray``.

    Args:
        processes: the number of workers on this machine. On a cluster each processor that Ray knows
            runs a task.

    Raises:
        UnsupportedOperatorError: there is no such executor, or ray isn't installed.
    """
    if name == "local":
        return LocalExecutor(processes)
    if name == "ray":
        return RayExecutor(processes)
    raise UnsupportedOperatorError(
        what="there is no such executor", got=name, expected=" or ".join(NAMES), hint="--executor"
    )


class LocalExecutor:
    """Runs tasks in workers of this machine, with a thread for each worker. If its block is left by
    an error or by Ctrl-C, the tasks that run are ended: nobody waits for their results."""

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes
        self._pool = ThreadPoolExecutor(processes)
        self._lock = threading.Lock()
        self._running: set[Worker] = set()
        self._is_ended = False

    def submit(
        self,
        task: Callable[..., Any],
        *args: Any,
        memory_limit: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[Any]:
        def use(worker: Worker) -> Any:
            return worker.run(task, *args, timeout_s=timeout_s)

        return self.lend(use, memory_limit, threads=1)

    def lend(
        self,
        use: Callable[[Worker], Result],
        memory_limit: int | None = None,
        threads: int | None = None,
    ) -> Future[Result]:
        """Call ``use`` with a worker, in a thread of the executor, and return the future result.

        Args:
            memory_limit, threads: of the worker.
        """
        return self._pool.submit(self._lent, use, memory_limit, threads)

    def _lent(
        self, use: Callable[[Worker], Result], memory_limit: int | None, threads: int | None
    ) -> Result:
        with borrowed(memory_limit, threads) as worker:
            with self._lock:
                if self._is_ended:
                    raise CancelledError
                self._running.add(worker)
            try:
                return use(worker)
            finally:
                with self._lock:
                    self._running.remove(worker)

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        else:
            self.end()

    def end(self) -> None:
        """End the tasks that run, and begin none of those that wait. A worker that was about to
        start one may start again: so until none is left."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._is_ended = True
        while running := list(self._running):
            for worker in running:
                worker.end()
            time.sleep(0.01)
        self._pool.shutdown(wait=True)


class RayExecutor:
    """Runs tasks on the Ray cluster that RAY_ADDRESS names, or on one that is started on this
    machine.

    The same version of eqsynth has to be installed on the cluster's machines.
    """

    def __init__(self, processes: int = 1) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UnsupportedOperatorError(
                what="tasks can't be run on a cluster without Ray",
                got="no module ray",
                expected="the package ray",
                hint="pip install 'eqsynth[cluster]', or pip install ray",
            )
        self._ray: Any = importlib.import_module("ray")
        self._is_own = not self._ray.is_initialized()
        if self._is_own:
            size = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": processes}
            self._ray.init(include_dashboard=False, log_to_driver=False, **size)
        self.processes = max(1, int(self._ray.cluster_resources().get("CPU", processes)))
        # Ray doesn't repeat a task that fails: the task's error is the answer.
        self._run: Any = self._ray.remote(max_retries=0)(_said)

    def submit(
        self,
        task: Callable[..., Any],
        *args: Any,
        memory_limit: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[Any]:
        result: Future[Any] = Future()
        reference = self._run.remote(task, args, memory_limit, timeout_s)

        def arrived(said: Future[Any]) -> None:
            try:
                value, error = said.result()
            except BaseException as lost:  # a machine of the cluster failed, or Ray itself
                value, error = None, lost
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)

        reference.future().add_done_callback(arrived)
        return result

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_own:
            self._ray.shutdown()


def _in_a_worker(
    task: Callable[..., Any],
    args: tuple[Any, ...],
    memory_limit: int | None,
    timeout_s: float | None,
) -> Any:
    """Run a task in a worker of this machine."""
    with borrowed(memory_limit=memory_limit, threads=1) as worker:
        return worker.run(task, *args, timeout_s=timeout_s)


def _said(*asked: Any) -> tuple[Any, BaseException | None]:
    """Run a task; return its result, and its error or None. The error is returned since Ray would
    wrap an error that is raised in one of its own."""
    try:
        return _in_a_worker(*asked), None
    except Exception as error:
        return None, error
