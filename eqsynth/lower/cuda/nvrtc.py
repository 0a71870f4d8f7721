"""nvrtc: compile CUDA source text to a cubin, with or without a GPU.

The library is that of the wheel ``nvidia-cuda-nvrtc`` (the extra ``cuda``), or one that is
installed in the system. Its functions are called by ctypes, without Python bindings. Not here: the
text (``source.py``), what a cubin says about its kernels (``cubin.py``).

Source: NVRTC, CUDA Runtime Compilation (NVIDIA), "User Interface".
"""

from __future__ import annotations

import ctypes
import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch

from eqsynth.errors import LoweringError
from eqsynth.lower.cuda.code import PRELUDE

_FAMILY: Final = "libnvrtc.so"
_SYSTEM: Final = (f"{_FAMILY}.13", f"{_FAMILY}.12", _FAMILY)


def available() -> bool:
    """Whether this machine can compile cubins."""
    return _library() is not None


def compile_cubin(text: str, arch: str) -> bytes:
    """Compile a source, given without its prelude, to a cubin for one architecture.

    Args:
        arch: the architecture, such as ``sm_90``.

    Raises:
        LoweringError: nvrtc isn't installed, or refuses the source.

    >>> text = 'extern "C" __global__ void one(float* x) { x[threadIdx.x] = 1.0f; }'
    >>> compile_cubin(text, "sm_80")[:4] if available() else b"\\x7fELF"
    b'\\x7fELF'
    """
    library = _library()
    if library is None:
        raise LoweringError(
            what="nothing can compile CUDA here",
            got="no libnvrtc",
            expected="NVIDIA's runtime compiler; a GPU isn't needed",
            hint="pip install 'eqsynth[cuda]'",
        )
    program = ctypes.c_void_p()
    code = (PRELUDE + text).encode()
    _check(library, library.nvrtcCreateProgram(
        ctypes.byref(program), code, b"kernels.cu", 0, None, None
    ))  # fmt: skip
    try:
        options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", b"--disable-warnings"]
        array = (ctypes.c_char_p * len(options))(*options)
        status = library.nvrtcCompileProgram(program, len(options), array)
        if status:
            raise LoweringError(
                what="nvrtc refuses the source of a kernel",
                where=arch,
                got=_text(library, "ProgramLog", program)[:2000] or _message(library, status),
                expected=f"code for {arch}",
                hint="the term still runs through torch",
            )
        return _bytes(library, "CUBIN", program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def version() -> str:
    """The version of nvrtc, such as ``13.5``; empty if it isn't installed."""
    library = _library()
    if library is None:
        return ""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


@lru_cache(maxsize=1)
def _library() -> Any:
    """nvrtc, from a wheel or from the system; None if it isn't installed."""
    for name in (*_wheels(), *_SYSTEM):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library
    return None


def _wheels() -> list[str]:
    """The paths of nvrtc in NVIDIA's wheels: ``nvidia/cu13/lib`` since CUDA 13,
    ``nvidia/cuda_nvrtc/lib`` before. The version that torch was built with comes first: if the
    driver runs torch, it loads the cubins of this version, while a driver for CUDA 12 refuses those
    of 13. Then the newest comes first."""
    spec = importlib.util.find_spec("nvidia")
    homes = [Path(home) for home in (spec.submodule_search_locations or ())] if spec else []
    found = [path for home in homes for path in home.glob(f"*/lib/{_FAMILY}.*")]
    own = f".{(torch.version.cuda or '').partition('.')[0]}"
    found.sort(key=lambda path: (path.suffix == own, path.suffix), reverse=True)
    return [str(path) for path in found]


def _bytes(library: Any, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _text(library: Any, what: str, program: ctypes.c_void_p) -> str:
    return _bytes(library, what, program).rstrip(b"\0").decode(errors="replace").strip()


def _check(library: Any, status: int) -> None:
    if status:
        raise LoweringError("nvrtc failed", got=_message(library, status))


def _message(library: Any, status: int) -> str:
    message: bytes = library.nvrtcGetErrorString(status)
    return message.decode()
