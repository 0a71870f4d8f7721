"""The target that TVM compiles for: this machine's CPU, without instructions that it lacks.

Not here: compiling (``tvm_backend.py``), targets of the cost model (``extract/target.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any, Final

from eqsynth.lower.tvm_runtime import LOADING


def imported_tvm() -> Any:
    """Import ``tvm`` and return it; ``sys.excepthook`` stays the user's.

    TVM's hook terminates all children of ``multiprocessing`` after it has shown an error: at a
    prompt, a mistyped name would end the workers of the user's data loaders.
    """
    with LOADING:
        hook = sys.excepthook
        import tvm

        sys.excepthook = hook
        return tvm


def target() -> Any:
    """The target for as many threads as torch has now."""
    import torch

    return _target_for(torch.get_num_threads())


@lru_cache(maxsize=8)
def _target_for(threads: int) -> Any:
    tvm = imported_tvm()
    from tvm.target import codegen

    # Imported here: a program that is loaded from a file makes no kernels, and measures nothing.
    from eqsynth.extract.measure import cpu_flags

    cpu = codegen.llvm_get_system_cpu()
    known = codegen.llvm_get_cpu_features(tvm.target.Target({"kind": "llvm", "mcpu": cpu}))
    off = [f"-{name}" for name in lacking(map(str, known), cpu_flags())]
    attributes = {"mattr": off} if off else {}
    return tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": threads, **attributes})


@lru_cache(maxsize=1)
def scales() -> bool:
    """Whether the processor multiplies by a power of two in one instruction, in vectors of every
    width (``vscalefps`` of AVX-512). Elsewhere LLVM calls ``ldexpf`` for each element."""
    on = target()
    from tvm.target import codegen

    return bool(codegen.llvm_cpu_has_features("avx512vl", on))


_INSTRUCTIONS: Final = (
    "amx", "avx", "bmi", "f16c", "fma", "gfni", "lzcnt", "movbe", "popcnt", "sse4", "vaes",
    "vpclmulqdq", "xop",
)  # fmt: skip
"""Beginnings of LLVM's names of the instruction sets that arithmetic code may use."""

_IN_LINUX: Final = {"bmi": "bmi1", "lzcnt": "abm"}
"""LLVM's name -> Linux's name, where they differ by more than punctuation."""


def lacking(features: Iterable[str], flags: Collection[str]) -> list[str]:
    """Instruction sets that a CPU of this model has, and this machine hasn't.

    LLVM knows a CPU's features by family and model, but a hypervisor may hide some of them. One hid
    the AVX-512 of a Zen 4, and the first generated kernel ended the process by an illegal
    instruction.

    Args:
        features: the features of the CPU's model, by LLVM's names.
        flags: the features that the operating system reports; if it reports none, nothing is
            lacking.

    >>> lacking(["avx2", "avx512vnni", "bmi", "fast-lzcnt"], {"avx2", "bmi1"})
    ['avx512vnni']
    """
    here = set(map(_plain, flags))
    asked = [name for name in features if name.startswith(_INSTRUCTIONS)] if here else []
    return sorted(name for name in asked if _plain(_IN_LINUX.get(name, name)) not in here)


def _plain(name: str) -> str:
    return name.replace("_", "").replace(".", "").replace("-", "")
