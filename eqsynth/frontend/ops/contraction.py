"""Linear operators under torch's names: matrix products, convolutions, interpolation."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from eqsynth.errors import DtypeError, ShapeError
from eqsynth.frontend.expr import Expr, make, merge_values
from eqsynth.frontend.ops import pointwise, views
from eqsynth.frontend.promotion import Number
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Read, product
from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import broadcast_shapes, is_float

Size = int | Sequence[int]


def _sizes(value: Size, rank: int) -> tuple[int, ...]:
    """One number per axis; a single number holds for all axes: ``3`` -> ``(3, 3)``."""
    sizes = (value,) if isinstance(value, int) else tuple(value)
    return sizes * rank if len(sizes) == 1 else sizes


# -- matrix products ------------------------------------------------------------------------


def matmul(input: Expr, other: Expr) -> Expr:
    """``(*b, m, k) @ (*b, k, n) -> (*b, m, n)``; vectors as in torch, batch axes broadcast.

    Raises:
        ShapeError, DtypeError: the operands don't fit; dtypes aren't promoted.
    """
    left = views.reshape(input, (1, *input.shape)) if input.ndim == 1 else input
    right = views.reshape(other, (*other.shape, 1)) if other.ndim == 1 else other
    result = make("Matmul", (left, right))
    shape = list(result.shape)
    if other.ndim == 1:
        del shape[-1]
    if input.ndim == 1:
        del shape[-1 if other.ndim == 1 else -2]
    return views.reshape(result, shape)


def linear(input: Expr, weight: Expr, bias: Expr | None = None) -> Expr:
    """``input @ weight.T + bias``: (*b, k), (n, k) -> (*b, n)"""
    result = matmul(input, views.t(weight))
    return result if bias is None else pointwise.add(result, bias)


def addmm(input: Expr, mat1: Expr, mat2: Expr, beta: Number = 1, alpha: Number = 1) -> Expr:
    """``beta * input + alpha * (mat1 @ mat2)``; with batches it is torch's baddbmm."""
    product = matmul(mat1, mat2)
    for factor in (alpha, beta):
        if not is_float(product.dtype) and not float(factor).is_integer():
            raise DtypeError(
                what="addmm: a product of integers is scaled by a fraction",
                got=f"{product.dtype}, {factor}",
                expected="an integer",
                hint="cast the matrices to floats",
            )
    if broadcast_shapes("addmm", input.shape, product.shape) != product.shape:
        raise ShapeError(
            what="addmm: what is added is larger than the product",
            got=f"{input.tensor.type} and {product.tensor.type}",
            expected=f"a shape that broadcasts to {product.shape}",
            hint="add it to the product of matmul",
        )
    if not is_float(product.dtype):
        alpha, beta = int(alpha), int(beta)
    result: Expr = pointwise.mul_if(product, alpha)
    # beta = 0 means that input isn't read at all, NaN or not.
    return result if beta == 0 else pointwise.add(result, pointwise.mul_if(input, beta))


def einsum(equation: str, *operands: Expr) -> Expr:
    """One scope that computes the whole equation: ``einsum("ij,jk->ik", a, b)``. An equation has no
    ellipsis.

    Raises:
        ShapeError: the equation doesn't fit the operands.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    letters = left.replace(",", "")
    if not arrow:
        right = "".join(sorted(x for x in set(letters) if letters.count(x) == 1))
    extents = extents_of(terms, operands)
    if extents is None or len(set(right)) < len(right) or not set(right) <= set(letters):
        raise ShapeError(
            what="the einsum equation doesn't fit its operands",
            got=f"{equation} of {', '.join(str(o.tensor.type) for o in operands)}",
            expected="one letter an axis, one extent a letter, output letters from the inputs",
            hint="write ellipses out as letters",
        )
    summed = [letter for letter in extents if letter not in right]
    order = [*right, *summed]
    at = {letter: Index.iterator(slot, extents[letter]) for slot, letter in enumerate(order)}
    reads = [
        Read(o.tensor, tuple(at[x] for x in term)) for term, o in zip(terms, operands, strict=True)
    ]
    scope = Scope(
        tuple(extents[x] for x in right), tuple(extents[x] for x in summed), product(reads)
    )
    return Expr(scope, merge_values(operands))


def extents_of(terms: Sequence[str], operands: Sequence[Expr]) -> dict[str, int] | None:
    """The extent of each letter of an einsum equation; None if the terms don't fit the operands."""
    extents: dict[str, int] = {}
    fits = len(terms) == len(operands)
    for term, operand in zip(terms, operands, strict=False):
        fits = fits and term.isalpha() | (term == "") and len(term) == operand.ndim
        for letter, extent in zip(term, operand.shape, strict=False):
            fits = fits and extents.setdefault(letter, extent) == extent
    return extents if fits else None


