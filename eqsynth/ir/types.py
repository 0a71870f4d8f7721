"""The dtypes that eqsynth knows, torch's promotion between them, and :class:`TensorType`.

``TensorType((2, 3), "float32")`` prints as ``float32[2, 3]``. Not here: type inference of operators
(``inference.py``), arrays (``interpret.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import ml_dtypes
import numpy as np

from eqsynth.errors import DtypeError, ShapeError

FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
INTEGERS: Final = ("uint8", "int8", "int16", "int32", "int64")
DTYPES: Final = (*FLOATS, *INTEGERS, "bool")

ITEMSIZE: Final = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "bool": 1,
}  # fmt: skip

MOST: Final = {
    "float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": float(np.finfo("f4").max),
    "float64": float(np.finfo("f8").max),
}  # fmt: skip
"""The largest finite number of each float dtype."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of a tensor value.

    >>> TensorType((2, 3), "float32").nbytes
    24
    """

    shape: Shape
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise DtypeError(
                what=f"unknown dtype {self.dtype!r}",
                got=self.dtype,
                expected=", ".join(DTYPES),
                hint="cast the tensor to one of the dtypes that eqsynth knows",
            )
        if any(extent < 0 for extent in self.shape):
            raise ShapeError(
                what="a shape has a negative extent",
                got=str(self.shape),
                expected="extents of 0 or more",
                hint="give the extents themselves; -1 is not inferred here",
            )

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * ITEMSIZE[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def numpy_dtype(dtype: str) -> np.dtype:
    """Return the NumPy dtype of this name; bfloat16 comes from ``ml_dtypes``."""
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


def promote(left: str, right: str) -> str:
    """Return the dtype that torch promotes two tensors' dtypes to.

    >>> promote("float16", "bfloat16"), promote("int64", "float16"), promote("bool", "uint8")
    ('float32', 'float16', 'uint8')
    """
    if left == right:
        return left
    if is_float(left) or is_float(right):
        if not is_float(right):
            return left
        if not is_float(left):
            return right
        if {left, right} == {"float16", "bfloat16"}:
            return "float32"
        return max(left, right, key=lambda name: (ITEMSIZE[name], name))
    if left == "bool":
        return right
    if right == "bool":
        return left
    if "uint8" in (left, right):
        other = right if left == "uint8" else left
        return "int16" if other == "int8" else other
    return max(left, right, key=lambda name: ITEMSIZE[name])


def broadcast_shapes(operator: str, *shapes: Shape) -> Shape:
    """Return the shape that NumPy broadcasts the shapes to, aligned at the right.

    Raises:
        ShapeError: two extents differ and neither is 1.
    """
    rank = max(map(len, shapes), default=0)
    result = []
    for axis in range(-rank, 0):
        extents = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(extents) > 1:
            raise ShapeError(
                what=f"{operator}: shapes don't broadcast",
                got=" and ".join(map(str, shapes)),
                expected=f"equal extents, or 1, on axis {axis}",
                hint="reshape or expand one of the operands",
            )
        result.append(extents.pop() if extents else 1)
    return tuple(result)
