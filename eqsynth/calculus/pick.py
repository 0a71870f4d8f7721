"""Picking: constant matrices whose product is a selection replace an iterator by one value.

    L_x sum_{p,u} A[x, p] * B[p, u] * f(x, u)  =  L_x f(x, m(x))        sum_p A * B = [u = m(x)]

All factors that use p are literal tensors, so their sum is computed exactly, over the rationals.
The law removes a matrix beside its inverse, and the three matrices of a Winograd convolution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from eqsynth.calculus import checking
from eqsynth.calculus.conditions import is_product
from eqsynth.ir.index import Index, It
from eqsynth.ir.indices import substituted
from eqsynth.ir.scalar import Read, factors_of, iterators, product
from eqsynth.ir.scopes import reduction_iterators, same_scope
from eqsynth.ir.tensor import Op, Scope, is_literal

_require = partial(checking.require, law="pick")

LARGEST: Final = 1 << 22
"""The most products of numbers that a check computes."""


@dataclass(frozen=True)
class Pick:
    """The iterator p (``summed``), the iterator u (``picked``), and the value m(x) that u gets."""

    summed: It
    picked: It
    value: Index


def pick(scope: Scope, given: Pick) -> Scope:
    """``L_x sum_{p,u} A[x, p] * B[p, u] * f(x, u) = L_x f(x, m(x))``.

    Raises:
        LawError: ``product``: the scope isn't a sum of products of finite factors; ``iterators``:
            p or u isn't the scope's, or the value may leave u's extent; ``literals``: a factor with
            p isn't an in-range read of a literal; ``dtype``: the result has another dtype;
            ``large``: too many numbers; ``delta``: the sum isn't that delta.
    """
    factors, reduced = factors_of(scope.body), reduction_iterators(scope)
    # A product of one factor may have an infinite fill; here the one factor is a table in range.
    _require(is_product(scope), condition="product", what="no sum of products of finite factors")
    summed, picked, value = given.summed, given.picked, given.value
    own, used = {*reduced, *iterators(scope.body)} - {summed, picked}, set(value.iterators())
    fits = len({summed, picked} & {*reduced}) == 2 and used <= own
    low, high = value.range()
    _require(fits and 0 <= low and high < picked.extent, condition="iterators",
             what="the value isn't one of the iterator's")  # fmt: skip
    tables = [f for f in factors if isinstance(f, Read) and summed in iterators(f)]
    known = bool(tables) and all(is_literal(f.tensor) and f.in_range() for f in tables)
    _require(known, condition="literals", what="what is summed isn't known")
    others = {it for table in tables for it in iterators(table)} | {picked, *used}
    its = [*sorted(others - {summed}, key=lambda it: it.slot), summed]
    _require(math.prod(it.extent for it in its) <= LARGEST, condition="large", what="too many")
    _require(_is_delta(tables, its, given), condition="delta", what="the sum is no such delta")
    rest = substituted(product([f for f in factors if f not in tables]), {picked: value})
    result = same_scope(scope, rest, [it for it in reduced if it not in (summed, picked)])
    _require(result.type == scope.type, condition="dtype", what="another dtype")
    return result


def _is_delta(tables: Sequence[Read], its: Sequence[It], given: Pick) -> bool:
    """Whether ``sum_p A[x, p] * B[p, u] = [u = m(x)]``; p is the last iterator of ``its``."""
    grid = np.meshgrid(*(np.arange(it.extent) for it in its), indexing="ij", sparse=True)
    values = {it.slot: array for it, array in zip(its, grid, strict=True)}
    found: Any = 1
    scale = 1
    for table in tables:
        assert isinstance(table.tensor, Op)
        shape, above, below, _ = table.tensor.attrs
        assert isinstance(above, tuple) and isinstance(below, tuple) and isinstance(shape, tuple)
        common = math.lcm(*below)
        scale *= common
        whole = [n * (common // d) for n, d in zip(above, below, strict=True)]
        entries = np.array(whole, dtype=object).reshape(*shape)
        found = found * entries[tuple(index.evaluate(values) for index in table.index)]
    hit = values[given.picked.slot] == given.value.evaluate(values)
    return bool(np.all(found.sum(axis=-1, keepdims=True) == np.where(hit, [scale], [0])))
