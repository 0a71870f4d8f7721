"""Saving a compiled program to one file, and loading it without the optimizer.

A bundle is a zip file: ``manifest.json`` (steps, kernels, the calling convention), the constants
as raw bytes, and TVM's kernels as a shared library, if there are any. Nothing in it is unpickled;
but a shared library is code, so load bundles only from those whose programs you would run.

Constants are stored as the kernels take them and packed again when loading. Not here: kernels as
data (``kernel_data.py``), how a loaded program is called (``calling.py``).
"""

from __future__ import annotations

import io
import json
import os
import platform
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import torch

from eqsynth.errors import EqsynthError, LoweringError
from eqsynth.extract.kernel import Backend, Kernel, Runner
from eqsynth.ir.operators import operator
from eqsynth.ir.tensor import Input, Op
from eqsynth.ir.types import DTYPES, TensorType
from eqsynth.lower import calling, tvm_backend, tvm_runtime
from eqsynth.lower.inductor import InductorBackend
from eqsynth.lower.kernel_data import kernel_from_data, kernel_to_data
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.steps import Parameter, Step
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lower.torch_scalars import torch_dtype
from eqsynth.lower.vendor import OneDnnBackend

FORMAT: Final = "eqsynth program"
VERSION: Final = 1
_TVM: Final = tvm_backend.TvmBackend.name
# What reading a file that isn't a bundle, or not a whole one, may raise.
_DAMAGE: Final = (
    zipfile.BadZipFile, zlib.error, EOFError, RecursionError, EqsynthError, KeyError, IndexError,
    TypeError, ValueError, AssertionError, AttributeError,
)  # fmt: skip


def save(program: CompiledProgram, path: str | os.PathLike[str]) -> None:
    """Writes a program to a file, whole or not at all.

    The report and the explanation are kept as text.

    Raises:
        LoweringError: the program runs Python functions (opaque operators, or the original module
            itself), or takes arguments that aren't plain data.
    """
    path, parts = Path(path), _parts(program)
    handle, temporary = tempfile.mkstemp(dir=path.parent or ".", prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            _write(file, *parts)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def dumps(program: CompiledProgram) -> bytes:
    """The file that :func:`save` would write."""
    file = io.BytesIO()
    _write(file, *_parts(program))
    return file.getvalue()


def loads(data: bytes) -> CompiledProgram:
    """The program of a file that :func:`dumps` has made."""
    return load(io.BytesIO(data))


def _parts(program: CompiledProgram) -> tuple[dict[str, Any], list[torch.Tensor], bytes]:
    """What a file holds: the manifest, the arrays, and the library of kernels."""
    if program.original is not None:
        raise LoweringError(
            what="this program is the original module, which eqsynth can't save",
            got=type(program.original).__name__,
            expected="a program of kernels",
            hint="save the module itself, with torch.export or torch.save",
        )
    kernels = list(dict.fromkeys(step.kernel for step in program.steps))
    for step in program.steps:
        term = step.kernel.term
        if isinstance(term, Op) and operator(term.name).kind == "opaque":
            raise LoweringError(
                what="an opaque operator is a Python function, which can't be saved",
                where=step.label or step.name,
                got=str(term.attrs[0]),
                expected="operators that eqsynth knows",
                hint="save the original module instead",
            )
    generated = [k for k in kernels if k.backend == _TVM]
    library, symbols = tvm_backend.export_library(generated) if generated else (b"", {})
    buffers = list(getattr(program.calling, "buffers", ()))
    targets = {
        position: next((k for k, known in enumerate(buffers) if known is buffer), None)
        for position, buffer in program.mutations.items()
    }
    for position, found in targets.items():
        if found is None:
            targets[position] = len(buffers)
            buffers.append(program.mutations[position])
    used = {arg for step in program.steps for arg in step.args} | set(program.outputs)
    constants = {name: value for name, value in program.constants.items() if name in used}
    tensors = [*constants.values(), *buffers]
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "torch": torch.__version__,
        "machine": _machine(),
        "inputs": [
            [p.input.name, list(p.input.shape), p.input.dtype, list(p.layout)]
            for p in program.inputs
        ],
        "kernels": [kernel_to_data(kernel) | {"symbol": symbols.get(kernel)} for kernel in kernels],
        "steps": [
            [step.name, kernels.index(step.kernel), list(step.args), step.label]
            for step in program.steps
        ],
        "outputs": list(program.outputs),
        "constants": list(constants),
        "tensors": [
            [list(value.shape), str(value.dtype).removeprefix("torch.")] for value in tensors
        ],
        "buffers_read": len(getattr(program.calling, "buffers", ())),
        "mutations": [[position, target] for position, target in targets.items()],
        "calling": calling.to_data(getattr(program.calling, "convention", program.calling)),
        "library": bool(library),
        "report": str(program.report),
        "explanation": str(program.explain()),
    }
    return manifest, tensors, library


def _machine() -> list[str]:
    return [platform.system(), platform.machine(), torch.backends.cpu.get_cpu_capability()]


