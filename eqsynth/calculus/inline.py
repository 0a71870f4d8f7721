"""Inlining: the body of a scope replaces a read of the scope (EinNet §4.1, §4.2 fusion).

    L_x f({L_z g(z)}[phi(x)])  =  L_x f(g(phi(x)))
    L_x sum_y c * {L_z sum_s g(z, s)}[phi(x, y)]  =  L_x sum_{y,s} c * g(phi(x, y), s)
    L_x reduce_y {L_z reduce_s g(z, s)}[phi(x, y)]  =  L_x reduce_{y,s} g(phi(x, y), s)
    L_x sum_y c * {L_z sum_s g(z, s)}[phi(x, y)]  =  L_x sum_{y,s} c * g(phi(x, y), s) * one[phi]

This is valid if phi stays inside of the inner traversal, or if the inner body has the value of the
read's fill outside of it (``vanishes_outside``), which a body with a bias doesn't.

In the last line, phi may leave the inner traversal although g isn't 0 there, as what broadcasts
isn't. The read's fill is 0, and along each such axis ``one`` is a vector of ones as long as the
axis, with zeros around it. Inside of the traversal all ones are 1. Where phi is outside along such
an axis, that axis's one is 0, and so is its product with g, which is finite. Where it isn't, it is
outside only along axes where g is 0, as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from eqsynth.calculus import checking
from eqsynth.calculus.conditions import (
    independent,
    is_finite,
    is_product,
    keeps_one_dtype,
    vanishes_outside,
)
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
from eqsynth.ir.scopes import same_scope
from eqsynth.ir.tensor import Op, Scope
from eqsynth.ir.types import is_float

_require = partial(checking.require, law="inline")


@dataclass(frozen=True)
class Inline:
    """Which read is replaced, and the scope whose body replaces it.

    Attributes:
        read: a read in the outer body. If a product has it several times as a factor, only the
            first is replaced; in another body each occurrence is.
        inner: the scope that the tensor of the read equals (a hypothesis).
        bounded: whether ones bound the inner body where it isn't 0 outside by itself."""

    read: Read
    inner: Scope
    bounded: bool = False


def inline(scope: Scope, given: Inline) -> Scope:
    """``L_x R_y f({L_z S_s g(z, s)}[phi]) = L_x R_y S_s f(g(phi, s))``.

    Raises:
        LawError: ``reads``, ``type``: the arguments don't fit; ``outside``: the inner body isn't
            the fill where the read leaves the inner traversal; ``reduces``: the inner reduction
            can't move out of the outer body; ``wraps``: integers would change their dtype.
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
    zero = [axis for axis in outside if vanishes_outside(inner, axis, read.fill, sides[axis])]
    bounds = [axis for axis in outside if axis not in zero]
    finite = is_product(inner) and all(map(is_finite, factors_of(inner.body)))
    bounded = given.bounded and read.fill == 0 and finite and is_float(inner.dtype)
    fits = (bounded or not bounds) and independent(inner, zero)
    _require(fits, condition="outside", what="no fill outside of what is read")
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

    ones = [
        Read(Op("Full", (), ((inner.traversal[axis],), 1.0, inner.dtype)), (read.index[axis],))
        for axis in bounds
    ]
    body = _replace(scope.body, read, product([substitute(inner.body, image), *ones]))
    before = [It(len(scope.traversal) + j, e) for j, e in enumerate(scope.reduction)]
    added = [It(size + j, extent) for j, extent in enumerate(inner.reduction)]
    # Beside other operands, inner and outer reducer are a sum.
    return same_scope(scope, body, [*before, *added], (inner if inner.reduction else scope).reducer)


def _is_linear(scope: Scope, read: Read, inner: Scope) -> bool:
    """Whether the scope is ``sum_y c * read`` with finite c, so that an inner sum may move out."""
    others = list(factors_of(scope.body))
    if not inner.reducer == scope.reducer == "sum" or read not in others:
        return False
    others.remove(read)
    return all(map(is_finite, others))


def _computes_its_dtype(scope: Scope, inner: Scope) -> bool:
    """Whether the inner body, among the operands of the outer body, is computed in its own dtype.

    uint8 arithmetic, modulo 256, would change its values inside of a product of floats; so would a
    sum of any integers, modulo 2^64, whose terms become products of floats. A number has no dtype
    of its own: it takes the dtype of its neighbours.
    """
    dtype, alike = dtype_of(inner.body), keeps_one_dtype(scope.body, inner.dtype)
    if dtype != inner.dtype:
        return dtype is None and alike
    wraps = isinstance(inner.body, Sum | Prod) and dtype != "int64"
    moves = bool(inner.reduction) and dtype_of(scope.body) != dtype
    return is_float(dtype) or (not moves and (alike or not wraps))


def _replace(scalar: Scalar, read: Read, body: Scalar) -> Scalar:
    if isinstance(scalar, Prod) and read in scalar.factors:
        # Only the first occurrence: (sum_k f)^2 isn't sum_k f^2.
        at = scalar.factors.index(read)
        return product([*scalar.factors[:at], body, *scalar.factors[at + 1 :]])
    return rewrite_leaves(scalar, lambda leaf: body if leaf == read else leaf)
