"""Defining: an operator equals its scope, and a scope equals the operator that opens to it.

    matmul(a, b)  =  L_{i,j} sum_k a[i, k] * b[k, j]

``views.py`` gives the scopes of views and reductions, ``select.py`` the scopes of embeddings of a
computed table or by computed places. Any other operator is defined by a rule file,
with a comprehension (``ir/notation.py``); that the rule file has this definition is a hypothesis,
which the caller of the law must justify (``deriving.hypotheses``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from eqsynth.calculus import checking
from eqsynth.calculus.inline import Inline, inline
from eqsynth.calculus.select import embedded
from eqsynth.calculus.views import defining_scope
from eqsynth.errors import LawError
from eqsynth.ir.index import It
from eqsynth.ir.indices import least_form
from eqsynth.ir.normal import remembered
from eqsynth.ir.notation import instantiate
from eqsynth.ir.scalar import Num, Read, Scalar, mixed_reads, reads, rewrite_leaves, tree_size
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
    """What the tensor equals: an operator with a scope, or a definition (either is a hypothesis).

    For an operator with other arguments, as ``embedding({L f}, ids)`` for ``embedding(t, ids)``,
    the hypothesis is that the arguments are equal, ``t = {L f}``."""

    by: Op | Comprehension


Meanings = tuple[tuple[Tensor, Tensor | Comprehension], ...]
"""Hypotheses, tensor by tensor: an operator equals its definition, any other tensor a term."""


def define(tensor: Tensor, given: Define) -> Scope:
    """``e = {L_x R_y f}``: return the scope of the operator or of the definition in ``given``.

    Raises:
        LawError: ``operator``: the operator has no scope; ``type``: the scope is of another type
            than the tensor; what ``embedded`` raises.
        RuleError: the text isn't a comprehension over its tensors and numbers.
    """
    by = given.by
    scope = meaning(by, {}) if isinstance(by, Op) else meaning(tensor, {tensor: by})
    _require(scope is not None, condition="operator", what="the operator has no scope")
    assert scope is not None
    _require(scope.type == tensor.type, condition="type", what="the scope is of another type")
    return scope


def opened(term: Tensor, meanings: Mapping[Tensor, Tensor | Comprehension]) -> Scope:
    """Return the scope that equals ``term``, with every operator inlined that has a scope and may
    be inlined: ``relu(matmul(a, b))`` becomes a scope over ``a`` and ``b``. A tensor without a
    scope is a copy of itself, ``t = L_x t[x]``.

    Raises:
        LawError: ``large``: the term has too many parts, or ``meanings`` define a tensor by itself;
            what ``embedded`` raises."""
    scope = meaning(term, meanings) or _copy(term)
    for _ in range(MAX_OPENED):
        _require(tree_size(scope.body) <= MAX_OPENED, condition="large", what="too large")
        scope = with_numbers(scope)
        inlined = next(_inlined(scope, meanings), None)
        if inlined is None:
            return least_form(scope)
        scope = inlined
    raise LawError("the term has no end", law="define", condition="large")


def _inlined(
    scope: Scope, meanings: Mapping[Tensor, Tensor | Comprehension]
) -> Iterator[Scope]:
    """Yield the scope with one of its reads inlined, for each read that may be."""
    for read in reads(scope.body):
        inner = meaning(read.tensor, meanings)
        if inner is not None:
            with suppress(LawError):
                yield inline(scope, Inline(read, inner))


@remembered(maxsize=1 << 14)
def sides(term: Tensor, tensor: Tensor, meanings: Meanings) -> tuple[Scope, Scope]:
    """Return the scopes that ``term`` and ``tensor`` open to. A hypothesis about ``tensor`` itself
    applies to it as a whole, not where it is read: with ``e = e @ 1``, a read of ``e`` stays.

    Raises:
        LawError: what ``opened`` raises.
    """
    rest = {t: by for t, by in meanings if t != by}
    itself = rest.pop(tensor) if isinstance(rest.get(tensor), Tensor) else tensor
    assert isinstance(itself, Tensor)
    return opened(term, rest), opened(itself, rest)


def meaning(tensor: Tensor, meanings: Mapping[Tensor, Tensor | Comprehension]) -> Scope | None:
    """Return the scope that ``tensor`` equals, by ``meanings`` or by itself; None if unknown."""
    by = meanings.get(tensor)
    if isinstance(by, Comprehension):
        return instantiate(by.text, by.tensors, by.numbers, tensor.shape)
    if by is not None:
        return _copy(by)
    if isinstance(tensor, Op):
        picks = tensor.name in ("Embedding", "Gather")
        return embedded(tensor) if picks else defining_scope(tensor)
    return tensor if isinstance(tensor, Scope) else None


def _copy(tensor: Tensor) -> Scope:
    """Return ``L_x t[x]``."""
    its = [It(slot, extent) for slot, extent in enumerate(tensor.shape)]
    return scope_over(its, [], read_all(tensor, its))


def with_numbers(scope: Scope) -> Scope:
    """Replace reads by numbers: a read that is always outside of its tensor by its fill, and a read
    of ``full(v)`` by ``v``. Each has only operands of its own dtype beside it: a number takes the
    dtype of its neighbours, so that ``uint8 + float`` would become a sum modulo 256."""
    mixed = mixed_reads(scope.body, scope.dtype)

    def leaf(part: Scalar) -> Scalar:
        if not isinstance(part, Read) or part in mixed or part.tensor.dtype != scope.dtype:
            return part
        if part.is_outside():
            return Num(part.fill)
        match part.tensor:
            case Op("Full", attrs=(_, float() as value, scope.dtype)) if part.in_range():
                return Num(value)
        return part

    body = rewrite_leaves(scope.body, leaf) if is_float(scope.dtype) else scope.body
    if body == scope.body:
        return scope
    result = same_scope(scope, body, reduction_iterators(scope))
    return result if result.type == scope.type else scope
