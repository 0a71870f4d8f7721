"""Inlining: a read of a scope becomes the scope's body (EinNet §4.1, §4.2 fusion).

    L_x f({L_z g(z)}[phi(x)])  =  L_x f(g(phi(x)))
    L_x sum_y c * {L_z sum_s g(z, s)}[phi(x, y)]  =  L_x sum_{y,s} c * g(phi(x, y), s)
    L_x reduce_y {L_z reduce_s g(z, s)}[phi(x, y)]  =  L_x reduce_{y,s} g(phi(x, y), s)

valid where phi stays inside of the inner traversal, or the inner body gives the read's fill outside
of it by itself (``vanishes_outside``). A bias or a maximum in the body breaks that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from eqsynth.calculus import checking
from eqsynth.calculus.conditions import (
    independent,
    is_finite,
    keeps_one_dtype,
    vanishes_outside,
)
from eqsynth.calculus.scopes import same_scope
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import (
    Prod,
    Read,
    Scalar,
    Sum,
    dtype_of,
    factors_of,
    leaves,
    product,
    rewrite_leaves,
    substitute,
)
from eqsynth.ir.tensor import Scope
from eqsynth.ir.types import is_float

_require = partial(checking.require, law="inline")


@dataclass(frozen=True)
class Inline:
    """Which read becomes what.

    Attributes:
        read: of the body. Of a product that has it several times the first is replaced, of other
            bodies each.
        inner: the scope that the tensor which is read equals (a hypothesis).
    """

    read: Read
    inner: Scope


def inline(scope: Scope, given: Inline) -> Scope:
    """``L_x R_y f({L_z S_s g(z, s)}[phi]) = L_x R_y S_s f(g(phi, s))``.

    Raises:
        LawError: ``reads``, ``type``: the arguments don't fit; ``outside``: the inner body isn't
            the fill where the read leaves it; ``reduces``: the inner reduction can't be taken out
            of what is around the read; ``wraps``: integers would be computed in another dtype.
    """
    read, inner = given.read, given.inner
    _require(read in leaves(scope.body), condition="reads", what="what is replaced isn't read")
    _require(inner.type == read.tensor.type, condition="type", what="the read is of another type")
    _require(_computes_its_dtype(scope, inner), condition="wraps", what="another dtype inside")
    sides = {
        axis: (index.range()[0] < 0, index.range()[1] >= extent)
        for axis, (index, extent) in enumerate(zip(read.index, inner.traversal, strict=True))
    }
    outside = [axis for axis, left in sides.items() if any(left)]
    vanishes = all(vanishes_outside(inner, axis, read.fill, sides[axis]) for axis in outside)
    separate = len(outside) < 2 or independent(inner, outside)
    _require(vanishes and separate, condition="outside", what="no fill outside of what is read")
    alone = scope.body == read and (not scope.reduction or scope.reducer == inner.reducer)
    _require(
        not inner.reduction or alone or _is_linear(scope, read, inner),
        condition="reduces", what="a reduction inside of another computation",
    )  # fmt: skip
    size, width = len(scope.extents), len(inner.traversal)

    def image(it: It) -> Index:
        if it.slot < width:
            return read.index[it.slot]
        return Index.iterator(size + it.slot - width, it.extent)

    body = _replace(scope.body, read, substitute(inner.body, image))
    before = [It(len(scope.traversal) + j, e) for j, e in enumerate(scope.reduction)]
    added = [It(size + j, extent) for j, extent in enumerate(inner.reduction)]
    reducer = inner.reducer if inner.reduction and alone else scope.reducer
    result = same_scope(scope, body, [*before, *added], reducer)
    _require(result.type == scope.type, condition="type", what="the result is of another type")
    return result


def _is_linear(scope: Scope, read: Read, inner: Scope) -> bool:
    """``sum_y c * read``, c finite: the sum inside may come out, once."""
    others = list(factors_of(scope.body))
    if inner.reducer != "sum" or (scope.reduction and scope.reducer != "sum"):
        return False
    if read not in others:
        return False
    others.remove(read)
    return all(map(is_finite, others))


def _computes_its_dtype(scope: Scope, inner: Scope) -> bool:
    """The inner body means the same among the operands around the read as it does by itself.

    uint8 arithmetic is modulo 256 wherever it stops; taken into a product of floats it isn't. A
    number has no dtype of its own, so it takes that of what it meets.
    """
    dtype = dtype_of(inner.body)
    if dtype is None:
        return is_float(inner.dtype) and keeps_one_dtype(scope.body, inner.dtype)
    if dtype != inner.dtype:
        return False
    if is_float(dtype) or dtype == "int64":
        return True
    computes = isinstance(inner.body, Sum | Prod) or bool(inner.reduction)
    return not computes or (scope.dtype == dtype and keeps_one_dtype(scope.body, dtype))


def _replace(scalar: Scalar, read: Read, body: Scalar) -> Scalar:
    if isinstance(scalar, Prod) and read in scalar.factors:
        # Only the first occurrence: the square of a sum isn't the sum of squares.
        at = scalar.factors.index(read)
        return product([*scalar.factors[:at], body, *scalar.factors[at + 1 :]])
    return rewrite_leaves(scalar, lambda leaf: body if leaf == read else leaf)
