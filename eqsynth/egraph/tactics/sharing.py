"""Expression merging: products that share an operand, as one product (EinNet §4.2).

    x @ w1, x @ w2  ->  slices of  x @ [w1 w2]

All products of the shared operand are merged at once, with their weights in a canonical order. So
one merged product is proposed, and not one for every subset and order of the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from eqsynth.calculus.deriving import Steps
from eqsynth.egraph.tactics.opening import definitions, matched
from eqsynth.egraph.tactics.requests import Law
from eqsynth.egraph.view import View
from eqsynth.ir.tensor import ClassRef, Op, Tensor

# If more weights than this share an operand, nothing is merged: the merged product computes all of
# their products, even if only some are needed.
MAX_MERGED = 16


def merged(product: Op, peers: Sequence[Op], axis: int) -> Tensor | None:
    """``product`` as a slice of the product of its first operand with all weights concatenated.

    Args:
        peers: products of the same first operand and attributes, ``product`` among them; their
            weights are constant and differ in their extent along one axis only.
        axis: the axis of the result that belongs to the concatenated axis of the weights: the
            last one of a matrix product, the channels of a convolution.
    """
    along = 0 if product.name == "Conv2d" else 1
    weights = sorted({peer.args[1] for peer in peers}, key=lambda weight: weight.order)
    if not 2 <= len(weights) <= MAX_MERGED:
        return None
    fits = {(*w.shape[:along], *w.shape[along + 1 :], w.dtype) for w in weights}
    if len(fits) != 1:
        return None
    start = sum(w.shape[along] for w in weights[: weights.index(product.args[1])])
    side_by_side = Op("Concat", tuple(weights), (along,))
    whole = Op(product.name, (product.args[0], side_by_side), product.attrs)
    stop = start + product.args[1].shape[along]
    return Op("Slice", (whole,), (axis, start, stop, 1))


def merging(name: str, axis: int) -> Law:
    """Return the law that merges products of the operator ``name``.

    ``axis`` is the axis of the result that is sliced.
    """

    def law(view: View, row: Sequence[Any]) -> Iterable[Steps]:
        e, x, w = row
        found: list[Steps] = []
        for own in view.operators(e):
            if own.name != name or own.args != (x, w) or _is_merged(view, own):
                continue
            peers = [
                peer
                for peer in view.products_of(x)
                if (peer.name, peer.attrs) == (name, own.attrs)
                and len(peer.args[1].shape) == len(w.shape)
                and peer.args[1].shape[2:] == w.shape[2:]
                and not _is_merged(view, peer)
            ]
            whole = merged(own, peers, axis % len(own.shape))
            if whole is not None:
                found += matched(e, whole, ((e, own), *definitions(view, own, whole)))
        return found

    return law


def _is_merged(view: View, product: Op) -> bool:
    weight = product.args[1]
    assert isinstance(weight, ClassRef)
    return any(member.name == "Concat" for member in view.operators(weight))
