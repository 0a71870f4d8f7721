"""Epilogues: a bias, a residual and an activation after a product, fused into its operator.

    L . post(product[x] + bias[channel] + residual[x])  =  Fused…(…, bias, residual, post)

The result is proposed as an operator of the library (``FusedConv2d``, ``FusedMatmulAdd``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from eqsynth.egraph.tactics.matching import reshape
from eqsynth.ir.indices import is_whole
from eqsynth.ir.operators import POST_FUNCTIONS
from eqsynth.ir.scalar import Call, Num, Read, Scalar, iterators, leaves, terms_of, total
from eqsynth.ir.scopes import scope_over, traversal_iterators
from eqsynth.ir.tensor import Op, Scope, Tensor

Nodes = Callable[[Tensor], Sequence[Op]]


def match_epilogue(scope: Scope, nodes: Nodes) -> Iterator[tuple[Tensor, Op]]:
    """Pairs of a fused operator that is equal to ``scope``, and the product that ``scope`` reads.

    ``nodes`` returns the operators among the e-nodes of a tensor's e-class.
    """
    if scope.reduction:
        return
    post, body = "none", scope.body
    if isinstance(body, Call) and body.fn in POST_FUNCTIONS:
        post, body = body.fn, body.args[0]
    terms = terms_of(body)
    for at, term in enumerate(terms):
        if isinstance(term, Read) and is_whole(term, scope):
            rest = [t for n, t in enumerate(terms) if n != at]
            for op in nodes(term.tensor):
                for fused in _fused(scope, op, rest, post):
                    yield fused, op


def _fused(scope: Scope, op: Op, rest: list[Scalar], post: str) -> Iterator[Tensor]:
    if op.name == "Reshape" and isinstance(op.args[0], Op):
        inner = op.args[0]
        if inner.name == "Matmul" and inner.shape[-1] == scope.traversal[-1]:
            yield from _build(scope, inner, len(scope.traversal) - 1, rest, post)
    elif op.name == "Matmul":
        yield from _build(scope, op, len(scope.traversal) - 1, rest, post)
    elif op.name == "Conv2d":
        yield from _build(scope, op, 1, rest, post)


def _build(scope: Scope, op: Op, channel: int, rest: list[Scalar], post: str) -> Iterator[Tensor]:
    if len(op.args[1].shape) > (2 if op.name == "Matmul" else 4):
        return
    slot = traversal_iterators(scope)[channel]
    bias = [t for t in rest if iterators(t) <= {slot}]
    others = [t for t in rest if not iterators(t) <= {slot}]
    if (not rest and post == "none") or len(others) > 1:
        return
    if any(isinstance(leaf, Num) and not leaf.value for t in bias for leaf in leaves(t)):
        return
    offset: Tensor
    if bias:
        offset = _vector(scope, total(bias), channel)
    else:
        offset = Op("Full", (), ((slot.extent,), 0.0, op.dtype))
    if offset.dtype != op.dtype or scope.dtype != op.dtype:
        return
    args = [*op.args, offset]
    if others:
        (residual,) = others
        if not isinstance(residual, Read) or not is_whole(residual, scope):
            return
        if residual.tensor.dtype != op.dtype:
            return
        args.append(reshape(residual.tensor, op.shape))
    name = f"Fused{op.name}{'Add' if others else ''}"
    yield reshape(Op(name, tuple(args), (*op.attrs, post)), scope.traversal)


def _vector(scope: Scope, body: Scalar, channel: int) -> Tensor:
    """The bias as a vector over the channels; a plain read of a vector is only reshaped."""
    it = traversal_iterators(scope)[channel]
    if isinstance(body, Read) and body.tensor.type.size == it.extent and body.in_range():
        if it.extent == 1 or any(index.bare() == it for index in body.index):
            return reshape(body.tensor, (it.extent,))
    return scope_over([it], [], body)
