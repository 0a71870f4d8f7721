"""A full disk under the code that LLVM writes, which would end the process."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from programs import program_of, step

import eqsynth
from eqsynth.errors import LoweringError
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Num, Prod, Read
from eqsynth.ir.tensor import Input, Scope
from eqsynth.ir.types import TensorType
from eqsynth.lower.tvm_backend import TvmBackend
from tests.test_written import a_disk_of


def test_saving_generated_kernels(tmp_path: Path) -> None:
    line = Read(Input("x", TensorType((8,), "float32")), (Index.iterator(0, 8),))
    double = Scope((8,), (), Prod((Num(2.0), line)))
    program = program_of({"x": (8,)}, [step("y", double, "x", backend=TvmBackend())], ["y"])
    with a_disk_of(64), pytest.raises(LoweringError) as caught:
        eqsynth.save(program, tmp_path / "new")
    assert caught.value.got == os.strerror(errno.EFBIG) and not list(tmp_path.iterdir())
