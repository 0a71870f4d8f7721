"""How programs are saved in files, as far as this depends on the device.

A file holds the code of generated kernels and the kind of machine that it runs on; all other
kernels are built by their backends when the file is loaded.

    the host   a shared library for this kind of processor, loaded by TVM's small runtime
    a GPU      kernels as text, and as a cubin for each kind of GPU (``cuda/carrying.py``)

Not here: the program as data (``program_data.py``), the file (``bundle.py``).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import torch

from eqsynth.errors import LoweringError
from eqsynth.extract.kernel import Backend, Kernel
from eqsynth.extract.target import Target
from eqsynth.lower import tvm_backend, tvm_runtime
from eqsynth.lower.engines.engine import RegionBackend
from eqsynth.lower.engines.table import ENGINES
from eqsynth.lower.manifest import text
from eqsynth.lower.places import Opaque, Place
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lower.vendor import OneDnnBackend

Data = Any


@dataclass(frozen=True)
class Code:
    """The generated kernels of a file.

    Attributes:
        machine: the kind of machine that the code runs on.
        library: the code; empty if there are no generated kernels.
        entries: for each kernel, how to find it in the library, such as its name there.
        recompile: whether to build the kernels again for this machine.
    """

    machine: Sequence[str]
    library: bytes
    entries: Mapping[Kernel, Data]
    recompile: bool = False


class Carrier(Protocol):
    """How the programs for one kind of device are saved and loaded.

    Attributes:
        generated: the name of the backend that generates kernels.
    """

    generated: str

    def place(self) -> Place:
        """The place on this machine where the programs run.

        Raises:
            LoweringError: this machine has no such device.
        """
        ...

    def machine(self) -> list[str]:
        """The kind of machine that code which is generated here runs on."""
        ...

    def export(self, kernels: Sequence[Kernel]) -> tuple[bytes, dict[Kernel, Data]]:
        """The code of generated kernels, and each kernel's entry, as plain data.

        Raises:
            LoweringError: the kernels can't be compiled.
        """
        ...

    def backends(self, opaque: Opaque, code: Code) -> tuple[Backend, ...]:
        """All backends of the device; the generating backend has the kernels of the file.

        Raises:
            LoweringError: the code is for another kind of machine.
        """
        ...

    def check_schedule(self, kernel: Kernel) -> None:
        """Check a generated kernel that was read from a file.

        Raises:
            ValueError: the kernel's schedule isn't a schedule of its loop nest.
        """
        ...


def carrier_of(target: Target | None) -> Carrier:
    """The carrier for a target's programs; None is the host."""
    if target is None:
        return OnHost()
    from eqsynth.lower.cuda.carrying import OnGpu

    return OnGpu(target)


class OnHost:
    """Programs for the CPU. Implements :class:`Carrier`."""

    generated = tvm_backend.TvmBackend.name

    def place(self) -> Place:
        return Place()

    def machine(self) -> list[str]:
        return [platform.system(), platform.machine(), torch.backends.cpu.get_cpu_capability()]

    def export(self, kernels: Sequence[Kernel]) -> tuple[bytes, dict[Kernel, Data]]:
        return tvm_backend.export_library(kernels)

    def backends(self, opaque: Opaque, code: Code) -> tuple[Backend, ...]:
        if code.library and not code.recompile and list(code.machine) != self.machine():
            raise LoweringError(
                what="the kernels of the file are for another kind of machine",
                got=" ".join(code.machine),
                expected=" ".join(self.machine()),
                hint="load(path, recompile=True) builds them here, or optimize the program here",
            )
        generated = _recompiling() if code.recompile else _of_library(code)
        engines = (RegionBackend(engine, opaque) for engine in ENGINES.values())
        return TorchBackend(opaque), OneDnnBackend(), generated, *engines

    def check_schedule(self, kernel: Kernel) -> None:
        tvm_backend.check_schedule(kernel)


def _of_library(code: Code) -> tvm_backend.TvmBackend:
    """The TVM backend with the kernels of the file's library; it compiles no others."""
    functions = {}
    if code.library:
        module = tvm_runtime.load_library(code.library)
        functions = {kernel: module[text(symbol)] for kernel, symbol in code.entries.items()}
    return tvm_backend.TvmBackend(functions, compiles=False)


def _recompiling() -> tvm_backend.TvmBackend:
    """The TVM backend that compiles the file's kernels again."""
    if find_spec("tvm") is None:
        raise LoweringError(
            what="TVM isn't installed, which builds kernels",
            got="recompile=True",
            expected="the package apache-tvm",
            hint="install it, or load the program on a machine of the kind that it was saved on",
        )
    return tvm_backend.TvmBackend()
