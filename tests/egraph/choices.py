"""Programs that choose between tensors, or mask one, for ``programs.py``."""

from __future__ import annotations

from functools import partial

from eqsynth.ir.tensor import Tensor
from tests.terms import leaf, op

weight = partial(leaf, constant=True)


def chosen_rows() -> Tensor:
    """A layer of x or of y, which a mask of the rows says."""
    mask, w, b = leaf("m", 4, 1, dtype="bool"), weight("w", 3, 5), weight("b", 5)
    layers = (op("Add", op("Matmul", leaf(name, 4, 3), w), b) for name in "xy")
    return op("Where", mask, *layers)


ZERO = op("Full", attrs=((), 0.0, "float32"))


def masked_rows() -> Tensor:
    """A product of the rows of a layer that a mask says; the others are 0."""
    mask, v = leaf("m", 4, 1, dtype="bool"), weight("v", 8, 3)
    layer = op("Add", op("Matmul", leaf("x", 4, 2), weight("w", 2, 8)), leaf("r", 4, 8))
    return op("Matmul", op("Where", mask, layer, ZERO), v)


def filled_rows() -> Tensor:
    """A product of the rows of a layer that a mask doesn't say; these are 0."""
    mask, v = leaf("m", 4, 1, dtype="bool"), weight("v", 8, 3)
    layer = op("Add", op("Matmul", leaf("x", 4, 2), weight("w", 2, 8)), weight("b", 8))
    return op("Matmul", op("Where", mask, ZERO, layer), v)


def filled_product() -> Tensor:
    """A product of the rows of a product that a mask doesn't say; these are 0."""
    mask, product = leaf("m", 4, 1, dtype="bool"), op("Matmul", leaf("x", 4, 2), weight("w", 2, 8))
    return op("Matmul", op("Where", mask, ZERO, product), weight("v", 8, 3))


def masked_columns() -> Tensor:
    """A product with the columns of a product that a mask says; the others are 0."""
    mask, product = leaf("m", 1, 6, dtype="bool"), op("Matmul", leaf("x", 8, 2), leaf("w", 2, 6))
    return op("Matmul", leaf("v", 3, 8), op("Where", mask, product, ZERO))


def picked_along() -> Tensor:
    """One row of each of two batches of a product, picked by ids."""
    ids = op("Reshape", leaf("ids", 2, dtype="int64"), attrs=((2, 1, 1),))
    product = op("Matmul", leaf("x", 2, 8, 3), weight("w", 3, 4))
    return op("Gather", product, op("Expand", ids, attrs=((2, 1, 4),)), attrs=(1,))


def unless() -> Tensor:
    """x unless a condition holds, and else y."""
    condition = op("LogicalNot", leaf("c", 4, 3, dtype="bool"))
    return op("Where", condition, leaf("x", 4, 3), leaf("y", 4, 3))
