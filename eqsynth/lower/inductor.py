"""The engine Inductor: torch's own compiler, with frozen weights, for whole regions.

A region's terms run as plain torch once, over fake tensors, which gives a graph of ATen operators
with the constants in it; Inductor folds and packs these, fuses what it can, and gives a function.

Compiling needs a C++ compiler and takes seconds. Not here: when a region is worth that
(``extract/regions.py``).
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from eqsynth.extract.kernel import Kernel, Runner, contiguous, holding
from eqsynth.ir.tensor import Op, Region, Tensor, topological
from eqsynth.lower.torch_ops import region_function
from eqsynth.lower.torch_scalars import torch_dtype


class InductorBackend:
    """Regions through Inductor. Implements ``Backend`` of ``extract/kernel.py``.

    A runner of a region with several outputs returns a list of tensors.
    """

    name = "inductor"

    def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        """One, contiguous in and out, for a region without opaque operators."""
        if not isinstance(term, Region) or not installed():
            return
        parts = list(topological(term.outputs))
        if not any(isinstance(part, Op) and part.name == "Opaque" for part in parts):
            inputs = tuple(contiguous(len(arg.shape)) for arg in term.args)
            yield Kernel(term, constants, self.name, inputs, contiguous(len(term.shape)))

    def build(
        self, kernels: Sequence[tuple[Kernel, Mapping[int, torch.Tensor]]]
    ) -> list[Runner | None]:
        return [self._runner(kernel, constants) for kernel, constants in kernels]

    def _runner(self, kernel: Kernel, constants: Mapping[int, torch.Tensor]) -> Runner | None:
        assert isinstance(kernel.term, Region)
        try:
            return _compiled(kernel.term, constants)
        except Exception:  # whatever Inductor or the C++ compiler raises costs this candidate only
            return None


@functools.cache
def installed() -> bool:
    """Whether there is a C++ compiler, without which Inductor makes no CPU code."""
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def _compiled(region: Region, constants: Mapping[int, torch.Tensor]) -> Runner:
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    graph, examples = _graph(region, constants)
    # One compiling thread: a pool of processes would outlive the compilation.
    with torch.no_grad(), config.patch(freezing=True, compile_threads=1):
        compiled: Callable[..., Any] = compile_fx(graph, examples)  # type: ignore[assignment]
        compiled(*examples)  # Inductor compiles at the first call
    result = _listed if len(region.outputs) > 1 else _single
    return holding(functools.partial(result, compiled), constants.values())


def _listed(compiled: Callable[..., Any], *args: torch.Tensor) -> Any:
    return list(compiled(*args))


def _single(compiled: Callable[..., Any], *args: torch.Tensor) -> Any:
    (result,) = compiled(*args)
    return result


def _graph(
    region: Region, constants: Mapping[int, torch.Tensor]
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """The region as ATen operators over the arguments that aren't constant, and examples of these.

    Results are contiguous and share no memory with arguments, constants or each other.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    function = region_function(region)
    varying = [n for n in range(len(region.args)) if n not in constants]

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        values = {**constants, **dict(zip(varying, given, strict=True))}
        results = function(*(values[n] for n in range(len(region.args))))
        taken = {_storage(x) for x in (*given, *constants.values())}
        own = []
        for result in results:
            fresh = result.contiguous()
            if _storage(fresh) in taken:
                fresh = fresh.clone(memory_format=torch.contiguous_format)
            taken.add(_storage(fresh))
            own.append(fresh)
        return own

    examples = [_example(region.args[n]) for n in varying]
    with torch.no_grad():
        traced = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)
    return traced, examples


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _example(arg: Tensor) -> torch.Tensor:
    # Zeros, not noise: as an index zero is in range, as a divisor it only makes an infinity.
    return torch.zeros(arg.shape, dtype=torch_dtype(arg.dtype))
