"""The backends of each target, the place where its programs run, and the timing of kernels.

Example: ``backends_of(target)`` gives oneDNN, TVM, torch and the engines for the CPU;
``time_kernels(kernels, threads)`` builds kernels and times each on random data.

Not here: the process in which kernels are timed (``measurer.py``), what a backend's kernels
compute.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any

import torch

from eqsynth.errors import EqsynthError
from eqsynth.extract.kernel import Backend, Kernel, Layout, Runner, contiguous, strides, written
from eqsynth.extract.measure import describe_cpu, measure_cpu_target
from eqsynth.extract.target import CPU, Target
from eqsynth.extract.timing import (
    Clock,
    Ready,
    Timing,
    one_leads,
    time_interleaved,
    time_one,
    wall_s,
)
from eqsynth.ir.program import Program, positions
from eqsynth.ir.tensor import Input, Region, Tensor, args_of
from eqsynth.lower.engines import bounded
from eqsynth.lower.engines.engine import RegionBackend
from eqsynth.lower.engines.table import ENGINES
from eqsynth.lower.places import Place, ported
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lower.torch_calls import Data, calls_from_data
from eqsynth.lower.torch_scalars import torch_dtype
from eqsynth.lower.tvm_backend import TvmBackend
from eqsynth.lower.vendor import OneDnnBackend
from eqsynth.serving import hand_over

# The number of kernels that are built and linked together: about a second of work, after which the
# deadline is looked at again. Fewer if the time that is left may not suffice for so many: a worker
# that is late is ended, with all that it has loaded and compiled.
_TOGETHER = 16
# Seconds for building and timing a kernel, by backend: what the last kernels have taken in this
# process, or at first what a generated kernel takes.
_EACH_S: dict[str, float] = {}
_GENERATED_S = 0.06

# For timing whole programs in turns: the number of rounds, the most calls and seconds of one turn,
# and the pause before each turn.
_ROUNDS, _BLOCK, _TURN_S, _PAUSE_S = 7, 100, 0.03, 0.01
# Programs within this factor of the fastest get further rounds, with longer turns and pauses, until
# one of them has been the fastest in every turn.
_NEAR, _LONG_TURN_S, _LONG_PAUSE_S = 1.25, 0.1, 0.05


def cpu_backends(
    opaque: Mapping[str, Callable[..., torch.Tensor]] | None = None,
) -> tuple[Backend, ...]:
    """The CPU's backends: oneDNN, TVM, torch, and the engines. Several may offer kernels for one
    operator; measured times decide between them."""
    own = (OneDnnBackend(), TvmBackend(), TorchBackend(opaque or {}))
    return *own, *(RegionBackend(engine, opaque) for engine in ENGINES.values())


def backends_of(
    target: Target, opaque: Mapping[str, Callable[..., torch.Tensor]] | None = None
) -> tuple[Backend, ...]:
    """All backends of a target, with kernels that run on this machine.

    Args:
        opaque: for each ``Opaque`` operator, the function that runs it, as it was captured on the
            CPU.
    """
    if target.name == CPU:
        return cpu_backends(opaque)
    from eqsynth.lower.cuda import backend

    moved = ported(opaque or {}, place_of(target))
    return backend.gpu_backends(target, moved, backend.load_here)


def planning_backends(
    target: Target,
    opaque: Mapping[str, Callable[..., torch.Tensor]] | None = None,
    load: Callable[..., Any] | None = None,
) -> tuple[Backend, ...]:
    """All backends of a GPU that this machine doesn't have.

    Args:
        load: makes the generated kernels run on this machine; None if no kernel is to run.
    """
    from eqsynth.lower.cuda import backend

    return backend.gpu_backends(target, opaque, load)


def place_of(target: Target) -> Place:
    """The place where programs of a target run."""
    if target.name == CPU:
        return Place()
    from eqsynth.lower.cuda import place

    return place.place(target)


def is_here(target: Target) -> bool:
    """Whether this machine has the target's device."""
    if target.name == CPU:
        return target.device == describe_cpu()
    from eqsynth.lower.cuda import driver, measure

    return not driver.missing() and measure.describe_gpu() == target.device


