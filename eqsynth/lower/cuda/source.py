"""Translate kernels from TIR to CUDA source text, with the numbers that each is launched with.

The text needs no header: nvrtc has the vector types and the mathematical functions, and the rest of
TVM's own prelude is in `PRELUDE` (``code.py``). Not here: compiling the text (``nvrtc.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from eqsynth.errors import LoweringError
from eqsynth.extract.kernel import Kernel
from eqsynth.ir.tensor import args_of
from eqsynth.lower.cuda.code import Entry, Source
from eqsynth.lower.cuda.emitter import thread_func
from eqsynth.lower.loop_nest import nest_of
from eqsynth.lower.tvm_runtime import compiling

# The suffix that TVM appends to the names of functions for the device.
_SUFFIX: Final = "_kernel"
_GLOBAL: Final = 'extern "C" __global__'
_DEFINITION: Final = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\) \{'
)


def source_of(kernels: Mapping[Kernel, str]) -> Source:
    """Return the CUDA source of kernels, under the given names.

    Raises:
        LoweringError: a kernel has no code.
    """
    functions, launches = {}, {}
    with compiling(kernels, "a kernel has no CUDA code", "the text of a kernel"):
        for kernel, name in kernels.items():
            found = thread_func(nest_of(kernel), kernel.schedule, name)
            functions[name], launches[kernel] = found
        text = _text(functions)
    told = {symbol: parameters for symbol, parameters in _DEFINITION.findall(text)}
    entries = {}
    for kernel, name in kernels.items():
        symbol = f"{name}{_SUFFIX}"
        arguments = tuple(map(_argument, told[symbol].split(",")))
        used = {n for n, arg in enumerate(args_of(kernel.term)) if arg.type.size}
        if not {-1} <= set(arguments) <= {*used, -1}:
            raise LoweringError(f"{symbol} has the parameters {told[symbol]}")
        entries[kernel] = Entry(symbol, launches[kernel], arguments)
    return Source(text, entries)


def _argument(parameter: str) -> int:
    """The number of the argument that a parameter stands for: 3 for ``float* __restrict__
    x3_line_ptr``, -1 for the result."""
    name = parameter.split()[-1]
    return -1 if name.startswith("result") else int(name.removeprefix("x").partition("_")[0])


def _text(functions: Mapping[str, Any]) -> str:
    """Return the device code of TIR functions. The passes are those for the CPU, except for the one
    that unrolls loops: nvrtc unrolls loops marked by ``#pragma unroll``."""
    import tvm
    from tvm import tirx
    from tvm.tirx import transform

    target = _target()
    passes = [
        tirx.transform.BindTarget(target), transform.VectorizeLoop(True),
        transform.AnnotateEntryFunc(), transform.SplitHostDevice(),
    ]  # fmt: skip
    module = tvm.ir.transform.Sequential(passes)(tvm.IRModule(dict(functions)))
    on_device = {
        name: function
        for name, function in module.functions.items()
        if function.attrs.get("tirx.is_global_func")
    }
    device = tvm.ir.transform.Sequential([transform.LowerIntrin()])(tvm.IRModule(on_device))
    code: str = tvm.get_global_func("target.build.cuda")(device, target).inspect_source()
    # A local array of one element becomes a register, and needs no alignment to a cache line.
    return code[code.index(_GLOBAL) :].replace("alignas(64) ", "")


@lru_cache(maxsize=1)
def _target() -> Any:
    import tvm

    return tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")
