"""Programs for a GPU in files: their kernels as source text, and as a cubin for each architecture.

    kernels.cu, sm_80.cubin, sm_90.cubin

Loading a program takes torch and the driver. It takes no compiler if the file has a fitting cubin;
otherwise ``load(path, recompile=True)`` takes nvrtc. It hasn't been tested yet that a driver loads
these cubins. Not here: the file (``lower/bundle.py``).

Source: CUDA C++ Programming Guide, "Binary Compatibility".
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Sequence
from typing import Any, Final

from eqsynth.errors import LoweringError
from eqsynth.extract.kernel import Backend, Kernel
from eqsynth.extract.target import CUDA, Target
from eqsynth.ir.tensor import args_of
from eqsynth.lower.carrying import Code
from eqsynth.lower.cuda import backend, driver, nvrtc, place
from eqsynth.lower.cuda.code import Entry
from eqsynth.lower.manifest import below, fields, rows, text
from eqsynth.lower.places import Opaque, Place

Data = Any

_TEXT: Final = "kernels.cu"
# One more than the largest number of blocks along an axis that the driver takes.
_MOST: Final = 1 << 31


class OnGpu:
    """Implements ``Carrier`` of ``lower/carrying.py``."""

    generated = CUDA

    def __init__(self, target: Target) -> None:
        self._target = target

    def place(self) -> Place:
        backend.architecture()
        return place.place(self._target)

    def machine(self) -> list[str]:
        return list(backend.architectures(self._target))

    def export(self, kernels: Sequence[Kernel]) -> tuple[bytes, dict[Kernel, Data]]:
        source, packed = backend.source(kernels), io.BytesIO()
        with zipfile.ZipFile(packed, "w") as library:
            library.writestr(_TEXT, source.text)
            for arch in self.machine():
                library.writestr(_cubin(arch), nvrtc.compile_cubin(source.text, arch))
        return packed.getvalue(), {k: _to_data(entry) for k, entry in source.entries.items()}

    def backends(self, opaque: Opaque, code: Code) -> tuple[Backend, ...]:
        made: backend.Made = {}
        if code.library:
            module = _module(code)
            made = {k: (_from_data(k, data), module) for k, data in code.entries.items()}
        return backend.gpu_backends(self._target, opaque, made=made)

    def check_schedule(self, kernel: Kernel) -> None:
        """Accept any schedule: the text of the file is compiled, and the text
        determines the loops."""


def unpacked(library: bytes) -> dict[str, bytes]:
    """The members of the library by name: the source text without its prelude, and the cubins.

    Raises:
        ValueError: a member is compressed, so that its size isn't known before it is read.
    """
    with zipfile.ZipFile(io.BytesIO(library)) as members:
        if any(member.compress_type != zipfile.ZIP_STORED for member in members.infolist()):
            raise ValueError("the kernels are compressed: nobody knows how large they are")
        return {name: members.read(name) for name in members.namelist()}


def fitting(arch: str, known: Iterable[str]) -> str | None:
    """The newest of the ``known`` architectures whose code runs on ``arch``: it has to be of the
    same generation, and not newer. None if there is none.

    >>> fitting("sm_86", ["sm_80", "sm_90"]), fitting("sm_100", ["sm_80", "sm_90"])
    ('sm_80', None)
    """
    number = _number(arch)
    older = [a for a in known if _number(a) // 10 == number // 10 and _number(a) <= number]
    return max(older, key=_number, default=None)


def _number(arch: str) -> int:
    return int(arch.removeprefix("sm_"))


def _module(code: Code) -> driver.Module:
    """Load the kernels of a file on this machine's GPU: a fitting cubin, or the source text
    compiled here.

    Raises:
        LoweringError: there is no fitting cubin, and the user hasn't asked to compile.
    """
    members, here = unpacked(code.library), backend.architecture()
    if code.recompile:
        return driver.Module(nvrtc.compile_cubin(members[_TEXT].decode(), here))
    found = fitting(here, map(text, code.machine))
    if found is None:
        raise LoweringError(
            what="the kernels of the file are for other GPUs",
            got=", ".join(code.machine),
            expected=here,
            hint="load(path, recompile=True) builds them here: pip install 'eqsynth[cuda]'",
        )
    return driver.Module(members[_cubin(found)])


def _cubin(arch: str) -> str:
    return f"{arch}.cubin"


def _to_data(entry: Entry) -> Data:
    return {
        "symbol": entry.symbol, "blocks": entry.launch.blocks, "threads": entry.launch.threads,
        "arguments": list(entry.arguments),
    }  # fmt: skip


def _from_data(kernel: Kernel, data: Data) -> Entry:
    """The inverse of :func:`_to_data`. Each argument is the number of one of the kernel's
    arguments, or -1 for the result."""
    symbol, blocks, threads, places = fields(data, ("symbol", "blocks", "threads", "arguments"))
    count = len(args_of(kernel.term))
    numbers = rows(places, lambda n: n if n == -1 and type(n) is int else below(count)(n))
    launch = driver.Launch(below(_MOST)(blocks), below(1025)(threads))
    return Entry(text(symbol), launch, tuple(numbers))