def target_here(kind: str, again: bool = False) -> Target:
    """This machine's device of a kind (the CPU, or a GPU), with its peaks, which are measured once
    and kept.

    Args:
        again: measure the peaks even if they are known.

    Raises:
        LoweringError: the machine has no such device.
    """
    if kind == CPU:
        return measure_cpu_target(again=again)
    from eqsynth.lower.cuda import measure

    return measure.measure_gpu_target(again=again)


def engines(
    names: Sequence[str] | None = None,
    opaque: Mapping[str, Callable[..., torch.Tensor]] | None = None,
) -> tuple[Backend, ...]:
    """The engines with these names. For None: the engines that the variable ``EQSYNTH_ENGINES``
    lists (with commas between), or all engines if it isn't set. Engines that aren't installed are
    left out.

    Args:
        opaque: for each ``Opaque`` operator, the function that runs it.

    Raises:
        EqsynthError: a name is no engine's.
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
    return tuple(RegionBackend(e, opaque) for e in wanted if e.version() is not None)


def backend_of(kernel: Kernel, backends: Sequence[Backend]) -> Backend:
    """The backend that offered a kernel.

    Raises:
        EqsynthError: no backend has the kernel's name.
    """
    for backend in backends:
        if backend.name == kernel.backend:
            return backend
    raise EqsynthError(
        f"no backend for {kernel.implementation}",
        got=kernel.implementation,
        expected=", ".join(b.name for b in backends),
    )


def random_argument(term: Tensor, layout: Layout, below: int = 2, least: int = 0) -> torch.Tensor:
    """A random tensor of the term's type, dense in ``layout``: normal floats, or integers from
    ``least`` to ``below - 1``."""
    dtype = torch_dtype(term.dtype)
    result = torch.empty_strided(term.shape, strides(term.shape, layout), dtype=dtype)
    if dtype.is_floating_point:
        return result.copy_(torch.randn(term.shape))
    return result.copy_(torch.randint(least, max(below, least + 1), term.shape))


Call = Callable[[], object]
Between = Callable[[], float]
Known = Mapping[Kernel, Mapping[int, torch.Tensor]]
"""For a kernel, the values of some of its arguments by position; the other arguments are random."""


def _arguments(kernel: Kernel, known: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
    """Arguments for timing a kernel: values that are known, else random ones; positions are in
    range.

    A random weight of a region is scaled down to about a trained weight's size. With a standard
    deviation of 1, values would grow from operator to operator until a softmax gave denormal
    numbers, with which a product takes many times as long (GPT-2 of 4 layers: 7.8 ms, against 3.8
    with its own weights).
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
    """Random inputs of a program. Inputs that are positions in a table are drawn in its range;
    where the program computes positions from other integers, all integers are drawn small enough.

    Args:
        least: the smallest value of an integer that isn't a position.
    """
    bounds = positions(program.terms(), views=True)
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
    target: Target | None = None,
    opaque: Mapping[str, Data] | None = None,
) -> list[tuple[int, Timing | None]]:
    """Build and time kernels; a task of the measuring worker.

    Args:
        until: once the monotonic clock (one for all processes) has passed this, nothing more is
            begun.
        known: values of arguments; all other arguments are random.
        far: the number of cache levels that a kernel's weights are to be out of when it is called,
            as they are in the program (``Target.far``).
        alone: kernels that are whole programs; they are called without other steps in between.
        target: the kernels' target; None for this CPU.
        opaque: plain calls of torch that run ``Opaque`` operators, as data.

    Returns:
        Pairs of a kernel's position and its time (None if the kernel failed), for the kernels that
            were reached.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)  # the same data, whatever the worker ran before
    backends, place = _of(target, opaque)
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
            while own:
                begin = time.monotonic()
                count = _in_time(backend, until - begin)
                if count == 0:
                    break
                part, own = own[:count], own[count:]
                asked = [kernels[n] for n in part]
                others = place.others(threads, far)
                found = _time_together(backend, asked, until, known, others.run, alone, place)
                times.update(zip(part, found, strict=False))
                _EACH_S[backend.name] = (time.monotonic() - begin) / len(part)
    return list(times.items())


def _in_time(backend: Backend, left_s: float) -> int:
    """How many kernels can be built and timed in the seconds that are left, at most `_TOGETHER`.
    One is always begun: the last kernels may have been another program's, and far slower. Engines
    have deadlines of their own (``bounded.py``)."""
    if left_s <= 0:
        return 0
    if backend.name in ENGINES or math.isinf(left_s):
        return _TOGETHER
    least = _GENERATED_S if backend.name == TvmBackend.name else 0.0
    each_s = _EACH_S.get(backend.name, least)
    return max(1, min(_TOGETHER, int(left_s / each_s))) if each_s else _TOGETHER


def _of(
    target: Target | None, opaque: Mapping[str, Data] | None = None
) -> tuple[tuple[Backend, ...], Place]:
    """The backends and the place of a target; None is this CPU."""
    calls = calls_from_data(opaque or {})
    if target is None:
        return cpu_backends(calls), Place()
    return backends_of(target, calls), place_of(target)


def load_libraries() -> None:
    """Import the libraries that building and timing need; a task of the measuring worker."""
    import tvm  # noqa: F401


# Kernels that ``prepare_kernels`` has built and that may be timed later, with their arguments.
_prepared: dict[Kernel, tuple[Runner | None, list[torch.Tensor]]] = {}


# Calls of whole programs that were timed one by one, kept until they are timed in turns.
_whole: dict[Kernel, Call] = {}


def time_in_turns(
    kernels: Sequence[Kernel], threads: int, limit_s: float, target: Target | None = None
) -> list[Timing | None]:
    """Time whole programs against each other, in turns; a task of the measuring worker that has
    timed each of them before. The result is None for a program that it hasn't timed. The worker
    drops the programs afterwards.

    On a shared machine everything takes twice as long for some seconds, and then doesn't. If
    programs are timed one after the other, this decides which looks faster.

    A turn begins with sleeping threads and with the other programs' weights in the caches, which
    costs a program of 2.5 ms a tenth of a short turn. So programs that come near the best get long
    turns, too. (BERT of 4 layers, lower quartiles of two runs: OpenVINO 2.55 ms in turns of 0.03 s,
    2.38 in turns of 0.1 s; Inductor 2.60 and 2.36.)
    """
    torch.set_num_threads(threads)
    _, place = _of(target)
    calls = {str(n): _whole[kernel] for n, kernel in enumerate(kernels) if kernel in _whole}
    _whole.clear()
    end = time.monotonic() + limit_s
    with torch.no_grad():
        times = time_interleaved(
            calls, repeats=3, block=_BLOCK, pause_s=_PAUSE_S, turn_s=_TURN_S, clock=place.clock
        )
        least_s = min((timing.q1_s for timing in times.values()), default=0.0)
        near = {name: calls[name] for name, t in times.items() if t.q1_s <= _NEAR * least_s}
        if len(near) > 1:
            times |= time_interleaved(
                near, repeats=_ROUNDS, block=_BLOCK, pause_s=_LONG_PAUSE_S, turn_s=_LONG_TURN_S,
                limit_s=end - time.monotonic(), clock=place.clock, enough=one_leads,
            )  # fmt: skip
    return [times.get(str(n)) for n in range(len(kernels))]


def prepare_kernels(
    kernels: Sequence[Kernel],
    threads: int,
    known: Known = MappingProxyType({}),
    target: Target | None = None,
    opaque: Mapping[str, Data] | None = None,
    until: float = math.inf,
) -> list[tuple[int, Ready]]:
    """Build kernels that take long to build; a task of the measuring worker, which keeps them until
    they are timed or until it prepares others.

    Returns:
        Pairs of a kernel's position and what building and one call took, for the kernels that were
            reached before the monotonic clock passed ``until``. They are handed over after each
            kernel, too. Other processes run beside the call, so it only tells whether timing a
            kernel takes milliseconds or minutes.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    _prepared.clear()
    _whole.clear()
    backends, place = _of(target, opaque)
    took: list[tuple[int, Ready]] = []
    with torch.no_grad(), bounded.until(until):
        for number, kernel in enumerate(kernels):
            begin = time.monotonic()
            if begin >= until:
                break
            ((runner, given),) = built(backend_of(kernel, backends), [kernel], known, place)
            if runner is None and time.monotonic() >= until:
                break  # not ready in time: it isn't known whether it can be built
            _prepared[kernel] = runner, given
            call_s = math.inf
            with suppress(EqsynthError, RuntimeError):
                if runner is not None:
                    runner(*given)
                    call_s = place.clock(partial(runner, *given), 1)
            took.append((number, Ready(time.monotonic() - begin, call_s)))
            hand_over(took)
    return took


