"""Commuting: a maximum or minimum moves inside of a function that is monotone in its arguments.

    L_x max_y f(g(x, y))           =  L_x f({max_y g})                   f never decreases
    L_x max_{y,z} (g(y) + h(z))    =  L_x {max_y g} + {max_z h}          no iterator in both
    L_x max_y -2 * g(x, y)         =  L_x -2 * {min_y g}

A step passes one function; ``f(g(x))`` takes two steps. The result is exact if the rounded f is
monotone too: f of the largest argument is then the largest value of f.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from eqsynth.calculus import checking
from eqsynth.calculus.conditions import is_finite
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.scalar import (
    Call,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    children,
    composites,
    dtype_of,
    iterators,
    leaves,
    rebuild,
)
from eqsynth.ir.scopes import closed, same_scope, traversal_iterators
from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import is_float

_require = partial(checking.require, law="commute")

_OPPOSITE = {"max": "min", "min": "max"}


@dataclass(frozen=True)
class Commute:
    """Groups of operands of the body, by position. Each group is reduced as one; an operand of no
    group doesn't use the reduced iterators."""

    groups: tuple[frozenset[int], ...]


def commute(scope: Scope, given: Commute) -> Scope:
    """``L_x max_y f(g, h) = L_x f({max_y g}, {max_y h})``, and for min.

    Raises:
        LawError: ``extremum``: neither a maximum nor a minimum, or one of no values; ``operands``:
            the groups aren't operands of the body, or another operand uses a reduced iterator;
            ``dtype``: integer arithmetic wraps around; ``monotone``: the body isn't known to be
            monotone; ``apart``: two groups use one iterator, and need the same value of it;
            ``finite``: infinite values in two terms of a sum: one side alone meets ``inf - inf``.
    """
    body, reducer = scope.body, scope.reducer
    _require(reducer in _OPPOSITE and 0 not in scope.reduction, condition="extremum",
             what="no maximum or minimum of something")  # fmt: skip
    operands, outside = children(body), set(traversal_iterators(scope))
    taken = [n for group in given.groups for n in group]
    fits = len(set(taken)) == len(taken) and set(taken) <= set(range(len(operands)))
    rest = [operand for n, operand in enumerate(operands) if n not in taken]
    fits = fits and all(given.groups) and all(iterators(operand) <= outside for operand in rest)
    _require(fits and bool(taken), condition="operands",
             what="the groups aren't all operands that are reduced")  # fmt: skip
    _require(is_float(dtype_of(body) or "bool"), condition="dtype", what="integers come round")
    groups = [[operands[n] for n in sorted(group)] for group in given.groups]
    turned = _reducer_inside(body, reducer, groups, rest) or ""
    _require(bool(turned), condition="monotone", what="the body may turn the order over")
    if not (isinstance(body, Call) and body.fn == reducer):
        used = [set().union(*map(iterators, group)) - outside for group in groups]
        _require(not any(a & b for a, b in combinations(used, 2)), condition="apart",
                 what="two groups share an iterator")  # fmt: skip
    if isinstance(body, Sum):
        infinite = [not _stays_finite(group) for group in (*groups, rest)]
        _require(sum(infinite) < 2, condition="finite", what="infinite fills in two places")
    reads = [closed(rebuild(body, group) if len(group) > 1 else group[0], outside, turned)
             for group in groups]  # fmt: skip
    # The operands of a function have an order.
    place = {min(group): read for group, read in zip(given.groups, reads, strict=True)}
    moved = [place.get(n, operand) for n, operand in enumerate(operands)
             if n in place or n not in taken]  # fmt: skip
    result = same_scope(scope, rebuild(body, moved), [], "sum")
    _require(result.type == scope.type, condition="dtype", what="the result is of another type")
    return result


def _reducer_inside(
    body: Scalar, reducer: str, groups: Sequence[Sequence[Scalar]], rest: Sequence[Scalar]
) -> str | None:
    """Return the reducer of the groups, ``"max"`` or ``"min"``; None if no law moves it inside."""
    if isinstance(body, Sum):
        return reducer
    if isinstance(body, Prod):
        numbers = [factor.value for factor in rest if isinstance(factor, Num)]
        scale = math.prod(numbers)
        fits = len(groups) == 1 and len(numbers) == len(rest) and math.isfinite(scale)
        return (reducer if scale > 0 else _OPPOSITE[reducer]) if fits and scale else None
    increasing = isinstance(body, Call) and FUNCTIONS[body.fn].increasing
    return reducer if increasing and all(len(group) == 1 for group in groups) else None


def _stays_finite(operands: Sequence[Scalar]) -> bool:
    """Whether the operands are finite for finite tensors: no infinite fill, and no ``log(0)``."""
    parts = [p for operand in operands for p in (*leaves(operand), *composites(operand))]
    calls = [FUNCTIONS[p.fn] for p in parts if isinstance(p, Call) and p.fn != "where"]
    finite = all(call.finite or call.result == "bool" for call in calls)
    return finite and all(is_finite(p) for p in parts if isinstance(p, Num | Read))
