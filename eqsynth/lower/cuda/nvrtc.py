"""nvrtc: CUDA's text compiled to a cubin, with or without a GPU.

The library is that of the wheel ``nvidia-cuda-nvrtc`` (the extra ``cuda``), or one that the system
has. It is called as its header says, without Python bindings: five functions. Not here: the text
(``source.py``), what a cubin says of its kernels (``cubin.py``).

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
    """Whether cubins can be made here."""
    return _library() is not None


def compile_cubin(text: str, arch: str) -> bytes:
    """The cubin of a source, without its prelude, for one kind of GPU.

    Args:
        arch: such as ``sm_90``.

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
    """Of nvrtc, such as ``13.5``; empty if there is none."""
    library = _library()
    if library is None:
        return ""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


@lru_cache(maxsize=1)
def _library() -> Any:
    for name in (*_wheels(), *_SYSTEM):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library
    return None


def _wheels() -> list[str]:
    """Libraries of NVIDIA's wheels: ``nvidia/cu13/lib`` since CUDA 13, ``nvidia/cuda_nvrtc/lib``
    before. First that of torch's own version, whose cubins the driver loads if it runs torch at
    all: a driver for CUDA 12 refuses those of 13. Then the newest."""
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
