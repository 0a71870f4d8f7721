"""Attention under torch's name, as products and a softmax.

A mask that is computed from nothing is known here, and said as what it is:

    ones(n, n)                     no mask
    tril(ones(n, n))               causal: a comparison of positions
    0 and -inf                     which keys are seen, bools
    bools of which no row is empty   nothing asks whether a query may attend to nothing

Not here: what is matched to an operator (``rules/attention.egg``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from eqsynth.errors import DtypeError, UnsupportedOperatorError
from eqsynth.frontend.expr import Expr, as_tensor, cast
from eqsynth.frontend.ops import creation, pointwise, reduction, views
from eqsynth.frontend.ops.contraction import matmul
from eqsynth.frontend.ops.positions import known_value
from eqsynth.ir.types import Shape


def scaled_dot_product_attention(
    query: Expr,
    key: Expr,
    value: Expr,
    attn_mask: Expr | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Expr:
    """``softmax(query @ key.T * scale + mask) @ value``, as products and a softmax.

    (*b, m, d), (*b, n, d), (*b, n, e) -> (*b, m, e). A query that may attend to nothing gives 0,
    as in torch.

    Raises:
        UnsupportedOperatorError: ``dropout_p`` isn't 0: which weights are dropped is random.
        DtypeError: the mask is neither of bools nor of the query's floats.
    """
    if dropout_p:
        raise UnsupportedOperatorError(
            what="scaled_dot_product_attention drops weights at random",
            got=f"dropout_p = {dropout_p}",
            expected="0",
            hint="torch applies dropout_p in evaluation mode too; pass 0 there",
        )
    if attn_mask is not None and attn_mask.dtype not in ("bool", query.dtype):
        raise DtypeError(
            what="scaled_dot_product_attention: the mask has another dtype",
            got=attn_mask.dtype,
            expected=f"bool or {query.dtype}",
            hint="cast the mask",
        )
    if query.dtype in ("float16", "bfloat16"):
        # Scores are no results: 3e5 is no float16, and 30 has one digit less than a weight needs.
        q, k, v = (cast(x, "float32") for x in (query, key, value))
        mask = attn_mask
        if mask is not None and mask.dtype != "bool":
            mask = cast(mask, "float32")
        result = scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale, enable_gqa)
        return cast(result, query.dtype)
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        key, value = (_repeat_heads(x, query.shape[-3] // x.shape[-3]) for x in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores: Expr = pointwise.mul(matmul(query, views.transpose(key, -2, -1)), factor)
    known = _Mask(None, False) if attn_mask is None else _Mask.of(attn_mask, scores.shape)
    if is_causal or known.causal:
        grid = scores.shape[-2:]
        seen = pointwise.ge(creation.iota(grid, 0), creation.iota(grid, 1))
        scores = _masked(scores, seen)
    if known.left is not None and known.left.dtype == "bool":
        scores = _masked(scores, known.left)
    elif known.left is not None:
        scores = pointwise.add(scores, known.left)
    weights = reduction.softmax(scores, -1)
    if known.may_be_empty or (is_causal and known.left is not None):
        nothing = pointwise.eq(reduction.amax(scores, -1, keepdim=True), -math.inf)
        weights = pointwise.where(nothing, as_tensor(0.0, weights.dtype), weights)
    return matmul(weights, value)


@dataclass(frozen=True)
class _Mask:
    """What a mask says.

    Attributes:
        left: the mask, where it isn't said by ``causal`` or by leaving it out.
        may_be_empty: whether there may be a query that may attend to nothing.
        causal: queries see the keys up to their own place.
    """

    left: Expr | None
    may_be_empty: bool
    causal: bool = False

    @staticmethod
    def of(mask: Expr, scores: Shape) -> _Mask:
        """What is known of a mask of scores (*b, m, n)."""
        value = known_value(mask.tensor)
        repeated = np.broadcast_shapes(mask.shape, scores) != scores
        if value is None or repeated or 0 in scores or np.isnan(value).any():
            return _Mask(mask, True)
        grid = scores[-2:]
        value = np.broadcast_to(value, np.broadcast_shapes(value.shape, grid))
        seen = value if mask.dtype == "bool" else value != -np.inf
        if value[seen].any() and mask.dtype != "bool":
            return _Mask(mask, True)  # numbers that change scores
        if seen.all():
            return _Mask(None, False)
        if np.array_equal(seen, np.broadcast_to(np.tril(np.ones(grid, dtype=bool)), seen.shape)):
            return _Mask(None, False, True)
        left = mask if mask.dtype == "bool" else pointwise.ne(mask, -math.inf)
        return _Mask(left, not seen.any(-1).all())


def _masked(scores: Expr, seen: Expr) -> Expr:
    return pointwise.where(seen, scores, as_tensor(-math.inf, scores.dtype))  # type: ignore[no-any-return]


def _repeat_heads(x: Expr, times: int) -> Expr:
    """Each head ``times`` times in a row (axis -3)."""
    *batch, heads, length, width = x.shape
    split = views.reshape(x, (*batch, heads, 1, length, width))
    tiled = views.expand(split, (*batch, heads, times, length, width))
    return views.reshape(tiled, (*batch, heads * times, length, width))
