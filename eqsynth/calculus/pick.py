"""Picking: numbers that sum up to a delta pick one value of an iterator.

    L_x sum_{p,u} A[x, p] * B[p, u] * f(x, u)  =  L_x f(x, m(x))        sum_p A * B = [u = m(x)]

All factors with p are literals, so that their sum is computed, over the rationals: a matrix and its
inverse go, and so do the three matrices of a correlation by tiles (Winograd).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from eqsynth.calculus import checking
from eqsynth.calculus.conditions import is_finite, is_product
from eqsynth.calculus.scopes import reduction_iterators, same_scope
from eqsynth.ir.index import Index, It
from eqsynth.ir.indices import substituted
from eqsynth.ir.scalar import Read, factors_of, iterators, product
from eqsynth.ir.tensor import Op, Scope, is_literal
from eqsynth.ir.types import is_float

_require = partial(checking.require, law="pick")

LARGEST: Final = 1 << 22
"""Products of numbers that are looked at."""


@dataclass(frozen=True)
class Pick:
    """p, over which numbers are summed; u, and the value that they pick."""

    summed: It
    picked: It
    value: Index


def pick(scope: Scope, given: Pick) -> Scope:
    """``L_x sum_{p,u} A[x, p] * B[p, u] * f(x, u) = L_x f(x, m(x))``.

    Raises:
        LawError: ``product``: the body isn't one of finite factors under a sum; ``iterators``: the
            arguments aren't iterators of the scope, or the value isn't one of u; ``literals``: a
            factor with p isn't a read of numbers, in range; ``dtype``: they are no floats, or the
            rest is of another dtype; ``large``: too many numbers; ``delta``: they sum up to others.
    """
    factors, reduced = factors_of(scope.body), reduction_iterators(scope)
    _require(is_product(scope) and all(map(is_finite, factors)), condition="product",
             what="no sum of products of finite factors")  # fmt: skip
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
    floats = all(is_float(table.tensor.dtype) for table in tables)
    _require(floats and result.type == scope.type, condition="dtype", what="another dtype")
    return result


def _is_delta(tables: Sequence[Read], its: Sequence[It], given: Pick) -> bool:
    """Whether ``sum_p A[x, p] * B[p, u] = [u = m(x)]``; p is the last of the iterators."""
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
