"""The order of axes in memory, on which ``view`` and ``is_contiguous`` of a result depend.

A program's results are contiguous; a module's results may be a permuted view, or channels last.
After a graph break of ``torch.compile``, Python code goes on with the results and sees the
difference:

    x.permute(0, 2, 1)     (2, 6, 3) with strides (18, 1, 6): its transpose can be viewed as (36,)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

Order = tuple[int, ...]


def order(x: torch.Tensor) -> Order:
    """The axes with more than one element, those with the largest strides first.

    >>> order(torch.empty(2, 3, 1, 5).transpose(1, 3))
    (0, 3, 1)
    """
    axes = (axis for axis in range(x.ndim) if x.shape[axis] > 1)
    return tuple(sorted(axes, key=lambda axis: x.stride()[axis], reverse=True))


def ordered(x: torch.Tensor, axes: Order) -> torch.Tensor:
    """A dense copy whose axes lie in this order in memory.

    >>> ordered(torch.zeros(2, 3, 5), (0, 2, 1)).stride()
    (15, 1, 3)
    """
    whole = (*(axis for axis in range(x.ndim) if axis not in axes), *axes)
    back = [whole.index(axis) for axis in range(x.ndim)]
    return x.permute(whole).clone(memory_format=torch.contiguous_format).permute(back)


def changed(got: Sequence[Any], expected: Sequence[Any]) -> dict[int, Order]:
    """For the results whose axes lie in another order than expected: their positions, and the
    expected order."""
    pairs = enumerate(zip(got, expected, strict=True))
    return {
        n: order(other)
        for n, (one, other) in pairs
        if isinstance(one, torch.Tensor)
        and one.layout == other.layout == torch.strided
        and order(one) != order(other)
    }


def restored(results: Sequence[Any], orders: Mapping[int, Order]) -> tuple[Any, ...]:
    """The results, with those that :func:`changed` has found copied into the expected order."""
    return tuple(ordered(x, orders[n]) if n in orders else x for n, x in enumerate(results))
