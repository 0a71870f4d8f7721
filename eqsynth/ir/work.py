"""The work of a term, from types alone: floating-point operations and bytes moved.

A ``(2, 3) @ (3, 4)`` product has 2 * 2 * 4 * 3 = 48 operations. Not here: estimated times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from eqsynth.ir.scalar import (
    Prod,
    Read,
    Scalar,
    Sum,
    children,
    composites,
    factors_of,
    iterators,
    leaves,
)
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, args_of, is_literal, topological
from eqsynth.ir.types import ITEMSIZE, TensorType


@lru_cache(maxsize=1 << 14)
def operations(scalar: Scalar) -> int:
    """Count the floating-point operations of one evaluation of a body. A shared part counts once,
    and a function counts as one operation."""
    return sum(
        len(children(part)) - 1 if isinstance(part, Prod | Sum) else 1
        for part in composites(scalar)
    )


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


@lru_cache(maxsize=1 << 14)
def flops(term: Tensor) -> int:
    """Count the floating-point operations of one term, without its arguments' operations; a
    multiply-add counts as two."""
    if isinstance(term, Scope):
        along = by_matrices(term)
        if along is not None:
            return along
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


def by_matrices(scope: Scope) -> int | None:
    """Count the operations of ``sum_{u,v} A[p, u] * B[q, v] * x[u, v]`` with literals A and B, if
    computed one axis at a time and without the literals' zeros. None for other scopes.

    >>> from eqsynth.ir.index import Index
    >>> from eqsynth.ir.scalar import Prod, Read
    >>> p, u = Index.iterator(0, 2), Index.iterator(1, 3)
    >>> a = Op("Literal", (), ((2, 3), (1, 0, 0, 0, 1, 5), (1,) * 6, "float32"))
    >>> x = Input("x", TensorType((3,), "float32"))
    >>> by_matrices(Scope((2,), (3,), Prod((Read(a, (p, u)), Read(x, (u,))))))
    6
    """
    factors = factors_of(scope.body)
    literals = [f.tensor for f in factors if isinstance(f, Read) and is_literal(f.tensor)]
    extents = sorted(tensor.shape[-1] for tensor in literals)
    if not literals or len(factors) != len(literals) + 1 or sorted(scope.reduction) != extents:
        return None
    rows, columns, total = 1, math.prod(extents), 0
    for tensor in literals:
        assert isinstance(tensor, Op)
        numbers = tensor.attrs[1]
        assert isinstance(numbers, tuple)
        columns //= tensor.shape[1]
        total += 2 * sum(number != 0 for number in numbers) * rows * columns
        rows *= tensor.shape[0]
    return -(-math.prod(scope.traversal) // rows) * total


def bytes_moved(term: Tensor) -> int:
    """Return the bytes of the arguments, each read once, plus the bytes of the result."""
    return sum(arg.type.nbytes for arg in args_of(term)) + term.type.nbytes


def parts(scope: Scope) -> int:
    """Count the parts of a scope that a library computes one after the other: the distinct parts of
    its body, and its reduction.

    >>> from eqsynth.ir.index import Index
    >>> from eqsynth.ir.scalar import Call
    >>> x = Read(Input("x", TensorType((8,), "float32")), (Index.iterator(0, 8),))
    >>> parts(Scope((8,), (), Call("exp", (Prod((x, x)),))))
    3
    """
    found = len(set(leaves(scope.body))) + sum(1 for _ in composites(scope.body))
    return found + bool(scope.reduction)


def bytes_unfolded(scope: Scope) -> int:
    """Count the bytes of the operands that a library writes out before it multiplies them: those
    that a sum of products reads at more places than they have elements.

    The windows of a 3x3 convolution are nine times the image (``im2col``). Those of a convolution
    in groups, ``x[f // 4 * 4 + c, h + r, w + s]``, stand there for each filter: 58 MB for an image
    of 1.6 MB.

    >>> from eqsynth.ir.index import Index
    >>> i, k = Index.iterator(0, 8), Index.iterator(1, 3)
    >>> x, w = (Input(name, TensorType((n,), "float32")) for name, n in (("x", 10), ("w", 3)))
    >>> bytes_unfolded(Scope((8,), (3,), Prod((Read(x, (i + k,)), Read(w, (k,))))))
    96
    """
    factors = factors_of(scope.body)
    if not scope.reduction or scope.reducer != "sum" or len(factors) < 2:
        return 0
    total = 0
    for factor in factors:
        places = math.prod(it.extent for it in iterators(factor))
        if isinstance(factor, Read) and places > factor.tensor.type.size:
            total += places * ITEMSIZE[factor.tensor.dtype]
    return total
