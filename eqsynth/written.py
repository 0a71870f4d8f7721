"""Write a file that the user has asked for (``save``, ``to_onnx``, ``to_html``, the command line):
either the whole file is written, or ``path`` keeps its old content. Not here: the cache directory,
whose files may silently fail to be written (``kept.py``)."""

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
    """Give the block a temporary path to write to, and move the file to ``path`` when the block has
    ended. If the block or the move fails, the old file stays. Further files that the block writes
    in the same folder are moved beside ``path``.

    Raises:
        FileError: the folder doesn't exist or can't be written to, the disk is full, or ``path`` is
            a folder.

    >>> with written("report.html") as place:  # doctest: +SKIP
    ...     place.write_text(page)
    """
    path = Path(path)
    check(path)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}-") as folder:
            yield Path(folder) / path.name
            # `path` is moved last, so that the files that it refers to exist already.
            for made in sorted(Path(folder).iterdir(), key=lambda p: p.name == path.name):
                os.replace(made, path.parent / made.name)
    except OSError as error:
        raise _refused(path, error.errno or 0, str(error)) from error


def check(path: str | os.PathLike[str]) -> None:
    """Refuse a path that can't be written to, before the file's content is computed.

    Raises:
        FileError: as for :func:`written`, except for a full disk, which only shows later.
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
