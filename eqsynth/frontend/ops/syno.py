"""Syno's view primitives under Syno's names (``eqsynth.ops.syno``); each works on one axis.

They are the rows of Syno's Table 1, as functions from a tensor to a tensor. The same functions in
torch, which uses some of the names for other functions:

=========================  ==================================================================
``split(x, a, b)``         ``x.unflatten(a, (-1, b))``; ``torch.split`` is ``ops.split``
``merge(x, a)``            ``x.flatten(a, a + 1)``
``shift(x, a, k)``         ``x.roll(-k, a)``
``expand(x, a, n)``        ``x.unsqueeze(a)`` expanded to n there; ``torch.Tensor.expand`` is
                           ``ops.expand``
``unfold(x, a, k)``        k zeros around the axis, then ``unfold(a, k, 1)``, the window beside
                           the axis; ``torch.Tensor.unfold`` is ``ops.unfold``
``stride(x, a, s)``        ``x[.., ::s, ..]``, s a divisor of the extent
``permute``, ``pad``,      as in ``ops``: they are no primitives of Syno, but views beside them
``slice``
=========================  ==================================================================
"""

from __future__ import annotations

from eqsynth.frontend.expr import Expr, make
from eqsynth.frontend.ops import views
from eqsynth.frontend.ops.views import pad, permute, slice

__all__ = [
    "expand", "merge", "pad", "permute", "shift", "slice", "split", "stride", "unfold",
]  # fmt: skip


def split(input: Expr, axis: int, block: int) -> Expr:
    """Split an axis into blocks: (.., g*b, ..) -> (.., g, b, ..),
    ``result[i, j] = input[b*i + j]``.

    Raises:
        ShapeError: the block doesn't divide the axis.

    Source: Syno Table 1, Split.
    """
    return make("Split", (input,), views.axis_of(axis, input.ndim), block)


def merge(input: Expr, axis: int) -> Expr:
    """Merge an axis and the next one: (.., g, b, ..) -> (.., g*b, ..),
    ``result[i] = input[i // b, i % b]``.

    Raises:
        ShapeError: there is no next axis.

    Source: Syno Table 1, Merge.
    """
    return make("Merge", (input,), views.axis_of(axis, input.ndim))


def shift(input: Expr, axis: int, amount: int = 1) -> Expr:
    """Shift an axis cyclically: ``result[i] = input[(i + amount) % n]``.

    Source: Syno Table 1, Shift.
    """
    return make("Shift", (input,), views.axis_of(axis, input.ndim), amount)


def expand(input: Expr, axis: int, extent: int) -> Expr:
    """A new axis at ``axis``, along which the elements repeat: (..) -> (.., c, ..).

    Source: Syno Table 1, Expand.
    """
    wide = views.unsqueeze(input, axis)
    at = views.axis_of(axis, wide.ndim)
    return views.expand(wide, (*wide.shape[:at], extent, *wide.shape[at + 1 :]))


def unfold(input: Expr, axis: int, size: int) -> Expr:
    """Sliding windows: (.., n, ..) -> (.., n, k, ..),
    ``result[i, j] = input[i + j - k // 2]``, 0 outside.

    Raises:
        ShapeError: the window has no element.

    Source: Syno Table 1, Unfold.
    """
    return make("Unfold", (input,), views.axis_of(axis, input.ndim), size)


def stride(input: Expr, axis: int, step: int) -> Expr:
    """Every ``step``-th element: (.., s*k, ..) -> (.., k, ..), ``result[i] = input[s*i]``.

    Raises:
        ShapeError: the step doesn't divide the axis.

    Source: Syno Table 1, Stride.
    """
    return make("Stride", (input,), views.axis_of(axis, input.ndim), step)
