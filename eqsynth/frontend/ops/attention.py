"""Attention under torch's name, as products and a softmax.

A mask that is computed from nothing is known here, and said as what it is:

    ones(n, n)                     no mask
    tril(ones(n, n))               causal: a comparison of positions
    0 and -inf                     which keys are seen, bools
    no row of which is empty         nothing asks whether a query may attend to nothing

Any other mask is added, as numbers, and whether a query may attend to nothing is asked of the mask
alone, since scores are finite. The question is then as large as the mask (padding: a row of keys,
where scores have all heads and queries), and its answer the same in all layers. Of bools it is
asked in finite numbers: the maximum of a row of -inf is not -inf in OpenVINO.

    where(max(mask) = -inf, 0, softmax(scores + mask) @ value)
    where(max(where(seen, 1, 0)) = 0, 0, softmax(scores + where(seen, 0, -inf)) @ value)

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
    known = _Mask(None, False) if attn_mask is None else _Mask.of(attn_mask, scores)
    left, may_be_empty = known.left, known.may_be_empty
    if is_causal or known.causal:
        grid = scores.shape[-2:]
        below = pointwise.ge(creation.iota(grid, 0), creation.iota(grid, 1))
        if left is None:
            scores = _masked(scores, below)
        elif left.dtype == "bool":
            left, may_be_empty = pointwise.logical_and(left, below), True
        else:
            left, may_be_empty = _masked(left, below), True
    if left is None:
        return matmul(reduction.softmax(scores, -1), value)
    zero = as_tensor(0.0, scores.dtype)
    if left.dtype != "bool":
        scores = pointwise.add(scores, left)
    elif may_be_empty:
        scores = pointwise.add(scores, _masked(zero, left))
    else:
        scores = _masked(scores, left)
    result = matmul(reduction.softmax(scores, -1), value)
    if not may_be_empty:
        return result
    most, least = left, as_tensor(-math.inf, scores.dtype)
    if left.dtype == "bool":
        most, least = pointwise.where(left, as_tensor(1.0, scores.dtype), zero), zero
    nothing = pointwise.eq(reduction.amax(most, -1, keepdim=True), least)
    return pointwise.where(nothing, zero, result)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Mask:
    """What a mask says.

    Attributes:
        left: the mask, where it isn't said by ``causal`` or by leaving it out: which keys are seen
            where that is all, else numbers that are added.
        may_be_empty: whether there may be a query that may attend to nothing.
        causal: queries see the keys up to their own place.
    """

    left: Expr | None
    may_be_empty: bool
    causal: bool = False

    @staticmethod
    def of(mask: Expr, scores: Expr) -> _Mask:
        """What is known of a mask of scores (*b, m, n)."""
        value = known_value(mask.tensor)
        repeated = np.broadcast_shapes(mask.shape, scores.shape) != scores.shape
        if value is None or repeated or 0 in scores.shape or np.isnan(value).any():
            return _Mask(mask, True)
        grid = scores.shape[-2:]
        value = np.broadcast_to(value, np.broadcast_shapes(value.shape, grid))
        seen = value if mask.dtype == "bool" else value != -np.inf
        may_be_empty = not seen.any(-1).all()
        if may_be_empty or (value[seen].any() and mask.dtype != "bool"):
            return _Mask(mask, may_be_empty)
        if seen.all():
            return _Mask(None, False)
        if np.array_equal(seen, np.broadcast_to(np.tril(np.ones(grid, dtype=bool)), seen.shape)):
            return _Mask(None, False, True)
        return _Mask(mask if mask.dtype == "bool" else pointwise.ne(mask, -math.inf), False)


def _masked(scores: Expr, seen: Expr) -> Expr:
    return pointwise.where(seen, scores, as_tensor(-math.inf, scores.dtype))  # type: ignore[no-any-return]


def _repeat_heads(x: Expr, times: int) -> Expr:
    """Each head ``times`` times in a row (axis -3)."""
    *batch, heads, length, width = x.shape
    split = views.reshape(x, (*batch, heads, 1, length, width))
    tiled = views.expand(split, (*batch, heads, times, length, width))
    return views.reshape(tiled, (*batch, heads * times, length, width))
