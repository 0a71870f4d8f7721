"""Compiled kernels in the cache directory: what one process has compiled, others load.

The measuring worker compiles a kernel to time it; to run the kernel, no process has to compile it
again. Each compilation keeps a library, and for each of its kernels a note with the library's name
and the kernel's name in it. Not here: compiling (``tvm_backend.py``), loading (``tvm_runtime.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from eqsynth import kept
from eqsynth.errors import LoweringError
from eqsynth.extract.kernel import Kernel
from eqsynth.ir.scalar import digest_of
from eqsynth.lower import tvm_runtime

MAX_BYTES: Final = 256 << 20
"""The most bytes that are kept; above it the files that weren't used for the longest time are
deleted."""


def load(kernels: Iterable[Kernel]) -> dict[Kernel, Any]:
    """The functions of those kernels that are kept."""
    found, home = {}, _home()
    for kernel in kernels:
        note = kept.read(home / _name(kernel))
        if note is not None:
            library, _, symbol = note.decode().partition(" ")
            try:
                found[kernel] = _library(home / library)[symbol]
            except (AttributeError, LoweringError):
                continue  # the library is gone or can't be loaded; the kernel is compiled again
    return found


def missing(kernels: Iterable[Kernel]) -> list[Kernel]:
    """The kernels that aren't kept."""
    home = _home()
    return [kernel for kernel in kernels if not (home / _name(kernel)).exists()]


def keep(names: Mapping[Kernel, str], library: bytes) -> None:
    """Keep a library, and the names of its kernels."""
    home, own = _home(), hashlib.blake2b(library, digest_size=16).hexdigest()
    kept.write(home / own, library, MAX_BYTES)
    for kernel, symbol in names.items():
        kept.write(home / _name(kernel), f"{own} {symbol}".encode())


def _home() -> Path:
    return kept.directory("kernels-1")


def _name(kernel: Kernel) -> str:
    """The file name of a kernel's note: a digest of everything that its code depends on."""
    import torch

    layouts = (kernel.inputs, kernel.output)
    how = (kernel.constants, kernel.implementation, *layouts, str(kernel.schedule))
    return digest_of(kernel.term.digest, how, _made_by(), torch.get_num_threads()).hex()


@lru_cache(maxsize=1)
def _made_by() -> tuple[str, ...]:
    """What the code of every kernel depends on: versions of libraries, eqsynth's own code, the
    processor."""
    # Imported here: a program that is loaded from a file keeps no kernels, and measures nothing.
    from eqsynth.extract.measure import cpu_flags, describe_cpu
    from eqsynth.extract.profile import library_versions

    processor = repr(describe_cpu()), *sorted(cpu_flags())
    return library_versions(), kept.code_of("ir", "lower"), *processor


@lru_cache(maxsize=64)
def _library(path: Path) -> Any:
    """Load a kept library.

    Raises:
        LoweringError: there is no such library, or it can't be loaded.
    """
    data = kept.read(path)
    if data is None:
        raise LoweringError("a kept library of kernels is missing", where=path.name)
    return tvm_runtime.load_library(data)
