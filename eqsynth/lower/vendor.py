"""The oneDNN backend: matrix products and convolutions whose constant weights are packed once.

oneDNN is called through the operators that torch registers for Inductor (``torch.ops.mkldnn``).
Their layouts aren't documented; they were found by trying, and a test checks them: a convolution
with a packed weight takes either memory format and gives channels last; a linear map takes strided
matrices without a copy. Not here: all other operators (``torch_backend.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from eqsynth.extract.kernel import (
    Kernel,
    Layout,
    Runner,
    channels_last,
    contiguous,
    matrix_layouts,
    strides,
)
from eqsynth.ir.tensor import Op, Tensor, args_of
from eqsynth.lower.torch_backend import matmul_layouts, route
from eqsynth.lower.torch_scalars import apply, torch_dtype

Array = torch.Tensor

# oneDNN's names of the activations: attribute and algorithm.
_POSTS: Final = {
    "none": ("none", ""),
    "relu": ("relu", ""),
    "sigmoid": ("sigmoid", ""),
    "tanh": ("tanh", ""),
    "silu": ("swish", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
}
# For a result (b, h, m, n), a further layout: memory order b, m, h, n.
_HEADS_INSIDE: Final[dict[int, tuple[Layout, ...]]] = {4: ((0, 2, 1, 3),)}
_MATMULS: Final = ("Matmul", "FusedMatmul", "FusedMatmulAdd")
_CONVS: Final = ("Conv2d", "FusedConv2d", "FusedConv2dAdd")


class OneDnnBackend:
    """Kernels of oneDNN. Implements ``Backend`` of ``extract/kernel.py``."""

    name = "onednn"

    def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        if not isinstance(term, Op) or not _supported(term):
            return
        if args_of(term) != term.args:
            return  # an argument that is used twice would be needed both packed and plain
        if term.name in _MATMULS:
            yield from _matmul_kernels(term, constants)
        elif term.name in _CONVS and constants[1]:
            yield from _conv_kernels(term, constants, "onednn.conv")
        elif term.name == "ConvTranspose2d" and constants[1]:
            yield from _conv_kernels(term, constants, "onednn.conv_transpose")

    def build(self, kernels: Sequence[tuple[Kernel, Mapping[int, Array]]]) -> list[Runner | None]:
        return [_BUILDERS[kernel.implementation](kernel, values) for kernel, values in kernels]


def _supported(term: Op) -> bool:
    """Whether oneDNN computes this operator's dtype on this machine; empty tensors are left to
    torch."""
    if 0 in (term.type.size, *(arg.type.size for arg in term.args)):
        return False
    if not torch.backends.mkldnn.is_available():
        return False
    if term.dtype == "bfloat16":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if term.dtype == "float16":
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return term.dtype == "float32"


# ---- matrix products ------------------------------------------------------------------------


def _matmul_kernels(term: Op, constants: tuple[bool, ...]) -> Iterator[Kernel]:
    """The kernels of a matrix product: ``linear`` for a matrix on the right, ``batch`` and
    ``grouped`` for one matrix each in a batch."""
    x, w = term.args[:2]
    rest = tuple(contiguous(len(arg.shape)) for arg in term.args[2:])
    plain = contiguous(len(term.shape))
    flat = len(w.shape) == 2
    if not flat and (term.name != "Matmul" or x.shape[:-2] != w.shape[:-2]):
        return
    grouped = term.dtype == "float32" and constants == (False, True)
    if grouped and len(x.shape) == 3 and not flat:
        inside = (1, 0, 2)
        yield Kernel(term, constants, "onednn.grouped", (inside, contiguous(3)), inside)
    for left, right in matmul_layouts(term):
        # A constant is packed when the kernel is built, so one layout of it is enough.
        if (constants[0] and left != contiguous(len(left))) or (
            constants[1] and right != contiguous(len(right))
        ):
            continue
        if right not in matrix_layouts(len(right)):
            continue  # oneDNN is a thousand times slower on matrices with gaps between rows
        inputs = (left, right, *rest)
        if not flat:
            for output in (plain, *_HEADS_INSIDE.get(len(plain), ())):
                yield Kernel(term, constants, "onednn.batch", inputs, output)
        elif len(x.shape) == 2 or left == contiguous(len(left)):
            yield Kernel(term, constants, "onednn.linear", inputs, plain)
            if term.name == "Matmul" and len(x.shape) == 2:
                yield Kernel(term, constants, "onednn.linear_transposed", inputs, (1, 0))


def _linear(kernel: Kernel, constants: Mapping[int, Array]) -> Runner:
    """``x @ w + bias``, with a residual and an activation if the operator has them: (*b, k) @ (k,
    n)."""
    term = kernel.term
    assert isinstance(term, Op)
    attribute, algorithm = _POSTS[str(term.attrs[0]) if term.attrs else "none"]
    linear = torch.ops.mkldnn._linear_pointwise.default
    add = torch.ops.mkldnn._linear_pointwise.binary
    packed = 1 in constants
    bound: dict[int, Any] = dict(constants)
    if packed:
        rows = term.type.size // term.shape[-1]
        bound[1] = _packed(constants[1].T, rows)

    def matmul(x: Array, w: Array, bias: Array | None = None) -> Array:
        # A matrix that isn't packed may be stored by rows or by columns.
        return linear(x, w if packed else w.T, bias, attribute, [], algorithm)  # type: ignore[no-any-return]

    def matmul_add(x: Array, w: Array, bias: Array, residual: Array) -> Array:
        y: Array = add(x, residual, w if packed else w.T, bias, "add")
        return y if attribute == "none" else apply(str(term.attrs[0]), [y])

    return route(kernel, matmul_add if term.name == "FusedMatmulAdd" else matmul, bound)


def _packed(weight: Array, rows: int) -> Array:
    """A weight (n, k) in the order that oneDNN wants for ``rows`` rows of input."""
    packed: Array = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), rows)
    return packed


def _linear_transposed(kernel: Kernel, constants: Mapping[int, Array]) -> Runner:
    """The product as the transpose of ``w.T @ x.T``, for a result that is stored by columns."""
    linear = torch.ops.mkldnn._linear_pointwise.default
    bound = dict(constants)
    if 0 in constants:
        bound[0] = _packed(constants[0], kernel.term.shape[1])
    if 1 in constants:  # w.T is stored by rows
        bound[1] = constants[1].T.contiguous().T

    def matmul(x: Array, w: Array) -> Array:
        y: Array = linear(w.T, x, None, "none", [], "")
        return y.T

    return route(kernel, matmul, bound)


def _batch(kernel: Kernel, constants: Mapping[int, Array]) -> Runner:
    """(*b, m, k) @ (*b, k, n) as one product after the other; for few large matrices."""
    linear = torch.ops.mkldnn._linear_pointwise.default
    shape, dtype = kernel.term.shape, torch_dtype(kernel.term.dtype)
    steps = strides(shape, kernel.output)
    rows = shape[-2]
    bound: dict[int, Any] = dict(constants)
    packed = 1 in constants
    if packed:
        bound[1] = [_packed(w.T, rows) for w in constants[1].flatten(0, -3)]

    def matmul(x: Array, w: Any) -> Array:
        result = torch.empty_strided(shape, steps, dtype=dtype)
        weights = w if packed else _matrices(w.mT)
        for y, row, matrix in zip(_matrices(result), _matrices(x), weights, strict=True):
            y.copy_(linear(row, matrix, None, "none", [], ""))
        return result

    return route(kernel, matmul, bound)


def _grouped(kernel: Kernel, constants: Mapping[int, Array]) -> Runner:
    """(b, m, k) @ (b, k, n), with x and the result in memory order m, b, …: one convolution over m
    places in b groups. This is one call, and nothing is copied."""
    batch, rows, width = kernel.term.shape
    depth = args_of(kernel.term)[0].shape[-1]
    window: tuple[Any, ...] = ([0, 0], [1, 1], [1, 1], batch)
    image = (1, batch * depth, rows, 1)
    filters = constants[1].detach().mT.reshape(batch * width, depth, 1, 1).contiguous()
    packed = torch.ops.mkldnn._reorder_convolution_weight(filters, *window, list(image))
    convolve = torch.ops.mkldnn._convolution_pointwise.default
    shape, steps = (batch, rows, width), strides((batch, rows, width), kernel.output)
    image_steps = strides(image, channels_last(4))

    def matmul(x: Array, w: Array) -> Array:
        y: Array = convolve(x.as_strided(image, image_steps), w, None, *window, "none", [], "")
        return y.as_strided(shape, steps)

    return route(kernel, matmul, {1: packed})


def _matrices(value: Array) -> list[Array]:
    """The matrices of a batch, one after the other."""
    matrices: list[Array] = [value]
    for _ in range(value.dim() - 2):
        matrices = [part for matrix in matrices for part in matrix.unbind(0)]
    return matrices


# ---- convolutions ---------------------------------------------------------------------------


def _conv_kernels(term: Op, constants: tuple[bool, ...], name: str) -> Iterator[Kernel]:
    """The kernels of a convolution: the image contiguous or channels last, the result channels
    last."""
    last = channels_last(4)
    rest = [last if len(arg.shape) == 4 else contiguous(len(arg.shape)) for arg in term.args[2:]]
    for layout in (last, contiguous(4)):
        yield Kernel(term, constants, name, (layout, contiguous(4), *rest), last)


def _conv(kernel: Kernel, constants: Mapping[int, Array]) -> Runner:
    """A convolution with a packed weight, and a bias, a residual and an activation if the operator
    has them: (n, c, h, w) -> (n, f, h', w')."""
    term = kernel.term
    assert isinstance(term, Op)
    stride, padding, dilation, groups, *post = term.attrs
    window: tuple[Any, ...] = (padding, stride, dilation, groups)
    name = str(post[0]) if post else "none"
    attribute, algorithm = _POSTS[name]
    bound = dict(constants)
    bound[1] = torch.ops.mkldnn._reorder_convolution_weight(
        constants[1].detach().contiguous(), *window, list(term.args[0].shape)
    )
    convolve = torch.ops.mkldnn._convolution_pointwise.default
    add = torch.ops.mkldnn._convolution_pointwise.binary
    # With a residual, oneDNN's operator fuses no other activations, and fails for groups of 16-bit
    # floats.
    fused = name in ("none", "relu") and term.dtype == "float32"
    unary = None if name == "none" else attribute

    def conv(x: Array, w: Array, bias: Array | None = None) -> Array:
        return convolve(x, w, bias, *window, attribute, [], algorithm)  # type: ignore[no-any-return]

    def conv_add(x: Array, w: Array, bias: Array, residual: Array) -> Array:
        if fused:
            return add(x, residual, w, bias, *window, "add", None, unary, [], None)  # type: ignore[no-any-return]
        y: Array = convolve(x, w, bias, *window, "none", [], "").add_(residual)
        return y if name == "none" else apply(name, [y])

    return route(kernel, conv_add if term.name == "FusedConv2dAdd" else conv, bound)


def _conv_transpose(kernel: Kernel, constants: Mapping[int, Array]) -> Runner:
    """A transposed convolution with a packed weight: (n, c, h, w) -> (n, f, h', w')."""
    term = kernel.term
    assert isinstance(term, Op)
    stride, padding, output_padding, dilation, groups = term.attrs
    window: tuple[Any, ...] = (padding, output_padding, stride, dilation, groups)
    bound = dict(constants)
    bound[1] = torch.ops.mkldnn._reorder_convolution_transpose_weight(
        constants[1].detach().contiguous(), *window, list(term.args[0].shape)
    )
    convolve = torch.ops.mkldnn._convolution_transpose_pointwise.default

    def conv(x: Array, w: Array) -> Array:
        return convolve(x, w, None, *window, "none", [], "")  # type: ignore[no-any-return]

    return route(kernel, conv, bound)


_BUILDERS: Final[dict[str, Callable[[Kernel, Mapping[int, Array]], Runner]]] = {
    "onednn.linear": _linear,
    "onednn.linear_transposed": _linear_transposed,
    "onednn.batch": _batch,
    "onednn.grouped": _grouped,
    "onednn.conv": _conv,
    "onednn.conv_transpose": _conv_transpose,
}
