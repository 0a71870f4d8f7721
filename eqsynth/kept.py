"""Files in the cache directory: values that take long to compute, one in each file.

Every file begins with a checksum of its content. A new file is written under another name and then
renamed, so that no reader finds half of it. When the files of a directory have too many bytes, the
files that were unused for longest are deleted. A process checks this at its first file, then after
each 256th of the allowed bytes, so it may exceed the limit by a 256th. A damaged file, or a
directory that can't be read or written, costs time but raises no error. Although the directory
belongs to the user, a pickled value is read as data: it can't call functions. Not here: which
values are kept, and under which names (``egraph/remembered.py``, ``extract/chosen.py``,
``lower/tvm_kept.py``).
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tempfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import platformdirs

Classes = Mapping[tuple[str, str], Callable[..., Any]]
"""The classes that may occur in a pickled value, and the functions that construct their objects, by
module and name."""

_PACKAGE: Final = Path(__file__).resolve().parent
_CHECKSUM: Final = 16


def directory(name: str) -> Path:
    """Return the directory of the files of one kind, in ``$EQSYNTH_CACHE`` or in the user's cache
    directory: ``directory("plans-4")`` -> ``~/.cache/eqsynth/plans-4``."""
    home = os.environ.get("EQSYNTH_CACHE") or platformdirs.user_cache_dir("eqsynth")
    return Path(home) / name


def code_of(*layers: str) -> str:
    """Return a digest of the present code of some subpackages, as ``code_of("egraph", "ir")``."""
    paths = [path for layer in layers for path in (_PACKAGE / layer).rglob("*.py")]
    return _digest_of_files(tuple(sorted((str(p), p.stat().st_mtime_ns) for p in paths)))


@lru_cache(maxsize=4)
def _digest_of_files(files: tuple[tuple[str, int], ...]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for name, _changed in files:
        data = Path(name).read_bytes()
        found.update(f"{name.removeprefix(str(_PACKAGE))} {len(data)}\n".encode() + data)
    return found.hexdigest()


def classes(*kinds: Callable[..., Any]) -> Classes:
    """Return the table of these classes and functions for :func:`load`."""
    return {(kind.__module__, kind.__name__): kind for kind in kinds}


def load(path: Path, known: Classes) -> Any:
    """Return the pickled value of a file; None if there is no intact file, or if the value contains
    a class or function that isn't in ``known``."""
    data = read(path)
    try:
        return None if data is None else _Reader(data, known).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError, IndexError):
        return None


def read(path: Path) -> bytes | None:
    """Return the bytes that were kept in a file, and record that the file was used now; None if
    there is no file or it is damaged."""
    try:
        data = path.read_bytes()
        if hashlib.blake2b(data[_CHECKSUM:], digest_size=_CHECKSUM).digest() != data[:_CHECKSUM]:
            return None
        found = zlib.decompress(data[_CHECKSUM:])
    except (OSError, zlib.error):
        return None
    with suppress(OSError):
        os.utime(path)
    return found


def keep(path: Path, value: Any, max_bytes: int) -> None:
    """Keep a value, pickled. ``max_bytes`` is the limit for all files of the directory together."""
    write(path, pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL), max_bytes)


def write(path: Path, data: bytes, max_bytes: int | None = None) -> None:
    """Keep bytes. Nothing is kept if the file can't be written or is larger than ``max_bytes``.

    Args:
        max_bytes: the limit for all files of the directory together; None to check no limit, for a
            small file beside one that was kept just now.
    """
    packed = zlib.compress(data, 1)
    whole = hashlib.blake2b(packed, digest_size=_CHECKSUM).digest() + packed
    if max_bytes is not None and len(whole) > max_bytes:
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix="new-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(whole)
            # A renamed file appears as a whole, so nobody reads half of it.
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
        if max_bytes is not None and _is_time_to_look(path.parent, len(whole), max_bytes):
            _shrink(path.parent, max_bytes)


def forget(path: Path) -> None:
    """Delete a file, if it exists and can be deleted."""
    with suppress(OSError):
        path.unlink()


# Directory -> the bytes that this process has written to it since it last checked the limit.
_written: Final[dict[Path, int]] = {}


def _is_time_to_look(home: Path, size: int, max_bytes: int) -> bool:
    """Whether to check the limit of a directory now: when the process writes its first file there,
    then whenever it has written another 256th of ``max_bytes``. A check lists all files. If every
    write did that, writing a thousand small files would take a minute.

    Args:
        size: the bytes of the file that was written just now.
    """
    written = _written.get(home, max_bytes) + size
    looks = written * 256 >= max_bytes
    _written[home] = 0 if looks else written
    return looks


def _shrink(home: Path, max_bytes: int) -> None:
    """Delete the files that were unused for longest until the rest has at most ``max_bytes``. Other
    processes may do the same at the same time, so a file may be gone already."""
    found = []
    for path in home.iterdir():
        with suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size, path))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= max_bytes:
            return
        with suppress(OSError):
            path.unlink()
        left -= size


class _Reader(pickle.Unpickler):
    """Reads a pickled value that may contain only known classes and functions.

    Pickle stores a subterm that several terms or log entries share only once; as trees they would
    be larger by orders of magnitude. But a pickled value may name any function to be called on
    reading, so this reader refuses names that it doesn't know.
    """

    def __init__(self, data: bytes, known: Classes) -> None:
        super().__init__(io.BytesIO(data))
        self._known = known

    def find_class(self, module: str, name: str) -> Any:
        known = self._known.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of what is kept here")
        return known
