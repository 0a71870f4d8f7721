"""Requests of laws: what a law is given, what it may say besides an answer, the normal form.

What is looked up in the view decides only what is worth deriving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from eqsynth.calculus import conditions
from eqsynth.calculus.deriving import Steps
from eqsynth.calculus.inline import Inline
from eqsynth.egraph.encode import scope_as
from eqsynth.egraph.scope_rules.matching import is_selected
from eqsynth.egraph.tactics import merging, phases, reductions, selection, substitution
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.egraph.view import View
from eqsynth.ir.normal import canonical, remembered
from eqsynth.ir.scalar import Read, factors_of, reads
from eqsynth.ir.tensor import ClassRef, Input, Scope, Tensor, Weight


@dataclass(frozen=True)
class Using:
    """An answer that holds because classes have certain members: for ``explain``, which shows the
    law on those members and how the classes came to have them as steps of their own."""

    term: Tensor
    members: Mapping[Tensor, Tensor]


Said = Path | Steps | Tensor | Using
"""What a law may say: steps of the calculus, or the way to where they lead; a term, if the law is
one of those that compute their answers themselves (``table.py``)."""

Law = Callable[[View, Sequence[Any]], Iterable[Said]]


class Later(Exception):
    """Raised by a law whose answer waits for others: the request is asked again."""


def scope_of(row: Sequence[Any]) -> Scope:
    """The scope that a request is about: (e, t, s, reducer, body)."""
    _, traversal, reduction, reducer, body = row
    return scope_as(traversal, reduction, body, reducer)


def settled(view: View, row: Sequence[Any]) -> Scope | None:
    """The request's scope if it is in canonical form; laws wait for that form."""
    found: Scope | None = view.once(_settled, scope_of(row))
    return found


def _settled(view: View, scope: Scope) -> Scope | None:
    if canonical(scope) != scope:
        return None
    return None if scope not in view.derived and _waits(scope) else scope


@remembered(maxsize=1 << 14)
def _waits(scope: Scope) -> bool:
    """Whether one of the laws that come before all others has an answer."""
    return (
        substitution.reduction_unfold(scope) is not None
        or reductions.merge_iterators(scope) is not None
        or phases.phase_select(scope) is not None
    )


def inlinable(view: View, scope: Scope) -> Path | None:
    """The scope with its first read of a product inlined, if there is one.

    A dozen laws ask it of the same scope, so the view remembers it."""
    found: Path | None = view.once(_inlined, scope)
    return found


def _inlined(view: View, scope: Scope) -> Path | None:
    for factor in factors_of(scope.body):
        if isinstance(factor, Read) and isinstance(factor.tensor, ClassRef):
            for inner in _members_to_inline(view, factor.tensor, scope.constant):
                merged = merging.merge(scope, factor, inner)
                if merged is not None and merged != scope:
                    return path(scope, Inline(factor, inner))
    return None


def _members_to_inline(view: View, ref: ClassRef, constant: bool) -> list[Scope]:
    """Products of a class; scaled weights stay folded (a constant without a sum of its own).

    In constants it is the other way round: sums stay, since nothing would factor them again, and
    scaled weights meet.
    """
    if any(isinstance(member, Input | Weight) for member in view.members(ref)):
        # A view of a view of it may have come back to it.
        return []
    if normalized(view, ref):
        return []
    found = [
        scope
        for scope in view.scopes(ref)
        if scope not in view.derived
        and conditions.is_product(scope)
        and (not ref.constant or bool(scope.reduction) != constant or conditions.is_view(scope))
        and all(r.tensor != ref for r in reads(scope.body))
        and without_constants(view, scope) is None
    ]
    # What a view reads may be a view back: a matrix of a reshape, beside the matrix's diagonal.
    return sorted(found, key=lambda s: (conditions.is_view(s), _comes_back(view, ref, s)))


def _comes_back(view: View, ref: ClassRef, scope: Scope) -> bool:
    """Whether a scope is a view of a class that is a view of ``ref``."""
    return conditions.is_view(scope) and any(
        conditions.is_view(back) and next(iter(reads(back.body))).tensor == ref
        for read in reads(scope.body)
        if isinstance(read.tensor, ClassRef)
        for back in view.scopes(read.tensor)
    )


def is_gate(scope: Scope) -> bool:
    """A product of several reads element by element: ``L . x[i] * y[i]``."""
    return conditions.is_product(scope) and not scope.reduction and len(set(reads(scope.body))) > 1


def normalized(view: View, ref: ClassRef) -> bool:
    """Whether a library normalizes the tensor in one pass: products and maps read it as it is. A
    view is taken of what it computes, so that a part of it is a part of its argument."""
    return any(op.name == "LayerNorm" for op in view.operators(ref))


def underived(view: View, row: Sequence[Any]) -> Scope:
    """The request's scope if it is canonical and not derived."""
    scope = settled(view, row)
    if scope is None or scope in view.derived:
        raise Later
    return scope


def flat_product(view: View, row: Sequence[Any]) -> Scope:
    """The request's scope if it is a canonical product that isn't derived and reads no other."""
    scope = underived(view, row)
    if not conditions.is_product(scope) or inlinable(view, scope) is not None:
        raise Later
    return scope


def flat(view: View, row: Sequence[Any]) -> Scope:
    """The request's scope if it is flat, canonical and not derived, and nothing in it is selected:
    what a diagonal makes smaller is smaller before anything else is done with it."""
    scope = flat_product(view, row)
    if is_selected(scope) or without_constants(view, scope) is not None:
        raise Later
    return scope


def flats(view: View, ref: ClassRef) -> list[Scope]:
    """The flat scopes of a class: products that aren't derived and read no other product."""
    return [
        scope
        for scope in view.scopes(ref)
        if scope not in view.derived
        and conditions.is_product(scope)
        and canonical(scope) == scope
        and inlinable(view, scope) is None
    ]


def products_of(view: View, ref: ClassRef) -> list[Scope]:
    """Flat products of a class that are no bare reads of itself."""
    return [scope for scope in flats(view, ref) if all(r.tensor != ref for r in reads(scope.body))]


def number_of(view: View, tensor: Tensor) -> float | None:
    """The number that a tensor holds everywhere, if it was made so."""
    assert isinstance(tensor, ClassRef)
    full = (op for op in view.operators(tensor) if op.name == "Full")
    return next((float(op.attrs[1]) for op in full if isinstance(op.attrs[1], float)), None)


def without_constants(view: View, scope: Scope) -> Path | None:
    """The scope with numbers in the place of tensors that hold one number everywhere."""
    found: Path | None = view.once(_with_numbers, scope)
    return found


def _with_numbers(view: View, scope: Scope) -> Path | None:
    return selection.read_constants(scope, partial(number_of, view))


Answer = TypeVar("Answer", bound=Path | Tensor)


def some(answer: Answer | None) -> list[Answer]:
    return [] if answer is None else [answer]
