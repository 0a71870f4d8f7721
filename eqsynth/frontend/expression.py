"""Programs as expressions: inputs, weights, scopes and reductions.

``scope(lambda h, w: ..., h=56, w=56)`` is a tensor with a value at each (h, w);
``sum(lambda r: ..., r=3)`` inside it is a reduction. Names of the keywords are the iterators, their
values the extents, their order the order of axes. Operators on whole tensors are in ``ops/``.

Source: EinNet §3 (scopes, traversal and summation iterators).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from eqsynth.errors import DtypeError, EqsynthError, ShapeError
from eqsynth.frontend.expr import (
    Expr,
    IndexExpr,
    Reduction,
    ScalarExpr,
    as_scalar,
    merge_values,
)
from eqsynth.frontend.promotion import dtype_name
from eqsynth.ir.functions import REDUCERS
from eqsynth.ir.index import Index, It
from eqsynth.ir.program import Program
from eqsynth.ir.scalar import Read, Scalar, iterators, substitute
from eqsynth.ir.tensor import Input, Scope, Tensor, Weight, topological
from eqsynth.ir.types import TensorType, is_float

if TYPE_CHECKING:
    from eqsynth.frontend.promotion import Dtype

# While a scope is built, each of its iterators has a slot that no other iterator has, so that
# nested scopes can't mix them up. Closing a scope renumbers its slots from 0.
_FIRST_OPEN_SLOT: Final = 1 << 20
_open_slots = itertools.count(_FIRST_OPEN_SLOT)


def _type_of(name: str, shape: Sequence[int], dtype: Dtype) -> TensorType:
    """The type of an input or weight that a user declares.

    Raises:
        EqsynthError, ShapeError, DtypeError: the name is no text, or there is no such type.
    """
    if not isinstance(name, str):
        raise EqsynthError(
            "the name of a tensor is no text",
            got=repr(name),
            expected="a text",
            hint='the name comes first: eqsynth.input("x", (2, 3))',
        )
    extents = list(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else [shape]
    whole = [hasattr(e, "__index__") and not isinstance(e, bool) for e in extents]
    if not isinstance(shape, Sequence) or not all(whole):
        raise ShapeError(
            what=f"the shape of {name!r} is no row of sizes",
            where=name,
            got=repr(shape),
            expected="integers, one an axis",
            hint="give a tuple, as in (2, 3), or (4,) for one axis",
        )
    return TensorType(tuple(map(operator.index, extents)), dtype_name(dtype))


def input(name: str, shape: Sequence[int], dtype: Dtype = "float32") -> Expr:
    """An input of the program: a tensor that is given at each call.

    Args:
        dtype: a dtype's name, or torch's dtype.

    Raises:
        EqsynthError, ShapeError, DtypeError: the name, the shape or the dtype is none.
    """
    return Expr(Input(name, _type_of(name, shape, dtype)))


def weight(name: str, shape: Sequence[int], dtype: Dtype = "float32", value: Any = None) -> Expr:
    """A weight: a tensor that is known when the program is optimized. A part of the program that
    depends on weights only is computed once.

    Args:
        dtype: a dtype's name, or torch's dtype.
        value: an array or torch tensor of this shape and dtype; by default random values, the same
            each time. Floats may be of another dtype of floats, and are rounded to the weight's.

    Raises:
        EqsynthError, ShapeError, DtypeError: the name, the shape or the dtype is none, or ``value``
            is no array of them.
    """
    kind = _type_of(name, shape, dtype)
    if value is None:
        return Expr(Weight(name, kind), {})
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise EqsynthError(
            f"the value of weight {name!r} is no array",
            where=name,
            got=type(value).__name__,
            expected=f"an array of NumPy or a tensor of torch, {kind}",
            hint="convert it: torch.tensor(value)",
        )
    if tuple(value.shape) != kind.shape:
        raise ShapeError(
            what=f"the value of weight {name!r} has another shape",
            got=str(tuple(value.shape)),
            expected=str(kind.shape),
            hint="give the value's own shape",
        )
    given = str(value.dtype).removeprefix("torch.")
    if given != kind.dtype and not (is_float(given) and is_float(kind.dtype)):
        raise DtypeError(
            what=f"the value of weight {name!r} has another dtype",
            where=name,
            got=given,
            expected=kind.dtype,
            hint="convert the value, or declare the weight with the value's own dtype",
        )
    return Expr(Weight(name, kind), {name: value})


def _open(extents: Mapping[str, int]) -> tuple[list[IndexExpr], list[It]]:
    """Fresh iterators for the keywords: as indices for the user's function, and as iterators."""
    its = []
    for name, extent in extents.items():
        if isinstance(extent, bool) or not isinstance(extent, int) or extent < 0:
            raise ShapeError(
                what=f"the extent of iterator {name} is no size",
                got=repr(extent),
                expected="an integer of 0 or more",
                hint=f"write {name}=<extent>",
            )
        its.append(It(next(_open_slots), extent))
    return [IndexExpr(Index.iterator(it.slot, it.extent)) for it in its], its


def _call(fn: Callable[..., Any], arguments: list[IndexExpr], names: Sequence[str]) -> Any:
    """Call the user's function with the iterators as keyword arguments.

    Raises:
        ShapeError: the function has other parameters than ``names``.
    """
    try:
        return fn(**dict(zip(names, arguments, strict=True)))
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise ShapeError(
                what="the function's parameters aren't the iterators",
                got=str(error),
                expected=f"a function of {', '.join(names) or 'nothing'}",
                hint="each keyword after the function names one of its parameters",
            ) from None
        raise


