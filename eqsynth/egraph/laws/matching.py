"""Operator matching through iterator mapping tables (EinNet §5.1, Table 2).

A scope of two reads is grouped by where its iterators occur: in both inputs and the output
(batch), in one input and the output (m, n), in both inputs only (k). Operands that aren't laid out
as the operator wants are brought there by views, or by a scope that gathers them (im2col, as an
eOperator).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eqsynth.egraph.laws.closing import reduction_iterators, scope_over, traversal_iterators
from eqsynth.ir.index import Index, It
from eqsynth.ir.inference import window
from eqsynth.ir.scalar import Read, factors_of, iterators
from eqsynth.ir.tensor import Op, Scope, Tensor

# An operand may be gathered into at most this many times its own size (im2col of a 3x3 window: 9).
MAX_REPLICATION = 64


def reshape(t: Tensor, shape: Sequence[int]) -> Tensor:
    if isinstance(t, Op) and t.name == "Reshape":
        t = t.args[0]
    return t if t.shape == tuple(shape) else Op("Reshape", (t,), (tuple(shape),))


def permute(t: Tensor, order: Sequence[int]) -> Tensor:
    return t if list(order) == list(range(len(order))) else Op("Permute", (t,), (tuple(order),))


def _size(its: Sequence[It]) -> int:
    return math.prod(it.extent for it in its)


@dataclass(frozen=True)
class Groups:
    """The iterators of a two-operand scope by where they occur (Table 2's columns)."""

    batch: tuple[It, ...]
    m: tuple[It, ...]
    n: tuple[It, ...]
    k: tuple[It, ...]

    @staticmethod
    def of(scope: Scope, a: Read, b: Read) -> Groups | None:
        """None if an iterator is in no column: idle, or reduced in one operand alone."""
        in_a, in_b = iterators(a), iterators(b)
        traversal = [it for it in traversal_iterators(scope) if it.extent != 1]
        reduced = reduction_iterators(scope)
        if any(it not in in_a | in_b for it in traversal):
            return None
        if any(it not in in_a & in_b for it in reduced):
            return None
        # Within a group any order will do: that of the operand's axes, so that views suffice.
        return Groups(
            _ordered((it for it in traversal if it in in_a and it in in_b), a),
            _ordered((it for it in traversal if it in in_a and it not in in_b), a),
            _ordered((it for it in traversal if it not in in_a and it in in_b), b),
            _ordered(reduced, a),
        )


def _ordered(its: Iterable[It], read: Read) -> tuple[It, ...]:
    place = {it: axis for axis, index in enumerate(read.index) for it in index.iterators()}
    return tuple(sorted(its, key=lambda it: (place[it], it.slot)))


def operands(scope: Scope) -> tuple[Read, Read] | None:
    """The two reads of a sum of products, the constant one (a weight) second."""
    factors = factors_of(scope.body)
    if scope.reducer != "sum" or not scope.reduction or len(factors) != 2:
        return None
    a, b = factors
    if not isinstance(a, Read) or not isinstance(b, Read) or scope.dtype != a.tensor.dtype:
        return None
    if a.tensor.dtype != b.tensor.dtype:
        return None
    if a.tensor.constant != b.tensor.constant:
        return (b, a) if a.tensor.constant else (a, b)
    # Otherwise the operand whose own iterators come first in the result is the left one.
    own = [it for it in traversal_iterators(scope) if (it in iterators(a)) != (it in iterators(b))]
    return (b, a) if own and own[0] in iterators(b) else (a, b)


def gathered(read: Read, order: Sequence[It], groups: Sequence[Sequence[It]]) -> Tensor | None:
    """``read`` with one axis a group: by views if its indices are bare, else by a scope."""
    shape = [_size(group) for group in groups]
    axes = [index.bare() for index in read.index]
    plain = [it for it in axes if it is not None]
    units = all(
        axis is not None or (index.terms == () and index.const == 0 and extent == 1)
        for axis, index, extent in zip(axes, read.index, read.tensor.shape, strict=True)
    )
    whole = all(
        axis is None or axis.extent == extent
        for axis, extent in zip(axes, read.tensor.shape, strict=True)
    )
    if units and whole and len(set(plain)) == len(plain) == len(order):
        tensor = reshape(read.tensor, [it.extent for it in plain])
        return reshape(permute(tensor, [plain.index(it) for it in order]), shape)
    if _size(order) > MAX_REPLICATION * max(read.tensor.type.size, 1):
        return None
    return reshape(scope_over(list(order), [], read), shape)


def _result(value: Tensor, axes: Sequence[It], scope: Scope) -> Tensor:
    """The operator's result, whose axes run over ``axes`` in order, as the scope's result."""
    traversal = [it for it in traversal_iterators(scope) if it.extent != 1]
    value = reshape(value, [it.extent for it in axes])
    value = permute(value, [list(axes).index(it) for it in traversal])
    return reshape(value, scope.traversal)


def match_matmul(scope: Scope) -> Tensor | None:
    """``sum_k a[b, m, k] * b[b, k, n]`` as ``Matmul``, batched if an iterator is in all three."""
    pair = operands(scope)
    groups = Groups.of(scope, *pair) if pair else None
    if pair is None or groups is None or not groups.k or not (groups.m or groups.n):
        return None
    batch = [groups.batch] if groups.batch else []
    left = gathered(pair[0], [*groups.batch, *groups.m, *groups.k], [*batch, groups.m, groups.k])
    right = gathered(pair[1], [*groups.batch, *groups.k, *groups.n], [*batch, groups.k, groups.n])
    if left is None or right is None:
        return None
    product = Op("Matmul", (left, right))
    return _result(product, [*groups.batch, *groups.m, *groups.n], scope)


@dataclass(frozen=True)
class _Window:
    """An index ``stride*h + dilation*r - padding``, or a bare ``h`` (a window of one)."""

    axis: int
    out: It
    kernel: It | None
    stride: int = 1
    dilation: int = 1
    padding: int = 0


def match_conv2d(scope: Scope) -> Tensor | None:
    """``sum x[n, c, s*h + d*r - p, …] * w[f, c, r, …]`` as ``Conv2d``.

    One or two axes of one operand are windows: affine in an iterator of the output and one that is
    reduced. What is left of its axes is the batch and the channels, each at most one iterator.
    """
    pair = operands(scope)
    if pair is None:
        return None
    for x, w in (pair, pair[::-1]):
        windows = _windows(scope, x, w)
        if windows:
            return _conv2d(scope, x, w, windows)
    return None


def _windows(scope: Scope, x: Read, w: Read) -> list[_Window]:
    reduced, elsewhere = set(reduction_iterators(scope)), iterators(w)
    found = []
    for axis, index in enumerate(x.index):
        own = set(index.iterators())
        outs, kernels = own - reduced, own & reduced
        if not index.is_affine or len(outs) != 1 or len(kernels) > 1:
            continue
        (out,) = outs
        kernel = next(iter(kernels), None)
        stride, dilation = index.coefficient(out.slot), 1
        if kernel is not None:
            dilation = index.coefficient(kernel.slot)
        if stride < 1 or dilation < 1 or index.const > 0 or out in elsewhere:
            continue
        if kernel is None and stride == 1 and index.const == 0:
            continue
        found.append(_Window(axis, out, kernel, stride, dilation, -index.const))
    return found if any(window.kernel for window in found) else []


def _conv2d(scope: Scope, x: Read, w: Read, windows: list[_Window]) -> Tensor | None:
    groups = Groups.of(scope, x, w)
    if groups is None or x.fill != 0 or groups.batch or len(windows) > 2:
        return None
    kernels = [window.kernel for window in windows if window.kernel]
    outs = [window.out for window in windows]
    if len(set(kernels)) != len(kernels) or len(set(outs)) != len(outs):
        return None
    channels = [it for it in groups.k if it not in kernels]
    rest = [it for it in groups.m if it not in outs]
    if len(windows) == 1 and rest:
        # A convolution along one axis: another axis of the image is a window of one.
        out = rest[-1]
        axis = next((n for n, i in enumerate(x.index) if i.bare() == out), None)
        if axis is None or x.tensor.shape[axis] != out.extent:
            return None
        windows = [_Window(axis, out, None), *windows]
        rest = rest[:-1]
    if len(channels) > 1 or len(rest) > 1:
        return None
    image = _image(x, windows, rest, channels)
    weight = gathered(
        w,
        [*groups.n, *channels, *(w.kernel for w in windows if w.kernel)],
        [groups.n, channels, *([w.kernel] if w.kernel else [] for w in _two(windows))],
    )
    if image is None or weight is None:
        return None
    stride, dilation, padding = ([1, 1], [1, 1], [0, 0])
    for n, part in enumerate(_two(windows)):
        stride[n], dilation[n], padding[n] = part.stride, part.dilation, part.padding
    sizes = [
        window(extent, kernel, s, p, d)
        for extent, kernel, s, p, d in zip(
            image.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True
        )
    ]
    wanted = [part.out.extent if part.out.slot >= 0 else 1 for part in _two(windows)]
    if any(size < want for size, want in zip(sizes, wanted, strict=True)):
        return None
    attrs = (tuple(stride), tuple(padding), tuple(dilation), 1)
    value: Tensor = Op("Conv2d", (image, weight), attrs)
    for n, (size, want) in enumerate(zip(sizes, wanted, strict=True)):
        if size > want:
            value = Op("Slice", (value,), (2 + n, 0, want, 1))
    axes = [*rest, *groups.n, *(part.out for part in windows)]
    return _result(value, axes, scope)


_UNIT = It(-1, 1)


def _two(windows: list[_Window]) -> list[_Window]:
    """Two windows: a missing one is a window of one over an axis of one."""
    return windows if len(windows) == 2 else [_Window(-1, _UNIT, None), *windows]


def _image(
    x: Read, windows: list[_Window], rest: Sequence[It], channels: Sequence[It]
) -> Tensor | None:
    """The operand as (n, c, h, w), by views; None if an axis is left over."""
    shape = x.tensor.shape
    order: list[int] = []
    for wanted in (rest, channels):
        for it in wanted:
            axis = next((n for n, index in enumerate(x.index) if index.bare() == it), None)
            if axis is None or shape[axis] != it.extent:
                return None
            order.append(axis)
    order += [window.axis for window in windows]
    units = [n for n in range(len(shape)) if n not in order]
    if any(shape[n] != 1 or x.index[n] != Index(0) for n in units):
        return None
    extents = [_size(rest), _size(channels)]
    extents += [shape[part.axis] if part.axis >= 0 else 1 for part in _two(windows)]
    return reshape(permute(x.tensor, [*units, *order]), extents)
