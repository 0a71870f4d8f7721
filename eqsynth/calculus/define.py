"""Defining: an operator is its scope. Read back, a scope is the operator that opens to it.

    matmul(a, b)  =  L_{i,j} sum_k a[i, k] * b[k, j]

What views and reductions are stands in ``views.py``. What another operator is, its definition says:
a comprehension over tensors and integers (``notation.py``), which a rule file states. Whoever
derives has to know that one does (``deriving.hypotheses``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from eqsynth.calculus import checking
from eqsynth.calculus.inline import Inline, inline
from eqsynth.calculus.notation import instantiate
from eqsynth.calculus.scopes import read_all, reduction_iterators, same_scope, scope_over
from eqsynth.calculus.views import defining_scope
from eqsynth.errors import LawError
from eqsynth.ir.index import It
from eqsynth.ir.indices import least_form
from eqsynth.ir.normal import remembered
from eqsynth.ir.scalar import Num, Read, Scalar, reads, rewrite_leaves, tree_size
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.ir.types import is_float

_require = partial(checking.require, law="define")

# A term with more operators, or a body with more leaves, isn't opened.
MAX_OPENED = 64


@dataclass(frozen=True)
class Comprehension:
    """A definition written out for the arguments of one operator."""

    text: str
    tensors: tuple[Tensor, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Define:
    """What a tensor is: an operator whose meaning is known here, or a definition (hypotheses)."""

    by: Op | Comprehension


Meanings = tuple[tuple[Tensor, Tensor | Comprehension], ...]
"""What tensors are: operators what rule files define them as, others another term."""


def define(tensor: Tensor, given: Define) -> Scope:
    """``e = {L_x R_y f}``, as the operator that it is or a definition says.

    Raises:
        LawError: ``operator``: it is neither a view nor a reduction; ``type``: what it is defined
            as is of another type.
        RuleError: the text isn't a comprehension over its tensors and numbers.
    """
    by = given.by
    scope = defining_scope(by) if isinstance(by, Op) else meaning(tensor, {tensor: by})
    _require(scope is not None, condition="operator", what="no view and no reduction")
    assert scope is not None
    _require(scope.type == tensor.type, condition="type", what="the scope is of another type")
    return scope


def opened(term: Tensor, meanings: Mapping[Tensor, Tensor | Comprehension]) -> Scope:
    """The scope that a term of operators is, opened down to the tensors that mean nothing here.

    Raises:
        LawError: ``operator``: the term means nothing here itself; ``large``: it has too many
            parts, or no end, since a tensor is said to be one that is made of it; what ``inline``
            says of an operator that can't be taken into the one around it.
    """
    scope = meaning(term, meanings)
    _require(scope is not None, condition="operator", what="the operator has no definition here")
    assert scope is not None
    for _ in range(MAX_OPENED):
        _require(tree_size(scope.body) <= MAX_OPENED, condition="large", what="too large")
        scope = with_numbers(scope)
        found = ((read, meaning(read.tensor, meanings)) for read in reads(scope.body))
        read, inner = next((pair for pair in found if pair[1] is not None), (None, None))
        if read is None or inner is None:
            return least_form(scope)
        scope = inline(scope, Inline(read, inner))
    raise LawError("the term has no end", law="define", condition="large")


@remembered(maxsize=1 << 14)
def sides(term: Tensor, tensor: Tensor, meanings: Meanings) -> tuple[Scope, Scope]:
    """What a term and a tensor open to. What the tensor itself is said to be counts for it alone:
    ``e = e @ 1`` is read elsewhere as ``e``.

    Raises:
        LawError: what ``opened`` says.
    """
    rest = dict(meanings)
    itself = rest.pop(tensor) if isinstance(rest.get(tensor), Tensor) else tensor
    assert isinstance(itself, Tensor)
    return opened(term, rest), opened(itself, rest)


def meaning(
    tensor: Tensor, meanings: Mapping[Tensor, Tensor | Comprehension]
) -> Scope | None:
    """The scope that a tensor is; None of what means nothing here."""
    by = meanings.get(tensor)
    if isinstance(by, Comprehension):
        return instantiate(by.text, by.tensors, by.numbers, tensor.shape)
    if by is not None:
        its = [It(slot, extent) for slot, extent in enumerate(by.shape)]
        return scope_over(its, [], read_all(by, its))
    if isinstance(tensor, Scope):
        return tensor
    return defining_scope(tensor) if isinstance(tensor, Op) else None


def with_numbers(scope: Scope) -> Scope:
    """The scope with the number of the fill for what is read outside of its tensor, always; and
    with the number of a tensor that is full of one."""

    def leaf(part: Scalar) -> Scalar:
        if not isinstance(part, Read) or not is_float(scope.dtype):
            return part
        tensor = part.tensor
        ranges = zip((index.range() for index in part.index), tensor.shape, strict=True)
        if any(high < 0 or low >= extent for (low, high), extent in ranges):
            return Num(part.fill)
        match tensor:
            case Op("Full", attrs=(_, float() as value, scope.dtype)) if part.in_range():
                return Num(value)
        return part

    body = rewrite_leaves(scope.body, leaf)
    if body == scope.body:
        return scope
    result = same_scope(scope, body, reduction_iterators(scope))
    return result if result.type == scope.type else scope
