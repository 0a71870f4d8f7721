"""Cubins loaded and launched through the CUDA driver, on torch's context and stream.

Three functions of ``libcuda`` are enough, and four that find torch's context. TVM's runtime for
CUDA would load libraries of 7 MB to call the same ones; and a launch on torch's own stream goes
into a CUDA graph that torch records.

Source: CUDA Driver API (NVIDIA), "Module Management", "Execution Control", "Primary Context
Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from eqsynth.errors import LoweringError

_LIBRARIES: Final = ("libcuda.so.1", "libcuda.so")
# What the driver says in a thread that has no context, and by a handle of another one.
_UNBOUND: Final = (201, 400)


@dataclass(frozen=True)
class Launch:
    """How many blocks of how many threads a kernel is started with."""

    blocks: int
    threads: int


def missing() -> str:
    """What running on a GPU lacks here; empty if nothing does.

    >>> isinstance(missing(), str)
    True
    """
    import torch

    if not torch.backends.cuda.is_built():
        return "this build of torch has no CUDA"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    return "" if _library() is not None else "the CUDA driver (libcuda) isn't there"


class Module:
    """A cubin that is loaded into torch's context.

    Raises:
        LoweringError: it can't be loaded here.
    """

    def __init__(self, cubin: bytes, library: Any = None) -> None:
        found = library or _library()
        if found is None:
            raise LoweringError(
                what="the kernels can't be run here",
                got=missing(),
                expected="a GPU with NVIDIA's driver, and torch with CUDA",
                hint="a program can be planned and saved here; load it where the GPU is",
            )
        self._library, self._module = found, ctypes.c_void_p()
        _bind(found)
        # The driver reads the image when it loads it, and keeps nothing of it.
        _check(found, found.cuModuleLoadData(ctypes.byref(self._module), cubin), "load")

    def function(self, symbol: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        status = self._library.cuModuleGetFunction(
            ctypes.byref(function), self._module, symbol.encode()
        )
        _check(self._library, status, symbol)
        return function

    def launch(
        self, function: ctypes.c_void_p, launch: Launch, pointers: Sequence[int], stream: int
    ) -> None:
        """Starts a kernel; the arguments are addresses of memory of the device."""
        values = (ctypes.c_void_p * len(pointers))(*pointers)
        size = ctypes.sizeof(ctypes.c_void_p)
        places = (ctypes.c_void_p * len(pointers))(
            *(ctypes.addressof(values) + n * size for n in range(len(pointers)))
        )
        given = (
            function, launch.blocks, 1, 1, launch.threads, 1, 1, 0, ctypes.c_void_p(stream),
            places, None,
        )  # fmt: skip
        status = self._library.cuLaunchKernel(*given)
        if status in _UNBOUND:
            _bind(self._library)
            status = self._library.cuLaunchKernel(*given)
        _check(self._library, status, "launch")


@lru_cache(maxsize=1)
def _library() -> Any:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _bind(library: Any) -> None:
    """Makes torch's context, the primary one of its current device, that of this thread, which has
    none before it calls torch for something that the driver has to do: an allocation from torch's
    cache isn't such a thing."""
    context, device = ctypes.c_void_p(), ctypes.c_int()
    _check(library, library.cuCtxGetCurrent(ctypes.byref(context)), "context")
    if context.value:
        return
    import torch

    number = torch.cuda.current_device() if torch.cuda.is_available() else 0
    _check(library, library.cuDeviceGet(ctypes.byref(device), number), "context")
    _check(library, library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "context")
    _check(library, library.cuCtxSetCurrent(context), "context")


def _check(library: Any, status: int, where: str) -> None:
    if status:
        message = ctypes.c_char_p()
        library.cuGetErrorString(status, ctypes.byref(message))
        raise LoweringError(
            what="the CUDA driver refuses a kernel",
            where=where,
            got=(message.value or str(status).encode()).decode(),
            hint="the term still runs through torch",
        )
