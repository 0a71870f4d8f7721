"""Matching of operators with windows: convolutions and band products (EinNet §5.1, Table 2).

An index that adds an iterator of the output and one of a kernel or a band is a window:

    x[c, 2*h + r - 1] * w[f, c, r]   ->   axis 1 of x, stride 2, dilation 1, padding 1

The index is replaced by one iterator over the rows along which the window slides; stride, dilation
and padding are its coefficients. The operands are then arranged as for any operator
(``matching.py``): by views, or by an eOperator around them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from eqsynth.calculus.conditions import leaves_with
from eqsynth.egraph.tactics.matching import (
    Groups,
    arranged,
    gathered,
    operands,
    size,
)
from eqsynth.ir.index import Index, It
from eqsynth.ir.inference import window
from eqsynth.ir.scalar import Read, iterators
from eqsynth.ir.scopes import bare, reduction_iterators
from eqsynth.ir.tensor import Op, Scope, Tensor


@dataclass(frozen=True)
class _Window:
    """An index ``step*(stride*out + dilation*kernel - padding) + rest``.

    Attributes:
        axis: the axis of the image; None for a window that was added over a single row.
        rows: the iterator over ``stride*out + dilation*kernel - padding``.
    """

    axis: int | None
    out: It | None
    kernel: It | None
    rows: It
    index: Index
    stride: int = 1
    dilation: int = 1
    padding: int = 0


# ---- convolution -----------------------------------------------------------------------------


def match_conv2d(scope: Scope) -> Tensor | None:
    """``sum x[n, g, c, s*h + d*r - p, …] * w[g, f, c, r, …]`` as ``Conv2d`` of any groups.

    One or two axes of one operand are windows: their indices are affine in an iterator of the
    output and a reduction iterator of the kernel. Iterators that both operands and the output share
    are groups; the other reduction iterators are channels.
    """
    pair = operands(scope)
    if pair is None:
        return None
    for image, weight in (pair, pair[::-1]):
        x, w = _forward(scope, image, weight)
        windows = _windows(scope, x, w)
        if windows:
            return _conv2d(scope, x, w, windows)
    return None


def _forward(scope: Scope, x: Read, w: Read) -> tuple[Read, Read]:
    """Turn round the reductions that run backward in ``x``: ``sum_k f(k) = sum_k f(K - 1 - k)``.

    The read of the kernel ``w`` is reversed then.
    """
    backward = {
        it
        for it in reduction_iterators(scope)
        if it in iterators(w) and any(index.coefficient(it.slot) < 0 for index in x.index)
    }

    def turned(it: It) -> Index:
        return it.extent - 1 - bare(it) if it in backward else bare(it)

    def read(of: Read) -> Read:
        return replace(of, index=tuple(index.substitute(turned) for index in of.index))

    return read(x), read(w)


def _windows(scope: Scope, x: Read, w: Read) -> list[_Window]:
    reduced, weighed = set(reduction_iterators(scope)), iterators(w)
    found: list[_Window] = []
    for axis, index in enumerate(x.index):
        own = {it for it in index.iterators() if _occurs_once(x, it)}
        outs = [it for it in own if it not in reduced | weighed]
        kernels = [it for it in own if it in reduced & weighed]
        options = [
            slid
            for out in sorted(outs, key=lambda it: it.slot)
            for kernel in sorted(kernels, key=lambda it: it.slot)
            if (slid := _sliding(scope, x, axis, out, kernel))
        ]
        if options:
            found.append(min(options, key=lambda o: (o.dilation, o.stride)))
    return found if len(found) <= 2 else []


def _occurs_once(read: Read, it: It) -> bool:
    return sum(it in set(index.iterators()) for index in read.index) == 1


def _sliding(scope: Scope, x: Read, axis: int, out: It, kernel: It) -> _Window | None:
    """The window over ``out`` and ``kernel``, on the axis itself if possible, else on a gathered
    axis."""
    index, extent = x.index[axis], x.tensor.shape[axis]
    a, b = index.coefficient(out.slot), index.coefficient(kernel.slot)
    if not index.is_affine or a < 1 or b < 1:
        return None
    step = math.gcd(a, b)
    a, b = a // step, b // step
    rest = index - bare(out) * (a * step) - bare(kernel) * (b * step)
    slot = len(scope.extents) + axis
    if step == 1 and not rest.terms and rest.const <= 0:
        rows, padding = It(slot, extent), -rest.const
        if window(extent, kernel.extent, a, padding, b) >= out.extent:
            return _Window(axis, out, kernel, rows, bare(rows), a, b, padding)
    rows = It(slot, a * (out.extent - 1) + b * (kernel.extent - 1) + 1)
    return _Window(axis, out, kernel, rows, bare(rows) * step + rest, a, b)


def _conv2d(scope: Scope, x: Read, w: Read, windows: list[_Window]) -> Tensor | None:
    groups = Groups.of(scope, x, w)
    if groups is None or x.fill != 0:
        return None
    kernels = {window.kernel for window in windows}
    outs = {window.out for window in windows}
    if len(kernels) != len(windows) or len(outs) != len(windows):
        return None
    channels = [it for it in groups.k if it not in kernels]
    rest = [it for it in groups.m if it not in outs]
    first, second = _two(scope, x, windows, rest)
    rest = [it for it in rest if it not in (first.out, second.out)]
    index = list(x.index)
    for part in (first, second):
        if part.axis is not None:
            index[part.axis] = part.index
    rows = [part.rows for part in (first, second) if part.rows.extent > 1]
    image = gathered(
        Read(x.tensor, tuple(index)),
        [*rest, *groups.batch, *channels, *rows],
        [rest, [*groups.batch, *channels], [first.rows], [second.rows]],
    )
    taps = [[part.kernel] if part.kernel else [] for part in (first, second)]
    weight = gathered(
        w,
        [*groups.batch, *groups.n, *channels, *taps[0], *taps[1]],
        [[*groups.batch, *groups.n], channels, *taps],
    )
    if image is None or weight is None:
        return None
    spatial = [(part.stride, part.padding, part.dilation) for part in (first, second)]
    stride, padding, dilation = zip(*spatial, strict=True)
    sizes = [
        window(extent, kernel, *attrs)
        for extent, kernel, attrs in zip(image.shape[2:], weight.shape[2:], spatial, strict=True)
    ]
    wanted = [part.out.extent if part.out else 1 for part in (first, second)]
    if any(have < want for have, want in zip(sizes, wanted, strict=True)):
        return None
    attrs = (stride, padding, dilation, size(groups.batch))
    value: Tensor = Op("Conv2d", (image, weight), attrs)
    for n, (have, want) in enumerate(zip(sizes, wanted, strict=True)):
        if have > want:
            value = Op("Slice", (value,), (2 + n, 0, want, 1))
    spread = [part.out for part in (first, second) if part.out]
    return arranged(value, [*rest, *groups.batch, *groups.n, *spread], scope)


def _two(
    scope: Scope, x: Read, windows: list[_Window], rest: Sequence[It]
) -> tuple[_Window, _Window]:
    """Two windows; a missing one has one tap and lies over another axis or a single row."""
    if len(windows) == 2:
        return windows[0], windows[1]
    for axis, index in enumerate(x.index):
        out = index.bare()
        if out in rest and out is not None and x.tensor.shape[axis] == out.extent:
            if _occurs_once(x, out) and out == rest[-1]:
                return _Window(axis, out, None, out, index), windows[0]
    return _Window(None, None, None, It(len(scope.extents), 1), Index(0)), windows[0]


# ---- band products ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Band:
    """Operand ``b`` with one iterator ``rows`` in place of ``m + dilation * (w - width)``."""

    b: Read
    m: It
    w: It
    rows: It
    width: int
    dilation: int


def match_g2bmm(scope: Scope) -> Tensor | None:
    """``sum_k a[b, m, k] * b[b, m + d*(w - W), k]`` as ``G2BMM``."""
    for a, band, columns in _bands(scope):
        if columns.n != (band.w,) or not columns.k:
            continue
        left = _matrix(a, columns.batch, band.m, columns.k)
        right = _matrix(band.b, columns.batch, band.rows, columns.k)
        if left is not None and right is not None:
            value = Op("G2BMM", (left, right), (band.width, band.dilation))
            return arranged(value, [*columns.batch, band.m, band.w], scope)
    return None


def match_gbmm(scope: Scope) -> Tensor | None:
    """``sum_w a[b, m, w] * b[b, m + d*(w - W), n]`` as ``GBMM``."""
    for a, band, columns in _bands(scope):
        if columns.k != (band.w,) or not columns.n:
            continue
        left = _matrix(a, columns.batch, band.m, columns.k)
        right = _matrix(band.b, columns.batch, band.rows, columns.n)
        if left is not None and right is not None:
            value = Op("GBMM", (left, right), (band.dilation,))
            return arranged(value, [*columns.batch, band.m, *columns.n], scope)
    return None


def _bands(scope: Scope) -> Iterator[tuple[Read, _Band, Groups]]:
    """The first operand, the second as a band, and Table 2's columns without ``m``."""
    pair = operands(scope)
    for a, b in (pair, pair[::-1]) if pair else ():
        groups = Groups.of(scope, a, b)
        if groups is None or groups.m or b.fill != 0:
            continue
        for m in groups.batch:
            columns = replace(groups, batch=tuple(it for it in groups.batch if it != m))
            for axis, index in enumerate(b.index):
                for w in (*groups.n, *groups.k):
                    band = _band(scope, b, axis, m, w) if w in set(index.iterators()) else None
                    if band and leaves_with(band.b, band.rows):
                        yield a, band, columns


def _band(scope: Scope, b: Read, axis: int, m: It, w: It) -> _Band | None:
    index = b.index[axis]
    step, spread = index.coefficient(m.slot), index.coefficient(w.slot)
    once = _occurs_once(b, m) and _occurs_once(b, w)
    if not index.is_affine or not once or step < 1 or spread < 1:
        return None
    if spread % step or w.extent % 2 == 0:
        return None
    width = w.extent // 2
    rows = It(len(scope.extents), m.extent)
    moved = index - bare(m) * step - bare(w) * spread + spread * width + bare(rows) * step
    read = replace(b, index=(*b.index[:axis], moved, *b.index[axis + 1 :]))
    return _Band(read, m, w, rows, width, spread // step)


def _matrix(read: Read, batch: Sequence[It], m: It, columns: Sequence[It]) -> Tensor | None:
    return gathered(read, [*batch, m, *columns], [batch, [m], columns])
