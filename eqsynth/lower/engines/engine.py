"""What an engine is, and the backend that it becomes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from typing import Protocol

import torch

from eqsynth.extract.kernel import Kernel, Runner, contiguous, holding
from eqsynth.ir.tensor import Op, Region, Tensor, topological
from eqsynth.lower.engines.ahead import Apart, guarded, settled, taken_apart
from eqsynth.lower.torch_calls import Calls, plain_calls


class Engine(Protocol):
    """Something that compiles regions whose positions are arguments (``ahead.py``).

    Attributes:
        slow: that takes about a second for each kernel of a region.
    """

    name: str
    slow: bool

    def version(self) -> str | None:
        """Of the library, found without importing it; None where it isn't installed, or lacks what
        it needs to compile."""
        ...

    def refuses(self, term: Tensor, calls: Calls = ...) -> bool:
        """Whether it computes something else than a term means, or nothing."""
        ...

    def takes(self, region: Region, calls: Calls = ...) -> bool:
        """Whether it computes what the region means; asked only where it is installed."""
        ...

    def compiled(
        self, region: Region, constants: Mapping[int, torch.Tensor], calls: Calls = ...
    ) -> Runner:
        """The region as a function of the arguments that aren't constant, which are contiguous:
        its result, or a list of several. Results are contiguous, and share no memory with
        arguments, constants or each other.

        Raises:
            Exception: whatever the engine raises; it costs this candidate only.
        """
        ...


class RegionBackend:
    """Regions on an engine. Implements ``Backend`` of ``extract/kernel.py``.

    A runner of a region with several outputs returns a list of tensors. The engine's version is the
    kernels' schedule, so that what one version takes isn't taken for the time of another.
    """

    def __init__(
        self, engine: Engine, opaque: Mapping[str, Callable[..., torch.Tensor]] | None = None
    ) -> None:
        """
        Args:
            opaque: what runs the ``Opaque`` operators; those that aren't plain calls of torch are
                in no region.
        """
        self.engine, self.name, self.slow = engine, engine.name, engine.slow
        self.calls = plain_calls(opaque or {})

    def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        """One, contiguous in and out, for a region that the engine takes."""
        if not isinstance(term, Region):
            return
        version = self.engine.version()
        if version is None or any(name not in self.calls for name in _opaque(term)):
            return
        if not self.engine.takes(self._apart(term).region, self.calls):
            return
        inputs = tuple(contiguous(len(arg.shape)) for arg in term.args)
        yield Kernel(term, constants, self.name, inputs, contiguous(len(term.shape)), version)

    def build(
        self, kernels: Sequence[tuple[Kernel, Mapping[int, torch.Tensor]]]
    ) -> list[Runner | None]:
        return [self._runner(kernel, constants) for kernel, constants in kernels]

    def _runner(self, kernel: Kernel, constants: Mapping[int, torch.Tensor]) -> Runner | None:
        assert isinstance(kernel.term, Region)
        apart = self._apart(kernel.term)
        try:
            fixed = settled(apart, constants, self.calls)
            compiled = self.engine.compiled(apart.region, fixed, self.calls)
            run = guarded(compiled, apart, fixed, self.calls)
            return holding(run, fixed.values())
        except Exception:  # whatever a library or a compiler raises costs this candidate only
            return None


    def _apart(self, region: Region) -> Apart:
        # What is taken apart is remembered by who refuses: the engine, where the calls don't count.
        return taken_apart(region, self._refuses if _opaque(region) else self.engine.refuses)

    def _refuses(self, term: Tensor) -> bool:
        return self.engine.refuses(term, self.calls)


def _opaque(region: Region) -> list[str]:
    """The names of the calls of torch in a region."""
    parts = topological(region.outputs)
    return [str(p.attrs[0]) for p in parts if isinstance(p, Op) and p.name == "Opaque"]


@functools.cache
def installed_version(*packages: str) -> str | None:
    """The versions of packages of which all are needed; None where one isn't installed."""
    if any(find_spec(package) is None for package in packages):
        return None
    try:
        return " ".join(metadata.version(package) for package in packages)
    except metadata.PackageNotFoundError:
        return None
