"""Files that a user asks for, by ``save``, ``to_onnx``, ``to_html`` or the command line: whole, or
not there at all. Not here: the cache directory, where what can't be kept isn't (``kept.py``).
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eqsynth.errors import FileError


@contextmanager
def written(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Where to write a file that stands at ``path`` once the block has ended; where it fails, what
    stood there before is left.

    Files that the block writes beside it are put beside ``path``.

    Raises:
        FileError: there is no such folder, it can't be written to, the disk is full, or ``path`` is
            a folder.

    >>> with written("report.html") as place:  # doctest: +SKIP
    ...     place.write_text(page)
    """
    path = Path(path)
    check(path)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}-") as folder:
            yield Path(folder) / path.name
            # The file last: what it refers to is there once it is.
            for made in sorted(Path(folder).iterdir(), key=lambda p: p.name == path.name):
                os.replace(made, path.parent / made.name)
    except OSError as error:
        raise _refused(path, error.errno or 0, str(error)) from error


def check(path: str | os.PathLike[str]) -> None:
    """Refuses a path that no file can be written to, before the work for it is done.

    Raises:
        FileError: as :func:`written`, but for the disk, which may be full later.
    """
    path = Path(path)
    if path.is_dir():
        raise _refused(path, errno.EISDIR)
    if not path.parent.exists():
        raise _refused(path, errno.ENOENT)
    if not path.parent.is_dir():
        raise _refused(path, errno.ENOTDIR)
    if not os.access(path.parent, os.W_OK):
        raise _refused(path, errno.EACCES)


def _refused(path: Path, number: int, told: str = "") -> FileError:
    return FileError(
        "the file can't be written",
        where=str(path),
        got=os.strerror(number) if number else told,
        expected="the path of a file, in a folder that exists and can be written to",
        hint=_HINTS.get(number, ""),
    )


_HINTS = {
    errno.ENOENT: "make the folder first",
    errno.EISDIR: "name a file in the folder",
    errno.ENOSPC: "the disk is full: what stood there before is as it was",
}
