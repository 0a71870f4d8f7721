"""Sums of products of tensor elements: the form in which ``elements.py`` writes an element.

    sum_{k<n} 2 * a[i, k] * b[k - 1, j], 0 <= k - 1 < m
    ->  (Product(2.0, (k,), ((k - 1, m),), (At(a, (i, k)), At(b, (k - 1, j)))),)

A form is a tuple of products; the empty tuple is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.index import Index, It
from eqsynth.ir.tensor import Tensor

# The most products that a sum may have after it is multiplied out.
_PRODUCTS: Final = 64

Box = tuple[tuple[Index, int], ...]
"""Indices with their extents: the points at which each index is in ``[0, extent)``."""


class NotClosed(Exception):
    """Raised for a term whose elements can't be written as a sum of products."""


@dataclass(frozen=True)
class At:
    """An element of a tensor. At each point in the box of its product, the index is in range."""

    tensor: Tensor
    index: tuple[Index, ...]


@dataclass(frozen=True)
class Place:
    """The value of an index, as a factor."""

    index: Index


@dataclass(frozen=True)
class Apply:
    """A function of sums."""

    name: str
    args: tuple[Form, ...]


@dataclass(frozen=True)
class Fold:
    """The maximum, minimum or product of a form over the iterators ``bound``, at the points in a
    box."""

    reducer: str
    bound: tuple[It, ...]
    box: Box
    form: Form


@dataclass(frozen=True)
class Padded:
    """A sum at the points in a box, and a number at the other points."""

    box: Box
    fill: float
    form: Form


Factor = At | Place | Apply | Fold | Padded


@dataclass(frozen=True)
class Product:
    """``number * factors``, summed over the iterators ``bound``; 0 at points outside of the box."""

    number: float
    bound: tuple[It, ...] = ()
    box: Box = ()
    factors: tuple[Factor, ...] = ()


Form = tuple[Product, ...]
"""A sum of products."""


def one(factor: Factor) -> Form:
    """The sum of a single factor."""
    return (Product(1.0, factors=(factor,)),)


def number(value: float) -> Form:
    """A sum of one number; 0 is the empty sum."""
    return (Product(float(value)),) if value else ()


def scaled(form: Form, by: float) -> Form:
    return tuple(Product(p.number * by, p.bound, p.box, p.factors) for p in form)


def times(*forms: Form) -> Form:
    """The product, multiplied out. If a form may be infinite, each sum becomes a single factor
    instead.

    Raises:
        NotClosed: it has too many terms.
    """
    if not all(map(is_finite, forms)):
        forms = tuple(map(_whole, forms))
    if math.prod(map(len, forms)) > _PRODUCTS:
        raise NotClosed
    result, *others = forms
    for form in others:
        result = tuple(
            Product(p.number * q.number, p.bound + q.bound, p.box + q.box, p.factors + q.factors)
            for p in result
            for q in form
        )
    return result


def _whole(form: Form) -> Form:
    """The sum as a single factor."""
    if len(form) == 1 and not form[0].bound and not form[0].box:
        return form
    return one(Apply("sum", (form,)))


def is_finite(form: Form) -> bool:
    """Whether the form's value is finite if all elements of the tensors in it are finite."""
    return all(math.isfinite(p.number) and all(map(_is_finite, p.factors)) for p in form)


def _is_finite(factor: Factor) -> bool:
    match factor:
        case Apply(name, args):
            known = FUNCTIONS.get(name)
            defined = name == "sum" or (known is not None and known.finite)
            return defined and all(map(is_finite, args))
        case Fold(reducer=reducer, form=form):
            return reducer == "prod" and is_finite(form)
        case Padded(fill=fill, form=form):
            return math.isfinite(fill) and is_finite(form)
    return True


def apply(name: str, *args: Form) -> Form:
    """A function of sums. Sums, products and quotients are written as sums of products.

    Raises:
        NotClosed: a product has too many terms.
    """
    match name:
        case "add":
            return args[0] + args[1]
        case "sub":
            return args[0] + scaled(args[1], -1.0)
        case "neg":
            return scaled(args[0], -1.0)
        case "mul":
            return times(*args)
        case "div":
            (top, bottom) = args
            if len(bottom) == 1 and bottom[0] == Product(bottom[0].number) and bottom[0].number:
                return scaled(top, 1 / bottom[0].number)
            return times(top, one(Apply("reciprocal", (bottom,))))
    return one(Apply(name, args))
