"""Matching of transposed convolutions (EinNet §5.1, Table 2 and Fig. 8).

For output i a transposed convolution sums over the pairs of a pixel u and a tap k for which
``stride * u + dilation * k = i + padding``: the taps of one phase (``phases.py`` brings a sum into
this form). If stride and dilation share a divisor, some outputs have no such pair.

    stride 2, padding 1:   sum_q x[(i + 1) // 2 - q] * w[2*q + (i + 1) % 2]

An axis is recognized by an iterator that the image and the weight share. Its attributes are found
by solving the equation for all pairs that are summed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from eqsynth.egraph.tactics.matching import Groups, arranged, dense_axes, gathered, operands
from eqsynth.egraph.tactics.substitution import iterator_split
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import Read, reads
from eqsynth.ir.scopes import bare, reduction_iterators, same_scope
from eqsynth.ir.tensor import Op, Scope, Tensor

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Axis:
    """An axis of the output, with the axes of the image and of the weight that belong to it.

    Attributes:
        image, weight: numbers of these axes; both None for an axis of extent 1 that was added.
        tap: the iterator over the taps of a phase; None if each phase has one tap.
    """

    image: int | None
    weight: int | None
    out: It | None
    tap: It | None
    stride: int = 1
    padding: int = 0
    dilation: int = 1


_UNIT = _Axis(None, None, None, None)


def match_conv_transpose2d(scope: Scope) -> Tensor | None:
    """``sum_{c,q} x[n, g, c, (i + p - d*k) / s] * w[g, c, f, k]``, k = s*q + phase, as an operator.

    With any number of groups. The match doesn't depend on how the indices are written: it compares
    the triples (output, pixel, tap) that are summed.
    """
    pair = operands(scope)
    if pair is None or not any(map(_strides, (*pair[0].index, *pair[1].index))):
        return None  # the steps would be counted pixel by pixel: of a triangle 10**6 pairs and more
    for x, w in (pair, pair[::-1]):
        axes = list(_axes(scope, x, w))
        if 1 <= len(axes) <= 2 and any(axis.stride > 1 for axis in axes):
            apart = iterator_split(scope, whole=True, but={axis.out for axis in axes})
            if apart is None:
                return _conv_transpose2d(scope, x, w, axes)
            # One iterator counts through groups and filters: it is split first.
            (read,) = reads(apart.scope.body)
            assert isinstance(read.tensor, Scope)
            value = match_conv_transpose2d(read.tensor)
            return value and same_scope(scope, replace(read, tensor=value), [])
    return None


def _strides(index: Index) -> bool:
    """Whether the index takes more than single steps: ``2*q``, ``i // 2``, ``i % 2``."""
    return not index.is_affine or any(abs(step) != 1 for _, step in index.terms)


def _axes(scope: Scope, x: Read, w: Read) -> Iterator[_Axis]:
    for image, over in enumerate(x.index):
        for weight, at in enumerate(w.index):
            shared = set(over.iterators()) & set(at.iterators())
            found = _axis(scope, x, w, image, weight) if shared else None
            if found:
                yield found


def _axis(scope: Scope, x: Read, w: Read, image: int, weight: int) -> _Axis | None:
    over, at = x.index[image], w.index[weight]
    pixels, kernel = x.tensor.shape[image], w.tensor.shape[weight]
    reduced = set(reduction_iterators(scope))
    its = set(over.iterators()) | set(at.iterators())
    taps, outs = its & reduced, its - reduced
    if len(taps) > 1 or len(outs) > 1 or any(_elsewhere(x, it, image) for it in its):
        return None
    if any(_elsewhere(w, it, weight) for it in its):
        return None
    out, tap = next(iter(outs), None), next(iter(taps), None)
    steps = _steps(over, at, out, tap, pixels, kernel)
    return _Axis(image, weight, out, tap, *steps) if steps else None


@lru_cache(maxsize=1 << 14)
def _steps(
    over: Index, at: Index, out: It | None, tap: It | None, pixels: int, kernel: int
) -> tuple[int, int, int] | None:
    """Stride, padding and dilation of one axis, from its indices alone."""
    extent = out.extent if out else 1
    found = _triples(over, at, out, tap)
    inside = found[((found[:, 1:] >= 0) & (found[:, 1:] < (pixels, kernel))).all(1)]
    solved = _solved(*inside.T)
    if solved is None:
        return None
    stride, padding, dilation = solved
    more = extent - ((pixels - 1) * (stride or 1) - 2 * padding + (dilation or 1) * (kernel - 1))
    # For one pixel (tap) any stride (dilation) is right: one is chosen so that the last outputs,
    # which get nothing, are reached.
    stride, dilation = stride or max(more, 1), dilation or max(more, 1)
    if padding < 0:
        return None
    # The sum has the same triples (output, pixel, tap) as the operator, each once.
    pairs: Ints = np.stack(np.meshgrid(np.arange(pixels), np.arange(kernel)), -1).reshape(-1, 2)
    place = pairs @ (stride, dilation) - padding
    within = (place >= 0) & (place < extent)
    whole = np.column_stack([place, pairs])[within]
    if sorted(whole.tolist()) != sorted(inside.tolist()):
        return None
    return stride, padding, dilation


