"""Defining: an operator equals its scope, and a scope equals the operator that opens to it.

    matmul(a, b)  =  L_{i,j} sum_k a[i, k] * b[k, j]

``views.py`` gives the scopes of views and reductions. Any other operator is defined by a rule file,
with a comprehension (``ir/notation.py``); that the rule file has this definition is a hypothesis,
which the caller of the law must justify (``deriving.hypotheses``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from eqsynth.calculus import checking
from eqsynth.calculus.inline import Inline, inline
from eqsynth.calculus.views import defining_scope
from eqsynth.errors import LawError
from eqsynth.ir.index import It
from eqsynth.ir.indices import least_form
from eqsynth.ir.normal import remembered
from eqsynth.ir.notation import instantiate
from eqsynth.ir.scalar import Num, Read, Scalar, reads, rewrite_leaves, tree_size
from eqsynth.ir.scopes import read_all, reduction_iterators, same_scope, scope_over
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.ir.types import is_float

_require = partial(checking.require, law="define")

# Opening a term gives up beyond this many operators in it, or leaves in the scope's body.
MAX_OPENED = 64


@dataclass(frozen=True)
class Comprehension:
    """The text of a definition, and the arguments of the operator that it is applied to."""

    text: str
    tensors: tuple[Tensor, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Define:
    """What the tensor equals: a view or reduction, or a definition (either is a hypothesis)."""

    by: Op | Comprehension


Meanings = tuple[tuple[Tensor, Tensor | Comprehension], ...]
"""Hypotheses, tensor by tensor: an operator equals its definition, any other tensor a term."""


def define(tensor: Tensor, given: Define) -> Scope:
    """``e = {L_x R_y f}``: return the scope of the operator or of the definition in ``given``.

    Raises:
        LawError: ``operator``: the operator is neither a view nor a reduction; ``type``: the scope
            is of another type than the tensor.
        RuleError: the text isn't a comprehension over its tensors and numbers.
    """
    by = given.by
    scope = defining_scope(by) if isinstance(by, Op) else meaning(tensor, {tensor: by})
    _require(scope is not None, condition="operator", what="no view and no reduction")
    assert scope is not None
    _require(scope.type == tensor.type, condition="type", what="the scope is of another type")
    return scope


def opened(term: Tensor, meanings: Mapping[Tensor, Tensor | Comprehension]) -> Scope:
    """Return the scope that equals ``term``, with every operator inlined that has a scope:
    ``relu(matmul(a, b))`` becomes a scope over ``a`` and ``b``.

    Raises:
        LawError: ``operator``: the term itself has no scope; ``large``: it has too many parts, or
            ``meanings`` define a tensor by itself; what ``inline`` raises for an operator that
            can't be inlined."""
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
    """Return the scopes that ``term`` and ``tensor`` open to. A hypothesis about ``tensor`` itself
    applies to it as a whole, not where it is read: with ``e = e @ 1``, a read of ``e`` stays.

    Raises:
        LawError: what ``opened`` raises.
    """
    rest = dict(meanings)
    itself = rest.pop(tensor) if isinstance(rest.get(tensor), Tensor) else tensor
    assert isinstance(itself, Tensor)
    return opened(term, rest), opened(itself, rest)


def meaning(tensor: Tensor, meanings: Mapping[Tensor, Tensor | Comprehension]) -> Scope | None:
    """Return the scope that ``tensor`` equals, by ``meanings`` or by itself; None if unknown."""
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
    """Replace reads by numbers: a read that is always outside of its tensor by its fill, and a read
    of ``full(v)`` by ``v``."""

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