def g2bmm(input: Expr, other: Expr, width: int, dilation: int = 1) -> Expr:
    """A band of ``input @ other.T``: (b, m, k), (b, m, k) -> (b, m, 2*width + 1).

    Element ``(m, w)`` is the product of row ``m`` of ``input`` with row ``m + dilation * (w -
    width)`` of ``other``, or 0 if there is no such row. These are the scores of sliding-window
    attention. Source: EinNet §5.1, Table 2.

    Raises:
        ShapeError, DtypeError: the operands don't fit, or ``width`` or ``dilation`` isn't allowed.
    """
    return make("G2BMM", (input, other), width, dilation)


def gbmm(input: Expr, other: Expr, dilation: int = 1) -> Expr:
    """A band from :func:`g2bmm` times a matrix: (b, m, 2*w + 1), (b, m, n) -> (b, m, n)

    Raises:
        ShapeError, DtypeError: the operands don't fit.
    """
    return make("GBMM", (input, other), dilation)


# -- convolutions -----------------------------------------------------------------------------


def with_bias(result: Expr, bias: Expr | None) -> Expr:
    """``(n, f, *places) + (f,)``; the result itself without a bias."""
    if bias is None:
        return result
    if bias.shape != (result.shape[1],):
        raise ShapeError(
            what="convolution: the bias doesn't fit",
            got=str(bias.tensor.type),
            expected=f"({result.shape[1]},), one number a channel of the result",
            hint="add a bias of another shape to the result",
        )
    column = views.reshape(bias, (bias.shape[0], *(1,) * (result.ndim - 2)))
    return pointwise.add(result, column)  # type: ignore[no-any-return]


