"""Signs: what changes only negative numbers doesn't change what is never negative.

    L_x f(relu(g))  =  L_x f(g)        g >= 0; and for |g|

A square, an exponential or a ReLU is never negative, nor are sums, products, maxima and minima of
what isn't. So neither is a read of such a scope: the ReLU of an average pooling of squares is that
pooling. Rounding keeps signs: rounded to the nearest, a number of 0 or more stays 0 or more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from eqsynth.calculus import checking
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Num,
    Read,
    Scalar,
    Sum,
    Value,
    children,
    composites,
    dtype_of,
    rewrite_leaves,
)
from eqsynth.ir.scopes import reduction_iterators, same_scope
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.ir.types import is_float

_require = partial(checking.require, law="sign")

CLIPS: Final = ("relu", "abs")
"""Functions that change nothing but negative numbers."""

_NOT_NEGATIVE: Final = (*CLIPS, "exp", "exp2", "sigmoid", "sqrt")


@dataclass(frozen=True)
class Unclip:
    """A part ``relu(g)`` or ``|g|`` of the body, and what tensors equal: scopes, or one number in
    all elements (hypotheses)."""

    part: Call
    known: tuple[tuple[Tensor, Scope | float], ...] = ()


def unclip(scope: Scope, given: Unclip) -> Scope:
    """``L_x f(relu(g)) = L_x f(g)`` for a g that is never negative.

    Raises:
        LawError: ``part``: the body has no such part; ``dtype``: the argument isn't of floats;
            ``sign``: it may be negative.
    """
    part = given.part
    _require(part.fn in CLIPS and part in composites(scope.body), condition="part",
             what="no relu and no absolute value")  # fmt: skip
    (arg,) = part.args
    # |-128| of int8 is -128, and a number beside floats takes their dtype.
    _require(is_float(dtype_of(arg) or "bool"), condition="dtype", what="no argument of floats")
    _require(never_negative(arg, dict(given.known)), condition="sign", what="it may be negative")
    body = rewrite_leaves(
        scope.body, lambda leaf: leaf, lambda other: arg if other == part else other
    )
    return same_scope(scope, body, reduction_iterators(scope))


def never_negative(body: Scalar, known: Mapping[Tensor, Scope | float]) -> bool:
    """Whether the body is 0 or more, or NaN, for all values of its tensors.

    A tensor isn't negative if the scope that it equals isn't. That scope may not be judged by the
    tensor itself: a tensor that equals its own copy may well be negative.

    >>> from eqsynth.ir.index import Index
    >>> from eqsynth.ir.scalar import Prod
    >>> from eqsynth.ir.tensor import Input
    >>> from eqsynth.ir.types import TensorType
    >>> x = Read(Input("x", TensorType((3,), "float32")), (Index.iterator(0, 3),))
    >>> never_negative(Prod((x, x)), {}), never_negative(x, {})
    (True, False)
    """
    dtype = dtype_of(body)
    if dtype == "bool":
        return True
    if children(body) and not is_float(dtype or "float32"):
        return False  # integers come round at the end of their range, and numbers beside them too
    match body:
        case Num(value=value):
            return value >= 0
        case Value(index=index):
            return index.range()[0] >= 0
        case Read(tensor=tensor, fill=fill):
            inner = known.get(tensor)
            if not is_float(tensor.dtype) or inner is None or not fill >= 0:
                return False
            if isinstance(inner, float):
                return inner >= 0
            others = {other: held for other, held in known.items() if other != tensor}
            # The maximum of nothing is -inf.
            some = inner.reducer != "max" or 0 not in inner.reduction
            return some and never_negative(inner.body, others)
        case Cast(arg=arg):
            return never_negative(arg, known)
        case Call(fn="where", args=(_, *ways)):
            return all(never_negative(way, known) for way in ways)
        case Call(fn="max"):
            return any(never_negative(part, known) for part in body.args)
        case Call(fn="min"):
            return all(never_negative(part, known) for part in body.args)
        case Call(fn=fn):
            return fn in _NOT_NEGATIVE
    counts = Counter(children(body)).items()
    odd = [part for part, n in counts if isinstance(body, Sum) or n % 2]
    return all(never_negative(part, known) for part in odd)