def _time_together(
    backend: Backend,
    kernels: Sequence[Kernel],
    until: float,
    values: Known,
    others: Callable[[Sequence[torch.Tensor]], float],
    alone: Collection[Kernel],
    place: Place,
) -> Iterator[Timing | None]:
    """The times of kernels that are built together, up to the deadline; None for a kernel that
    fails."""
    known = {kernel: _prepared.pop(kernel) for kernel in kernels if kernel in _prepared}
    rest = [kernel for kernel in kernels if kernel not in known]
    with bounded.until(until):
        known |= dict(zip(rest, built(backend, rest, values, place), strict=True))
    for kernel in kernels:
        runner, given = known[kernel]
        if time.monotonic() >= until:
            return
        try:
            between = None if kernel in alone else partial(others, given)
            call = None if runner is None else as_step(runner, given)
            timing = None if call is None else steady(call, until, between, place.clock)
            if call is not None and kernel in alone:
                _whole[kernel] = call
            yield timing
        except (EqsynthError, RuntimeError):
            place.after_failure()
            yield None


def built(
    backend: Backend, kernels: Sequence[Kernel], known: Known, place: Place | None = None
) -> list[tuple[Runner | None, list[torch.Tensor]]]:
    """For each kernel its runner (None if it doesn't build, or if its arguments don't fit into
    memory), and arguments to call the runner with."""
    place = place or Place()
    arguments = [_placed(kernel, known.get(kernel, {}), place) for kernel in kernels]
    packed = [
        (kernel, {i: values[i] for i, constant in enumerate(kernel.constants) if constant})
        for kernel, values in zip(kernels, arguments, strict=True)
        if values is not None
    ]
    runners = iter(backend.build(packed))
    return [
        (None, [])
        if values is None
        else (next(runners),
              [v for v, constant in zip(values, kernel.constants, strict=True) if not constant])
        for kernel, values in zip(kernels, arguments, strict=True)
    ]  # fmt: skip


