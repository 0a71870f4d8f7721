"""Random test data of several kinds: normal numbers, zeros, ties, offsets, limits of integers.

Some faults of a rule show only on special data: a sum that cancels loses its digits on data around
100, and a wrong choice among equal maxima shows only where values tie. Not here: hypothesis
strategies (``strategies/``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from zlib import crc32

import numpy as np

from eqsynth.ir.arithmetic import Array
from eqsynth.ir.program import positions
from eqsynth.ir.reference import rounded, storage
from eqsynth.ir.tensor import Input, Tensor, Weight, topological
from eqsynth.ir.types import Shape, TensorType, is_float

Draw = Callable[[np.random.Generator, Shape], Array]

FLOATS: Final[Mapping[str, Draw]] = {
    "zeros": lambda rng, shape: np.zeros(shape),
    "ties": lambda rng, shape: rng.integers(-1, 2, size=shape),
    "normal": lambda rng, shape: rng.normal(size=shape),
    "negative": lambda rng, shape: -np.abs(rng.normal(size=shape)),
    "offset": lambda rng, shape: 100 + rng.normal(size=shape),
    "far-offset": lambda rng, shape: 1e4 + rng.normal(size=shape),
    "scaled": lambda rng, shape: 100 * rng.normal(size=shape),
    "small": lambda rng, shape: 1e-5 * rng.normal(size=shape),
    "near-equal": lambda rng, shape: 1 + 1e-3 * rng.normal(size=shape),
    "sparse": lambda rng, shape: np.where(rng.random(size=shape) < 0.5, rng.normal(size=shape), 0),
}
"""Kind of data -> how to draw floats of it, the simplest kind first."""

INTEGERS: Final[tuple[str, ...]] = ("zeros", "ties", "small", "limits")
"""Kinds of integers: zeros; -1 to 1 (0 and 1 if unsigned); -9 to 9; all values of the dtype."""

EXTREMES: Final = "extremes"
"""Another kind of integers: the smallest and the largest two of the dtype, 0 and 1, so that sums
and products wrap."""


def sample(kind: str, type_: TensorType, rng: np.random.Generator) -> Array:
    """Draw an array of a kind of ``FLOATS`` or ``INTEGERS``, or of ``EXTREMES``; of bools, one half
    is True on average unless the kind is ``zeros``.

    Floats are rounded to the dtype, so that a run in float32 starts from the same data.

    >>> sample("zeros", TensorType((2,), "float32"), np.random.default_rng(0))
    array([0., 0.])
    """
    if is_float(type_.dtype):
        return rounded(FLOATS[kind](rng, type_.shape), type_.dtype)
    if kind == "zeros":
        return np.zeros(type_.shape, storage(type_.dtype))
    if type_.dtype == "bool":
        return rng.integers(0, 2, size=type_.shape).astype(bool)
    limits = np.iinfo(type_.dtype)
    if kind == EXTREMES:
        some = [limits.min, limits.min + 1, 0, 1, limits.max - 1, limits.max]
        return np.asarray(rng.choice(np.array(some, storage(type_.dtype)), type_.shape))
    low, high = {"ties": (-1, 1), "small": (-9, 9)}.get(kind, (limits.min, limits.max))
    low = max(low, limits.min)
    drawn = rng.integers(low, high, size=type_.shape, endpoint=True, dtype=storage(type_.dtype))
    return np.asarray(drawn)


def leaves(terms: Iterable[Tensor]) -> dict[str, Input | Weight]:
    """The inputs and weights that occur in ``terms``, by name."""
    return {
        term.name: term for term in topological(list(terms)) if isinstance(term, Input | Weight)
    }


def sample_all(
    *terms: Tensor, kind: str = "normal", integers: str = "small", seed: int = 0
) -> dict[str, Any]:
    """Draw arrays for the inputs and weights of terms, by name. The same name, type and seed always
    give the same array."""
    return draw(leaves(terms), positions(topological(terms), views=True), kind, integers, seed)


def draw(
    inputs: Mapping[str, Input | Weight], bounds: Mapping[Tensor, int], kind: str, integers: str,
    seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Draw arrays by name. ``inputs`` comes from ``leaves``; ``bounds``, from ``positions``, holds
    the number of valid values of each input that is a table of row numbers."""
    env: dict[str, Any] = {}
    for name, leaf in inputs.items():
        rng = np.random.default_rng([seed, crc32(f"{name}{leaf.type}".encode())])
        if leaf in bounds:
            env[name] = rng.integers(0, max(1, bounds[leaf]), size=leaf.shape)
        else:
            env[name] = sample(kind if is_float(leaf.dtype) else integers, leaf.type, rng)
    return env


def agree(value: Array, expected: Array, rtol: float) -> bool:
    """Whether two arrays have one shape and differ by at most ``rtol`` times the largest expected
    value; NaN agrees with NaN. With ``rtol`` 0 they must be equal."""
    if value.shape != expected.shape:
        return False
    if not rtol:
        return np.array_equal(value, expected)
    scale = float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected)))
    return np.allclose(value, expected, rtol=rtol, atol=rtol * max(scale, 1e-30), equal_nan=True)
