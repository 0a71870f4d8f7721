"""Write the profile of a device to a file, and read it on a machine without the device.

    write(target, "h100.json")    (where the device is)
    read("h100.json")             (elsewhere; from then on also read("h100"))

A profile that was read is kept in the cache directory under the file's name without its ending. Not
here: times of kernels (``Profile.import_from``).
"""

from __future__ import annotations

import os
from pathlib import Path

from eqsynth import kept
from eqsynth.errors import EqsynthError
from eqsynth.extract.target import KINDS, Target
from eqsynth.written import written


def write(target: Target, path: str | os.PathLike[str]) -> None:
    """Write the profile of a device to a file.

    Raises:
        FileError: the file can't be written.
    """
    with written(path) as place:
        place.write_text(target.to_json() + "\n", encoding="utf-8")


def read(name: str | os.PathLike[str]) -> Target:
    """Return the target of a file, or of a file that was read before, by its name without the
    ending.

    Raises:
        EqsynthError: there is no such file, or it holds no target.
    """
    path = Path(name)
    if not path.is_file():
        known = kept.read(_home() / path.name) if path.name == str(name) else None
        if known is None:
            raise EqsynthError(
                f"optimize: unknown target {os.fspath(name)!r}",
                got=repr(os.fspath(name)),
                expected=", ".join(map(repr, KINDS)) + ", the profile of a device, or its name",
                hint="eqsynth profile --device cuda, where the device is, writes such a file",
            )
        return _target(known.decode(), path)
    target = _target(path.read_text(encoding="utf-8", errors="replace"), path)
    kept.write(_home() / path.stem, target.to_json().encode())
    return target


def _target(text: str, path: Path) -> Target:
    try:
        return Target.from_json(text)
    except ValueError as error:
        raise EqsynthError(
            "the file is no profile of a device",
            where=str(path),
            got=str(error)[:300],
            expected="what eqsynth profile --device writes",
            hint="write it again on the machine that has the device",
        ) from error


def _home() -> Path:
    return kept.directory("targets-1")
