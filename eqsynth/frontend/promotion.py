"""torch's type promotion for tensors, rank-0 tensors and Python numbers.

Tensors with axes have precedence over rank-0 tensors, and rank-0 tensors over numbers. An operand
of lower precedence counts only if its category is higher (bool < integer < float):

    float16[2] + float64[]   ->   float16        int32[2] + 2.5   ->   float32

Here, too, a dtype that a user gives gets its name. Not here: the promotion of two dtypes of the
same precedence (``ir/types.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import TYPE_CHECKING, overload

from eqsynth.errors import DtypeError
from eqsynth.ir.types import DTYPES, TensorType, is_float, promote

if TYPE_CHECKING:
    import torch

    Dtype = str | torch.dtype
    """A dtype as users give it."""

Number = bool | int | float

_NUMBER_DTYPE = {bool: "bool", int: "int64", float: "float32"}


def number_dtype(value: Number) -> str:
    """The dtype of a Python number on its own; torch's default float is float32."""
    return _NUMBER_DTYPE[type(value)]


@overload
def dtype_name(dtype: Dtype) -> str: ...
@overload
def dtype_name(dtype: Dtype | None) -> str | None: ...
def dtype_name(dtype: Dtype | None) -> str | None:
    """The name of a dtype that is given by its name or as torch's; None stays None.

    Raises:
        DtypeError: it is no dtype, or one that eqsynth doesn't know.
    """
    if dtype is None:
        return None
    # Asked of the class, since torch may not be imported.
    of_torch = f"{type(dtype).__module__}.{type(dtype).__name__}" == "torch.dtype"
    name = str(dtype).removeprefix("torch.") if of_torch else dtype
    if isinstance(name, str) and name in DTYPES:
        return name
    raise DtypeError(
        what=f"unknown dtype {dtype!r}",
        got=str(dtype),
        expected=", ".join(DTYPES),
        hint="give one of these names, or torch's dtype of this name",
    )


def _combine(higher: str | None, lower: str | None) -> str | None:
    """The common dtype of two groups of operands; None is the dtype of a group without any.

    Args:
        higher: the dtype of the group with precedence.
        lower: the dtype of the other group, which counts only if its category is higher.
    """
    if higher is None or lower is None:
        return higher or lower
    if is_float(higher):
        return higher
    if higher == "bool" or is_float(lower):
        return promote(higher, lower)
    return higher


def common_dtype(operands: Iterable[TensorType | Number]) -> str:
    """The dtype in which torch computes on these operands.

    >>> common_dtype([TensorType((2,), "float16"), TensorType((), "float64"), 3.0])
    'float16'
    >>> common_dtype([TensorType((2,), "int32"), 2.5])
    'float32'
    """
    groups: dict[str, list[str]] = {"tensor": [], "rank 0": [], "number": []}
    for operand in operands:
        if isinstance(operand, TensorType):
            groups["tensor" if operand.shape else "rank 0"].append(operand.dtype)
        else:
            groups["number"].append(number_dtype(operand))
    tensors, zeros, numbers = (reduce(promote, g) if g else None for g in groups.values())
    result = _combine(tensors, _combine(zeros, numbers))
    assert result is not None, "promotion needs an operand"
    return result
