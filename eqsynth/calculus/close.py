"""Closing: some operands of a body become a new scope, and the body reads that scope.

    L_x R_{y,z} f          =  L_x R_y {L_{x,y} R_z f}[x, y]            any reduction, in two parts
    L_x sum_{y,z} a * b    =  L_x sum_y a * {L_{x,y} sum_z b}[x, y]    z in b alone
    L_x R_y f(a + b + c)   =  L_x R_y a + {L_{x,y} b + c}[x, y]        nothing reduced

The new scope is traversed over the iterators that its operands use and that it doesn't reduce.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from eqsynth.calculus import checking
from eqsynth.calculus.conditions import is_product
from eqsynth.ir.index import It
from eqsynth.ir.scalar import Prod, Read, Scalar, Sum, children, dtype_of, iterators, rebuild
from eqsynth.ir.scopes import closed, reduction_iterators, same_scope
from eqsynth.ir.tensor import Scope

_require = partial(checking.require, law="close")


@dataclass(frozen=True)
class Part:
    """Operands by position in the body's product or sum (any other body is its own operand 0), and
    the iterators that the operands' new scope reduces."""

    operands: frozenset[int]
    reduced: frozenset[It] = frozenset()


@dataclass(frozen=True)
class Close:
    """The parts to close, each into its own scope; the other operands stay in the body."""

    parts: tuple[Part, ...]


def operands_of(body: Scalar) -> tuple[Scalar, ...]:
    """The factors of a product, the terms of a sum; anything else is its own operand."""
    return children(body) if isinstance(body, Prod | Sum) else (body,)


def close(scope: Scope, given: Close) -> Scope:
    """``L_x R_{y,z} a * b = L_x R_y a * {L R_z b}``.

    Raises:
        LawError: ``operands``, ``iterators``: the arguments don't fit the scope; ``linear``: only
            in a sum of products of finite factors may an iterator be reduced over some operands and
            not over the others; ``shared``: an operand that stays uses an iterator that the new
            scope reduces; ``dtype``: the part by itself would be computed in another dtype.
    """
    operands = operands_of(scope.body)
    taken = [n for part in given.parts for n in part.operands]
    fits = len(set(taken)) == len(taken) and set(taken) <= set(range(len(operands)))
    _require(fits and all(part.operands for part in given.parts), condition="operands",
             what="the parts aren't parts of the body")  # fmt: skip
    inside = [it for part in given.parts for it in part.reduced]
    own = reduction_iterators(scope)
    _require(len(set(inside)) == len(inside) and set(inside) <= set(own), condition="iterators",
             what="the parts don't reduce iterators of the scope, each once")  # fmt: skip
    reads = [_closed(scope, operands, part) for part in given.parts]
    rest = [operand for n, operand in enumerate(operands) if n not in taken]
    body = rebuild(scope.body, [*rest, *reads]) if operands != (scope.body,) else (reads or rest)[0]
    result = same_scope(scope, body, [it for it in own if it not in inside])
    _require(result.type == scope.type, condition="dtype", what="the result is of another type")
    return result


def _closed(scope: Scope, operands: tuple[Scalar, ...], part: Part) -> Read:
    """Return a read of the new scope that computes ``part``."""
    rest = [operand for n, operand in enumerate(operands) if n not in part.operands]
    if part.reduced and rest:
        _require(is_product(scope), condition="linear", what="a reduction beside other operands")
        shared = any(part.reduced & iterators(operand) for operand in rest)
        _require(not shared, condition="shared", what="what is reduced inside is used outside")
    chosen = [operands[n] for n in sorted(part.operands)]
    body = rebuild(scope.body, chosen) if operands != (scope.body,) else scope.body
    reducer = scope.reducer if part.reduced else "sum"
    reduced = sorted(part.reduced, key=lambda it: it.slot)
    read = closed(body, iterators(body) - part.reduced, reducer, reduced)
    # One operand keeps its own dtype; several operands, or a sum, have the dtype of the whole body.
    alone = len(chosen) == 1 and not part.reduced and dtype_of(body) == read.tensor.dtype
    _require(alone or read.tensor.dtype == scope.dtype, condition="dtype",
             what="the part by itself would be computed in another dtype")  # fmt: skip
    return read
