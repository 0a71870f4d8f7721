"""Programs that normalize, for ``programs.py``."""

from __future__ import annotations

from functools import partial

from eqsynth.ir.tensor import Tensor
from tests.terms import leaf, op

weight = partial(leaf, constant=True)


def layer_norm() -> Tensor:
    """(x - mean) / sqrt(var + eps) * g + h, written out."""
    x = leaf("x", 3, 4)
    centred = op("Sub", x, op("ReduceMean", x, attrs=((1,), 1)))
    variance = op("ReduceMean", op("Mul", centred, centred), attrs=((1,), 1))
    eps = op("Full", attrs=((1, 1), 1e-5, "float32"))
    normal = op("Div", centred, op("Sqrt", op("Add", variance, eps)))
    return op("Add", op("Mul", normal, weight("g", 4)), weight("h", 4))


def part_of_a_normalization() -> Tensor:
    norm = op("LayerNorm", leaf("x", 3, 4), weight("g", 4), weight("h", 4), attrs=(1, 1e-3))
    return op("Slice", norm, attrs=(0, 0, 1, 1))


def weighted_mean() -> Tensor:
    """(h / sum h) @ v."""
    h = leaf("h", 3, 4)
    return op("Matmul", op("Div", h, op("ReduceSum", h, attrs=((1,), 1))), leaf("v", 4, 2))


def scaled_layer() -> Tensor:
    """(x @ w + b) * s."""
    y = op("Add", op("Matmul", leaf("x", 4, 3), weight("w", 3, 5)), weight("b", 5))
    return op("Mul", y, weight("s", 5))


def standardized_layer() -> Tensor:
    """(x @ w - m) / s * g + h, a layer and a batch norm, written out."""
    centred = op("Sub", op("Matmul", leaf("x", 4, 3), weight("w", 3, 5)), weight("m", 5))
    scaled = op("Mul", op("Div", centred, weight("s", 5)), weight("g", 5))
    return op("Add", scaled, weight("h", 5))
