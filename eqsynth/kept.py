"""What is kept in the cache directory because it takes long to make: a file each.

A file is sealed by a checksum and appears at once. Of too many bytes those go that weren't used for
longest, from time to time: each process may add a 256th to them. What is wrong with a file, or with
the directory, costs time only. The directory is the user's own; a pickled value is read as data all
the same. Not here: what is kept, and under which name (``egraph/remembered.py``,
``extract/chosen.py``, ``lower/tvm_kept.py``).
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
"""Classes that a pickled value may have parts of, and functions that make these, by module and
name."""

_PACKAGE: Final = Path(__file__).resolve().parent
_CHECKSUM: Final = 16


def directory(name: str) -> Path:
    """``$EQSYNTH_CACHE`` or the user's cache directory, and in it the files of one kind."""
    home = os.environ.get("EQSYNTH_CACHE") or platformdirs.user_cache_dir("eqsynth")
    return Path(home) / name


def code_of(*layers: str) -> str:
    """A digest of the code of some layers, as it is now."""
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
    return {(kind.__module__, kind.__name__): kind for kind in kinds}


def load(path: Path, known: Classes) -> Any:
    """The value of a file; None if there is none, or none of these classes."""
    data = read(path)
    try:
        return None if data is None else _Reader(data, known).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError, IndexError):
        return None


def read(path: Path) -> bytes | None:
    """The bytes that were kept in a file, which counts as used now; None if they aren't there."""
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
    """Keeps a value as data; ``max_bytes`` is of all files of the directory."""
    write(path, pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL), max_bytes)


def write(path: Path, data: bytes, max_bytes: int | None = None) -> None:
    """Keeps bytes; where nothing can be written, nothing is kept.

    Args:
        max_bytes: of all files of the directory; None where nobody needs to look, for a note
            beside a file that was kept just now.
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
            # At once, so that nobody reads half of it.
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
        if max_bytes is not None and _is_time_to_look(path.parent, len(whole), max_bytes):
            _shrink(path.parent, max_bytes)


def forget(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


_written: Final[dict[Path, int]] = {}


def _is_time_to_look(home: Path, size: int, max_bytes: int) -> bool:
    """Whether a directory is looked through for files that are too many: at a process's first file,
    then whenever it has written a 256th of what the directory may hold. Looking takes longer the
    more files there are: after each of them, a thousand small ones would take a minute."""
    written = _written.get(home, max_bytes) + size
    looks = written * 256 >= max_bytes
    _written[home] = 0 if looks else written
    return looks


def _shrink(home: Path, max_bytes: int) -> None:
    """Files go until the rest is small enough, longest unused first; other processes may be at it
    too."""
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
    """Pickle is the one format that keeps what terms and logs share (as trees they would be larger
    by orders of magnitude), but it may name any function to call. This reader knows some classes,
    and no function."""

    def __init__(self, data: bytes, known: Classes) -> None:
        super().__init__(io.BytesIO(data))
        self._known = known

    def find_class(self, module: str, name: str) -> Any:
        known = self._known.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of what is kept here")
        return known
