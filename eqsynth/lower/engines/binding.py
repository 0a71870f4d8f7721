"""Calls of an engine that reads arguments where torch has them and writes results into tensors of
torch. Where each lies has to be told to the engine, which takes 5 to 20 us a tensor, a third of
what a small program takes; so what lies where it lay in the last call isn't told again.

Not here: how an engine is told (``open_vino.py``, ``onnx_runtime.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch

from eqsynth.extract.kernel import Runner
from eqsynth.ir.index import row_major
from eqsynth.ir.tensor import Tensor
from eqsynth.lower.results import Results
from eqsynth.lower.torch_scalars import torch_dtype

_SMALL: Final = 1 << 16
"""Bytes of a tensor that is copied rather than bound (1 to 3 us)."""
_NOWHERE: Final = -1
"""Of what hasn't been bound: what has no elements lies at 0."""


class Request(Protocol):
    """What an engine is called by, in one thread at a time."""

    def bind_input(self, n: int, x: torch.Tensor) -> None:
        """Tells where the n-th argument lies. The engine may hold it."""

    def bind_output(self, n: int, x: torch.Tensor) -> None:
        """Tells where the n-th result is written to. The engine may not hold it: what somebody
        holds isn't written over."""

    def infer(self) -> None:
        """Computes the results."""


def bound(new: Callable[[], Request], given: Sequence[int], made: Sequence[Tensor]) -> Runner:
    """Runs an engine: a request for each thread that calls at once, which is used again.

    Args:
        new: makes a request.
        given: its arguments, as positions among those of a call.
        made: its results.
    """
    free: list[_Call] = []

    def run(*args: torch.Tensor) -> Any:
        try:
            call = free.pop()
        except IndexError:  # a look whether one is there would be wrong between threads
            call = _Call(new(), given, made)
        results = call(args)
        free.append(call)
        return results if len(results) > 1 else results[0]

    return run


class _Call:
    """A small tensor is copied between its place and memory of the request's own: a result always,
    an argument from when it first stands elsewhere. A large result is written where the last one
    lay if nobody holds that any more."""

    def __init__(self, request: Request, given: Sequence[int], made: Sequence[Tensor]) -> None:
        self._request, self._given = request, tuple(given)
        self._read, self._written = [_NOWHERE] * len(given), [_NOWHERE] * len(made)
        self._copies: dict[int, torch.Tensor] = {}
        self._results = [
            Results(out.shape, row_major(out.shape), torch_dtype(out.dtype))
            for out in made
        ]
        self._small: dict[int, torch.Tensor] = {}
        for n, results in enumerate(self._results):
            result = results.take()
            if result.nbytes <= _SMALL:
                self._small[n] = result
                request.bind_output(n, result)

    def __call__(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        for n, k in enumerate(self._given):
            arg = args[k]
            if n in self._copies:
                self._copies[n].copy_(arg)
            elif arg.data_ptr() != self._read[n]:
                if self._read[n] != _NOWHERE and arg.nbytes <= _SMALL:
                    arg = self._copies[n] = arg.clone()
                self._request.bind_input(n, arg)
                self._read[n] = arg.data_ptr()
        # After the arguments: an engine that holds one which was a result lets go of it there.
        made = [
            self._small[n] if n in self._small else self._large(n, results)
            for n, results in enumerate(self._results)
        ]
        self._request.infer()
        return [x.clone() if n in self._small else x for n, x in enumerate(made)]

    def _large(self, n: int, results: Results) -> torch.Tensor:
        result = results.take()
        if result.data_ptr() != self._written[n]:
            self._request.bind_output(n, result)
            self._written[n] = result.data_ptr()
        return result
