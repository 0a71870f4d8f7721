"""Promotion agrees with torch on every pair of dtypes, ranks and numbers."""

import itertools

import pytest
import torch

from eqsynth.frontend.promotion import Number, common_dtype, number_dtype
from eqsynth.ir.types import DTYPES, TensorType

Operand = TensorType | Number


def _operands(dtype: str) -> list[Operand]:
    return [TensorType((2,), dtype), TensorType((), dtype)]


def _torch(operand: Operand) -> torch.Tensor | Number:
    if isinstance(operand, TensorType):
        return torch.zeros(operand.shape, dtype=getattr(torch, operand.dtype))
    return operand


@pytest.mark.parametrize("dtype", DTYPES)
def test_pairs_are_promoted_as_torch_does(dtype: str) -> None:
    others: list[Operand] = [True, 2, 2.5]
    others += [operand for other in DTYPES for operand in _operands(other)]
    for left, right in itertools.product(_operands(dtype), others):
        expected = torch.result_type(_torch(left), _torch(right))
        got = common_dtype([left, right])
        assert f"torch.{got}" == str(expected), (left, right)


def test_three_operands() -> None:
    operands = [TensorType((), "float64"), TensorType((2,), "int8"), TensorType((2,), "float16")]
    assert common_dtype(operands) == "float16"


def test_a_number_alone_has_torchs_default() -> None:
    for number in (True, 2, 2.5):
        assert f"torch.{number_dtype(number)}" == str(torch.tensor(number).dtype)
