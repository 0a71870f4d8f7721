"""Expression merging: products that share an operand, as one product (EinNet §4.2).

All that share it are merged at once, their weights in the order of their structure, so that there
is one merged product and not one for every subset and order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from eqsynth.calculus.deriving import Steps
from eqsynth.egraph.tactics.opening import definitions, matched
from eqsynth.egraph.tactics.requests import Law
from eqsynth.egraph.view import View
from eqsynth.ir.tensor import ClassRef, Op, Tensor

# More products than this are left as they are: a merged product computes all of them.
MAX_MERGED = 16


def merged(product: Op, peers: Sequence[Op], axis: int) -> Tensor | None:
    """``product`` as a slice of the product of its first operand with all weights side by side.

    Args:
        peers: products of the same first operand and attributes, ``product`` among them; their
            weights are constant and differ in their extent along one axis only.
        axis: of the result, along which the weights stand side by side: the last one of a product
            of matrices, that of the channels of a convolution.
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
    """The law of merging products of one operator; ``axis`` of the result is sliced."""

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