def _close(traversal: Sequence[It], reduction: Sequence[It], body: Scalar, reducer: str) -> Tensor:
    """The scope over these open iterators, with their slots renumbered from 0.

    Raises:
        ShapeError: ``body`` reads an iterator of another scope.
    """
    slots = {it.slot: slot for slot, it in enumerate((*traversal, *reduction))}
    stray = sorted(it.slot for it in iterators(body) if it.slot not in slots)
    if stray:
        raise ShapeError(
            what="an iterator is used outside of its scope",
            got=f"{len(stray)} iterators of another scope",
            expected="iterators of this scope or of its reductions",
            hint="an inner scope is a closed tensor: give it the iterators it needs as its own "
            "axes and index it by the outer ones",
        )
    closed = substitute(body, lambda it: Index.iterator(slots[it.slot], it.extent))
    return Scope(
        tuple(it.extent for it in traversal), tuple(it.extent for it in reduction), closed, reducer
    )


def scope(fn: Callable[..., Any], **traversal: int) -> Expr:
    """The tensor with the value ``fn(i, j, …)`` at ``[i, j, …]``; its axes follow the keywords.

    >>> X, K = input("X", (56, 56, 64)), weight("K", (3, 3, 64, 64))
    >>> scope(lambda h, w, f: sum(lambda r, s, c: X[h + r - 1, w + s - 1, c] * K[r, s, f, c],
    ...                           r=3, s=3, c=64), h=56, w=56, f=64).shape
    (56, 56, 64)

    Raises:
        ShapeError, DtypeError: the body doesn't fit.
    """
    arguments, its = _open(traversal)
    result = _call(fn, arguments, list(traversal))
    body = as_scalar(result)
    values = merge_values([result] if isinstance(result, ScalarExpr | Expr) else [])
    if isinstance(result, ScalarExpr) and result.reduction is not None:
        inner = result.reduction
        return Expr(_close(its, inner.iterators, inner.body, inner.reducer), values)
    return Expr(_close(its, (), body, "sum"), values)


def _reduce(reducer: str, fn: Callable[..., Any], extents: Mapping[str, int]) -> ScalarExpr:
    arguments, its = _open(extents)
    result = _call(fn, arguments, list(extents))
    body = as_scalar(result)
    values = result.values if isinstance(result, ScalarExpr | Expr) else {}
    inner = result.reduction if isinstance(result, ScalarExpr) else None
    if inner is not None and inner.reducer == reducer:
        its, body = [*its, *inner.iterators], inner.body
    # As a scalar, the reduction is a read of an inner scope, which has the outer iterators that the
    # body uses for its axes. A scope whose whole body is this reduction uses `reduction` instead,
    # and becomes one scope with these summation iterators.
    own = {it.slot for it in its}
    outer = sorted((it for it in iterators(body) if it.slot not in own), key=lambda it: it.slot)
    closed = _close(outer, its, body, reducer)
    at = tuple(Index.iterator(it.slot, it.extent) for it in outer)
    return ScalarExpr(Read(closed, at), values, Reduction(reducer, tuple(its), body))


def sum(fn: Callable[..., Any], **reduction: int) -> ScalarExpr:
    """The sum of ``fn(r, s, …)`` over the iterators that the keywords name."""
    return _reduce("sum", fn, reduction)


def prod(fn: Callable[..., Any], **reduction: int) -> ScalarExpr:
    """The product of ``fn(r, s, …)`` over the iterators that the keywords name."""
    return _reduce("prod", fn, reduction)


def max(fn: Callable[..., Any], **reduction: int) -> ScalarExpr:
    """The maximum of ``fn(r, s, …)`` over the iterators that the keywords name.

    A read that may lie outside its tensor needs ``fill=-math.inf``; see :meth:`Expr.read`.
    """
    return _reduce("max", fn, reduction)


def min(fn: Callable[..., Any], **reduction: int) -> ScalarExpr:
    """The minimum of ``fn(r, s, …)`` over the iterators that the keywords name.

    A read that may lie outside its tensor needs ``fill=math.inf``; see :meth:`Expr.read`.
    """
    return _reduce("min", fn, reduction)


assert {"sum", "prod", "max", "min"} == set(REDUCERS)


def program_of(outputs: Expr | Sequence[Expr]) -> tuple[Program, dict[str, Any]]:
    """Return the program that computes the expressions, and the arrays given for its weights.

    The inputs are in the order in which the outputs use them, from left to right.

    Raises:
        EqsynthError: this is no expression, or two different tensors have one name.
    """
    exprs = (outputs,) if isinstance(outputs, Expr) else outputs
    several = isinstance(exprs, Sequence) and len(exprs) > 0
    if not several or not all(isinstance(expr, Expr) for expr in exprs):
        raise EqsynthError(
            "this is no program of expressions",
            got=f"{type(outputs).__name__} {outputs!r}"[:80],
            expected="an expression, or several of them in a list or tuple",
            hint="build an expression with eqsynth.input, eqsynth.weight and eqsynth.ops",
        )
    roots = tuple(expr.tensor for expr in exprs)
    named: dict[str, Tensor] = {}
    for term in topological(roots):
        if isinstance(term, Input | Weight) and named.setdefault(term.name, term) != term:
            raise EqsynthError(
                f"two tensors are named {term.name!r}",
                got=f"{named[term.name].type} and {term.type}",
                expected="one name a tensor",
                hint="rename one of them",
            )
    inputs = tuple(term for term in named.values() if isinstance(term, Input))
    values = merge_values(exprs)
    return Program(inputs, roots), {n: v for n, v in values.items() if n in named}
