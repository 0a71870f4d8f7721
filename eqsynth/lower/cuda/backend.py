"""The backends of a GPU: NVIDIA's libraries, generated kernels, and torch's operators for all other
terms.

Not here: the operators of libraries (``libraries.py``), the code of kernels (``source.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from eqsynth import kept
from eqsynth.errors import LoweringError
from eqsynth.extract.kernel import Backend, Kernel, Runner, strides
from eqsynth.extract.target import CUDA, Target
from eqsynth.ir.tensor import Scope, Tensor, args_of
from eqsynth.lower.cuda import driver, nvrtc
from eqsynth.lower.cuda.code import Entry, Source
from eqsynth.lower.cuda.libraries import libraries
from eqsynth.lower.loop_nest import is_memory_bound, loop_nest
from eqsynth.lower.torch_backend import TorchBackend, lay_out
from eqsynth.lower.tvm_backend import layouts_of
from eqsynth.lower.tvm_target import imported_tvm

if TYPE_CHECKING:
    import torch

ARCHITECTURES: Final = ("sm_80", "sm_90")
"""The architectures that cubins are compiled for if the target doesn't name one: those of the A100,
and of the H100 and H200."""

_KEPT_BYTES: Final = 64 << 20
"""The most bytes of cubins in the cache. If there are more, the least recently used are deleted."""

_VECTOR_BYTES: Final = 16
"""The alignment of memory that is read by vector instructions."""


def gpu_backends(
    target: Target,
    opaque: Mapping[str, Callable[..., torch.Tensor]] | None = None,
    load: Load | None = None,
    made: Made | None = None,
) -> tuple[Backend, ...]:
    """Return all backends of a GPU. If two kernels have equal costs, that of the earlier backend is
    used.

    Args:
        load, made: see :class:`GeneratedBackend`.
    """
    own = libraries(target)
    return *own, GeneratedBackend(target, load, made), _Plain(own, opaque or {})


def architectures(target: Target) -> tuple[str, ...]:
    """The architectures that the kernels of a target are compiled for."""
    own = tuple(name for name in target.device.isa if name.startswith("sm_"))
    return own or ARCHITECTURES


Load = Callable[[Source], driver.Module]
"""A function that compiles a source, and loads its kernels for launching."""


Made = Mapping[Kernel, tuple[Entry, driver.Module]]
"""Kernels that are compiled and loaded already."""


def architecture() -> str:
    """The architecture of this machine's GPU, such as ``sm_90``.

    Raises:
        LoweringError: the driver or a GPU is missing.
    """
    import torch

    lacking = driver.missing()
    if lacking:
        raise LoweringError(
            what="a program for a GPU can't be run here",
            got=lacking,
            expected="a GPU with NVIDIA's driver, and torch with CUDA",
            hint="a program can be planned and saved here; load it where the GPU is",
        )
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def load_here(source: Source) -> driver.Module:
    """Return the kernels of a source, loaded on this machine's GPU. They are compiled once for all
    processes.

    Raises:
        LoweringError: nvrtc, the driver or a GPU is missing.
    """
    arch = architecture()
    told = f"{arch} {nvrtc.version()} {source.text}".encode()
    path = kept.directory("cubins-1") / hashlib.blake2b(told, digest_size=16).hexdigest()
    cubin = kept.read(path)
    if cubin is None:
        cubin = nvrtc.compile_cubin(source.text, arch)
        kept.write(path, cubin, _KEPT_BYTES)
    return driver.Module(cubin)


class GeneratedBackend:
    """eOperators as CUDA kernels. Implements ``Backend`` of ``extract/kernel.py``.

    Attributes:
        target: the device.
    """

    name = CUDA

    def __init__(self, target: Target, load: Load | None = None, made: Made | None = None) -> None:
        """Args:
        load: compiles and loads kernels. None if kernels are made for another machine: their
            runners raise an error.
        made: kernels that are compiled already, such as those of a saved program."""
        self.target, self._load, self._made = target, load, dict(made or {})

    def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        """Yield the kernels of a scope, for each layout those schedules that its loop nest is
        offered; none for other terms."""
        from eqsynth.lower.cuda.spaces import offered

        if not isinstance(term, Scope) or not term.type.size:
            return
        by_memory = is_memory_bound(term)
        for inputs, output in layouts_of(term, constants, by_memory):
            for schedule in offered(loop_nest(term, inputs, output), by_memory):
                yield Kernel(term, constants, self.name, inputs, output, schedule)

    def build(
        self, kernels: Sequence[tuple[Kernel, Mapping[int, torch.Tensor]]]
    ) -> list[Runner | None]:
        """Return runners, compiled together.

        Raises:
            LoweringError: a kernel has no code, or can't be loaded.
        """
        wanted = [kernel for kernel, _ in kernels if kernel not in self._made]
        if wanted:
            found = source(wanted)
            if self._load is None:
                return [_elsewhere for _ in kernels]
            module = self._load(found)
            self._made |= {kernel: (entry, module) for kernel, entry in found.entries.items()}
        return [runner(kernel, *self._made[kernel], packed) for kernel, packed in kernels]


def source(kernels: Iterable[Kernel]) -> Source:
    """Return the CUDA source of kernels.

    Raises:
        LoweringError: a kernel has no code.
    """
    imported_tvm()
    from eqsynth.lower.cuda.source import source_of

    return source_of({k: f"eoperator_{n}" for n, k in enumerate(dict.fromkeys(kernels))})


def _elsewhere(*_: torch.Tensor) -> torch.Tensor:
    """Raise the error for calling a kernel that was made for another machine."""
    raise LoweringError(
        what="a kernel for a GPU was called where it was only planned",
        expected="a call on the device that the plan is for",
        hint="save the program, and eqsynth.load it there",
    )


class _Plain(TorchBackend):
    """torch's operators, except for terms that a library has kernels for, which would be the same
    operators."""

    def __init__(self, own: Sequence[Backend], opaque: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(opaque)
        self._own = own

    def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        if not any(next(iter(b.kernels(term, constants)), None) for b in self._own):
            yield from super().kernels(term, constants)


def runner(
    kernel: Kernel, entry: Entry, module: driver.Module, packed: Mapping[int, torch.Tensor]
) -> Runner:
    """Return a function that launches a kernel on torch tensors of the device, with constants bound
    and with a new result.

    Args:
        packed: constant arguments by position; they are copied here into the layouts that the
            kernel takes.
    """
    import torch

    function, term = module.function(entry.symbol), kernel.term
    args = args_of(term)
    shape, dtype = term.shape, getattr(torch, term.dtype)
    steps = strides(shape, kernel.output)
    bound = {
        n: _aligned(lay_out(value.detach(), args[n].shape, kernel.inputs[n]))
        for n, value in packed.items()
    }
    varying = [n for n in range(len(args)) if n not in packed]

    def run(*given: torch.Tensor) -> torch.Tensor:
        values = {**bound, **dict(zip(varying, map(_aligned, given), strict=True))}
        device = next(iter(values.values())).device if values else torch.device(CUDA)
        result = torch.empty_strided(shape, steps, dtype=dtype, device=device)
        pointers = [(result if n < 0 else values[n]).data_ptr() for n in entry.arguments]
        module.launch(function, entry.launch, pointers, _stream(device))
        return result

    return run


def _aligned(value: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy if its address isn't aligned for vector instructions, as that of
    a tensor within another one may be."""
    import torch

    if value.data_ptr() % _VECTOR_BYTES == 0:
        return value
    return torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device=value.device
    ).copy_(value)


def _stream(device: torch.device) -> int:
    import torch

    return torch.cuda.current_stream(device).cuda_stream if device.type == CUDA else 0
