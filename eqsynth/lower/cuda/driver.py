"""Load and launch cubins by the CUDA driver, in torch's context and on torch's stream.

This takes three functions of ``libcuda``, and four that find torch's context. TVM's runtime for
CUDA isn't used: it would load libraries of 7 MB to call the same functions. A launch on torch's own
stream becomes a part of a CUDA graph that torch records.

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
# The driver's errors in a thread without a context, and for a handle of another context.
_UNBOUND: Final = (201, 400)


@dataclass(frozen=True)
class Launch:
    """The numbers of blocks, and of threads in each block, that a kernel is started with."""

    blocks: int
    threads: int


def missing() -> str:
    """Return the reason why this machine can't run programs on a GPU; an empty string if it can.

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
    """A cubin, loaded into torch's context.

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
        # The driver copies the image when it loads it, so the image needn't be kept.
        _check(found, found.cuModuleLoadData(ctypes.byref(self._module), cubin), "load")

    def function(self, symbol: str) -> ctypes.c_void_p:
        """The handle of a kernel."""
        function = ctypes.c_void_p()
        status = self._library.cuModuleGetFunction(
            ctypes.byref(function), self._module, symbol.encode()
        )
        _check(self._library, status, symbol)
        return function

    def launch(
        self, function: ctypes.c_void_p, launch: Launch, pointers: Sequence[int], stream: int
    ) -> None:
        """Start a kernel. Its arguments are addresses of the device's memory."""
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
    """Make the primary context of torch's current device, which torch uses, the context of this
    thread. A thread has no context until torch has called the driver in it; an allocation from
    torch's cache doesn't call the driver."""
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
    """Raise an error if a function of the driver has returned one."""
    if status:
        message = ctypes.c_char_p()
        library.cuGetErrorString(status, ctypes.byref(message))
        raise LoweringError(
            what="the CUDA driver refuses a kernel",
            where=where,
            got=(message.value or str(status).encode()).decode(),
            hint="the term still runs through torch",
        )
