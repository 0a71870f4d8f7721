"""Saving a compiled program to one file, and loading it without the optimizer.

    save(program, "bert.eqsynth")            program = load("bert.eqsynth")

The file is a zip: ``manifest.json`` (steps, kernels, the calling convention), the arrays as raw
bytes (``tensors/0``, ``tensors/1``, …), and the code of generated kernels if there are any
(``carrying.py``). Members aren't compressed, so that the memory which a file takes is known before
anything is read. Nothing in it is unpickled; but kernels are code, so load files only from people
whose programs you would run.

Constants are stored in plain form and packed again when the program is loaded. Not here: programs
as data (``program_data.py``), kernels as data (``kernel_data.py``), how a loaded program is called
(``calling.py``).
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Sequence
from typing import IO, Any, Final

import torch

from eqsynth.errors import EqsynthError, FileError, LoweringError
from eqsynth.lower.manifest import row, rows, shape, text
from eqsynth.lower.places import host_by_default
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.program_data import Parts, from_parts, to_parts
from eqsynth.lower.torch_scalars import as_bytes
from eqsynth.written import written

FORMAT: Final = "eqsynth program"
VERSION: Final = 8
# The dtypes that arrays may have: also dtypes that the IR lacks, for operators that run through
# torch.
_DTYPES: Final = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32,
        torch.complex64, torch.complex128, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    )
}  # fmt: skip
_MANIFEST, _LIBRARY = "manifest.json", "kernels"


@host_by_default
def save(program: CompiledProgram, path: str | os.PathLike[str]) -> None:
    """Write a program to a file, whole or not at all.

    A program that is the original module is saved as the operators of torch that ``torch.export``
    finds in it. The report and the explanation are saved as text.

    Raises:
        EqsynthError: ``program`` isn't a compiled program.
        LoweringError: a part of the program isn't plain data: an operator with a subgraph as its
            argument, an original that ``torch.export`` refuses, arguments of other classes.
        FileError: the file can't be written.
    """
    if not isinstance(program, CompiledProgram):
        raise EqsynthError(
            "save: this is no compiled program",
            got=type(program).__name__,
            expected="a CompiledProgram, which eqsynth.optimize returns",
            hint="optimize the module first",
        )
    parts = to_parts(program)
    with written(path) as place, place.open("wb") as file:
        _write(file, parts)


@host_by_default
def dumps(program: CompiledProgram) -> bytes:
    """The bytes of the file that :func:`save` would write."""
    file = io.BytesIO()
    _write(file, to_parts(program))
    return file.getvalue()


@host_by_default
def loads(data: bytes) -> CompiledProgram:
    """The program in the bytes that :func:`dumps` returned. See :func:`load`."""
    return _load(io.BytesIO(data), "a pickled program")


@host_by_default
def load(path: str | os.PathLike[str], recompile: bool = False) -> CompiledProgram:
    """Load the program that :func:`save` wrote to a file.

    Args:
        recompile: build the generated kernels again for this machine, from their terms and
            schedules in the file, instead of loading their machine code. This takes TVM, and
            seconds. The choice of kernels was measured on the other machine, so ``optimize`` here
            may find a faster program.

    Raises:
        LoweringError: the file is no bundle, is damaged or of another version, or its kernels can't
            run on this machine.
        FileError: ``path`` is a directory.
        OSError: the file can't be opened.
        TypeError: ``path`` isn't a path. (An integer would name an open file of the process.)

    >>> program = load("program.eqsynth")  # doctest: +SKIP
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        raise FileError(
            what="this is no file",
            where=str(path),
            got="a directory",
            expected="a file that eqsynth wrote",
            hint="give the path of the file in it",
        )
    with open(path, "rb") as file:
        return _load(file, path, recompile)


def _write(file: IO[bytes], parts: Parts) -> None:
    tensors = [[list(x.shape), str(x.dtype).removeprefix("torch.")] for x in parts.tensors]
    head = {"format": FORMAT, "version": VERSION, "torch": torch.__version__}
    manifest = head | {"machine": parts.machine, "tensors": tensors, "program": parts.program}
    with zipfile.ZipFile(file, "w") as bundle:
        bundle.writestr(_MANIFEST, json.dumps(manifest))
        for position, value in enumerate(parts.tensors):
            flat = as_bytes(value.cpu())
            with bundle.open(_member(position), "w", force_zip64=True) as member:
                member.write(flat.numpy().data)
        if parts.library:
            bundle.writestr(_LIBRARY, parts.library)


