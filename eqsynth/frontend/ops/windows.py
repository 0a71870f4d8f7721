"""Windows and blocks of axes, under torch's names: unfold, im2col, col2im, pixel shuffles.

Each is a view: one read at an affine index, or reshapes and a permutation. Only col2im is a sum,
since windows may overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

from eqsynth.errors import ShapeError
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.ops import creation, views
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Scope


def unfold(input: Expr, dimension: int, size: int, step: int = 1) -> Expr:
    """``torch.Tensor.unfold``: the windows that lie inside of an axis, with a new last axis for the
    elements of a window.

    ``result[.., i, .., j] = input[.., step*i + j, ..]``. Syno's Unfold (``ops.syno.unfold``) keeps
    the extent of the axis and reads 0 outside.

    Raises:
        ShapeError: no window fits, or the step isn't positive.
    """
    axis = views.axis_of(dimension, input.ndim)
    extent = input.shape[axis] if input.ndim else 1
    if not 0 <= size <= extent or step < 1:
        raise ShapeError(
            what="unfold: no window fits",
            got=f"windows of {size} every {step} on an axis of {extent}",
            expected=f"0 <= size <= {extent} and step >= 1",
            hint="pad first",
        )
    if not input.ndim:
        return views.reshape(input, (1,)) if size else creation.full((0,), 0, input.dtype)
    at = _points((*input.shape[:axis], (extent - size) // step + 1, *input.shape[axis + 1 :], size))
    index = (*at[:axis], at[axis] * step + at[-1], *at[axis + 1 : -1])
    shape = (*input.shape[:axis], (extent - size) // step + 1, *input.shape[axis + 1 :], size)
    return Expr(Scope(shape, (), Read(input.tensor, index)), input.values)


def im2col(
    input: Expr,
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Expr:
    """``torch.nn.functional.unfold``: (n, c, h, w) -> (n, c*r*s, h'*w'), 0 around the image.

    Raises:
        ShapeError: the input is no image, or no window fits.
    """
    image = views.unsqueeze(input, 0) if input.ndim == 3 else input
    kernel, gap, pad, step = map(_pair, (kernel_size, dilation, padding, stride))
    (kr, ks), (dr, ds), (ph, pw), (sh, sw) = kernel, gap, pad, step
    rows = cols = 0
    if image.ndim == 4:
        rows, cols = map(_windows, image.shape[2:], kernel, gap, pad, step)
    if min(rows, cols) < 1:
        raise ShapeError(
            what="im2col: no window fits",
            got=f"{input.tensor.type}, kernel {kernel_size}, dilation {dilation}, "
            f"padding {padding}, stride {stride}",
            expected="an image (n, c, h, w) or (c, h, w), and windows inside of it",
            hint="pad the image, or take a smaller window",
        )
    n, c = image.shape[:2]
    shape = (n, c, kr, ks, rows, cols)
    b, f, r, s, i, j = _points(shape)
    index = (b, f, i * sh + r * dr - ph, j * sw + s * ds - pw)
    patches = Expr(Scope(shape, (), Read(image.tensor, index)), image.values)
    merged = views.reshape(patches, (n, c * kr * ks, rows * cols))
    return views.reshape(merged, merged.shape[1:]) if input.ndim == 3 else merged


def col2im(
    input: Expr,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Expr:
    """``torch.nn.functional.fold``: (n, c*r*s, h'*w') -> (n, c, h, w), the inverse move of im2col.

    Each element of a window is added to the point of the image that ``im2col`` reads it from:
    ``result[b, f, i, j] = sum(r, s) input[b, (f, r, s), ((i + p - d*r) / t, (j + q - e*s) / u)]``
    over all r and s for which both quotients are whole, as in the definition of ConvTranspose2d.

    Raises:
        ShapeError: the input doesn't have the shape of the windows of such an image.
    """
    batched = views.unsqueeze(input, 0) if input.ndim == 2 else input
    size, kernel, gap, pad, step = map(_pair, (output_size, kernel_size, dilation, padding, stride))
    rows, cols = map(_windows, size, kernel, gap, pad, step)
    taps = kernel[0] * kernel[1]
    if (
        batched.ndim != 3
        or min(rows, cols) < 1
        or batched.shape[1] % taps
        or batched.shape[2] != rows * cols
    ):
        raise ShapeError(
            what="col2im: these are no windows of such an image",
            got=f"{input.tensor.type} for an image of {output_size}, kernel {kernel_size}, "
            f"dilation {dilation}, padding {padding}, stride {stride}",
            expected=f"(n, c * {taps}, {max(rows, 0) * max(cols, 0)})",
            hint="take the sizes with which the windows were made",
        )
    n, c = batched.shape[0], batched.shape[1] // taps
    # The axes of extent 1 are indexed by the remainders of the two quotients: a remainder of 0
    # reads the element, any other remainder lies outside and reads 0.
    windows = views.reshape(batched, (n, c, *kernel, rows, 1, cols, 1))
    b, f, i, j, r, s = _points((n, c, *size, *kernel))
    y, x = i + pad[0] - r * gap[0], j + pad[1] - s * gap[1]
    index = (b, f, r, s, y // step[0], y % step[0], x // step[1], x % step[1])
    image = Expr(Scope((n, c, *size), kernel, Read(windows.tensor, index)), windows.values)
    return views.reshape(image, image.shape[1:]) if input.ndim == 2 else image


def _windows(extent: int, taps: int, gap: int, pad: int, step: int) -> int:
    """The number of windows along an axis; 0 if an argument isn't allowed."""
    if min(taps, gap, step) < 1 or pad < 0:
        return 0
    return max(0, (extent + 2 * pad - gap * (taps - 1) - 1) // step + 1)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    both = (value,) * 2 if isinstance(value, int) else tuple(value) * (2 if len(value) == 1 else 1)
    return both[0], both[1]


def _points(shape: Sequence[int]) -> list[Index]:
    return [Index.iterator(slot, extent) for slot, extent in enumerate(shape)]


def pixel_shuffle(input: Expr, upscale_factor: int) -> Expr:
    """(*, c*r*r, h, w) -> (*, c, h*r, w*r)"""
    *batch, channels, h, w = _image("pixel_shuffle", input)
    r = upscale_factor
    _divides("pixel_shuffle", r * r, channels)
    split = views.reshape(input, (*batch, channels // (r * r), r, r, h, w))
    k = len(batch)
    moved = views.permute(split, (*range(k + 1), k + 3, k + 1, k + 4, k + 2))
    return views.reshape(moved, (*batch, channels // (r * r), h * r, w * r))


def pixel_unshuffle(input: Expr, downscale_factor: int) -> Expr:
    """(*, c, h*r, w*r) -> (*, c*r*r, h, w)"""
    *batch, channels, h, w = _image("pixel_unshuffle", input)
    r = downscale_factor
    _divides("pixel_unshuffle", r, h)
    _divides("pixel_unshuffle", r, w)
    split = views.reshape(input, (*batch, channels, h // r, r, w // r, r))
    k = len(batch)
    moved = views.permute(split, (*range(k + 1), k + 2, k + 4, k + 1, k + 3))
    return views.reshape(moved, (*batch, channels * r * r, h // r, w // r))


def _image(name: str, input: Expr) -> tuple[int, ...]:
    if input.ndim < 3:
        raise ShapeError(
            what=f"{name}: no image", got=str(input.tensor.type), expected="(*, c, h, w)", hint=""
        )
    return input.shape


def _divides(name: str, factor: int, extent: int) -> None:
    if factor < 1 or extent % factor:
        raise ShapeError(
            what=f"{name}: the factor doesn't divide an axis",
            got=f"{factor} of {extent}",
            expected=f"a divisor of {extent}",
            hint="pad first, or take another factor",
        )
