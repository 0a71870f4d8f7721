"""Kernels of CUDA that several tests look at; and how they run on the CPU, from the very text that
nvrtc compiles (``cuda_on_cpu.h``)."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from eoperator_cases import array, assert_close, it, laid_out, sample, tensor

from eqsynth.extract.kernel import Kernel, contiguous, strides
from eqsynth.extract.schedule import Schedule
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Sum, Value
from eqsynth.ir.tensor import Scope, args_of
from eqsynth.lower.cuda.code import Entry, Source
from eqsynth.lower.cuda.source import source_of
from eqsynth.lower.loop_nest import LoopNest, loop_nest

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
# No fused products and no reordering: what differs from the interpreter is the kernel's own order.
FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-w", "-shared", "-fPIC")

Changed = Callable[[str], str]


def text_unchanged(text: str) -> str:
    return text


def library_of(source: Source, changed: Changed = text_unchanged) -> Any:
    """The kernels of a source as functions of the CPU, whose text may be changed before."""
    lines = ['#include "cuda_on_cpu.h"', changed(source.text)]
    for entry in source.entries.values():
        declared = source.text.partition(f"{entry.symbol}(")[2].partition(")")[0]
        kinds = [part.split("__restrict__")[0].strip() for part in declared.split(",")]
        values = ", ".join(f"({kind})a[{n}]" for n, kind in enumerate(kinds))
        called = f"{entry.symbol}({values})"
        lines.append(f'extern "C" void run_{entry.symbol}(void **a) {{ {called}; }}')
    with tempfile.TemporaryDirectory() as folder:
        unit, library = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
        unit.write_text("\n".join(lines))
        compiler = shutil.which("c++") or shutil.which("g++")
        assert compiler is not None, "a C++ compiler runs CUDA's text on the CPU"
        command = [compiler, *FLAGS, f"-I{HEADER.parent}", str(unit), "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return ctypes.CDLL(str(library))


def run(
    library: Any, kernel: Kernel, entry: Entry, values: Sequence[torch.Tensor], backwards: bool
) -> torch.Tensor:
    """The result of a kernel, whose memory held other numbers before."""
    steps = strides(kernel.term.shape, kernel.output)
    dtype = getattr(torch, kernel.term.dtype)
    result = torch.empty_strided(kernel.term.shape, steps, dtype=dtype).fill_(1)
    given = [laid_out(v, at) for v, at in zip(values, kernel.inputs, strict=True)]
    pointers = [(result if n < 0 else given[n]).data_ptr() for n in entry.arguments]
    arguments = (ctypes.c_void_p * len(pointers))(*pointers)
    function = getattr(library, f"run_{entry.symbol}")
    launch = entry.launch
    met = library.launch(function, arguments, launch.blocks, launch.threads, int(backwards))
    assert met == 0, f"{kernel.schedule}: not all threads come to the same barriers"
    return result


def check_on_cpu(
    kernels: Mapping[Kernel, float], changed: Changed = text_unchanged
) -> None:
    """Kernels give what the interpreter gives, whichever threads come first.

    Args:
        kernels: with how many roundings more than one each may be off.
    """
    source = source_of({kernel: f"k{n}" for n, kernel in enumerate(kernels)})
    library = library_of(source, changed)
    expected: dict[Any, np.ndarray] = {}
    for kernel, tolerance in kernels.items():
        term = kernel.term
        values = tuple(sample(a.shape, a.dtype, k) for k, a in enumerate(args_of(term)))
        if term not in expected:
            named = {a.label: array(v) for a, v in zip(args_of(term), values, strict=True)}
            expected[term] = evaluate(term, named)
        for backwards in (False, True):
            got = run(library, kernel, source.entries[kernel], values, backwards)
            assert_close(array(got), expected[term], term.dtype, tolerance, kernel)


def nest_of(scope: Scope) -> LoopNest:
    inputs = [contiguous(len(arg.shape)) for arg in args_of(scope)]
    return loop_nest(scope, inputs, contiguous(len(scope.shape)))


def kernel_of(scope: Scope, schedule: Schedule) -> Kernel:
    inputs = tuple(contiguous(len(arg.shape)) for arg in args_of(scope))
    output = contiguous(len(scope.shape))
    return Kernel(scope, (False,) * len(inputs), "cuda", inputs, output, schedule)


def _wide(dtype: str, to: str) -> Scope:
    x = tensor(0, (33, 47), dtype)
    read = Read(x, (it(0, 33), it(1, 47)))
    return Scope((33, 47), (), Cast(to, Sum((read, Value(it(1, 47))))))


DTYPES = ("float16", "bfloat16", "float64", "int64", "uint8", "bool")
NUMBERS = [
    *(_wide(dtype, dtype) for dtype in DTYPES),
    Scope((64,), (), Sum((
        Prod((Num(1e-20), Read(tensor(0, (64,), "float64"), (it(0, 64),)))), Num(1 / 3)
    ))),
    Scope((64,), (), Call("exp", (Sum((
        Prod((Num(3.0), Read(tensor(0, (64,)), (it(0, 64),)))), Num(-1.5)
    )),))),
    Scope((7, 40), (9,), Read(tensor(0, (7, 40, 9)), (it(0, 7), it(1, 40), it(2, 9) - 4), -np.inf),
          "max"),
    Scope((7,), (90,), Cast("float32", Read(tensor(0, (7, 90), "float16"), (it(0, 7), it(1, 90))))),
]  # fmt: skip
