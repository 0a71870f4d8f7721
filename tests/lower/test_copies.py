"""Copies between layouts by generated kernels."""

from __future__ import annotations

import itertools

import pytest
import torch
from eoperator_cases import laid_out, sample

from eqsynth.extract.candidates import copies_by, copy_kernel, is_copy
from eqsynth.extract.kernel import Kernel, channels_last, contiguous, matrix_layouts, strides
from eqsynth.extract.schedule import Tile
from eqsynth.ir.types import TensorType
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lower.tvm_backend import TvmBackend

SHAPES = ((1, 24, 9, 21), (2, 3, 5, 33), (1, 64, 7, 7), (17, 40), (3, 16, 1), (4, 33, 20), (7,),
          (1, 1, 1, 1), (2, 0, 3, 4))  # fmt: skip
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int8", "uint8", "bool")


def copies(type_: TensorType) -> list[Kernel]:
    """The copies of a value between all pairs of its layouts."""
    rank = len(type_.shape)
    layouts = (contiguous(4), channels_last(4)) if rank == 4 else matrix_layouts(rank)
    found = copies_by([TorchBackend(), TvmBackend()])
    return [
        kernel
        for source, target in itertools.permutations(layouts, 2)
        for kernel in found(type_, source, target)
    ]


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_move_every_element(dtype: str) -> None:
    kernels = [k for shape in SHAPES for k in copies(TensorType(shape, dtype)) if k.generated]
    runners = TvmBackend().build([(kernel, {}) for kernel in kernels])
    for kernel, run in zip(kernels, runners, strict=True):
        assert run is not None, kernel
        value = sample(kernel.term.shape, dtype)
        got = run(laid_out(value, kernel.inputs[0]))
        assert torch.equal(got, value) and got.dtype == value.dtype
        assert got.stride() == strides(kernel.term.shape, kernel.output)


def test_torch_has_a_copy_and_so_have_backends() -> None:
    type_ = TensorType((1, 64, 28, 28), "float32")
    last, plain = channels_last(4), contiguous(4)
    by_torch, own = copies_by([TorchBackend(), TvmBackend()])(type_, last, plain)
    assert by_torch == copy_kernel(type_, last, plain) and isinstance(own.schedule, Tile)
    assert copies_by()(type_, last, plain) == (by_torch,)
    for kernel in (by_torch, own):
        assert is_copy(kernel, type_, last, plain)
        assert not is_copy(kernel, type_, plain, last)
        assert not is_copy(kernel, TensorType((1, 28, 64, 28), "float32"), last, plain)
