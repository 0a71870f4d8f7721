"""Data on which operators tend to go wrong: limits of each dtype, and awkward magnitudes.

Here are single values (:func:`edge_values`) and whole tensors by kind (:func:`draw`), as NumPy
arrays. Both the checker of rules and the differential tests draw from here. Not here: the tests
themselves (``differential/``, ``soundness.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import ml_dtypes
import numpy as np

from eqsynth.ir.arithmetic import Array
from eqsynth.ir.types import is_float, numpy_dtype

# Numbers at which functions change their behaviour: torch's softplus is the identity above 20; exp
# overflows at 88 and underflows at -104 in float32, and overflows at 709 in float64; 2.5 is rounded
# to even; at 30 and 100 most functions are constant or very large.
_REALS: Final = (
    0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 1 / 3, 1e-3, 1e-4, 1e-6, math.pi, 10.0, 20.0, 20.5, 30.0,
    88.0, 100.0, 104.0, 709.0, 1e4, 1e6, 2.0**24 + 1, 2.0**53 + 1, 1e30,
)  # fmt: skip
_WHOLES: Final = (
    0, 1, 2, 3, 7, 10, 30, 31, 32, 100, 127, 128, 255, 256, 2**15, 2**24 + 1, 2**27 + 5, 2**31,
    2**53 + 1, 3037000500,
)  # fmt: skip


def _limits(dtype: str) -> Any:
    return ml_dtypes.finfo(numpy_dtype(dtype))  # type: ignore[no-untyped-call]


@lru_cache
def edge_values(dtype: str) -> Array:
    """Every edge value of a dtype once: its limits, ±0, ±1, infinities, NaN, denormals, tails of
    functions, the first integers that float32 and float64 can't hold.

    >>> edge_values("int8")[[0, -1]]
    array([-128,  127], dtype=int8)
    """
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return np.array([False, True])
    if not is_float(dtype):
        low, high = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
        wanted = {low, low + 1, high - 1, high, *_WHOLES, *(-whole for whole in _WHOLES)}
        return np.array(sorted(w for w in wanted if low <= w <= high), dtype=kind)
    limits = _limits(dtype)
    ends = [float(limits.max), float(limits.tiny), float(limits.smallest_subnormal)]
    ends += [1 + float(limits.eps), 1 - float(limits.eps) / 2, 5 * float(limits.smallest_subnormal)]
    with np.errstate(all="ignore"):
        sizes = np.array([*ends, *_REALS], dtype=np.float64).astype(kind)
    sizes = sizes[np.isfinite(sizes.astype(np.float64))]
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan]).astype(kind)
    return np.concatenate([special, sizes, -sizes])


def _edges(shape: Sequence[int], dtype: str, rng: np.random.Generator, position: int) -> Array:
    """Edge values, in a different order for the first two operands: if the tensors are large
    enough, every pair of edge values meets at some position."""
    values, size = edge_values(dtype), math.prod(shape)
    count = len(values)
    if position > 1 or size < count:
        return values[rng.integers(0, count, size)].reshape(shape)
    at = np.arange(size)
    return values[(at if position == 0 else at // (size // count)) % count].reshape(shape)


def _normal(shape: Sequence[int], dtype: str, rng: np.random.Generator, position: int) -> Array:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if is_float(dtype):
        return (2 * rng.standard_normal(shape)).astype(numpy_dtype(dtype))
    return rng.integers(0 if dtype == "uint8" else -9, 10, shape).astype(dtype)


def _offset(amount: float) -> Draw:
    def kind(shape: Sequence[int], dtype: str, rng: np.random.Generator, position: int) -> Array:
        if not is_float(dtype):
            return _wide(shape, dtype, rng, position)
        with np.errstate(all="ignore"):
            return (amount + rng.standard_normal(shape)).astype(numpy_dtype(dtype))

    return kind


def _wide(shape: Sequence[int], dtype: str, rng: np.random.Generator, position: int) -> Array:
    """Integers from the dtype's whole range; floats of magnitudes from 1e-6 to 1e6, both signs."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if not is_float(dtype):
        limits = np.iinfo(dtype)
        whole = rng.integers(limits.min, limits.max, shape, dtype=np.dtype(dtype), endpoint=True)
        return np.asarray(whole)
    sizes = 10.0 ** rng.uniform(-6, 6, shape) * rng.choice([-1.0, 1.0], shape)
    with np.errstate(all="ignore"):
        return np.asarray(sizes.astype(numpy_dtype(dtype)))


def _constant_rows(
    shape: Sequence[int], dtype: str, rng: np.random.Generator, position: int
) -> Array:
    """Each row (along the last axis) holds one value."""
    rows = _normal((*shape[:-1], 1) if shape else (), dtype, rng, position)
    return np.array(np.broadcast_to(rows, shape))


def _near_equal(shape: Sequence[int], dtype: str, rng: np.random.Generator, position: int) -> Array:
    """Values near 1.7 that differ from each other by a few roundings, for every operand."""
    if not is_float(dtype):
        return _constant_rows(shape, dtype, rng, position)
    eps = float(_limits(dtype).eps)
    return (1.7 * (1 + 8 * eps * rng.random(shape))).astype(numpy_dtype(dtype))


def _sparse(shape: Sequence[int], dtype: str, rng: np.random.Generator, position: int) -> Array:
    """Values of which nine in ten are zero."""
    values = _normal(shape, dtype, rng, position)
    return np.where(rng.random(shape) < 0.9, np.zeros((), values.dtype), values)


Draw = Callable[[Sequence[int], str, np.random.Generator, int], Array]

KINDS: Final[dict[str, Draw]] = {
    "edges": _edges,
    "normal": _normal,
    "offset 1e4": _offset(1e4),
    "offset 1e6": _offset(1e6),
    "mixed": _wide,
    "constant rows": _constant_rows,
    "near equal": _near_equal,
    "sparse": _sparse,
}


def draw(
    kind: str, shape: Sequence[int], dtype: str, rng: np.random.Generator, position: int = 0
) -> Array:
    """A tensor of one kind.

    Args:
        kind: a key of ``KINDS``.
        position: which operand of the operator this is; operands 0 and 1 of kind ``edges`` meet in
            every pair of values, if there are enough elements.

    >>> draw("edges", (3,), "bool", np.random.default_rng(0)).tolist()
    [False, True, False]
    """
    result: Any = KINDS[kind](tuple(shape), dtype, rng, position)
    return np.asarray(result)