def _write(
    file: IO[bytes], manifest: Mapping[str, Any], tensors: Sequence[torch.Tensor], library: bytes
) -> None:
    with zipfile.ZipFile(file, "w") as bundle:
        bundle.writestr("manifest.json", json.dumps(manifest))
        for position, value in enumerate(tensors):
            flat = value.detach().reshape(-1).view(torch.uint8)
            with bundle.open(_member(position), "w", force_zip64=True) as member:
                member.write(flat.numpy().data)
        if library:
            bundle.writestr("kernels.so", library)


def _member(position: int) -> str:
    return f"tensors/{position}"


def load(path: str | os.PathLike[str] | IO[bytes]) -> CompiledProgram:
    """The program of a file that :func:`save` wrote.

    Raises:
        LoweringError: the file is no bundle, is damaged or of another version, or its kernels
            can't run on this machine.
        OSError: the file can't be read.
    """
    try:
        with zipfile.ZipFile(path) as bundle:
            manifest = json.loads(bundle.read("manifest.json"))
            _check(manifest, path)
            tensors = [
                _tensor(bundle.read(_member(position)), tuple(shape), dtype)
                for position, (shape, dtype) in enumerate(manifest["tensors"])
            ]
            library = bundle.read("kernels.so") if manifest["library"] else b""
        return _program(manifest, tensors, library)
    except LoweringError:
        raise
    except _DAMAGE as error:
        raise _damaged(path, error) from error


def _check(manifest: Any, path: object) -> None:
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _damaged(path, "its manifest is none of eqsynth's")
    if manifest["version"] != VERSION:
        raise LoweringError(
            what="the file was written by another version of eqsynth",
            where=str(path),
            got=f"format {manifest['version']}",
            expected=f"format {VERSION}",
            hint="save the program again with this version",
        )
    if manifest["library"] and manifest["machine"] != _machine():
        raise LoweringError(
            what="the file holds kernels that were compiled for another machine",
            where=str(path),
            got=" ".join(manifest["machine"]),
            expected=" ".join(_machine()),
            hint="optimize and save the program on a machine of this kind",
        )


def _damaged(path: object, reason: object) -> LoweringError:
    return LoweringError(
        what="the file is no program of eqsynth, or is damaged",
        where=str(path),
        got=f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else str(reason),
        expected="a file that eqsynth wrote",
        hint="save the program again",
    )


def _tensor(data: bytes, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    if dtype not in DTYPES or len(data) != TensorType(shape, dtype).nbytes:
        raise ValueError(f"a constant has {len(data)} bytes, which isn't {dtype}{shape}")
    if not data:
        return torch.empty(shape, dtype=torch_dtype(dtype))
    return torch.frombuffer(bytearray(data), dtype=torch_dtype(dtype)).reshape(shape)


def _program(
    manifest: Mapping[str, Any], tensors: Sequence[torch.Tensor], library: bytes
) -> CompiledProgram:
    names = manifest["constants"]
    constants = dict(zip(names, tensors, strict=False))
    buffers = tensors[len(names) :]
    kernels = [kernel_from_data(data) for data in manifest["kernels"]]
    symbols = {k: data["symbol"] for k, data in zip(kernels, manifest["kernels"], strict=True)}
    calls = [(name, kernels[k], tuple(args), label) for name, k, args, label in manifest["steps"]]
    packed = [
        (kernel, {k: constants[args[k]] for k, known in enumerate(kernel.constants) if known})
        for _, kernel, args, _ in calls
    ]
    steps = [
        Step(name, kernel, runner, args, label)
        for (name, kernel, args, label), runner in zip(
            calls, _runners(packed, symbols, library), strict=True
        )
    ]
    convention = calling.from_data(manifest["calling"], tuple(buffers[: manifest["buffers_read"]]))
    return CompiledProgram(
        [
            Parameter(Input(name, TensorType(tuple(shape), dtype)), tuple(layout))
            for name, shape, dtype, layout in manifest["inputs"]
        ],
        steps,
        manifest["outputs"],
        convention,
        constants,
        {position: buffers[target] for position, target in manifest["mutations"]},
        report=manifest["report"],
        explanation=manifest["explanation"],
    )


def _runners(
    packed: Sequence[tuple[Kernel, Mapping[int, torch.Tensor]]],
    symbols: Mapping[Kernel, str | None],
    library: bytes,
) -> list[Runner]:
    module = tvm_runtime.load_library(library) if library else None
    backends: dict[str, Backend] = {
        backend.name: backend for backend in (TorchBackend(), OneDnnBackend(), InductorBackend())
    }
    runners: list[Runner] = []
    for kernel, constants in packed:
        if kernel.backend == _TVM:
            symbol = symbols[kernel]
            function = module[symbol] if module is not None and symbol is not None else None
            runners.append(tvm_backend.runner(kernel, function, constants))
            continue
        try:
            (runner,) = backends[kernel.backend].build([(kernel, constants)])
            if runner is None:
                raise RuntimeError(f"{kernel.backend} doesn't build it")
        except (RuntimeError, NotImplementedError) as error:
            raise LoweringError(
                what="a kernel of the file can't be built here",
                where=f"{kernel.implementation} {kernel.term.type}",
                got=str(error)[:500],
                expected=f"torch {torch.__version__} to have it",
                hint="optimize and save the program again with this version of torch",
            ) from error
        runners.append(runner)
    return runners
