"""Attention under torch's name, as matrix products and a softmax.

A mask that reads no tensor (``tril(ones(n, n))``) is evaluated at capture, and becomes a simpler
term where its values allow that:

    all keys are seen, or all numbers are 0     no mask
    tril(ones(n, n))                            causal: a comparison of positions
    numbers, each 0 or -inf                     bools that say which keys are seen
    each row sees a key                         no test for queries that see no key

Any other mask of numbers is added to the scores. A query that sees no key gives 0, so there is a
test for such queries. The test reads the mask and not the scores, which are finite. It is then as
small as the mask (a padding mask has one row of keys, where scores have rows for all heads and
queries), and equal in all layers. With a mask of bools the test compares finite numbers, since
OpenVINO's maximum of a row of -inf isn't -inf:

    where(max(mask) = -inf, 0, softmax(scores + mask) @ value)
    where(max(where(seen, 1, 0)) = 0, 0, softmax(scores + where(seen, 0, -inf)) @ value)

Not here: the rules that find attention in a program, and replace it by one operator
(``rules/attention.egg``).
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

    (*b, m, d), (*b, n, d), (*b, n, e) -> (*b, m, e). A query that sees no key gives 0, as in torch.

    Raises:
        UnsupportedOperatorError: ``dropout_p`` isn't 0, which would make the result random.
        DtypeError: the mask has neither the dtype bool nor the query's dtype.
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
        # Scores are computed in float32: a score of 3e5 is too large for float16, and at 30 the
        # spacing of float16 is too coarse for the softmax.
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
    """A mask, in the simplest form that is known for it.

    Attributes:
        left: the mask: bools that say which keys are seen, or numbers that are added to the scores.
            None if all keys are seen, or if ``causal`` says which.
        may_be_empty: whether a query may see no key.
        causal: whether each query sees the keys up to its own position.
    """

    left: Expr | None
    may_be_empty: bool
    causal: bool = False

    @staticmethod
    def of(mask: Expr, scores: Expr) -> _Mask:
        """The simplest form of ``mask``, a mask of ``scores`` with shape (*b, m, n)."""
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
    """Repeat each head (axis -3): heads (a, b), 2 times -> (a, a, b, b)."""
    *batch, heads, length, width = x.shape
    split = views.reshape(x, (*batch, heads, 1, length, width))
    tiled = views.expand(split, (*batch, heads, times, length, width))
    return views.reshape(tiled, (*batch, heads * times, length, width))
