"""How much work a term is: floating-point operations and bytes, from its type alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from eqsynth.ir.scalar import operations
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, args_of, topological
from eqsynth.ir.types import TensorType


def _conv(types: Sequence[TensorType], out: TensorType) -> int:
    return 2 * out.size * math.prod(types[1].shape[1:])


def _conv_transpose(types: Sequence[TensorType], out: TensorType) -> int:
    return 2 * types[0].size * math.prod(types[1].shape[1:])


def _matmul(types: Sequence[TensorType], out: TensorType) -> int:
    return 2 * out.size * types[0].shape[-1]


def _band(types: Sequence[TensorType], out: TensorType) -> int:
    return 2 * types[0].size * out.shape[-1]


_PRODUCTS = {
    "Matmul": _matmul,
    "G2BMM": _band,
    "GBMM": _band,
    "FusedMatmul": _matmul,
    "FusedMatmulAdd": _matmul,
    "Conv2d": _conv,
    "FusedConv2d": _conv,
    "FusedConv2dAdd": _conv,
    "ConvTranspose2d": _conv_transpose,
}


def flops(term: Tensor) -> int:
    """Floating-point operations of one term, its arguments given (a multiply-add counts as two)."""
    if isinstance(term, Scope):
        each = operations(term.body) + bool(term.reduction)
        return math.prod(term.extents) * each
    if isinstance(term, Region):
        return sum(flops(part) for part in topological(term.outputs))
    if not isinstance(term, Op):
        return 0
    if term.name in _PRODUCTS:
        product = _PRODUCTS[term.name]([arg.type for arg in term.args], term.type)
        return product + term.type.size * (len(term.args) - 2)
    row = term.row
    if row.expand is not None:
        args = [Input(str(n), arg.type) for n, arg in enumerate(term.args)]
        return sum(flops(part) for part in topological([row.expand(args, term.attrs)]))
    kind = row.kind
    if kind in ("view", "constant", "opaque", "data"):
        return 0
    if term.name in ("MaxPool2d", "AvgPool2d"):
        kernel = term.attrs[0]
        assert isinstance(kernel, tuple)
        return term.type.size * math.prod(kernel)
    if term.name == "UpsampleBilinear2d":
        return 7 * term.type.size
    return max((arg.type.size for arg in term.args), default=0)


def bytes_moved(term: Tensor) -> int:
    """Bytes of the arguments, each read once, and of the result."""
    return sum(arg.type.nbytes for arg in args_of(term)) + term.type.nbytes