def _elsewhere(read: Read, it: It, axis: int) -> bool:
    return any(it in set(index.iterators()) for n, index in enumerate(read.index) if n != axis)


def _triples(over: Index, at: Index, out: It | None, tap: It | None) -> Ints:
    """Rows (output, pixel, tap), one for each pair of values of the iterators."""
    sizes = [it.extent if it else 1 for it in (out, tap)]
    i, q = (part.ravel() for part in np.meshgrid(*map(np.arange, sizes), indexing="ij"))
    values = {it.slot: at_ for it, at_ in ((out, i), (tap, q)) if it}
    u, k = (np.broadcast_to(index.evaluate(values), i.shape) for index in (over, at))
    return np.stack([i, u, k], 1)


def _solved(i: Ints, u: Ints, k: Ints) -> tuple[int, int, int] | None:
    """Stride, padding and dilation with ``stride*u + dilation*k = i + padding`` for all triples.

    The stride is 0 if there is only one pixel, the dilation 0 if there is only one tap.
    """
    if len(i) == 0:
        return None
    rise = np.stack([u - u[0], k - k[0]], 1)
    if not (u != u[0]).any() or not (k != k[0]).any() or np.linalg.matrix_rank(rise) == 2:
        stride, dilation = np.rint(np.linalg.lstsq(rise, i - i[0])[0]).astype(np.int64).tolist()
    else:
        # All pairs (u, k) lie on one line, as for a single output: solve for a step along it.
        du, dk = rise[rise.any(1)][0].tolist()
        step = math.gcd(du, dk)
        stride, dilation = abs(dk) // step, abs(du) // step
    if min(stride, dilation) < 0:
        return None
    paddings = set((stride * u + dilation * k - i).tolist())
    return (stride, min(paddings), dilation) if len(paddings) == 1 else None


def _conv_transpose2d(scope: Scope, x: Read, w: Read, axes: list[_Axis]) -> Tensor | None:
    groups = Groups.of(scope, x, w)
    if groups is None or x.fill != 0 or w.fill != 0:
        return None
    first, second = axes if len(axes) == 2 else (_UNIT, axes[0])
    outs, taps = {a.out for a in axes}, {a.tap for a in axes}
    batch = [it for it in groups.batch if it not in outs]
    rest, filters = ([it for it in its if it not in outs] for its in (groups.m, groups.n))
    channels = [it for it in groups.k if it not in taps]
    image = _over(scope, x, [a.image for a in (first, second)], [rest, [*batch, *channels]])
    weight = _over(scope, w, [a.weight for a in (first, second)], [[*batch, *channels], filters])
    if image is None or weight is None:
        return None
    stride, padding, dilation = (
        (getattr(first, name), getattr(second, name)) for name in ("stride", "padding", "dilation")
    )
    wanted = [a.out.extent if a.out else 1 for a in (first, second)]
    sizes = [
        (n - 1) * s - 2 * p + d * (k - 1) + 1
        for n, s, p, d, k in zip(
            image.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True
        )
    ]
    more = tuple(max(want - have, 0) for want, have in zip(wanted, sizes, strict=True))
    if any(extra >= max(s, d) for extra, s, d in zip(more, stride, dilation, strict=True)):
        return None
    if any(have + extra < 1 for have, extra in zip(sizes, more, strict=True)):
        return None
    of_groups = math.prod(it.extent for it in batch)
    attrs = (stride, padding, more, dilation, of_groups)
    value: Tensor = Op("ConvTranspose2d", (image, weight), attrs)
    for n, (have, want) in enumerate(zip(sizes, wanted, strict=True)):
        if have > want:
            value = Op("Slice", (value,), (2 + n, 0, want, 1))
    spread = [a.out for a in (first, second) if a.out]
    return arranged(value, [*rest, *batch, *filters, *spread], scope)


def _over(
    scope: Scope, read: Read, axes: Sequence[int | None], front: Sequence[Sequence[It]]
) -> Tensor | None:
    """The operand with the groups ``front`` as its first axes and the whole axes ``axes`` behind.

    A weight may be gathered for this. An image has to be a view, since a gathered image would have
    rows that the tensor doesn't have.
    """
    index, whole = list(read.index), list[It]()
    for n, axis in enumerate(axes):
        extent = 1 if axis is None else read.tensor.shape[axis]
        whole.append(It(len(scope.extents) + n, extent))
        if axis is not None:
            index[axis] = bare(whole[-1])
    order = [it for group in front for it in group] + [it for it in whole if it.extent > 1]
    groups = [*front, *([it] for it in whole)]
    spread = Read(read.tensor, tuple(index))
    if dense_axes(spread) is None and not read.tensor.constant:
        return None
    return gathered(spread, order, groups)
