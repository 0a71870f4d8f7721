"""The backends of a target, and timing their kernels in a process of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch

from eqsynth.errors import EqsynthError
from eqsynth.executor import Worker, borrow, give_back
from eqsynth.extract.kernel import Backend, Kernel, Layout, contiguous, strides
from eqsynth.extract.timing import Timing, time_one
from eqsynth.ir.program import Program, positions
from eqsynth.ir.tensor import Input, Tensor, args_of
from eqsynth.lower.inductor import InductorBackend
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lower.torch_scalars import torch_dtype
from eqsynth.lower.tvm_backend import TvmBackend
from eqsynth.lower.vendor import OneDnnBackend

# Kernels that are sent to the worker at a time: an answer a few times a second.
_BATCH = 24
# Longer than any kernel of a batch takes to compile and run.
_BATCH_TIMEOUT_S = 120.0


def cpu_backends(
    opaque: Mapping[str, Callable[..., torch.Tensor]] | None = None,
) -> tuple[Backend, ...]:
    """oneDNN, TVM and torch, and the engines. Which of them runs an operator best, timing says."""
    return OneDnnBackend(), TvmBackend(), TorchBackend(opaque or {}), InductorBackend()


ENGINES: Final = {"inductor": InductorBackend}
"""Backends that run regions: parts of a program as a whole."""


def engines(names: Sequence[str] | None = None) -> tuple[Backend, ...]:
    """The engines of these names; of None, those that ``EQSYNTH_ENGINES`` lists (with commas
    between), or all if it isn't set.

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
    return tuple(ENGINES[name.strip()]() for name in names)


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


def random_argument(term: Tensor, layout: Layout, below: int = 2) -> torch.Tensor:
    """A value of the term's type, dense in ``layout``: normal floats, integers from 0 to
    ``below``, which isn't one of them."""
    dtype = torch_dtype(term.dtype)
    result = torch.empty_strided(term.shape, strides(term.shape, layout), dtype=dtype)
    if dtype.is_floating_point:
        return result.copy_(torch.randn(term.shape))
    return result.copy_(torch.randint(0, max(below, 1), term.shape))


def _arguments(kernel: Kernel) -> list[torch.Tensor]:
    """Random arguments; positions lie in range."""
    bounds = positions([kernel.term])
    pairs = zip(args_of(kernel.term), kernel.inputs, strict=True)
    return [random_argument(arg, at, bounds.get(arg, 2)) for arg, at in pairs]


def random_inputs(program: Program) -> tuple[torch.Tensor, ...]:
    """Random inputs of a program; where positions are computed, integers are small."""
    bounds = positions(program.terms())
    computed = [count for term, count in bounds.items() if not isinstance(term, Input)]
    return tuple(
        random_argument(i, contiguous(len(i.shape)), bounds.get(i, min([2, *computed])))
        for i in program.inputs
    )


def time_kernels(kernels: Sequence[Kernel], threads: int) -> list[Timing | None]:
    """Builds and times kernels on random data; the task of the measuring worker."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)  # the same data, whatever the worker ran before
    backends = cpu_backends()
    arguments = [_arguments(kernel) for kernel in kernels]
    times: list[Timing | None] = [None] * len(kernels)
    with torch.no_grad():
        for backend in backends:
            own = [n for n, k in enumerate(kernels) if backend_of(k, backends) is backend]
            packed = [
                (kernels[n], {i: arguments[n][i] for i, c in enumerate(kernels[n].constants) if c})
                for n in own
            ]
            for n, runner in zip(own, backend.build(packed), strict=True):
                values = [
                    v for v, c in zip(arguments[n], kernels[n].constants, strict=True) if not c
                ]
                if runner is not None:
                    try:
                        times[n] = _steady(lambda r=runner, v=values: r(*v))  # type: ignore[misc]
                    except (EqsynthError, RuntimeError):
                        times[n] = None
    return times


def _steady(call: Callable[[], object]) -> Timing:
    """A timing, the best of three where runs scatter: another busy process makes threads wait for
    each other for milliseconds, and never makes a kernel faster."""
    best = time_one(call)
    for _ in range(2):
        if best.q3_s < 1.3 * best.q1_s:
            break
        best = min(best, time_one(call), key=lambda timing: timing.median_s)
    return best


class Measurer:
    """Times kernels in a worker process, where a crash of one costs that one only."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._worker: Worker | None = None

    def __call__(self, kernels: Sequence[Kernel]) -> list[Timing | None]:
        times: list[Timing | None] = []
        for start in range(0, len(kernels), _BATCH):
            times += self._batch(list(kernels[start : start + _BATCH]))
        return times

    def _batch(self, kernels: list[Kernel]) -> list[Timing | None]:
        if self._worker is None:
            self._worker = borrow(threads=self._threads)
        try:
            return self._worker.run(
                time_kernels, kernels, self._threads, timeout_s=_BATCH_TIMEOUT_S
            )
        except EqsynthError:
            pass  # the next task gets a new process if this one has died
        if len(kernels) == 1:
            return [None]
        # One of them is to blame: half by half.
        middle = len(kernels) // 2
        return self._batch(kernels[:middle]) + self._batch(kernels[middle:])

    def close(self) -> None:
        if self._worker is not None:
            give_back(self._worker)
            self._worker = None
