"""The backends of a target, and timing their kernels in a process of their own."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from types import MappingProxyType

import torch

from eqsynth.errors import EqsynthError
from eqsynth.executor import Worker, borrow, give_back, uninterrupted
from eqsynth.extract.kernel import Backend, Kernel, Layout, Runner, contiguous, strides
from eqsynth.extract.timing import Timing, time_one
from eqsynth.ir.program import Program, positions
from eqsynth.ir.tensor import Input, Region, Tensor, args_of
from eqsynth.lower.engines.engine import RegionBackend
from eqsynth.lower.engines.table import ENGINES
from eqsynth.lower.other_steps import OtherSteps
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lower.torch_scalars import torch_dtype
from eqsynth.lower.tvm_backend import TvmBackend
from eqsynth.lower.vendor import OneDnnBackend

# Kernels that are sent to the worker at a time: an answer a few times a second.
_BATCH = 24
# Kernels that are built, and linked, at a time between two looks at the clock: half a second.
_TOGETHER = 16
# Longer than any batch takes to compile and run.
_BATCH_TIMEOUT_S = 120.0
# Time past the deadline in which a worker may hand over what it has; then it is ended.
_GRACE_S = 0.5


def cpu_backends(
    opaque: Mapping[str, Callable[..., torch.Tensor]] | None = None,
) -> tuple[Backend, ...]:
    """oneDNN, TVM and torch, and the engines. Which of them runs an operator best, timing says."""
    own = (OneDnnBackend(), TvmBackend(), TorchBackend(opaque or {}))
    return *own, *map(RegionBackend, ENGINES.values())


def engines(names: Sequence[str] | None = None) -> tuple[Backend, ...]:
    """The engines of these names; of None, those that ``EQSYNTH_ENGINES`` lists (with commas
    between), or all if it isn't set. Those that aren't installed are left out.

    Raises:
        EqsynthError: there is no engine of a name.
    """
    where = "optimize(engines=…)"
    if names is None:
        listed, where = os.environ.get("EQSYNTH_ENGINES"), "EQSYNTH_ENGINES"
        names = list(ENGINES) if listed is None else [n for n in listed.split(",") if n.strip()]
    for name in names:
        if name.strip() not in ENGINES:
            raise EqsynthError(
                f"there is no engine {name!r}",
                where=where,
                got=repr(name),
                expected=", ".join(ENGINES),
                hint="name engines that eqsynth knows; an empty list uses none",
            )
    wanted = [ENGINES[name.strip()] for name in names]
    return tuple(RegionBackend(engine) for engine in wanted if engine.version() is not None)


def backend_of(kernel: Kernel, backends: Sequence[Backend]) -> Backend:
    """The backend that made a kernel.

    Raises:
        EqsynthError: none did.
    """
    for backend in backends:
        if backend.name == kernel.backend:
            return backend
    raise EqsynthError(
        f"no backend for {kernel.implementation}",
        got=kernel.implementation,
        expected=", ".join(b.name for b in backends),
    )


def random_argument(
    term: Tensor, layout: Layout, below: int = 2, least: int = 0
) -> torch.Tensor:
    """A value of the term's type, dense in ``layout``: normal floats, integers from ``least`` to
    ``below``, which isn't one of them."""
    dtype = torch_dtype(term.dtype)
    result = torch.empty_strided(term.shape, strides(term.shape, layout), dtype=dtype)
    if dtype.is_floating_point:
        return result.copy_(torch.randn(term.shape))
    return result.copy_(torch.randint(least, max(below, least + 1), term.shape))


Call = Callable[[], object]
Known = Mapping[Kernel, Mapping[int, torch.Tensor]]
"""Values of constant arguments, by their numbers; those of other arguments are random."""


