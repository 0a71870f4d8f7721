"""Matching of transposed convolutions (EinNet §5.1, Table 2 and Fig. 8).

What a transposed convolution sums for output i are the taps k of one phase, at the pixels u for
which ``stride * u + dilation * k = i + padding``. So its image and its weight share the iterator of
the output, one by quotient, one by remainder, and the attributes are what solves that equation for
every output (``phases.py`` brings the sum into this form).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from eqsynth.egraph.laws.closing import bare, reduction_iterators, same_scope
from eqsynth.egraph.laws.matching import Groups, arranged, dense_axes, gathered, operands
from eqsynth.egraph.laws.substitution import iterator_split
from eqsynth.ir.index import Index, It, Mod
from eqsynth.ir.scalar import Read, reads
from eqsynth.ir.tensor import Op, Scope, Tensor

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Axis:
    """Axes of the image and of the weight that one axis of the output spreads over.

    Attributes:
        image, weight: which axes; None for an axis of one pixel or of one tap.
        tap: the iterator over the taps of a phase, None if each has one.
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

    Of any groups; each axis with a stride and dilation that have no divisor in common.
    """
    pair = operands(scope)
    for x, w in (pair, pair[::-1]) if pair else ():
        axes = list(_axes(scope, x, w))
        if 1 <= len(axes) <= 2 and any(axis.stride > 1 for axis in axes):
            apart = iterator_split(scope, whole=True, but={axis.out for axis in axes})
            if apart is None:
                return _conv_transpose2d(scope, x, w, axes)
            # Filters that are counted through the groups.
            (read,) = reads(apart.body)
            assert isinstance(read.tensor, Scope)
            value = match_conv_transpose2d(read.tensor)
            return value and same_scope(scope, replace(read, tensor=value), [])
    return None


def _axes(scope: Scope, x: Read, w: Read) -> Iterator[_Axis]:
    for image, over in enumerate(x.index):
        for weight, at in enumerate(w.index):
            shared = set(over.iterators()) & set(at.iterators())
            found = _axis(scope, x, w, image, weight) if shared else None
            if found:
                yield found


def _axis(scope: Scope, x: Read, w: Read, image: int, weight: int) -> _Axis | None:
    over, at, size = x.index[image], w.index[weight], w.tensor.shape[weight]
    reduced = set(reduction_iterators(scope))
    its = set(over.iterators()) | set(at.iterators())
    taps, outs = its & reduced, its - reduced
    if len(taps) > 1 or len(outs) != 1 or any(_elsewhere(x, it, image) for it in its):
        return None
    if any(_elsewhere(w, it, weight) for it in its):
        return None
    (out,), tap = outs, next(iter(taps), None)
    stride = next((a.divisor for a, c in at.terms if isinstance(a, Mod) and c == 1), 1)
    per_phase = -(-size // stride)
    if (tap.extent if tap else 1) != per_phase or (tap and at.coefficient(tap.slot) != stride):
        return None
    i, u, k = _values(over, at, out)
    if tap:
        dilation = -over.coefficient(tap.slot)
    else:
        # stride * u + dilation * k - i is the same for an output of another phase.
        other = int((k != k[0]).argmax())
        rise, run = (i - stride * u)[[0, other]], k[[other, 0]]
        dilation = int((rise[1] - rise[0]) // (run[0] - run[1])) if k[other] != k[0] else 1
    paddings = set((stride * u + dilation * k - i).tolist())
    phased = bool((k >= 0).all() and (k < stride).all())
    if not phased or len(paddings) > 1 or min(paddings) < 0:
        return None
    if dilation < 1 or math.gcd(stride, dilation) > 1:
        return None
    return _Axis(image, weight, out, tap, stride, min(paddings), dilation)


def _elsewhere(read: Read, it: It, axis: int) -> bool:
    return any(it in set(index.iterators()) for n, index in enumerate(read.index) if n != axis)


def _values(over: Index, at: Index, out: It) -> tuple[Ints, Ints, Ints]:
    """Every output i, with its pixel u and its tap k, those of a phase that come first."""
    i: Ints = np.arange(out.extent)
    values = {it.slot: np.zeros(1, np.int64) for it in (*over.iterators(), *at.iterators())}
    values[out.slot] = i
    u, k = (np.broadcast_to(index.evaluate(values), i.shape) for index in (over, at))
    return i, u, k


def _conv_transpose2d(scope: Scope, x: Read, w: Read, axes: list[_Axis]) -> Tensor | None:
    groups = Groups.of(scope, x, w)
    if groups is None or x.fill != 0 or w.fill != 0:
        return None
    first, second = axes if len(axes) == 2 else (_UNIT, axes[0])
    outs, taps = {a.out for a in axes}, {a.tap for a in axes}
    batch = [it for it in groups.batch if it not in outs]
    rest = [it for it in groups.m if it not in outs]
    channels = [it for it in groups.k if it not in taps]
    image = _over(scope, x, [a.image for a in (first, second)], [rest, [*batch, *channels]])
    weight = _over(scope, w, [a.weight for a in (first, second)], [[*batch, *channels], groups.n])
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
    return arranged(value, [*rest, *batch, *groups.n, *spread], scope)


def _over(
    scope: Scope, read: Read, axes: Sequence[int | None], front: Sequence[Sequence[It]]
) -> Tensor | None:
    """The operand with two axes of its tensor taken whole, behind the others.

    Only a weight is gathered for it: copied rows of an image are none of its.
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
