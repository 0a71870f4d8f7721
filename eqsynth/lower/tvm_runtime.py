"""What compiled TVM kernels need to run: torch's threads, and loading without the compiler.

A kernel library finds its runtime through symbols that are registered with ``tvm_ffi``. Calling a
kernel before any are registered crashes the process, so every library is loaded after
:func:`ensure_runtime`. ``tvm`` itself is never imported.

Also here: the C compiler, the cache folder of native code, and the conversion of TVM's errors. Not
here: making kernels (``eoperators.py``, ``tvm_backend.py``).
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from eqsynth.errors import LoweringError
from eqsynth.extract.kernel import Kernel

Threads = Literal["torch", "tvm"]

_SOURCE = Path(__file__).with_name("threads.c")
_OPENMP = ("libgomp", "libomp", "libiomp")


LOADING: Final = threading.RLock()
"""Held while a runtime is registered, while ``tvm`` is imported, which registers its own, and while
a library is loaded, which looks at what is registered. TVM keeps that in an array without a lock of
its own: two threads that compiled kernels crashed the worker in two of about 130 searches."""


def ensure_runtime() -> Threads:
    """Register a runtime for the libraries that are loaded next: torch's threads if possible, else
    TVM's own pool.

    The registration holds for the whole process, and importing ``tvm`` registers TVM's own runtime.
    So this is called before each load, and registers once before and once after that import.

    Raises:
        LoweringError: there is neither a C compiler nor ``libtvm_runtime``.
    """
    with LOADING:
        return _registered("tvm" in sys.modules)


def library() -> Any:
    """The library compiled from ``threads.c``; None if TVM's own threads run the kernels."""
    return _torch_threads()[0] if ensure_runtime() == "torch" else None


@lru_cache(maxsize=2)
def _registered(_tvm_is_imported: bool) -> Threads:
    library, reason = _torch_threads()
    if library is not None and library.eqsynth_install() == 0:
        return "torch"
    _tvm_threads(reason)
    return "tvm"


@lru_cache(maxsize=1)
def _torch_threads() -> tuple[Any, str]:
    """The library compiled from ``threads.c``, or None; and why there is none."""
    try:
        return ctypes.CDLL(str(_built())), "it did not register"
    except subprocess.CalledProcessError as error:
        return None, f"threads.c did not compile: {error.stderr.strip()[-500:]}"
    except OSError as error:
        return None, str(error)


@lru_cache(maxsize=1)
def _tvm_threads(reason: str) -> None:
    """Load TVM's own runtime, with a warning that gives the reason.

    Raises:
        LoweringError: it isn't installed.
    """
    spec = importlib.util.find_spec("tvm")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [path for folder in folders for path in Path(folder).glob("lib/libtvm_runtime.*")]
    if not found:
        raise LoweringError(
            what="nothing can run TVM kernels here",
            got=reason,
            expected="a C compiler, or libtvm_runtime of the apache-tvm package",
            hint="install a C compiler (or set CC), or `pip install apache-tvm`",
        )
    import tvm_ffi  # noqa: F401  the runtime links against its library

    ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL)
    warnings.warn(
        f"TVM kernels run on TVM's own threads, which compete with torch's: {reason}. "
        "Install a C compiler, or set CC, to run them on torch's.",
        RuntimeWarning,
        stacklevel=4,
    )


def _built() -> Path:
    """Compile ``threads.c`` against torch's OpenMP. The result is kept under a hash of its inputs.

    Raises:
        OSError: there is no compiler, or torch has no OpenMP that is known here.
        subprocess.CalledProcessError: the compiler failed.
    """
    import tvm_ffi.libinfo

    compiler, openmp = c_compiler(), _torch_openmp()
    ffi = Path(tvm_ffi.libinfo.find_libtvm_ffi())
    key = hashlib.blake2b(digest_size=12)
    for part in (_SOURCE.read_bytes(), compiler, openmp, ffi):
        key.update(str(part).encode() + b"\0")
    target = cache_directory() / f"threads-{key.hexdigest()}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            unit = Path(folder) / "threads.o"
            # Two steps: linking with -fopenmp would add the compiler's own OpenMP.
            run_compiler("-O2", "-fPIC", "-fopenmp", "-c", _SOURCE, "-o", unit)
            made = link([unit, openmp, ffi], Path(folder) / target.name)
            os.replace(made, target)  # atomic: another process sees all of it or nothing
    return target