def as_step(runner: Runner, given: Sequence[torch.Tensor]) -> Call:
    """Return a call of a runner with these arguments as a step of a program makes it. A runner that
    can write into given memory always gets the same memory, as TVM's own tensor object
    (``workspace.py``).

    A new result of more than 32 MB costs a page fault for every 4 KB. (VGG-16 at 224x224, AMD EPYC:
    the tiles of a convolution, 38.5 MB, took 7.2 ms into new memory, and 3.3 into the same.)
    """
    how = written(runner)
    if how is None:
        return partial(runner, *given)
    import tvm_ffi

    memory = torch.empty_strided(how.shape, how.strides, dtype=how.dtype, device=CPU)
    of_tvm = tvm_ffi.from_dlpack
    values = (of_tvm(given[arg]) if isinstance(arg, int) else arg for arg in how.args)
    return partial(how.function, *values, of_tvm(memory))


def _placed(
    kernel: Kernel, known: Mapping[int, torch.Tensor], place: Place
) -> list[torch.Tensor] | None:
    try:
        return place.to(_arguments(kernel, known))
    except (MemoryError, RuntimeError):
        place.after_failure()
        return None


def steady(call: Call, until: float, between: Between | None, clock: Clock = wall_s) -> Timing:
    """Time a call. If it is timed without other work in between, and the samples scatter, time it
    up to twice more and return the best timing: another busy process makes threads wait for each
    other for milliseconds, and never makes a kernel faster. With other work, its pace tells of
    other processes (``Pace``), and the best of several timings would be partly luck."""
    best = time_one(call, until=until, between=between, clock=clock)
    for _ in range(2 if between is None else 0):
        if best.q3_s < 1.5 * best.q1_s or time.monotonic() >= until:
            break
        again = time_one(call, until=until, clock=clock)
        best = min(best, again, key=lambda timing: timing.median_s)
    return best
