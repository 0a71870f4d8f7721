"""Reads at index tensors that are known at capture, since they read no tensor.

    position = arange(n)[:, None] + 4 * arange(w);  x[:, position]
    -> L[b, i, j, d] . x[b, i + 4*j, d]

If the positions are affine in their own axes, the read becomes a scope. Rules can rewrite a scope
(a band, a window, a diagonal), but not a gather by data. Not here: index tensors that are data
(``indexing.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from eqsynth.frontend.expr import Expr
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Input, Op, Scope, Tensor, Weight, topological
from eqsynth.ir.types import Shape

MAX_ELEMENTS: Final = 1 << 24
"""The most elements of a term that is evaluated here for its values. A larger term is evaluated
only when the program is optimized, as all constants are."""


def at_positions(input: Expr, indices: Mapping[int, Expr]) -> Expr | None:
    """``x[i, j]`` in torch, as a scope: read some axes of ``input`` at index tensors.

    The index tensors broadcast to one shape. Its axes take the place of the indexed axes if these
    are neighbours, else they come first, as in torch.

    Returns:
        The scope; None if an index tensor isn't known, affine in its axes, or in range.
    """
    axes = sorted(indices)
    shape = np.broadcast_shapes(*(indices[axis].shape for axis in axes))
    rest = [axis for axis in range(input.ndim) if axis not in axes]
    together = axes == list(range(axes[0], axes[-1] + 1))
    place = axes[0] if together else 0
    result = [input.shape[axis] for axis in rest]
    result[place:place] = shape
    index: list[Index] = [Index(0)] * input.ndim
    for number, axis in enumerate(rest):
        slot = number if number < place else number + len(shape)
        index[axis] = Index.iterator(slot, input.shape[axis])
    for axis in axes:
        found = _affine(indices[axis].tensor, shape, place, input.shape[axis])
        if found is None:
            return None
        index[axis] = found
    return Expr(Scope(tuple(result), (), Read(input.tensor, tuple(index))), input.values)


def _affine(term: Tensor, shape: Shape, place: int, extent: int) -> Index | None:
    """The values of an integer term as an affine index, from 0 to ``extent - 1``; None if they
    aren't known, affine, or in range.

    If all values are negative, they count from the end, and ``extent`` is added.

    Args:
        shape: the shape that the term broadcasts to.
        place: the slot of the iterator over the first axis of ``shape``.
    """
    value = known_value(term)
    if value is None or 0 in shape:
        return None
    whole = np.broadcast_to(value, shape)
    first = int(whole[(0,) * len(shape)])
    index, line = Index(first), np.full((1,) * len(shape), first, dtype=np.int64)
    for axis, size in enumerate(shape):
        if size > 1:
            second = [0] * len(shape)
            second[axis] = 1
            step = int(whole[tuple(second)]) - first
            along = [-1 if a == axis else 1 for a in range(len(shape))]
            line = line + step * np.arange(size).reshape(along)
            index = index + step * Index.iterator(place + axis, size)
    low, high = index.range()
    if low < 0 and high < 0:
        low, high, index = low + extent, high + extent, index + extent
    if low < 0 or high >= extent or not np.array_equal(line, whole):
        return None
    return index


def counted_axes(term: Tensor, shape: Shape, extent: int) -> list[int]:
    """The axes of ``shape`` along which an integer term counts 0, 1, … ``extent - 1``, as
    ``arange(b)`` does; the term broadcasts to ``shape`` and is the same along all other axes."""
    axes = [axis for axis, size in enumerate(shape) if size == extent]
    value = known_value(term) if axes else None
    if value is None:
        return []
    whole = np.broadcast_to(value, shape)
    lines = (np.arange(extent).reshape([-1 if a == axis else 1 for a in range(len(shape))])
             for axis in axes)  # fmt: skip
    return [a for a, line in zip(axes, lines, strict=True) if (whole == line).all()]


def known_value(term: Tensor) -> Any:
    """The value of a term that reads no tensor, as an array; None if the term reads one, or if a
    part of it is too large."""
    parts: Sequence[Tensor] = list(topological([term]))
    for part in parts:
        opaque = isinstance(part, Op) and part.name == "Opaque"
        if isinstance(part, Input | Weight) or opaque or part.type.size > MAX_ELEMENTS:
            return None
    return evaluate(term, {})
