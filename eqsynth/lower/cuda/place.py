"""Running programs on a GPU: timing by events, and a program's launches recorded as a CUDA graph.

These parts haven't run on a GPU yet: :func:`events_s`, :func:`record`, and the handling of a broken
context. Not here: the kernels (``backend.py``), measuring the device (``measure.py``).

Source: PyTorch, "CUDA semantics", CUDA Graphs; CUDA Runtime API, "Event Management".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

import torch

from eqsynth.errors import LoweringError
from eqsynth.extract.target import CUDA, Target
from eqsynth.extract.timing import Clock
from eqsynth.lower.cuda import precision
from eqsynth.lower.other_steps import OtherSteps
from eqsynth.lower.places import Place, Run

Values = Sequence[torch.Tensor]
Record = Callable[[Run, Values], tuple[Callable[[], None], list[torch.Tensor]]]
"""A function that runs the steps once on tensors that stay in place. It returns a function that
runs the steps again on the same tensors, and the tensors of the results."""

_WARM_UP: Final = 3
# Calls that are timed to decide whether a recorded program is faster.
_TRIES: Final = 10


def place(target: Target) -> Place:
    """Return this machine's GPU as a place for programs. The size of its second cache is the
    target's."""
    device = torch.device(CUDA, torch.cuda.current_device())
    return Place(
        device=device,
        clock=events_s,
        recorded=partial(Recorded, device=device),
        others=partial(_others, int(target.levels[0].capacity_bytes), device),
        in_full=partial(precision.full, target.numerics),
        after_failure=end_if_broken,
        alone=False,
        target=target,
    )


def events_s(call: Callable[[], object], calls: int) -> float:
    """The seconds of one call, between two events of the current stream. The host's time for a
    launch counts, unless the GPU is still busy with earlier launches."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return max(float(begin.elapsed_time(end)), 1e-6) * 1e-3 / calls


@lru_cache(maxsize=1)
def _others(cache_bytes: int, device: torch.device, threads: int, far: int) -> OtherSteps:
    """The work that runs before each timed call: it overwrites the second cache, so that weights
    come from memory, and it keeps the GPU busy while the host launches the kernel."""
    large = torch.zeros(cache_bytes // 4, device=device)
    return OtherSteps(cache_bytes, large, torch.ones(16, 16, device=device))


def end_if_broken() -> None:
    """End this process, the measuring worker, if a kernel has broken its CUDA context, in which no
    other kernel can run. The next task gets a new process."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        os._exit(1)


def record(run: Run, values: Values) -> tuple[Callable[[], None], list[torch.Tensor]]:
    """Record the steps as a CUDA graph. What other threads do at the same time, such as allocating
    memory, is neither recorded nor refused."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            run(*values)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = run(*values)
    return graph.replay, results


@dataclass(frozen=True)
class _Graph:
    """A recording: the tensors that it reads, the function that replays it, and the tensors that it
    writes."""

    inputs: Values
    replay: Callable[[], None]
    results: Values

    def takes(self, values: Values) -> bool:
        """Whether these tensors have the types of the recorded inputs. All other checks of inputs
        are made by the steps themselves."""
        return len(values) == len(self.inputs) and all(
            type(x) is torch.Tensor and x.layout is torch.strided and not x.is_neg()
            and (x.shape, x.dtype, x.device) == (own.shape, own.dtype, own.device)
            for x, own in zip(values, self.inputs, strict=True)
        )  # fmt: skip

    def __call__(self, *values: torch.Tensor) -> list[torch.Tensor]:
        for own, value in zip(self.inputs, values, strict=True):
            own.copy_(value)
        self.replay()
        # The next call writes into the same memory.
        return [value.clone() for value in self.results]


class Recorded:
    """The steps of a program as one launch, if that is faster. Inputs are copied in, and results
    are copied out.

    Each stream has a recording of its own, so that calls on two streams share no memory; calls on
    one stream run one after another. The steps run one by one if they can't be recorded (an
    operator waits for the GPU, or memory is too small for a second copy), and if the call itself is
    being recorded by others. The program runs on its own device, whatever the thread's current
    device is.
    """

    def __init__(
        self,
        run: Run,
        record: Record = record,
        clock: Clock = events_s,
        device: torch.device | None = None,
    ) -> None:
        self._run, self._record, self._clock = run, record, clock
        self._device = device
        self._lock = threading.Lock()
        self._graphs: dict[int, _Graph | None] = {}

    def __call__(self, *values: torch.Tensor) -> list[torch.Tensor]:
        if self._device is None:
            return self._called(values)
        with torch.cuda.device(self._device):
            return self._called(values)

    def _called(self, values: Values) -> list[torch.Tensor]:
        """Replay the recording of the current stream, make it at the first call, or run the steps
        one by one."""
        if recording() or precision.in_full():
            return self._run(*values)
        stream = current_stream()
        with self._lock:
            if stream not in self._graphs:
                results = self._run(*values)  # raises if the inputs aren't right
                self._graphs[stream] = self._recorded(values)
                return results
            graph = self._graphs[stream]
            if graph is None or not graph.takes(values):
                return self._run(*values)
            return graph(*values)

    def _recorded(self, values: Values) -> _Graph | None:
        """Return the recording, or None if the steps can't be recorded or aren't faster recorded.
        Its tensors are made outside of ``torch.inference_mode``, even if the first call is inside
        of it, since later calls outside of it write to them."""
        try:
            with torch.inference_mode(False), torch.no_grad():
                inputs = [torch.empty_like(value).copy_(value) for value in values]
                replay, results = self._record(self._run, inputs)
                graph = _Graph(inputs, replay, results)
                if not graph.takes(values):
                    return None
                whole_s = self._clock(lambda: graph(*values), _TRIES)
                apart_s = self._clock(lambda: self._run(*values), _TRIES)
        except (RuntimeError, LoweringError):
            return None
        return graph if whole_s < apart_s else None


def recording() -> bool:
    """Whether the current stream is being recorded."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def current_stream() -> int:
    """The number of torch's current stream; 0 without a GPU."""
    return torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else 0