def _torch_openmp() -> Path:
    """The OpenMP library that torch has loaded; a wheel brings its own, under a name of its own."""
    import torch

    maps = Path("/proc/self/maps")
    if maps.exists():
        loaded = {line.split(maxsplit=5)[-1].strip() for line in maps.read_text().splitlines()}
        found = [Path(p) for p in sorted(loaded) if Path(p).name.startswith(_OPENMP)]
    else:
        found = []
    home = Path(torch.__file__).parent
    # If a process has two of them (scikit-learn brings one, too), torch's own comes first.
    found.sort(key=lambda path: home not in path.parents and "torch" not in path.parent.name)
    if not found:
        raise OSError("torch uses no OpenMP library that is known here")
    return found[0]


def c_compiler() -> str:
    """The system's C compiler: ``$CC``, else cc, gcc or clang.

    Raises:
        OSError: there is none.
    """
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (path := shutil.which(name)):
            return path
    raise OSError("no C compiler")


def run_compiler(*arguments: str | Path) -> None:
    """Run the C compiler, for two minutes at most.

    Raises:
        OSError: there is no C compiler.
        subprocess.CalledProcessError: it failed.
    """
    command = [c_compiler(), *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)


def link(units: list[Path], target: Path) -> Path:
    """Link object files, and the libraries that they need, into a shared library."""
    run_compiler("-shared", "-o", target, *units)
    return target


def check_room(path: Path, count: int) -> None:
    """Check that a file of so many bytes can be written. LLVM, which writes object files, ends the
    process if it can't write.

    Raises:
        LoweringError: the file can't be written.
    """
    try:
        with path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, count)
        path.unlink()
    except OSError as error:
        raise LoweringError(
            what="there is no room to link kernels",
            where=str(path.parent),
            got=error.strerror or str(error),
            expected=f"{count:,} bytes for a short time",
            hint="make room there, or name another folder by TMPDIR",
        ) from error


def cache_directory() -> Path:
    """The folder of native code in ``$EQSYNTH_CACHE`` or the user's cache; if that can't be
    written, a folder of this process's own."""
    import platformdirs

    home = os.environ.get("EQSYNTH_CACHE") or platformdirs.user_cache_dir("eqsynth")
    path = Path(home) / "native"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    return _own_folder()


@lru_cache(maxsize=1)
def _own_folder() -> Path:
    """A temporary folder of this process."""
    return Path(tempfile.mkdtemp(prefix="eqsynth-"))


def load_library(data: bytes) -> Any:
    """Load a library that ``export_library`` made; ``module[name]`` is a kernel of it.

    This needs ``apache-tvm-ffi`` and a runtime, but not the compiler.

    Raises:
        LoweringError: the library can't be loaded, or nothing can run it.
    """
    import tvm_ffi

    name = f"kernels-{hashlib.blake2b(data, digest_size=12).hexdigest()}.so"
    folder = Path(tempfile.mkdtemp(dir=cache_directory()))
    try:
        # The file lies in a folder of its own, and is deleted once it is loaded: no other library
        # can get its path.
        path = folder / name
        path.write_bytes(data)
        with LOADING:
            ensure_runtime()
            return tvm_ffi.load_module(path)
    except (OSError, RuntimeError, ValueError) as error:
        raise LoweringError(
            what="a library of kernels could not be loaded",
            got=str(error)[:500],
            expected="a library made for this kind of machine",
            hint="build the program again on this machine",
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the loaded library doesn't need its file


@contextmanager
def compiling(kernels: Iterable[Kernel], what: str, expected: str) -> Iterator[None]:
    """A context in which each error becomes a ``LoweringError``: TVM's errors have no common base
    but Exception.

    Raises:
        LoweringError: anything went wrong.
    """
    try:
        yield
    except LoweringError:
        raise
    except Exception as error:
        raise LoweringError(
            what=what,
            where=", ".join(str(kernel.term.type) for kernel in [*kernels][:4]),
            got=f"{type(error).__name__}: {error}"[:2000],
            expected=expected,
            hint="the term still runs through torch",
        ) from error
