"""CUDA kernels run on the CPU, from the very text that nvrtc compiles (``cuda_on_cpu.h``)."""

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
from eoperator_cases import array, assert_close, laid_out, sample

from eqsynth.extract.kernel import Kernel, strides
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import args_of
from eqsynth.lower.cuda.code import Entry, Source
from eqsynth.lower.cuda.source import source_of

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
