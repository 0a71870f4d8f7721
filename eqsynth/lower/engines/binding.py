"""Calls of an engine that reads its arguments from torch's memory and writes its results into
torch's memory.

The engine has to be told the address of each tensor (binding), which takes 5 to 20 us a tensor, up
to a third of the time of a small program. So a tensor that is at the same address as in the last
call isn't bound again. Not here: how an engine is told an address (``open_vino.py``,
``onnx_runtime.py``).
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
"""Tensors of up to this many bytes are copied rather than bound: a copy takes 1 to 3 us."""
_NOWHERE: Final = -1
"""The address of a tensor that hasn't been bound. It isn't 0, the address of a tensor without
elements."""


class Request(Protocol):
    """An engine's compiled region. It is called by one thread at a time."""

    def bind_input(self, n: int, x: torch.Tensor) -> None:
        """Tell the engine the address of the n-th argument. The engine may keep a reference to the
        tensor."""

    def bind_output(self, n: int, x: torch.Tensor) -> None:
        """Tell the engine the address that the n-th result is written to. The engine mustn't keep a
        reference to the tensor: a tensor that is referred to isn't written to again."""

    def infer(self) -> None:
        """Compute the results."""


def bound(new: Callable[[], Request], given: Sequence[int], made: Sequence[Tensor]) -> Runner:
    """Return a runner of an engine. Each thread that calls at the same time as others gets a
    request of its own; requests are reused.

    Args:
        new: makes a request.
        given: the engine's arguments, as positions among the arguments of a call.
        made: the engine's results.
    """
    free: list[_Call] = []

    def run(*args: torch.Tensor) -> Any:
        try:
            call = free.pop()
        # Not tested for emptiness before: another thread might take the last request in between.
        except IndexError:
            call = _Call(new(), given, made)
        results = call(args)
        free.append(call)
        return results if len(results) > 1 else results[0]

    return run


class _Call:
    """One request, and the addresses that were bound in its last call. Small tensors are copied to
    or from memory of the request: results always, arguments as soon as their address has changed
    once. A large result is written to the same memory as the last one, unless that is still
    referred to."""

    def __init__(self, request: Request, given: Sequence[int], made: Sequence[Tensor]) -> None:
        self._request, self._given = request, tuple(given)
        self._read, self._written = [_NOWHERE] * len(given), [_NOWHERE] * len(made)
        self._copies: dict[int, torch.Tensor] = {}
        self._results = [
            Results(out.shape, row_major(out.shape), torch_dtype(out.dtype)) for out in made
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
        # Results are bound after the arguments: if an argument was an earlier result, the engine
        # gives up its reference to it when the new argument is bound.
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
