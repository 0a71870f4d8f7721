"""Extreme data: the two sides of a rule are compared on it over the reals only.

It has numbers that the rule's text names, limits of the dtypes, magnitudes from 1e-6 to 1e6 in one
tensor, and numbers up to 1e30. Both sides may round such data differently, or overflow, although
the rule is right; their exact values must agree. Here is also data with NaN and infinities, on
which rules that claim the same bits are compared. Not here: data on which rounding is judged
(``ir/data.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final
from zlib import crc32

import numpy as np

from eqsynth.ir.arithmetic import Array
from eqsynth.ir.reference import rounded, storage
from eqsynth.ir.tensor import Input, Tensor, Weight
from eqsynth.ir.types import TensorType, is_float
from eqsynth.testing import edges
from eqsynth.testing.literals import Literals

# The float32 nearest to 1e30 is a little larger than 1e30, and is allowed.
_LARGEST: Final = 1.0001e30


def _finite(values: Array, largest: float = _LARGEST) -> Array:
    known = np.asarray(values, np.float64)
    return known[np.isfinite(known) & (np.abs(known) <= largest)]


def _edges(kind: TensorType, rng: np.random.Generator, _literals: Literals) -> Array:
    values = edges.edge_values(kind.dtype)
    return rng.choice(_finite(values) if is_float(kind.dtype) else values, size=kind.shape)


def _mixed(kind: TensorType, rng: np.random.Generator, _literals: Literals) -> Array:
    return edges.draw("mixed", kind.shape, kind.dtype, rng)


def _huge(kind: TensorType, rng: np.random.Generator, literals: Literals) -> Array:
    """Ordinary numbers, and others up to 1e30 or up to the dtype's largest number."""
    if not is_float(kind.dtype):
        return _edges(kind, rng, literals)
    top = np.log10(_finite(edges.edge_values(kind.dtype)).max())
    exponents = rng.uniform(0, top, kind.shape)
    exponents = np.where(rng.random(kind.shape) < 0.3, top - rng.random(kind.shape), exponents)
    large = 10.0**exponents * rng.choice([-1.0, 1.0], kind.shape)
    return np.where(rng.random(kind.shape) < 0.6, large, rng.normal(size=kind.shape))


def _named(kind: TensorType, rng: np.random.Generator, literals: Literals) -> Array:
    """Numbers that the rule names, or infinities if it names these, among small numbers."""
    if is_float(kind.dtype):
        small: Array = rng.normal(size=kind.shape)
        values: Array = np.asarray(literals.infinities or literals.reals or (0.0,), np.float64)
    else:
        limits = np.iinfo(kind.dtype) if kind.dtype != "bool" else None
        whole = [
            v for v in literals.integers
            if limits is not None and limits.min <= v <= limits.max
        ]  # fmt: skip
        small = rng.integers(0, 2, size=kind.shape)
        values = np.asarray(whole or (0,))
    return np.where(rng.random(kind.shape) < 0.7, rng.choice(values, size=kind.shape), small)


def _not_finite(kind: TensorType, rng: np.random.Generator, literals: Literals) -> Array:
    """NaN, infinities and zeros among the numbers of the kind ``named``; integers of that kind."""
    values = _named(kind, rng, literals)
    if not is_float(kind.dtype):
        return values
    special = rng.choice([np.nan, np.inf, -np.inf, 0.0], size=kind.shape)
    return np.where(rng.random(kind.shape) < 0.5, special, values)


Draw = Callable[[TensorType, np.random.Generator, Literals], Array]

EXTREMES: Final[Mapping[str, Draw]] = {
    "named": _named, "mixed": _mixed, "edges": _edges, "huge": _huge,
}  # fmt: skip
"""Kinds of data, by name; integers of these kinds go up to the limits of their dtype too."""

NOT_FINITE: Final = "not finite"
"""The kind of data with NaN and infinities; it has no values over the reals."""

_DRAWS: Final = {**EXTREMES, NOT_FINITE: _not_finite}


def draw(
    inputs: Mapping[str, Input | Weight], bounds: Mapping[Tensor, int], kind: str, seed: int,
    literals: Literals,
) -> dict[str, Array]:  # fmt: skip
    """Draw arrays of one kind for inputs and weights, by name.

    Args:
        bounds: for integers that are positions, the bound below which they must be.
        kind: a key of ``EXTREMES``, or ``NOT_FINITE``.
        literals: the numbers that the rule names.
    """
    env: dict[str, Array] = {}
    # At most one input has infinities: with two, most results would be NaN.
    floats = [name for name, leaf in inputs.items() if is_float(leaf.dtype)]
    which = np.random.default_rng([seed, crc32(kind.encode())])
    infinite = floats[which.integers(len(floats))] if floats else ""
    finite = replace(literals, infinities=())
    for name, leaf in inputs.items():
        rng = np.random.default_rng([seed, crc32(f"{kind}{name}{leaf.type}".encode())])
        if leaf in bounds:
            env[name] = rng.integers(0, max(1, bounds[leaf]), size=leaf.shape)
            continue
        with np.errstate(all="ignore"):
            named = literals if name == infinite else finite
            drawn = np.asarray(_DRAWS[kind](leaf.type, rng, named))
            if is_float(leaf.dtype):
                # Numbers too large for the dtype become its largest number. Only infinities that
                # the rule itself names stay infinite, or that are meant to. Numbers beyond 1e30
                # are data only where the rule names them.
                limit = np.inf if kind in ("named", NOT_FINITE) else _LARGEST
                top = _finite(edges.edge_values(leaf.dtype), limit).max()
                wide = drawn.astype(np.float64)
                kept = np.isin(wide, named.infinities) & (kind == "named")
                kept |= ~np.isfinite(wide) & (kind == NOT_FINITE)
                env[name] = rounded(np.where(kept, wide, np.clip(wide, -top, top)), leaf.dtype)
            else:
                env[name] = drawn.astype(storage(leaf.dtype))
    return env
