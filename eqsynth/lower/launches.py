"""Kernels called one after the other by one call from Python.

    f0(a, b); f1(b, c); f2(c, d)    ->    one call of ``eqsynth_run`` (``threads.c``)

A small kernel takes as long as Python takes to call it: 0.4 us. (An LSTM of 10 steps and 512
features, AMD EPYC: 100 kernels take 0.45 ms.)

Not here: which kernels are called together (``steps.py``), their arguments' memory
(``workspace.py``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from eqsynth.lower import tvm_runtime


class _Call(ctypes.Structure):
    """``Call`` of ``threads.c``."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("tensors", ctypes.POINTER(ctypes.c_void_p)),
        ("count", ctypes.c_int32),
    )


class Launch:
    """Calls of kernels, as the C function takes them. It keeps the kernels and tensors alive.

    Attributes:
        address: where the calls lie in memory.
    """

    def __init__(self, calls: Sequence[tuple[Any, Sequence[Any]]]) -> None:
        """
        Args:
            calls: functions of ``tvm_ffi``, each with its tensors.
        """
        self._calls = [(function, tuple(tensors)) for function, tensors in calls]
        self._arrays = [
            (ctypes.c_void_p * len(tensors))(*(t.__chandle__() for t in tensors))
            for _, tensors in self._calls
        ]
        pointer = ctypes.POINTER(ctypes.c_void_p)
        self._table = (_Call * len(self._calls))(*(
            _Call(function.__chandle__(), ctypes.cast(array, pointer), len(array))
            for (function, _), array in zip(self._calls, self._arrays, strict=True)
        ))  # fmt: skip
        self.address = ctypes.addressof(self._table)

    def again(self) -> None:
        """Call the kernels from Python, which raises the error of the one that has failed."""
        for function, tensors in self._calls:
            function(*tensors)


def run() -> Callable[[int, int], int] | None:
    """The function that makes calls, given their address and number: it returns how many succeeded.
    None if TVM's own threads run the kernels, since there is no C compiler."""
    library = tvm_runtime.library()
    if library is None:
        return None
    function = library.eqsynth_run
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_int64), ctypes.c_int64
    found: Callable[[int, int], int] = function
    return found


def is_callable(function: Any, args: Sequence[Any]) -> bool:
    """Whether the C function can call a kernel with these constants, the other arguments being
    tensors of a workspace."""
    import tvm_ffi

    return isinstance(function, tvm_ffi.Function) and all(
        isinstance(arg, int | tvm_ffi.Tensor) for arg in args
    )
