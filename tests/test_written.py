"""Files that a user asks for: an error that names the path, or the whole file."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import eqsynth
from eqsynth.cli import app
from eqsynth.errors import FileError
from eqsynth.lower.program import CompiledProgram
from eqsynth.written import written


@pytest.fixture(scope="module")
def program() -> CompiledProgram:
    x = eqsynth.input("x", (4, 3))
    y = eqsynth.ops.softmax(x @ eqsynth.weight("w", (3, 2)), -1)
    return eqsynth.optimize(y, objective="flops")


WAYS: list[Callable[[CompiledProgram, Path], Any]] = [
    lambda program, path: eqsynth.save(program, path),
    lambda program, path: program.to_onnx(path),
    lambda program, path: program.report.to_html(path),
]


@pytest.mark.parametrize("write", WAYS, ids=["save", "to_onnx", "to_html"])
def test_a_path_that_no_file_can_have(
    write: Callable[[CompiledProgram, Path], Any], program: CompiledProgram, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for path, got in (
        (tmp_path / "none" / "x", errno.ENOENT),
        (tmp_path, errno.EISDIR),
        (tmp_path / "file" / "x", errno.ENOTDIR),
    ):
        with pytest.raises(FileError) as caught:
            write(program, path)
        assert caught.value.where == str(path) and caught.value.got == os.strerror(got)
        assert isinstance(caught.value, OSError)
    write(program, tmp_path / "file")
    assert (tmp_path / "file").stat().st_size
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_what_fails_in_the_middle_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError), written(path) as place:
        place.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "before" and len(list(tmp_path.iterdir())) == 1
    with written(path) as place:
        place.write_text("after")
        Path(f"{place}.data").write_text("beside")
    assert path.read_text() == "after" and (tmp_path / "kept.data").read_text() == "beside"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


@contextmanager
def a_disk_of(count: int) -> Iterator[None]:
    """A limit on the sizes of files plays the disk: writing fails as on a full one."""
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (count, was[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, was)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_text("before")
    with a_disk_of(64), pytest.raises(FileError) as caught, written(path) as place:
        place.write_bytes(bytes(65))
    assert caught.value.got == os.strerror(errno.EFBIG)
    assert path.read_text() == "before" and len(list(tmp_path.iterdir())) == 1


def test_the_command_line_says_so_before_it_searches(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["optimize", "none.pt2", "-o", str(tmp_path / "no" / "x")])
    assert result.exit_code == 2 and "make the folder first" in result.output


def test_an_error_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(FileError("what", where="here", got="g")))
    assert (type(error), str(error)) == (FileError, str(FileError("what", where="here", got="g")))