def _member(position: int) -> str:
    return f"tensors/{position}"


def _load(file: IO[bytes], path: object, recompile: bool = False) -> CompiledProgram:
    try:
        with zipfile.ZipFile(file) as bundle:
            sizes = _sizes(bundle, file)
            if _MANIFEST not in sizes:
                raise ValueError(f"it has no {_MANIFEST}")
            manifest = json.loads(bundle.read(_MANIFEST))
            head = _head(manifest, path)
            kinds = rows(head["tensors"], _kind)
            wanted = {_member(n): _bytes(*kind) for n, kind in enumerate(kinds)}
            extra = {_LIBRARY: sizes[_LIBRARY]} if _LIBRARY in sizes else {}
            if sizes != {_MANIFEST: sizes[_MANIFEST], **wanted, **extra}:
                raise ValueError("its arrays aren't those of the manifest")
            tensors = [_tensor(bundle, n, *kind) for n, kind in enumerate(kinds)]
            library = bundle.read(_LIBRARY) if extra else b""
        return from_parts(Parts(head["program"], tensors, library, head["machine"]), recompile)
    except LoweringError as error:
        error.where = error.where or str(path)
        raise
    except Exception as error:  # a damaged file may make Python, zlib and torch raise anything
        raise _damaged(path, error) from error


def _sizes(bundle: zipfile.ZipFile, file: IO[bytes]) -> dict[str, int]:
    """The size of each member in bytes, checked: together they are no larger than the file."""
    members = bundle.infolist()
    sizes = {member.filename: member.file_size for member in members}
    stored = all(m.compress_type == zipfile.ZIP_STORED for m in members)
    total = file.seek(0, os.SEEK_END)
    if not stored or len(sizes) < len(members) or sum(sizes.values()) > total:
        raise ValueError("its members are compressed, twice there, or overlap")
    return sizes


def _head(manifest: Any, path: object) -> dict[str, Any]:
    """The manifest's fields, checked."""
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError("its manifest is none of eqsynth's")
    if manifest.get("version") != VERSION:
        raise LoweringError(
            what="the file was written by another version of eqsynth",
            where=str(path),
            got=f"format {str(manifest.get('version'))[:20]}",
            expected=f"format {VERSION}",
            hint="save the program again with this version",
        )
    if manifest.keys() != {"format", "version", "torch", "machine", "tensors", "program"}:
        raise ValueError("its manifest has other fields")
    text(manifest["torch"])
    rows(manifest["machine"], text)
    return manifest


def _damaged(path: object, reason: Exception) -> LoweringError:
    return LoweringError(
        what="the file is no program of eqsynth, or is damaged",
        where=str(path),
        got=f"{type(reason).__name__}: {reason}"[:500],
        expected="a file that eqsynth wrote",
        hint="save the program again; a model (.pt2, .onnx) is first made one: eqsynth optimize",
    )


def _kind(data: Any) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape and dtype of an array."""
    extents, dtype = row(data, 2)
    return shape(extents), _DTYPES[text(dtype)]


def _bytes(extents: Sequence[int], dtype: torch.dtype) -> int:
    """The number of bytes of an array."""
    size = dtype.itemsize
    for extent in extents:
        size *= extent
    return size


def _tensor(
    bundle: zipfile.ZipFile, position: int, extents: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Read one array into a tensor."""
    result = torch.empty(extents, dtype=dtype)
    memory = result.reshape(-1).view(torch.uint8).numpy().data.cast("B")
    member: Any  # typeshed doesn't know its readinto
    with bundle.open(_member(position)) as member:
        done = 0
        while done < len(memory):
            count = member.readinto(memory[done:])
            if not count:
                raise EOFError(f"array {position} ends early")
            done += count
        if member.read(1):  # reading at the end makes zipfile compare the checksum
            raise EOFError(f"array {position} goes on")
    return result
