"""Times kernels in a worker process, where the crash of one costs that one only.

Not here: building and timing them there (``backends.py``), the process (``executor.py``).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import torch

from eqsynth.errors import EqsynthError
from eqsynth.executor import Worker, borrow, end, give_back, uninterrupted
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.target import Target
from eqsynth.extract.timing import OVERDUE, Timing
from eqsynth.lower.backends import (
    Known,
    load_libraries,
    prepare_kernels,
    time_in_turns,
    time_kernels,
)
from eqsynth.lower.torch_calls import Data, calls_to_data, plain_calls
from eqsynth.serving import WorkerError

# Kernels that are sent to the worker at a time: an answer a few times a second.
_BATCH: Final = 24
# Longer than any batch takes to compile and run.
_BATCH_TIMEOUT_S: Final = 120.0
# Time that is left if whole programs are to be timed in turns.
_TURNS_S: Final = 2.0

# Time past the deadline in which a worker may hand over what it has; then it is ended.
_GRACE_S: Final = 0.5


class Measurer:
    """Times kernels in a worker process, where a crash of one costs that one only.

    As a context it gives the worker back at the end.

    Attributes:
        spent_s: what those who asked for times have waited for them.
        known: values of constants that kernels are to be timed with.
        far: the caches that weights are to be out of (``Target.far``).
        alone: kernels that are whole programs: no other steps run between their calls, and no
            threads of torch beside an engine's own (resnet18 on ONNX Runtime: 12.9 ms for 11.1).
    """

    def __init__(
        self,
        threads: int,
        target: Target | None = None,
        opaque: Mapping[str, Callable[..., torch.Tensor]] | None = None,
    ) -> None:
        """
        Args:
            target: whose kernels are timed; None for this CPU.
            opaque: what runs the ``Opaque`` operators of regions; plain calls of torch go to the
                worker, as data.
        """
        self._opaque = calls_to_data(plain_calls(opaque or {}))
        self._threads, self._target, self.spent_s = threads, target, 0.0
        self.known: dict[Kernel, Mapping[int, torch.Tensor]] = {}
        self.far, self.alone = 0, set[Kernel]()
        self._worker: Worker | None = None
        self._loading: _Loading | None = None

    def prepare(self, kernels: Sequence[Kernel] = (), timeout_s: float = 0.0) -> None:
        """Has the worker load its libraries, which takes seconds, while something else goes on;
        and build kernels that take as long.

        Args:
            timeout_s: how long these builds may take.
        """
        with uninterrupted():
            worker = borrow(threads=self._threads)
            given = list(kernels), self._threads, self._known(kernels), self._target, self._opaque
            self._loading = _Loading(worker, given, timeout_s)

    def preparing_s(self) -> float:
        """What building the kernels of :meth:`prepare` has taken until now."""
        return 0.0 if self._loading is None else self._loading.building_s()

    def _known(self, kernels: Sequence[Kernel]) -> Known:
        return {kernel: self.known[kernel] for kernel in kernels if kernel in self.known}

    def _loaded(self, until: float) -> bool:
        """Waits for the libraries, up to the deadline."""
        if self._loading is not None:
            self._worker = self._loading.worker_at(until)
            if self._worker is None:
                return False
            self._loading = None
        return True

    def __call__(
        self, kernels: Sequence[Kernel], until: float = math.inf
    ) -> dict[Kernel, Timing | None]:
        """The times of the kernels that were reached before the monotonic clock says ``until``;
        None for those that can't be built or run, `OVERDUE` for those that take too long to."""
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
        if self._worker is None:
            self._worker = borrow(threads=self._threads)
        timeout_s = min(_BATCH_TIMEOUT_S, until + _GRACE_S - time.monotonic())
        failure: Timing | None = None
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
            return {kernels[n]: timing for n, timing in found}
        except WorkerError as error:
            # The next task gets a new process.
            failure = OVERDUE if error.reason == "deadline" else None
        except EqsynthError:
            pass
        if time.monotonic() >= until:
            return {}  # late, and not known to have failed
        if len(kernels) == 1:
            return {kernels[0]: failure}
        # One of them is to blame: half by half.
        middle = len(kernels) // 2
        return {**self._batch(kernels[:middle], until), **self._batch(kernels[middle:], until)}

    def in_turns(self, kernels: Sequence[Kernel], until: float) -> dict[Kernel, Timing]:
        """The times, measured in turns, of whole programs that were timed one by one before; none
        if there is no time for it, or their worker is gone."""
        left_s = until - time.monotonic()
        if self._worker is None or len(kernels) < 2 or left_s < _TURNS_S:
            return {}
        begin, times = time.monotonic(), list[Timing | None]()
        with suppress(EqsynthError):
            times = self._worker.run(
                time_in_turns, list(kernels), self._threads, left_s / 2, self._target,
                timeout_s=left_s + _GRACE_S,
            )  # fmt: skip
        self.spent_s += time.monotonic() - begin
        return {k: timing for k, timing in zip(kernels, times, strict=False) if timing is not None}

    def close(self) -> None:
        """Gives the worker back. One that still loads is ended: it would slow what comes next."""
        if self._loading is not None:
            self._worker = self._loading.worker_at(0.0)
            if self._worker is None:
                self._loading.end()
            self._loading = None
        if self._worker is not None:
            give_back(self._worker)
            self._worker = None

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Loading:
    """A worker that loads its libraries, and the thread that waits for it."""

    def __init__(
        self,
        worker: Worker,
        given: tuple[list[Kernel], int, Known, Target | None, Mapping[str, Data]],
        timeout_s: float,
    ) -> None:
        """
        Args:
            given: arguments of ``prepare_kernels``.
        """
        self._worker, self._given, self._timeout_s = worker, given, timeout_s
        self._begun = self._done = math.inf
        self._thread = threading.Thread(target=self._load, daemon=True)
        self._thread.start()

    def _load(self) -> None:
        # Whatever is wrong with it, the first batch will tell.
        with suppress(EqsynthError, OSError, ValueError):
            self._worker.run(load_libraries)
            if self._given[0]:
                self._begun = time.monotonic()
                self._worker.run(prepare_kernels, *self._given, timeout_s=self._timeout_s)
                self._done = time.monotonic()

    def building_s(self) -> float:
        now = time.monotonic()
        return max(0.0, min(self._done, now) - min(self._begun, now))

    def worker_at(self, until: float) -> Worker | None:
        """The worker, as soon as it is ready; None if that isn't so before ``until``."""
        left_s = until - time.monotonic()
        self._thread.join(None if math.isinf(left_s) else max(left_s, 0.0))
        return None if self._thread.is_alive() else self._worker

    def end(self) -> None:
        """Kills the worker; the thread comes to its end by that."""
        end(self._worker.pid)
        self._thread.join()
        give_back(self._worker)  # which closes what is dead
