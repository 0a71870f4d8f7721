"""``torch.einsum`` as products of two operands, in the order in which torch multiplies them.

    einsum("ijk,ia,jb->kab", x, u, v)   ->   y = x (k, j | i) @ u (i | a),  y (k, a | j) @ v (j | b)

A product of two operands is a matrix product of three groups of axes each, flattened where a group
has several; axes of both operands and of the result stay leading axes. torch's own decomposition
gives every operand all axes of the equation, most of extent 1: the views between them took most of
a search (a Tucker product: 10 s of saturation, 2.9 with this). Not here: ``einsum`` of
expressions, which is one scope (``contraction.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from string import ascii_letters
from typing import Final, NoReturn

from eqsynth.errors import ShapeError, UnsupportedOperatorError
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.ops.contraction import extents_of, matmul
from eqsynth.frontend.ops.pointwise import add, mul
from eqsynth.frontend.ops.reduction import sum as sum_
from eqsynth.frontend.ops.views import permute, reshape
from eqsynth.ir.types import is_float

_ELLIPSIS: Final = "..."

Term = str
"""The letters of an operand's axes, in their order."""


def einsum_in_pairs(
    equation: str, operands: Sequence[Expr], path: Sequence[int] | None = None
) -> Expr:
    """The operands multiplied two by two.

    Args:
        path: the order, as torch writes it: two positions for each product, among the operands that
            are left; the product comes last. By default from left to right.

    Raises:
        UnsupportedOperatorError: the equation has a letter twice in one operand, ellipses for
            different numbers of axes, or operands that aren't floats.
        ShapeError: extents of one letter differ, as where an axis of extent 1 is broadcast.
    """
    terms, result = _parsed(equation, [operand.ndim for operand in operands])
    _check(equation, terms, operands)
    left = list(zip(terms, operands, strict=True))
    for first, second in _order(len(left), path):
        (a, x), (b, y) = left[first], left[second]
        left = [pair for n, pair in enumerate(left) if n not in (first, second)]
        left.append(_product(a, x, b, y, {*result}.union(*(term for term, _ in left))))
    ((term, last),) = left
    term, last = _summed(term, last, {*result})
    return _in_order(term, last, result)


def bilinear(input1: Expr, input2: Expr, weight: Expr, bias: Expr | None = None) -> Expr:
    """``sum_{i,j} input1[.., i] * weight[o, i, j] * input2[.., j] + bias[o]``"""
    result = einsum_in_pairs("...i,oij,...j->...o", (input1, weight, input2))
    return result if bias is None else add(result, bias)


def _parsed(equation: str, ranks: Sequence[int]) -> tuple[list[Term], Term]:
    """The terms of the operands and of the result, with ellipses written out as letters."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    letters = left.replace(",", "").replace(_ELLIPSIS, "")
    if not arrow:
        right = "".join(sorted(x for x in set(letters) if letters.count(x) == 1))
        right = _ELLIPSIS * (_ELLIPSIS in left) + right
    terms = left.split(",")
    own = zip(terms, ranks, strict=False)
    widths = {rank - len(t) + len(_ELLIPSIS) for t, rank in own if _ELLIPSIS in t} or {0}
    if len(widths) > 1 or min(widths) < 0:
        _refuse(equation)
    free = [letter for letter in ascii_letters if letter not in equation]
    axes = "".join(free[: widths.pop()])
    return [t.replace(_ELLIPSIS, axes) for t in terms], right.replace(_ELLIPSIS, axes)


def _refuse(equation: str) -> NoReturn:
    raise UnsupportedOperatorError(
        what="einsum: no product of matrices",
        got=equation,
        expected="floats, each letter once in an operand, and ellipses for the same axes",
        hint="torch decomposes it",
    )


def _check(equation: str, terms: Sequence[Term], operands: Sequence[Expr]) -> None:
    once = all(len(set(term)) == len(term) for term in terms)
    if not once or not all(is_float(operand.dtype) for operand in operands):
        _refuse(equation)
    if extents_of(terms, operands) is None:
        raise ShapeError(
            what="the einsum equation doesn't fit its operands",
            got=f"{equation} of {', '.join(str(x.tensor.type) for x in operands)}",
            expected="one letter an axis, one extent a letter",
            hint="torch decomposes it if it broadcasts axes",
        )


def _order(count: int, path: Sequence[int] | None) -> Iterator[tuple[int, int]]:
    if path:
        yield from zip(path[::2], path[1::2], strict=True)
        return
    # The product so far is last, but torch has it on the left.
    yield from ((0, 1) if n == 0 else (count - 1 - n, 0) for n in range(count - 1))


def _summed(term: Term, x: Expr, needed: set[str]) -> tuple[Term, Expr]:
    """The operand summed over the axes that nothing else needs."""
    axes = [n for n, letter in enumerate(term) if letter not in needed]
    if not axes:
        return term, x
    return "".join(letter for letter in term if letter in needed), sum_(x, axes)


def _product(a: Term, x: Expr, b: Term, y: Expr, needed: set[str]) -> tuple[Term, Expr]:
    """The product of two operands, summed over the letters of both that nothing else needs."""
    a, x = _summed(a, x, needed | {*b})
    b, y = _summed(b, y, needed | {*a})
    batch = "".join(letter for letter in a if letter in b and letter in needed)
    inner = "".join(letter for letter in a if letter in b and letter not in needed)
    rows = "".join(letter for letter in a if letter not in b)
    columns = "".join(letter for letter in b if letter not in a)
    extent = dict(zip((*a, *b), (*x.shape, *y.shape), strict=True))
    front = [extent[letter] for letter in batch]

    def shaped(*groups: str) -> list[int]:
        return [*front, *(math.prod(extent[letter] for letter in group) for group in groups)]

    own = [*front, *(extent[letter] for letter in rows + columns)]
    x, y = _in_order(a, x, batch + rows + inner), _in_order(b, y, batch + inner + columns)
    if inner:
        made = matmul(_reshaped(x, shaped(rows, inner)), _reshaped(y, shaped(inner, columns)))
    else:
        made = mul(_reshaped(x, shaped(rows, "")), _reshaped(y, shaped("", columns)))
    return batch + rows + columns, _reshaped(made, own)


def _in_order(term: Term, x: Expr, wanted: Term) -> Expr:
    order = [term.index(letter) for letter in wanted]
    return x if order == sorted(order) else permute(x, order)


def _reshaped(x: Expr, shape: Sequence[int]) -> Expr:
    return x if tuple(shape) == x.shape else reshape(x, shape)
