"""Timing kernels in a worker process, so that a kernel that crashes costs only itself.

Example: ``with Measurer(threads) as measure: times = measure(kernels)`` gives a time for each
kernel, None for one that fails. If a batch of kernels kills the worker, the batch is halved until
the kernel that did it is found.

Not here: building and timing kernels in the worker (``backends.py``), the process itself
(``executor.py``).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

import torch

from eqsynth.errors import EqsynthError, LoweringError
from eqsynth.executor import Latest, Worker, borrow, end, give_back, uninterrupted
from eqsynth.extract.disturbance import Usage
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.target import CPU, Target
from eqsynth.extract.timing import OVERDUE, Ready, Timing
from eqsynth.lower.backends import (
    Known,
    load_libraries,
    prepare_kernels,
    time_in_turns,
    time_kernels,
)
from eqsynth.lower.torch_calls import Data, calls_to_data, plain_calls
from eqsynth.lower.tvm_backend import compile_and_keep, not_kept
from eqsynth.serving import WorkerError

T = TypeVar("T", Timing, Timing | None)

# The number of kernels that are sent to the worker together: about a third of a second of work.
_BATCH: Final = 24
# A time limit for a batch, longer than any batch takes to compile and run.
_BATCH_TIMEOUT_S: Final = 120.0
# Whole programs are timed in turns only if at least this much time is left.
_TURNS_S: Final = 2.0

# After the deadline a worker may take this long to hand over its results; then it is ended.
_GRACE_S: Final = 0.5
# The same for a worker that compiles for engines, of which only Inductor looks at the clock. A
# worker that is ended loses what it has compiled.
_COMPILING_GRACE_S: Final = 5.0


class Measurer:
    """Times kernels in a worker process, so that a kernel that crashes costs only itself.

    As a context manager it gives the worker back at the end.

    Attributes:
        spent_s: how long callers have waited for times.
        disturbed: number of kernels that were timed while other processes kept the processors busy.
        known: for a kernel, the values of constant arguments that it is to be timed with.
        far: the number of cache levels that weights are to be out of (``Target.far``).
        alone: kernels that are whole programs: no other steps run between their calls, and no
            threads of torch beside an engine's own (resnet18 on ONNX Runtime: 12.9 ms with these
            threads, 11.1 without).
    """

    def __init__(
        self,
        threads: int,
        target: Target | None = None,
        opaque: Mapping[str, Callable[..., torch.Tensor]] | None = None,
    ) -> None:
        """
        Args:
            target: the kernels' target; None for this CPU.
            opaque: for each ``Opaque`` operator in a region, the function that runs it. Those that
                are plain calls of torch are sent to the worker, as data.
        """
        self._threads, self.spent_s = threads, 0.0
        self.known: dict[Kernel, Mapping[int, torch.Tensor]] = {}
        self.far, self.alone, self.disturbed = 0, set[Kernel](), 0
        self._worker: Worker | None = None
        self._loading: _Loading | None = None
        self._prepared_s, self._ready = 0.0, dict[Kernel, Ready]()
        self.serve(target, opaque)

    def serve(
        self,
        target: Target | None = None,
        opaque: Mapping[str, Callable[..., torch.Tensor]] | None = None,
    ) -> None:
        """Time the kernels of this target and with these functions from now on, which may not be
        known yet when the worker begins to load its libraries."""
        if target is not None and target.threads != self._threads:
            self.close()
            self._threads = target.threads
        self._target, self._opaque = target, calls_to_data(plain_calls(opaque or {}))

    def prepare(self, kernels: Sequence[Kernel] = (), timeout_s: float = 0.0) -> None:
        """Start loading the worker's libraries, which takes seconds, and then building kernels that
        take as long, while this process does something else. A worker that is loading them already
        goes on with the kernels.

        Args:
            timeout_s: how long these builds may take.
        """
        before = self._loading
        if before is None:
            self.close()  # a worker that was used before; it may be borrowed again here
        with uninterrupted():
            worker = borrow(threads=self._threads) if before is None else before.worker
            given = list(kernels), self._threads, self._known(kernels), self._target, self._opaque
            self._loading = _Loading(worker, given, timeout_s, before)

    def preparing_s(self) -> float:
        """How many seconds building the kernels of :meth:`prepare` has taken so far."""
        return self._prepared_s if self._loading is None else self._loading.building_s()

    def ready(self, until: float = math.inf) -> Mapping[Kernel, Ready]:
        """Wait for the kernels of :meth:`prepare`; return those that were built in time, or
        found not to run."""
        begin = time.monotonic()
        self._loaded(until)
        self.spent_s += time.monotonic() - begin
        return self._ready

    def _known(self, kernels: Sequence[Kernel]) -> Known:
        return {kernel: self.known[kernel] for kernel in kernels if kernel in self.known}

    def _loaded(self, until: float) -> bool:
        """Wait for the worker's libraries; false if they aren't loaded by the deadline."""
        if self._loading is not None:
            self._worker = self._loading.worker_at(until)
            if self._worker is None:
                return False
            self._prepared_s, self._ready = self._loading.building_s(), self._loading.ready
            self._loading = None
        return True

    def __call__(
        self, kernels: Sequence[Kernel], until: float = math.inf
    ) -> dict[Kernel, Timing | None]:
        """Time kernels until the monotonic clock says ``until``. The result has the kernels that
        were reached: None for a kernel that can't be built or run, `OVERDUE` for one that takes too
        long."""
        times: dict[Kernel, Timing | None] = {}
        begin = time.monotonic()
        if self._loaded(until):
            for start in range(0, len(kernels), _BATCH):
                if time.monotonic() >= until:
                    break
                times.update(self._batch(list(kernels[start : start + _BATCH]), until))
        self.spent_s += time.monotonic() - begin
        return times

    def _batch(self, kernels: list[Kernel], until: float) -> dict[Kernel, Timing | None]:
        """The times of one batch. If the worker fails, each half of the batch is tried again."""
        if self._worker is None:
            self._worker = borrow(threads=self._threads)
        timeout_s = min(_BATCH_TIMEOUT_S, until + _GRACE_S - time.monotonic())
        failure: Timing | None = None
        before = Usage.now([self._worker.pid])
        try:
            found = self._worker.run(
                time_kernels,
                kernels,
                self._threads,
                until,
                self._known(kernels),
                self.far,
                self.alone.intersection(kernels),
                self._target,
                self._opaque,
                timeout_s=max(timeout_s, 0.0),
            )
            return self._told({kernels[n]: timing for n, timing in found}, before)
        except WorkerError as error:
            # The worker starts a new process for its next task.
            failure = OVERDUE if error.reason == "deadline" else None
        except EqsynthError:
            pass
        if time.monotonic() >= until:
            return {}  # the deadline has passed; whether a kernel failed isn't known
        if len(kernels) == 1:
            return {kernels[0]: failure}
        # One of the kernels made the worker fail: each half is tried by itself.
        middle = len(kernels) // 2
        return {**self._batch(kernels[:middle], until), **self._batch(kernels[middle:], until)}

    def compile(self, kernels: Sequence[Kernel], until: float = math.inf) -> None:
        """Compile those kernels that aren't kept, in the worker, if it is there: this process then
        needs no compiler, whose import takes seconds. (Kernels whose code was timed as another
        kernel's are compiled only here.)

        Raises:
            LoweringError: the worker has died or isn't ready in time.
        """
        here = self._worker is not None and self._worker.is_clean()
        if not here or self._target is not None and self._target.name != CPU:
            return
        wanted = not_kept(kernels)
        if not wanted:
            return
        assert self._worker is not None
        timeout_s = min(_BATCH_TIMEOUT_S, until + _GRACE_S - time.monotonic())
        try:
            self._worker.run(compile_and_keep, wanted, self._threads, timeout_s=max(timeout_s, 0.0))
        except WorkerError as error:
            raise LoweringError(
                "kernels weren't compiled",
                where=", ".join(str(kernel.term.type) for kernel in wanted[:4]),
                got=str(error),
                hint="other kernels run instead",
            ) from error

    def in_turns(self, kernels: Sequence[Kernel], until: float) -> dict[Kernel, Timing]:
        """Time whole programs, which were timed one by one before, in turns. The result is empty if
        there is no time for it, or the worker that has them is gone."""
        left_s = until - time.monotonic()
        if self._worker is None or len(kernels) < 2 or left_s < _TURNS_S:
            return {}
        begin, times = time.monotonic(), list[Timing | None]()
        before = Usage.now([self._worker.pid])
        with suppress(EqsynthError):
            times = self._worker.run(
                time_in_turns, list(kernels), self._threads, left_s / 2, self._target,
                timeout_s=left_s + _GRACE_S,
            )  # fmt: skip
        self.spent_s += time.monotonic() - begin
        found = {k: t for k, t in zip(kernels, times, strict=False) if t is not None}
        return self._told(found, before)

    def _told(self, times: dict[Kernel, T], before: Usage) -> dict[Kernel, T]:
        """Mark the times as disturbed if they are."""
        assert self._worker is not None
        if not Usage.now([self._worker.pid]).disturbed(before, self._threads):
            return times
        marked = {kernel: _disturbed(timing) for kernel, timing in times.items()}
        self.disturbed += sum(timing is not None and timing.disturbed for timing in marked.values())
        return marked

    def stop_loading(self) -> None:
        """End a worker that is still loading, since it would slow down what runs next."""
        if self._loading is not None:
            self._worker = self._loading.worker_at(0.0)
            if self._worker is None:
                self._loading.end()
            self._loading = None

    def close(self) -> None:
        """Give the worker back; one that is still loading is ended."""
        self.stop_loading()
        if self._worker is not None:
            give_back(self._worker)
            self._worker = None

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _disturbed(timing: T) -> T:
    return timing if timing is None else replace(timing, disturbed=True)


class _Loading:
    """A worker that loads its libraries, and the thread that waits for it.

    Attributes:
        worker: the worker.
        ready: the kernels that have been built, or found not to run.
    """

    def __init__(
        self,
        worker: Worker,
        given: tuple[list[Kernel], int, Known, Target | None, Mapping[str, Data]],
        timeout_s: float,
        before: _Loading | None = None,
    ) -> None:
        """
        Args:
            given: the arguments of ``prepare_kernels``.
            before: what the same worker does first.
        """
        self.worker, self._given, self._timeout_s = worker, given, timeout_s
        self._before, self._ended = before, False
        self._begun = self._done = math.inf
        self.ready: dict[Kernel, Ready] = {}
        self._thread = threading.Thread(target=self._load, daemon=True)
        self._thread.start()

    def _load(self) -> None:
        if self._before is not None:
            self._before.join()
        latest = Latest()
        # If the worker fails here, the first batch fails too, and that is handled. What the worker
        # has built by then is built once more.
        with suppress(EqsynthError, OSError, ValueError):
            if not self._ended:
                self.worker.run(load_libraries)
            if self._given[0] and not self._ended:
                self._begun = time.monotonic()
                self.worker.run(
                    prepare_kernels, *self._given, self._begun + self._timeout_s,
                    timeout_s=self._timeout_s + _COMPILING_GRACE_S, latest=latest,
                )  # fmt: skip
        self.ready = {self._given[0][number]: ready for number, ready in latest.value() or ()}
        self._done = time.monotonic()

    def building_s(self) -> float:
        """How many seconds building kernels has taken so far."""
        now = time.monotonic()
        return max(0.0, min(self._done, now) - min(self._begun, now))

    def worker_at(self, until: float) -> Worker | None:
        """The worker as soon as it is ready; None if it isn't before ``until``."""
        left_s = until - time.monotonic()
        self._thread.join(None if math.isinf(left_s) else max(left_s, 0.0))
        return None if self._thread.is_alive() else self.worker

    def join(self) -> None:
        """Wait until the worker has done everything."""
        self._thread.join()

    def end(self) -> None:
        """Kill the worker, which ends the thread too."""
        self._ended = True
        end(self.worker.pid)
        self.join()
        give_back(self.worker)  # closes a worker that has died