def conv2d(
    input: Expr,
    weight: Expr,
    bias: Expr | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Expr:
    """``(n, g*c, h, w), (f, c, r, s) -> (n, f, h', w')``; the batch axis may be left out."""
    if input.ndim == 3:
        batched = conv2d(views.unsqueeze(input, 0), weight, bias, stride, padding, dilation, groups)
        return views.squeeze(batched, 0)
    dilation = _sizes(dilation, 2)
    if isinstance(padding, str):
        total = named_padding(padding, _sizes(stride, 2), dilation, weight.shape[2:])
        padding = [t // 2 for t in total]
        # An odd total pads one element more at the end. The operator Conv2d pads both ends by the
        # same amount, so that element is padded here.
        input = views.pad(input, (0, total[1] % 2, 0, total[0] % 2))
    attrs = (_sizes(stride, 2), _sizes(padding, 2), dilation, groups)
    return with_bias(make("Conv2d", (input, weight), *attrs), bias)


def named_padding(
    padding: str, stride: Sequence[int], dilation: Sequence[int], kernel: Sequence[int]
) -> list[int]:
    """The zeros that ``same`` or ``valid`` adds along each axis; of an odd number the last place
    gets one more.

    Raises:
        ShapeError: there is no such padding.
    """
    if padding not in ("same", "valid") or (padding == "same" and set(stride) != {1}):
        raise ShapeError(
            what="convolution: no such padding",
            got=f"{padding!r}, stride {stride}",
            expected="'valid', 'same' with a stride of 1, or numbers",
            hint="give the amounts as numbers",
        )
    return [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, kernel, strict=True)]


def conv1d(
    input: Expr,
    weight: Expr,
    bias: Expr | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Expr:
    """``(n, g*c, l), (f, c, k) -> (n, f, l')``, as a conv2d of height 1."""
    spread = [(1, *_sizes(stride, 1)), (1, *_sizes(dilation, 1))]
    flat = padding if isinstance(padding, str) else (0, *_sizes(padding, 1))
    result = conv2d(
        views.unsqueeze(input, -2),
        views.unsqueeze(weight, 2),
        bias,
        spread[0],
        flat,
        spread[1],
        groups,
    )
    return views.squeeze(result, -2)


def conv_transpose2d(
    input: Expr,
    weight: Expr,
    bias: Expr | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Expr:
    """``(n, g*c, h, w), (g*c, f, r, s) -> (n, g*f, h', w')``; the batch axis may be left out."""
    if input.ndim == 3:
        batched = views.unsqueeze(input, 0)
        rest = (stride, padding, output_padding, groups, dilation)
        return views.squeeze(conv_transpose2d(batched, weight, bias, *rest), 0)
    sizes = [_sizes(v, 2) for v in (stride, padding, output_padding, dilation)]
    return with_bias(make("ConvTranspose2d", (input, weight), *sizes, groups), bias)


def conv_transpose1d(
    input: Expr,
    weight: Expr,
    bias: Expr | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Expr:
    """``(n, g*c, l), (g*c, f, k) -> (n, g*f, l')``, as a conv_transpose2d of height 1."""
    result = conv_transpose2d(
        views.unsqueeze(input, -2),
        views.unsqueeze(weight, 2),
        bias,
        (1, *_sizes(stride, 1)),
        (0, *_sizes(padding, 1)),
        (0, *_sizes(output_padding, 1)),
        groups,
        (1, *_sizes(dilation, 1)),
    )
    return views.squeeze(result, -2)


# -- interpolation ----------------------------------------------------------------------------


def upsample_bilinear2d(input: Expr, size: Sequence[int], align_corners: bool = False) -> Expr:
    """``(n, c, h, w) -> (n, c, *size)``, by torch's linear interpolation on both axes."""
    if tuple(size) == input.shape[2:]:
        return input
    return make("UpsampleBilinear2d", (input,), tuple(size), int(align_corners))


def upsample_nearest(
    input: Expr,
    size: Sequence[int],
    scale_factor: Sequence[float | None] | None = None,
    offset: float = 0.0,
) -> Expr:
    """``(n, c, *extents) -> (n, c, *size)``: ``result[i] = input[floor((i + offset) / factor)]``.

    Args:
        scale_factor: the factor of each axis; by default ``size / extent``. A given factor may be
            larger: 5 elements by a factor of 1.5 are 7, whose quotient is 1.4.
        offset: 0 is torch's ``nearest``, 0.5 its ``nearest-exact``.

    Raises:
        ShapeError: the positions that torch computes in floats aren't those of any quotient of
            integers, so no index can express them.
    """
    shape = (*input.shape[:2], *size)
    at = [Index.iterator(slot, extent) for slot, extent in enumerate(shape)]
    factors = scale_factor or [None] * len(size)
    for axis, (extent, factor) in enumerate(zip(input.shape[2:], factors, strict=True), start=2):
        at[axis] = _nearest(at[axis], extent, shape[axis], factor, offset)
    return Expr(Scope(shape, (), Read(input.tensor, tuple(at))), input.values)


def _nearest(at: Index, extent: int, size: int, factor: float | None, offset: float) -> Index:
    """The index ``floor((i + offset) * step)``, where ``step`` is a quotient of integers.

    The step is ``extent / size``, or the factor's inverse as a quotient. It is taken only if it
    gives the same positions as torch's own computation in float32 and in float64.

    Raises:
        ShapeError: no step gives torch's positions.
    """
    steps = [Fraction(extent, size)] if size else [Fraction(1)]
    if factor:
        steps.append(1 / Fraction(factor).limit_denominator(1024))
    half, places = int(2 * offset), np.arange(size)
    ratio = 1 / factor if factor else extent / max(size, 1)
    floats = [
        np.floor((places + offset).astype(kind) * np.asarray(ratio, kind))
        for kind in ("float32", "float64")
    ]
    for step in steps:
        up, down = step.numerator, step.denominator
        exact = (places * 2 * up + half * up) // (2 * down)
        if all(np.array_equal(exact, rounded) for rounded in floats):
            return (at * 2 * up + up) // (2 * down) if half else at * up // down
    raise ShapeError(
        what="nearest-neighbour interpolation whose positions depend on how floats are rounded",
        got=f"{extent} to {size}, by {factor}",
        expected="a factor of small integers",
        hint="give the size instead of the factor, or a size that has a common divisor with it",
    )
