"""Convolutions and pooling: operators that slide a window over spatial axes.

torch's operators pad both ends of an axis by the same amount, and have their own rule for windows
that reach over the end (``ceil_mode``). Where that is what ONNX asks for, the entry calls torch's
operator. Otherwise it pads the tensor first, or reads the windows element by element
(``_windows``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F

from eqsynth.frontend.onnx.table import Refused, enter, op

Tensor = torch.Tensor

_CONV: Final = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE: Final = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX_POOL: Final[dict[int, Any]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG_POOL: Final[dict[int, Any]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


@dataclass(frozen=True)
class Windows:
    """How windows lie over the spatial axes; each attribute has one number per axis.

    Attributes:
        kernel: the elements of a window.
        stride: the distance between windows.
        dilation: the distance between the elements of a window.
        before, after: the padding at the two ends.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def symmetric(self) -> bool:
        return self.before == self.after

    def flat_pads(self) -> list[int]:
        """The padding as ``torch.nn.functional.pad`` takes it: the last axis first."""
        pairs = zip(reversed(self.before), reversed(self.after), strict=True)
        return [amount for pair in pairs for amount in pair]

    def count(self, extents: Sequence[int], ceil: bool = False) -> tuple[int, ...]:
        """The number of windows along each axis.

        Args:
            ceil: whether a last window may reach over the end. It doesn't count if it begins in the
                padding at the end.
        """
        counts = []
        for n, k, s, d, b, a in zip(
            extents, self.kernel, self.stride, self.dilation, self.before, self.after, strict=True
        ):
            room = n + b + a - d * (k - 1) - 1
            number = (-(-room // s) if ceil else room // s) + 1
            if ceil and (number - 1) * s >= n + b:
                number -= 1
            if number <= 0:
                raise ValueError(f"a window of {k} over an axis of {n} with padding {b}, {a}")
            counts.append(number)
        return tuple(counts)


def windows(
    extents: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int] | None,
    dilation: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
) -> Windows:
    """The windows of an operator with these attributes, over spatial axes of these extents.

    Raises:
        ValueError: the attributes don't fit each other or the axes.
        Refused: ONNX has no such ``auto_pad``.
    """
    rank = len(extents)
    stride = (1,) * rank if stride is None else tuple(stride)
    dilation = (1,) * rank if dilation is None else tuple(dilation)
    given = (0,) * (2 * rank) if pads is None else tuple(pads)
    if {len(kernel), len(stride), len(dilation)} != {rank} or len(given) != 2 * rank:
        raise ValueError(f"windows for {len(kernel)} axes over a tensor with {rank}")
    if min((*kernel, *stride, *dilation), default=1) < 1 or min(given, default=0) < 0:
        raise ValueError("a window's extents, strides and dilations are 1 or more, pads 0 or more")
    before, after = given[:rank], given[rank:]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        total = [
            max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
            for n, k, s, d in zip(extents, kernel, stride, dilation, strict=True)
        ]
        less, more = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        before, after = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
    elif auto_pad == "VALID":
        before = after = (0,) * rank
    elif auto_pad != "NOTSET":
        raise Refused(f"auto_pad {auto_pad}")
    return Windows(tuple(kernel), stride, dilation, before, after)


# ---- convolutions -------------------------------------------------------------------------------


@op("Conv")
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    rank = x.ndim - 2
    _same_kernel(kernel_shape, w)
    at = windows(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    padding = list(at.before)
    if not at.symmetric:
        x, padding = F.pad(x, at.flat_pads()), [0] * rank
    return _conv(_CONV, rank)(x, w, b, list(at.stride), padding, list(at.dilation), group)


def _conv(table: dict[int, Any], rank: int) -> Callable[..., Tensor]:
    """The function of ``table`` for this number of spatial axes.

    Raises:
        Refused: torch has none.
    """
    if rank not in table:
        raise Refused(f"windows over {rank} axes")
    return table[rank]  # type: ignore[no-any-return]


def _same_kernel(kernel_shape: Sequence[int] | None, w: Tensor) -> None:
    if kernel_shape is not None and tuple(kernel_shape) != tuple(w.shape[2:]):
        raise ValueError(f"kernel_shape {list(kernel_shape)} with a weight of {list(w.shape)}")


@op("ConvTranspose")
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """A transposed convolution. Its full result has ``(n - 1) * stride + dilation * (k - 1) + 1``
    elements per axis; ``output_padding`` adds elements at the end, and ``pads`` removes elements
    at both ends."""
    rank = x.ndim - 2
    _same_kernel(kernel_shape, w)
    at = windows(x.shape[2:], w.shape[2:], strides, dilations, pads, "NOTSET")
    more = [0] * rank if output_padding is None else list(output_padding)
    full = [
        (n - 1) * s + d * (k - 1) + 1 + m
        for n, s, d, k, m in zip(x.shape[2:], at.stride, at.dilation, at.kernel, more, strict=True)
    ]
    before, after = list(at.before), list(at.after)
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise Refused(f"auto_pad {auto_pad}")
    if output_shape is not None or auto_pad.startswith("SAME"):
        wanted = [n * s for n, s in zip(x.shape[2:], at.stride, strict=True)]
        wanted = wanted if output_shape is None else list(output_shape)[-rank:]
        total = [f - n for f, n in zip(full, wanted, strict=True)]
        if min(total) < 0:
            raise Refused("an output larger than what the input reaches")
        less, rest = [t // 2 for t in total], [t - t // 2 for t in total]
        before, after = (less, rest) if auto_pad == "SAME_UPPER" else (rest, less)
    call = _conv(_CONV_TRANSPOSE, rank)
    limits = [max(s, d) for s, d in zip(at.stride, at.dilation, strict=True)]
    if before == after and all(m < limit for m, limit in zip(more, limits, strict=True)):
        return call(x, w, b, list(at.stride), before, more, group, list(at.dilation))
    whole = call(x, w, None, list(at.stride), [0] * rank, [0] * rank, group, list(at.dilation))
    cut = [n for i in reversed(range(rank)) for n in (-before[i], more[i] - after[i])]
    result = F.pad(whole, cut)
    return result if b is None else result + b.reshape([-1] + [1] * rank)


# ---- pooling ------------------------------------------------------------------------------------


@op("MaxPool")
def max_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    outputs: int = 1,
) -> Any:
    rank = x.ndim - 2
    at = windows(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    pool = _conv(_MAX_POOL, rank)
    fits = at.symmetric and all(2 * b <= k for b, k in zip(at.before, at.kernel, strict=True))
    counts = at.count(x.shape[2:], bool(ceil_mode))
    if outputs > 1:
        if not fits or storage_order:
            raise Refused("indices of windows that torch doesn't know")
        values, places = pool(x, list(at.kernel), list(at.stride), list(at.before),
                              list(at.dilation), bool(ceil_mode), True)  # fmt: skip
        plane = math.prod(x.shape[2:])
        planes = torch.arange(x.shape[0] * x.shape[1]) * plane
        return values, places + planes.reshape([*x.shape[:2]] + [1] * rank)
    if fits:
        args = (list(at.kernel), list(at.stride), list(at.before), list(at.dilation))
        result = pool(x, *args, bool(ceil_mode))
        if result.shape[2:] == counts:
            return result
    lowest = float("-inf") if x.is_floating_point() else torch.iinfo(x.dtype).min
    after = _reaching(at, x.shape[2:], counts)
    padded = F.pad(x, Windows(at.kernel, at.stride, at.dilation, at.before, after).flat_pads(),
                   value=lowest)  # fmt: skip
    return pool(padded, list(at.kernel), list(at.stride), 0, list(at.dilation))


def _reaching(at: Windows, extents: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    """The padding at the end of each axis with which the last of these windows ends exactly there.

    Args:
        counts: the number of windows along each axis.
    """
    return tuple(
        (c - 1) * s + d * (k - 1) + 1 - n - b
        for c, s, d, k, n, b in zip(
            counts, at.stride, at.dilation, at.kernel, extents, at.before, strict=True
        )
    )


@op("AveragePool")
def average_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    rank = x.ndim - 2
    at = windows(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    counts = at.count(x.shape[2:], bool(ceil_mode))
    padded = any(at.before) or any(at.after)
    reach = zip(_reaching(at, x.shape[2:], counts), at.after, strict=True)
    whole = all(end <= pad for end, pad in reach) and counts == at.count(x.shape[2:])
    if (
        rank in _AVG_POOL
        and at.symmetric
        and set(at.dilation) == {1}
        and whole
        and all(2 * b <= k for b, k in zip(at.before, at.kernel, strict=True))
    ):
        args = (list(at.kernel), list(at.stride), list(at.before))
        return _AVG_POOL[rank](x, *args, False, bool(count_include_pad) or not padded)  # type: ignore[no-any-return]
    total, inside = _windows(x, at, counts, bool(count_include_pad))
    return total / torch.from_numpy(inside).to(x.dtype)


def _windows(
    x: Tensor, at: Windows, counts: Sequence[int], with_pads: bool
) -> tuple[Tensor, np.ndarray[Any, Any]]:
    """The sum over each window, and the number of elements of each window.

    Args:
        counts: the number of windows along each axis.
        with_pads: whether the number includes elements in the padding.
    """
    rank = x.ndim - 2
    inside = np.ones((1,) * rank)
    for axis in range(rank):
        n, b, a = x.shape[2 + axis], at.before[axis], at.after[axis]
        if counts[axis] * at.kernel[axis] > 1 << 26:
            raise ValueError(f"{counts[axis]} windows of {at.kernel[axis]}")
        starts = np.arange(counts[axis])[:, None] * at.stride[axis] - b
        places = starts + np.arange(at.kernel[axis]) * at.dilation[axis]
        held = (places >= 0) & (places < n)
        counted = (places >= -b) & (places < n + a) if with_pads else held
        read = x.index_select(2 + axis, torch.from_numpy(np.clip(places, 0, n - 1).reshape(-1)))
        shape = [*x.shape[: 2 + axis], *places.shape, *x.shape[3 + axis :]]
        mask = torch.from_numpy(held).reshape([*places.shape] + [1] * (rank - 1 - axis))
        x = torch.where(mask, read.reshape(shape), 0).sum(3 + axis, dtype=x.dtype)
        number = counted.sum(1).reshape([-1] + [1] * (rank - 1 - axis))
        inside = inside * number
    return x, inside


@op("LpPool")
def lp_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    p: int = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    at = windows(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    counts = at.count(x.shape[2:], bool(ceil_mode))
    total, _ = _windows(torch.abs(x) ** p, at, counts, False)
    return total ** (1.0 / p)


def _global(function: Callable[[Tensor, list[int]], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x, list(range(2, x.ndim)))


enter("GlobalAveragePool", _global(lambda x, axes: torch.mean(x, axes, True)))
enter("GlobalMaxPool", _global(lambda x, axes: torch.amax(x, axes, True)))


@op("GlobalLpPool")
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    return torch.sum(torch.abs(x) ** p, list(range(2, x.ndim)), True) ** (1.0 / p)


@op("Col2Im", known=(1, 2))
def col2im(
    x: Tensor,
    image: Sequence[int],
    block: Sequence[int],
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    at = windows(image, block, strides, dilations, pads, "NOTSET")
    if len(image) != 2 or not at.symmetric:
        raise Refused("columns of another image than one of two axes, padded at both ends")
    return F.fold(x, tuple(image), at.kernel, at.dilation, at.before, at.stride)
