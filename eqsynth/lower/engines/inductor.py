"""The engine Inductor: torch's own compiler, with frozen weights, for whole regions.

The terms of a region are run by torch once, on fake tensors. This traces a graph of ATen operators
that contains the constants. Inductor folds and packs the constants, fuses operators, and returns a
function.

Compiling needs a C++ compiler and takes seconds. Not here: which regions are worth that
(``extract/regions.py``).
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import torch

from eqsynth.extract.kernel import Runner
from eqsynth.ir.tensor import Region, Tensor
from eqsynth.lower.engines import bounded, inductor_kept
from eqsynth.lower.functional import tracing
from eqsynth.lower.torch_backend import separate
from eqsynth.lower.torch_calls import NO_CALLS, Calls
from eqsynth.lower.torch_ops import region_function
from eqsynth.lower.torch_scalars import torch_dtype

_Made = TypeVar("_Made")


class Inductor:
    """Implements ``Engine``."""

    name = "inductor"
    slow = True

    def version(self) -> str | None:
        # Converted to a plain string, since kernels are stored as data.
        return str(torch.__version__) if _has_compiler() else None

    def refuses(self, term: Tensor, calls: Calls = NO_CALLS) -> bool:
        return False

    def takes(self, region: Region, calls: Calls = NO_CALLS) -> bool:
        return True

    def compiled(
        self, region: Region, constants: Mapping[int, torch.Tensor], calls: Calls = NO_CALLS
    ) -> Runner:
        return _compiled(region, constants, calls)


@functools.cache
def _has_compiler() -> bool:
    """Whether there is a C++ compiler, which Inductor needs for CPU code."""
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def _compiled(region: Region, constants: Mapping[int, torch.Tensor], calls: Calls) -> Runner:
    result = _listed if len(region.outputs) > 1 else _single
    try:
        return functools.partial(result, _boxed, inductor_kept.load(region, constants))
    except inductor_kept.Unkept:
        return functools.partial(result, _fresh(region, constants, calls))


def _fresh(
    region: Region, constants: Mapping[int, torch.Tensor], calls: Calls
) -> Callable[..., Any]:
    """Compile a region for the vector instructions of the processor."""
    return instructions_taken(partial(_compiled_now, region, constants, calls))


def instructions_taken(compiled: Callable[[], _Made]) -> _Made:
    """Call ``compiled`` so that Inductor uses the vector instructions of the processor without
    testing them, and return its result.

    Before Inductor generates code, it compiles and loads a test for each set of vector
    instructions. That takes up to seven processes, and longer than compiling the kernels of a small
    region. The compiled kernels are such a test themselves. So the tests are only run if compiling
    or loading a kernel has failed: an old compiler may not support the instructions of a new
    processor. They aren't run if the deadline has come.
    """
    try:
        with inductor_kept.taking_instructions():
            return compiled()
    except Exception as error:
        late = bounded.is_late(error)
        if not late and not _is_of_compiler(error):
            raise
        # Inductor remembers which tests have passed. A test that the deadline has ended looks like
        # one that failed: without forgetting it, this process would go on with fewer instructions.
        inductor_kept.forget_instructions()
        if late:
            raise
    return compiled()


def _is_of_compiler(error: BaseException | None) -> bool:
    """Whether an error comes from the C++ compiler, or from loading its output."""
    from torch._inductor.exc import CppCompileError

    while error is not None and not isinstance(error, CppCompileError | OSError | ImportError):
        error = error.__cause__ or error.__context__
    return error is not None


def _compiled_now(
    region: Region,
    constants: Mapping[int, torch.Tensor],
    calls: Calls,
) -> Callable[..., Any]:
    """Compile a region by Inductor, and store what it has compiled in the cache directory."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    tape = inductor_kept.Tape(constants)
    # One compiling thread, since a pool of processes would outlive the compilation.
    patched = config.patch({"freezing": True, "compile_threads": 1})
    with tracing(), bounded.looking_at_the_clock():
        graph, examples = _graph(region, constants, calls)
        with torch.no_grad(), patched, tape.running():
            made = compile_fx(graph, examples, inner_compile=tape.inner)
            compiled = cast(Callable[..., Any], made)
        results = compiled(*examples)  # Inductor compiles at the first call
    inductor_kept.keep(region, constants, tape, examples, results)
    return compiled


def _boxed(call: inductor_kept.Call, *args: torch.Tensor) -> Any:
    return call(list(args))


def _listed(compiled: Callable[..., Any], *args: Any) -> Any:
    return list(compiled(*args))


def _single(compiled: Callable[..., Any], *args: Any) -> Any:
    (result,) = compiled(*args)
    return result


def _graph(
    region: Region, constants: Mapping[int, torch.Tensor], calls: Calls
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """Return the region as a graph of ATen operators over the arguments that aren't constant, and
    examples of these arguments."""
    from torch.fx.experimental.proxy_tensor import make_fx

    function = region_function(region, calls)
    varying = [n for n in range(len(region.args)) if n not in constants]

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        values = {**constants, **dict(zip(varying, given, strict=True))}
        results = function(*(values[n] for n in range(len(region.args))))
        return separate(results, (*given, *constants.values()))

    examples = [_example(region.args[n]) for n in varying]
    with torch.no_grad():
        traced = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)
    return traced, examples


def _example(arg: Tensor) -> torch.Tensor:
    # Zeros and not random numbers: zero is a valid position, and a division by zero only gives an
    # infinity.
    return torch.zeros(arg.shape, dtype=torch_dtype(arg.dtype))
