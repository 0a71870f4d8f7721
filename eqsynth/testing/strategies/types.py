"""Hypothesis strategies of dtypes, extents, shapes and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from eqsynth.ir.data import FLOATS, INTEGERS, leaves, sample
from eqsynth.ir.program import positions
from eqsynth.ir.tensor import Tensor, topological
from eqsynth.ir.types import DTYPES, TensorType, is_float

# The most elements of an array that is drawn element by element.
_FEW = 16


def dtypes(names: Sequence[str] = ("float32", *DTYPES)) -> st.SearchStrategy[str]:
    """One of the dtypes; float32 is the simplest."""
    return st.sampled_from(list(dict.fromkeys(names)))


def extents(largest: int = 4, *, empty: bool = False) -> st.SearchStrategy[int]:
    """Extents from 1 to ``largest``, equally likely; 1 is the simplest.

    Args:
        empty: whether 0 is an extent, too.
    """
    return st.sampled_from([*range(1, largest + 1), *([0] if empty else [])])


def shapes(
    rank: tuple[int, int] = (1, 3), largest: int = 4, *, empty: bool = False
) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of ``rank[0]`` to ``rank[1]`` axes; the simplest has the least rank, and extents 1."""
    lists = st.lists(extents(largest, empty=empty), min_size=rank[0], max_size=rank[1])
    return lists.map(tuple)


@st.composite
def tensor_types(
    draw: st.DrawFn,
    of: st.SearchStrategy[tuple[int, ...]] | None = None,
    dtype: st.SearchStrategy[str] | None = None,
) -> TensorType:
    """Types of tensors, of shapes from ``of`` and dtypes from ``dtype``."""
    return TensorType(draw(shapes() if of is None else of), draw(dtype or dtypes()))


@st.composite
def arrays(draw: st.DrawFn, type_: TensorType, kinds: Sequence[str] = ()) -> Any:
    """Arrays of a type, with floats in float64, as the interpreter has them.

    Small arrays may also be drawn element by element, as integers from -3 to 3. Such an array
    shrinks to zeros with a 1 at the element that matters.

    Args:
        kinds: kinds of ``eqsynth.ir.data``, or ``few`` for element by element; by default all.
    """
    known = list(kinds or (FLOATS if is_float(type_.dtype) else INTEGERS))
    if type_.size <= _FEW and not kinds:
        known.insert(1, "few")
    kind = draw(st.sampled_from(known))
    if kind == "few":
        low = 0 if type_.dtype in ("bool", "uint8") else -3
        elements = st.integers(low, 1 if type_.dtype == "bool" else 3)
        drawn = draw(st.lists(elements, min_size=type_.size, max_size=type_.size))
        zeros = sample("zeros", type_, np.random.default_rng(0))
        return np.array(drawn).reshape(type_.shape).astype(zeros.dtype)
    return sample(kind, type_, np.random.default_rng(draw(st.integers(0, 1 << 16))))


@st.composite
def environments(draw: st.DrawFn, *terms: Tensor, kinds: Sequence[str] = ()) -> dict[str, Any]:
    """Arrays for the inputs and weights of terms, by name, as ``evaluate`` takes them.

    Integers that are positions (in an embedding or a gather) are in range.
    """
    env: dict[str, Any] = {}
    bounds = positions(topological(terms), views=True)
    for name, leaf in leaves(terms).items():
        if leaf in bounds:
            rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
            env[name] = rng.integers(0, max(1, bounds[leaf]), size=leaf.shape)
        else:
            env[name] = draw(arrays(leaf.type, kinds if is_float(leaf.dtype) else ()))
    return env
