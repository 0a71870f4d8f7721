"""Splitting a reduction: a sum of terms is the sum of their sums.

    L_x sum_y (f + g)  =  L_x {L_x sum_y f}[x] + {L_x sum_y g}[x]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from eqsynth.calculus import checking
from eqsynth.calculus.scopes import closed, reduction_iterators, same_scope, traversal_iterators
from eqsynth.ir.scalar import Num, Scalar, Sum, dtype_of, terms_of, total
from eqsynth.ir.tensor import Scope

_require = partial(checking.require, law="split")


@dataclass(frozen=True)
class Split:
    """Which terms of the sum, by position, are reduced together."""

    groups: tuple[frozenset[int], ...]


def split(scope: Scope, given: Split) -> Scope:
    """``sum_y (f + g) = {sum_y f} + {sum_y g}``; a number is multiplied.

    Raises:
        LawError: ``terms``: the groups aren't the terms, each once; ``linear``: no sum of a sum;
            ``dtype``: a group by itself would be computed in another dtype.
    """
    terms = terms_of(scope.body)
    taken = sorted(n for group in given.groups for n in group)
    _require(taken == list(range(len(terms))) and all(given.groups), condition="terms",
             what="the groups aren't the terms, each once")  # fmt: skip
    _require(
        isinstance(scope.body, Sum) and scope.reducer == "sum" and bool(scope.reduction),
        condition="linear", what="no sum of a sum",
    )  # fmt: skip
    _require(dtype_of(scope.body) == scope.dtype, condition="dtype", what="bools are counted")
    traversal, reduced = set(traversal_iterators(scope)), reduction_iterators(scope)
    count = math.prod(scope.reduction)
    parts: list[Scalar] = []
    for group in given.groups:
        body = total([terms[n] for n in sorted(group)])
        if isinstance(body, Num):
            parts.append(Num(body.value * count if count else 0.0))
            continue
        # b + n + c -> {b + c} + {n}: two bools by themselves are added as "or".
        _require(len(group) == 1 or dtype_of(body) == scope.dtype, condition="dtype",
                 what="the terms by themselves would be added in another dtype")  # fmt: skip
        read = closed(body, traversal, "sum", reduced)
        _require(read.tensor.dtype == scope.dtype, condition="dtype",
                 what="the group by itself would be computed in another dtype")  # fmt: skip
        parts.append(read)
    result = same_scope(scope, total(parts), [])
    _require(result.type == scope.type, condition="dtype", what="the result is of another type")
    return result
