"""Attention by torch's fused operator: ``softmax(q kᵀ) v`` without the matrix of scores in memory.

An operator of a rule file is recognized by its definition, not by its name: if the definition
written out is attention (``rules/attention.egg``), torch's kernel computes it. Not here: finding
attention in a program, which the rules do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from eqsynth.extract.kernel import Layout, contiguous
from eqsynth.ir.tensor import Input, Op, Tensor

Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Attention:
    """One attention: the factor of the scores, whether a query sees only keys up to its own place,
    whether there is a mask, and the number of axes."""

    scale: float
    causal: bool
    masked: bool
    rank: int

    def function(self) -> Function:
        """The function of queries (*n, i, e), keys (*n, e, j), values (*n, j, d), and the mask if
        there is one.

        torch's fused kernels take four axes; missing axes are added in front, with extent 1.
        """
        front = (None,) * (4 - self.rank)
        back = (0,) * (4 - self.rank)

        def run(
            q: torch.Tensor, t: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
        ) -> torch.Tensor:
            if mask is not None:
                mask = mask[(None,) * (4 - mask.dim())]
            result = scaled_dot_product_attention(
                q[front], t[front].transpose(-2, -1), v[front], mask,
                is_causal=self.causal, scale=self.scale,
            )  # fmt: skip
            return result[back]

        return run

    def layouts(self, mask_rank: int) -> Iterator[tuple[tuple[Layout, ...], Layout]]:
        """The layouts that torch's kernel reads and writes without a copy: a head's keys are stored
        by rows, and the heads lie outside of the rows or inside of them. The result has the heads
        inside."""
        mask = (contiguous(mask_rank),) if self.masked else ()
        if self.rank == 2:
            yield ((0, 1), (1, 0), (0, 1), *mask), (0, 1)
        elif self.rank == 3:
            yield ((0, 1, 2), (0, 2, 1), (0, 1, 2), *mask), (1, 0, 2)
            yield ((1, 0, 2), (2, 0, 1), (1, 0, 2), *mask), (1, 0, 2)
        else:
            yield ((0, 1, 2, 3), (0, 1, 3, 2), (0, 1, 2, 3), *mask), (0, 2, 1, 3)
            yield ((0, 2, 1, 3), (0, 3, 1, 2), (0, 2, 1, 3), *mask), (0, 2, 1, 3)


def attention(term: Op) -> Attention | None:
    """The attention that an operator computes; None if it computes something else, or torch's
    kernel doesn't compute it.

    Queries, keys and values must have the same leading axes, since the kernel doesn't broadcast
    them. 16-bit floats are left out: the kernel keeps scores in float32, where the operator rounds
    them.
    """
    if term.row.expand is None or len(term.args) not in (3, 4) or len(term.attrs) != 1:
        return None
    (scale,) = term.attrs
    rank = len(term.shape)
    kinds = {term.dtype, *(arg.dtype for arg in term.args)}
    if kinds not in ({"float32"}, {"float64"}):
        return None
    alike = {arg.shape[:-2] for arg in term.args[:3]} == {term.shape[:-2]}
    if not isinstance(scale, float) or not 2 <= rank <= 4 or not alike or 0 in term.shape:
        return None
    own = tuple(Input(str(n), arg.type) for n, arg in enumerate(term.args))
    meant = term.row.expand(own, term.attrs)
    if len(own) == 4:
        found = Attention(scale, False, True, rank)
        return found if _masked(own, scale) == meant else None
    for causal in (False, True):
        if _plain(own, scale, causal) == meant:
            return Attention(scale, causal, False, rank)
    return None


def _scores(own: tuple[Tensor, ...], scale: float) -> Tensor:
    return Op("Mul", (Op("Matmul", own[:2]), _number(scale, own[0].dtype)))


def _plain(own: tuple[Tensor, ...], scale: float, causal: bool) -> Tensor:
    """The definition of attention without a mask."""
    scores = _scores(own, scale)
    if causal:
        grid = scores.shape[-2:]
        rows, columns = (Op("Iota", (), (grid, axis, "int64")) for axis in (0, 1))
        seen = Op("GreaterEqual", (rows, columns))
        scores = Op("Where", (seen, scores, _number(-math.inf, scores.dtype)))
    return Op("Matmul", (Op("Softmax", (scores,), (len(scores.shape) - 1,)), own[2]))


def _masked(own: tuple[Tensor, ...], scale: float) -> Tensor:
    """The definition of attention with a mask; a query whose keys are all masked gets zeros."""
    scores, mask = Op("Add", (_scores(own, scale), own[3])), own[3]
    most = Op("ReduceMax", (mask,), ((len(mask.shape) - 1,), 1))
    nothing = Op("Equal", (most, _number(-math.inf, scores.dtype)))
    weights = Op("Softmax", (scores,), (len(own[0].shape) - 1,))
    result = Op("Matmul", (weights, own[2]))
    return Op("Where", (nothing, _number(0.0, scores.dtype), result))


def _number(value: float, dtype: str) -> Tensor:
    return Op("Full", (), ((), value, dtype))