def _arguments(kernel: Kernel, known: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
    """Random arguments where they aren't known; positions lie in range.

    Weights of a region are as after training. If their deviation were 1, values would grow from
    operator to operator, until a softmax's smallest results are denormal numbers, with which a
    product takes many times as long (GPT-2 of 4 layers: 7.8 ms, and 3.8 with its own weights).
    """
    bounds = positions([kernel.term])
    layouts = zip(args_of(kernel.term), kernel.inputs, strict=True)
    values = [random_argument(arg, at, bounds.get(arg, 2)) for arg, at in layouts]
    for n, constant in enumerate(kernel.constants):
        if n in known:
            values[n] = known[n].contiguous()
        elif constant and isinstance(kernel.term, Region) and values[n].is_floating_point():
            values[n] *= max(values[n].numel(), 1) ** -0.25
    return values


def random_inputs(program: Program, least: int = 0) -> tuple[torch.Tensor, ...]:
    """Random inputs of a program; where positions are computed, integers are small.

    Args:
        least: of the integers that are no positions.
    """
    bounds = positions(program.terms())
    computed = [count for term, count in bounds.items() if not isinstance(term, Input)]
    other = least + min([2, *computed])
    return tuple(
        random_argument(i, contiguous(len(i.shape)), bounds[i])
        if i in bounds
        else random_argument(i, contiguous(len(i.shape)), other, least)
        for i in program.inputs
    )


def time_kernels(
    kernels: Sequence[Kernel],
    threads: int,
    until: float = math.inf,
    known: Known = MappingProxyType({}),
    far: int = 0,
    alone: Collection[Kernel] = (),
) -> list[tuple[int, Timing | None]]:
    """Builds and times kernels, on random data but for what is known; a task of the worker.

    Args:
        alone: kernels that are whole programs, and are called in a row.
        far: the caches that weights are to be out of when a kernel is called (``Target.far``).
        until: when the monotonic clock (one for all processes) says so, nothing more is begun.

    Returns:
        Times by the kernels' positions, None for one that failed; only those that were reached.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)  # the same data, whatever the worker ran before
    backends = cpu_backends()
    times: dict[int, Timing | None] = {}
    by_backend = [
        (backend, n)
        for backend in backends
        for n, kernel in enumerate(kernels)
        if backend_of(kernel, backends) is backend
    ]
    with torch.no_grad():
        for backend, group in groupby(by_backend, key=lambda pair: pair[0]):
            own = [n for _, n in group]
            for start in range(0, len(own), _TOGETHER):
                if time.monotonic() >= until:
                    break
                part = own[start : start + _TOGETHER]
                asked, others = [kernels[n] for n in part], OtherSteps.of(threads, far)
                found = _time_together(backend, asked, until, known, others, alone)
                times.update(zip(part, found, strict=False))
    return list(times.items())


def load_libraries() -> None:
    """What building and timing kernels needs, loaded; a task of the measuring worker."""
    import tvm  # noqa: F401


# Kernels that were built before it was known whether they will be timed, and what they are called
# with.
_prepared: dict[Kernel, tuple[Runner | None, list[torch.Tensor]]] = {}


def prepare_kernels(
    kernels: Sequence[Kernel], threads: int, known: Known = MappingProxyType({})
) -> None:
    """Builds kernels that take long to build; a task of the measuring worker, which keeps them
    until they are timed or others are prepared."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    _prepared.clear()
    backends = cpu_backends()
    with torch.no_grad():
        for kernel in kernels:
            (_prepared[kernel],) = built(backend_of(kernel, backends), [kernel], known)


def _time_together(
    backend: Backend,
    kernels: Sequence[Kernel],
    until: float,
    values: Known,
    others: OtherSteps,
    alone: Collection[Kernel],
) -> Iterator[Timing | None]:
    """Times of kernels that are built at once, up to the deadline."""
    known = {kernel: _prepared.pop(kernel) for kernel in kernels if kernel in _prepared}
    rest = [kernel for kernel in kernels if kernel not in known]
    known |= dict(zip(rest, built(backend, rest, values), strict=True))
    for kernel in kernels:
        runner, given = known[kernel]
        if time.monotonic() >= until:
            return
        try:
            between = None if kernel in alone else partial(others.run, given)
            call = None if runner is None else partial(runner, *given)
            yield None if call is None else steady(call, until, between)
        except (EqsynthError, RuntimeError):
            yield None


def built(
    backend: Backend, kernels: Sequence[Kernel], known: Known
) -> list[tuple[Runner | None, list[torch.Tensor]]]:
    """Runners, and data to call them with."""
    arguments = [_arguments(kernel, known.get(kernel, {})) for kernel in kernels]
    packed = [
        (kernel, {i: values[i] for i, constant in enumerate(kernel.constants) if constant})
        for kernel, values in zip(kernels, arguments, strict=True)
    ]
    return [
        (runner, [v for v, constant in zip(values, kernel.constants, strict=True) if not constant])
        for kernel, values, runner in zip(kernels, arguments, backend.build(packed), strict=True)
    ]


def steady(call: Call, until: float, between: Call | None) -> Timing:
    """A timing, the best of three where runs scatter: another busy process makes threads wait for
    each other for milliseconds, and never makes a kernel faster."""
    best = time_one(call, until=until, between=between)
    for _ in range(2):
        if best.q3_s < 1.5 * best.q1_s or time.monotonic() >= until:
            break
        again = time_one(call, until=until, between=between)
        best = min(best, again, key=lambda timing: timing.median_s)
    return best


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

    def __init__(self, threads: int) -> None:
        self._threads, self.spent_s = threads, 0.0
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
            known = self._known(kernels)
            self._loading = _Loading(worker, list(kernels), self._threads, timeout_s, known)

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
        None for those that can't be built or run."""
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
        try:
            found = self._worker.run(
                time_kernels,
                kernels,
                self._threads,
                until,
                self._known(kernels),
                self.far,
                self.alone.intersection(kernels),
                timeout_s=max(timeout_s, 0.0),
            )
            return {kernels[n]: timing for n, timing in found}
        except EqsynthError:
            pass  # the next task gets a new process if this one has died
        if time.monotonic() >= until:
            return {}  # late, and not known to have failed
        if len(kernels) == 1:
            return {kernels[0]: None}
        # One of them is to blame: half by half.
        middle = len(kernels) // 2
        return {**self._batch(kernels[:middle], until), **self._batch(kernels[middle:], until)}

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
        kernels: list[Kernel],
        threads: int,
        timeout_s: float,
        known: Known,
    ) -> None:
        self._worker, self._known = worker, known
        self._kernels, self._threads, self._timeout_s = kernels, threads, timeout_s
        self._begun = self._done = math.inf
        self._thread = threading.Thread(target=self._load, daemon=True)
        self._thread.start()

    def _load(self) -> None:
        # Whatever is wrong with it, the first batch will tell.
        with suppress(EqsynthError, OSError, ValueError):
            self._worker.run(load_libraries)
            if self._kernels:
                self._begun = time.monotonic()
                self._worker.run(
                    prepare_kernels,
                    self._kernels,
                    self._threads,
                    self._known,
                    timeout_s=self._timeout_s,
                )
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
        with suppress(ProcessLookupError):
            os.kill(self._worker.pid, signal.SIGKILL)
        self._thread.join()
        give_back(self._worker)  # which closes what is dead
