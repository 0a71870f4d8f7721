"""The interface of an engine, and the backend that is made of an engine.

    RegionBackend(OnnxRuntime()).kernels(region, constants)    ->    one kernel, or none

Not here: the engines (``table.py`` lists them), the parts of a region that torch computes
(``ahead.py``).
"""

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
    """A library that compiles regions whose positions are arguments (``ahead.py``).

    Attributes:
        slow: whether compiling takes about a second for each kernel of a region.
    """

    name: str
    slow: bool

    def version(self) -> str | None:
        """The version of the library, read without importing it. None if it isn't installed, or
        lacks something that it needs to compile."""
        ...

    def refuses(self, term: Tensor, calls: Calls = ...) -> bool:
        """Whether the engine can't compute a term, or computes something else than the
        term means."""
        ...

    def takes(self, region: Region, calls: Calls = ...) -> bool:
        """Whether the engine computes the region as it is meant; asked only if the engine is
        installed."""
        ...

    def compiled(
        self, region: Region, constants: Mapping[int, torch.Tensor], calls: Calls = ...
    ) -> Runner:
        """Return the region as a function of the arguments that aren't constant, which are
        contiguous. The function returns the region's result, or a list of several. Results are
        contiguous, and share no memory with arguments, constants or each other.

        Raises:
            Exception: any error of the engine; only this candidate is lost.
        """
        ...


class RegionBackend:
    """Regions on an engine. Implements ``Backend`` of ``extract/kernel.py``.

    A runner of a region with several outputs returns a list of tensors. The kernels' schedule is
    the engine's version, so that a time that was measured with one version isn't used for another.
    """

    def __init__(
        self, engine: Engine, opaque: Mapping[str, Callable[..., torch.Tensor]] | None = None
    ) -> None:
        """Args:
        opaque: functions for the ``Opaque`` operators by name. Those that aren't plain calls of
            torch aren't part of any region."""
        self.engine, self.name, self.slow = engine, engine.name, engine.slow
        self.calls = plain_calls(opaque or {})

    def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        """One kernel, with contiguous arguments and results, if the engine can run the region."""
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
        """Compile a region and return its runner; None if that fails."""
        assert isinstance(kernel.term, Region)
        apart = self._apart(kernel.term)
        try:
            fixed = settled(apart, constants, self.calls)
            compiled = self.engine.compiled(apart.region, fixed, self.calls)
            run = guarded(compiled, apart, fixed, self.calls)
            return holding(run, fixed.values())
        except Exception:  # any error of a library or a compiler: only this candidate is lost
            return None

    def _apart(self, region: Region) -> Apart:
        # `taken_apart` caches by the region and the function `refuses`. For a region without calls
        # of torch, that of the engine is used, so that all backends share the result.
        return taken_apart(region, self._refuses if _opaque(region) else self.engine.refuses)

    def _refuses(self, term: Tensor) -> bool:
        return self.engine.refuses(term, self.calls)


def _opaque(region: Region) -> list[str]:
    """The names of the ``Opaque`` operators in a region."""
    parts = topological(region.outputs)
    return [str(p.attrs[0]) for p in parts if isinstance(p, Op) and p.name == "Opaque"]


@functools.cache
def installed_version(*packages: str) -> str | None:
    """The versions of packages that are all needed; None if one of them isn't installed."""
    if any(find_spec(package) is None for package in packages):
        return None
    try:
        return " ".join(metadata.version(package) for package in packages)
    except metadata.PackageNotFoundError:
        return None
