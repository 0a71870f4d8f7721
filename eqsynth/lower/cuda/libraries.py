"""NVIDIA's libraries, called by torch's CUDA operators: products, convolutions, attention.

A kernel is named after the library that it calls: ``cublas`` (products, also batched with one
stride, and of parts of tensors), ``cublasLt`` (products with bias and activation), ``cudnn``
(convolutions with bias, activation and residual), ``cutlass`` (attention). The
:class:`~eqsynth.extract.target.Target` says which of these a device has, for which operators, and
in which layouts of images. Not here: generated kernels (``backend.py``), finding the scopes that
are products of parts (``strided.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from eqsynth.extract.kernel import (
    Kernel,
    Layout,
    Runner,
    channels_last,
    contiguous,
    strides,
)
from eqsynth.extract.target import Target
from eqsynth.ir.tensor import Op, Scope, Tensor, args_of
from eqsynth.ir.types import Shape
from eqsynth.lower.attention import attention
from eqsynth.lower.cuda import precision, strided
from eqsynth.lower.torch_backend import lay_out, matmul_layouts, route
from eqsynth.lower.torch_scalars import apply

Array = torch.Tensor

_FLOATS: Final = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class Matrices:
    """An operand of a batched product, as cuBLAS takes it. Distances are in elements.

    Attributes:
        leading: distance between rows; if transposed, between columns.
        step: distance between matrices; 0 if there is only one.
        transposed: whether the elements of a column are neighbours in memory, and not those of a
            row.
    """

    batch: int
    rows: int
    columns: int
    leading: int
    step: int
    transposed: bool


def matrices(shape: Shape, layout: Layout) -> Matrices | None:
    """Return a tensor in a layout as an operand; None if cuBLAS can't step through it.

    All axes but the last two are the batch, which has to be traversed with one step. With a single
    sequence, the heads of attention, which lie inside the rows, are such a batch.

    >>> matrices((1, 8, 64, 32), (0, 2, 1, 3))
    Matrices(batch=8, rows=64, columns=32, leading=256, step=32, transposed=False)
    >>> matrices((2, 8, 64, 32), (0, 2, 1, 3))
    """
    *around, down, along = strides(shape, layout)
    rows, columns = shape[-2:]
    batch, step = 1, 0
    for extent, own in zip(reversed(shape[:-2]), reversed(around), strict=True):
        if extent == 1:
            continue
        if batch > 1 and own != step * batch:
            return None
        batch, step = batch * extent, step if batch > 1 else own
    if along == 1 or columns == 1:
        return Matrices(batch, rows, columns, max(down, columns), step, False)
    if down == 1 or rows == 1:
        return Matrices(batch, rows, columns, max(along, rows), step, True)
    return None


@dataclass
class Library:
    """One library of a device. Implements ``Backend`` of ``extract/kernel.py``."""

    name: str
    target: Target

    def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        if isinstance(term, Scope) and self.name == "cublas" and self._takes(term):
            for inputs, output in strided.layouts(term):
                yield Kernel(term, constants, f"{self.name}.strided", inputs, output)
        if not isinstance(term, Op) or not self._takes(term):
            return
        for part, inputs, output in _OFFERS[self.name](term, self.target):
            at = dict(zip(term.args, inputs, strict=True))
            # An argument that is used twice has only one layout.
            if all(at[arg] == layout for arg, layout in zip(term.args, inputs, strict=True)):
                name, distinct = f"{self.name}.{part}", args_of(term)
                yield Kernel(term, constants, name, tuple(at[arg] for arg in distinct), output)

    def _takes(self, term: Op | Scope) -> bool:
        """Whether the library computes this operator, for tensors with elements."""
        known = self.target.operators_of(self.name)
        sizes = (term.type.size, *(arg.type.size for arg in args_of(term)))
        kind = "Scope" if isinstance(term, Scope) else term.name
        if isinstance(term, Op) and attention(term) is not None:
            kind = "Attention"
        return kind in known and term.dtype in _FLOATS and 0 not in sizes

    def build(self, kernels: Sequence[tuple[Kernel, Mapping[int, Array]]]) -> list[Runner | None]:
        reduced = precision.is_reduced(self.target.numerics)
        functions = [_BUILDERS[kernel.implementation](kernel, reduced) for kernel, _ in kernels]
        return [
            route(kernel, function, _laid_out(kernel, values))
            for function, (kernel, values) in zip(functions, kernels, strict=True)
        ]


def libraries(target: Target) -> tuple[Library, ...]:
    """The libraries of a device that this module has kernels of."""
    return tuple(Library(name, target) for name, _ in target.operators if name in _OFFERS)


def _laid_out(kernel: Kernel, constants: Mapping[int, Array]) -> dict[int, Array]:
    args = args_of(kernel.term)
    return {
        n: lay_out(value.detach(), args[n].shape, kernel.inputs[n])
        for n, value in constants.items()
    }


Offer = tuple[str, tuple[Layout, ...], Layout]

# ---- products -------------------------------------------------------------------------------


def _products(term: Op, _: Target) -> Iterator[Offer]:
    """``x @ w``, with either operand transposed, and batched if one step leads through the batch.
    The stack of rows in (b, n, k) @ (k, m) is one matrix if its rows follow each other in memory.
    """
    x, w = term.args
    if x.dtype != term.dtype or w.dtype != term.dtype or len(x.shape) < 2 or len(w.shape) < 2:
        return
    batched = len(x.shape) > 2 and x.shape[:-2] == w.shape[:-2]
    if not batched and len(w.shape) != 2:
        return
    for left, right in matmul_layouts(term):
        fits = batched or _in_rows(left)
        if fits and matrices(x.shape, left) is not None and matrices(w.shape, right) is not None:
            yield ("batched" if batched else "matmul"), (left, right), contiguous(len(term.shape))


def _in_rows(layout: Layout) -> bool:
    """Whether a tensor in this layout is a matrix, or a stack whose rows are those of
    one matrix."""
    return len(layout) == 2 or layout == contiguous(len(layout))


def _rows(x: Array) -> Array:
    return x if x.dim() == 2 else x.view(-1, x.shape[-1])


def _matmul(kernel: Kernel, reduced: bool) -> Callable[..., Array]:
    shape = kernel.term.shape

    def stacked(x: Array, w: Array) -> Array:
        return torch.mm(_rows(x), w).view(shape)

    function = torch.mm if len(shape) == 2 else stacked
    return partial(precision.called, precision.PRODUCTS, reduced, function)


def _batched(kernel: Kernel, reduced: bool) -> Callable[..., Array]:
    """A batched product by one call. The operands are viewed as stacks with a single batch axis."""
    assert isinstance(kernel.term, Op)
    given = [
        matrices(arg.shape, layout)
        for arg, layout in zip(kernel.term.args, kernel.inputs, strict=True)
    ]
    shape = kernel.term.shape

    def product(*operands: Array) -> Array:
        return torch.bmm(*map(_stacked, operands, given)).view(shape)

    return partial(precision.called, precision.PRODUCTS, reduced, product)


def _strided(kernel: Kernel, reduced: bool) -> Callable[..., Array]:
    assert isinstance(kernel.term, Scope)
    function = strided.function_of(kernel.term, kernel.inputs)
    return partial(precision.called, precision.PRODUCTS, reduced, function)


def _stacked(value: Array, at: Matrices | None) -> Array:
    assert at is not None, "an operand that isn't such a stack isn't offered"
    steps = (1, at.leading) if at.transposed else (at.leading, 1)
    return value.as_strided((at.batch, at.rows, at.columns), (at.step or 1, *steps))


def _linears(term: Op, _: Target) -> Iterator[Offer]:
    """``x @ w + bias`` and an activation. x is a matrix, or a stack whose rows are those of one
    matrix."""
    x, w, bias = term.args[:3]
    kinds = {arg.dtype for arg in term.args}
    if kinds != {term.dtype} or (len(w.shape), len(bias.shape)) != (2, 1) or len(x.shape) < 2:
        return
    rest = tuple(contiguous(len(arg.shape)) for arg in term.args[2:])
    for left, right in matmul_layouts(term):
        if _in_rows(left) and matrices(x.shape, left) and matrices(w.shape, right):
            yield "linear", (left, right, *rest), contiguous(len(term.shape))


def _linear(kernel: Kernel, reduced: bool) -> Callable[..., Array]:
    """A linear layer. cuBLASLt computes ReLU together with the product. It would also compute GELU,
    but by tanh, though torch calls it by the name of the exact one; so GELU and all other
    activations are computed after the product."""
    assert isinstance(kernel.term, Op)
    activation, residual = str(kernel.term.attrs[0]), kernel.term.name == "FusedMatmulAdd"
    fused, shape = torch._addmm_activation, kernel.term.shape

    def linear(x: Array, w: Array, bias: Array, added: Array | None = None) -> Array:
        rows = _rows(x)
        if activation == "relu" and not residual:
            return fused(bias, rows, w).view(shape)
        y = torch.addmm(bias, rows, w).view(shape)
        if added is not None:
            y = y.add_(added)
        return y if activation == "none" else apply(activation, [y])

    return partial(precision.called, precision.PRODUCTS, reduced, linear)


# ---- convolutions ---------------------------------------------------------------------------

_IMAGES: Final[dict[str, Layout]] = {
    "channels_last": channels_last(4), "contiguous": contiguous(4)
}  # fmt: skip


def _convolutions(term: Op, target: Target) -> Iterator[Offer]:
    """Convolutions whose images, filters, residuals and result all have the same order of axes."""
    if {arg.dtype for arg in term.args} != {term.dtype} or len(term.shape) != 4:
        return
    part = "conv_transpose" if term.name == "ConvTranspose2d" else "conv"
    for name in target.layouts:
        if name in _IMAGES:
            at = _IMAGES[name]
            inputs = tuple(at if len(arg.shape) == 4 else (0,) for arg in term.args)
            yield part, inputs, at


def _conv(kernel: Kernel, reduced: bool) -> Callable[..., Array]:
    """A convolution by cuDNN. ReLU is computed together with the bias and the residual; other
    activations are computed after the convolution."""
    assert isinstance(kernel.term, Op)
    attrs: tuple[Any, ...] = kernel.term.attrs
    stride, padding, dilation, groups, *post = attrs
    activation = str(post[0]) if post else "none"
    window = (padding, stride, dilation, groups)

    def plain(x: Array, w: Array) -> Array:
        return torch.cudnn_convolution(x, w, *window, False, False, precision.allowed(reduced))

    def with_relu(x: Array, w: Array, bias: Array, added: Array | None = None) -> Array:
        at = (stride, padding, dilation, groups)
        if added is None:
            return torch.cudnn_convolution_relu(x, w, bias, *at)
        return torch.cudnn_convolution_add_relu(x, w, added, 1.0, bias, *at)

    def apart(x: Array, w: Array, bias: Array | None = None, added: Array | None = None) -> Array:
        y = plain(x, w)
        if bias is not None:
            y = y.add_(bias[:, None, None])
        if added is not None:
            y = y.add_(added)
        return y if activation == "none" else apply(activation, [y])

    fused = activation == "relu" and len(kernel.term.args) > 2
    return partial(precision.called, precision.CONVOLUTIONS, reduced, with_relu if fused else apart)


def _conv_transpose(kernel: Kernel, reduced: bool) -> Callable[..., Array]:
    assert isinstance(kernel.term, Op)
    attrs: tuple[Any, ...] = kernel.term.attrs
    stride, padding, output_padding, dilation, groups = attrs

    def conv(x: Array, w: Array) -> Array:
        return torch.cudnn_convolution_transpose(
            x, w, padding, output_padding, stride, dilation, groups, False, False,
            precision.allowed(reduced),
        )  # fmt: skip

    return conv


# ---- attention ------------------------------------------------------------------------------


def _attentions(term: Op, _: Target) -> Iterator[Offer]:
    found = attention(term)
    if found is not None and term.dtype == "float32":
        for inputs, output in found.layouts(len(term.args[-1].shape)):
            yield "attention", inputs, output


def _attention(kernel: Kernel, reduced: bool) -> Callable[..., Array]:
    assert isinstance(kernel.term, Op)
    found = attention(kernel.term)
    assert found is not None
    function = found.function()

    def run(*given: Array) -> Array:
        # Select CUTLASS's kernel, which computes in float32.
        if given[0].device.type == "cpu":
            return function(*given)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return function(*given)

    return partial(precision.called, precision.PRODUCTS, reduced, run)


# ---------------------------------------------------------------------------------------------

_OFFERS: Final[Mapping[str, Callable[[Op, Target], Iterator[Offer]]]] = {
    "cublas": _products, "cublasLt": _linears, "cudnn": _convolutions, "cutlass": _attentions,
}  # fmt: skip
_BUILDERS: Final[Mapping[str, Callable[[Kernel, bool], Callable[..., Any]]]] = {
    "cublas.matmul": _matmul, "cublas.batched": _batched,
    "cublas.strided": _strided, "cublasLt.linear": _linear,
    "cudnn.conv": _conv, "cudnn.conv_transpose": _conv_transpose, "cutlass.attention": _attention,
}  # fmt: skip
