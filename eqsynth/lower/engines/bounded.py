"""A deadline for compilations by Inductor in this process.

Inductor compiles for seconds to minutes, and waits for C++ compilers for most of this time. A
worker that compiles is killed at its deadline (``executor.py``), but the user's own process can't
be. So Inductor is made to check the clock before each operator that it lowers and before each
kernel that it writes (one of many strides takes seconds), and a C++ compiler that still runs at the
deadline is killed.

    with until(time.monotonic() + 5):
        ...                                     builds kernels, and somewhere below
        with looking_at_the_clock():            compiles by Inductor: raises TimeoutError

Kernels that were compiled before the deadline stay in Inductor's own caches. Not here: who compiles
(``inductor.py``, ``eqsynth/compile_backend.py``), and how much time there is.
"""

from __future__ import annotations

import functools
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any
from unittest import mock

_end: ContextVar[float] = ContextVar("eqsynth_compiling_until", default=math.inf)


@contextmanager
def until(end: float) -> Iterator[None]:
    """Set the deadline of compilations in this block, by the monotonic clock. An earlier deadline
    of a block around this one still holds."""
    token = _end.set(min(end, _end.get()))
    try:
        yield
    finally:
        _end.reset(token)


def left_s() -> float:
    """Seconds until the deadline; infinite without one."""
    return _end.get() - time.monotonic()


@contextmanager
def looking_at_the_clock() -> Iterator[None]:
    """Make Inductor's compilations in this block end at the deadline, with an error of Inductor's
    whose cause is a ``TimeoutError``."""
    end = _end.get()
    if end == math.inf:
        yield
        return
    from torch._inductor import cpp_builder
    from torch._inductor.codegen.cpp import CppKernelProxy
    from torch._inductor.graph import GraphLowering

    def in_time(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def checked(*args: Any, **options: Any) -> Any:
            _check(end)
            return method(*args, **options)

        return checked

    lower, write = GraphLowering.run_node, CppKernelProxy.codegen_functions
    with (
        mock.patch.object(GraphLowering, "run_node", in_time(lower)),
        mock.patch.object(CppKernelProxy, "codegen_functions", in_time(write)),
        mock.patch.object(cpp_builder, "subprocess", _Compilers(end)),
    ):
        _check(end)
        yield


def is_late(error: BaseException | None) -> bool:
    """Whether an error was caused by the deadline."""
    while error is not None and not isinstance(error, TimeoutError):
        error = error.__cause__ or error.__context__
    return error is not None


def _check(end: float) -> None:
    if time.monotonic() >= end:
        raise TimeoutError("Inductor was not ready in its time")


class _Compilers:
    """A stand-in for the module ``subprocess`` in Inductor. Its processes are killed at the
    deadline, with all processes that they have started, since ``g++`` starts other processes to do
    the work."""

    def __init__(self, end: float) -> None:
        self._end = end

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def run(
        self, command: Sequence[str], *, check: bool = False, **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """``subprocess.run`` with the deadline as its timeout."""
        _check(self._end)
        if options.pop("capture_output", False):
            options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, start_new_session=True, **options) as process:
            try:
                out, err = process.communicate(timeout=max(self._end - time.monotonic(), 0.0))
            except BaseException as error:
                # The deadline has come, or the user has pressed Ctrl-C, which doesn't reach
                # processes of another session.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                raise TimeoutError("a C++ compiler was not ready in its time") from None
        if check and process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, out, err)
        return subprocess.CompletedProcess(command, process.returncode, out, err)
