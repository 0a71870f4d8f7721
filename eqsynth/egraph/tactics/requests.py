"""Requests of laws: how a law reads a request, how it may answer, and the normal form of scopes.

The functions here look at a view of the e-graph, which decides only which derivations are worth
trying; whether an answer is an equality doesn't depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from eqsynth.calculus import conditions
from eqsynth.calculus.deriving import Steps
from eqsynth.calculus.inline import Inline
from eqsynth.egraph.encode import scope_as
from eqsynth.egraph.scope_rules.matching import is_selected, zeros_outside
from eqsynth.egraph.tactics import merging, phases, reductions, selection, substitution
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.egraph.view import View
from eqsynth.expansion.expanded import Expand
from eqsynth.ir.normal import canonical, remembered
from eqsynth.ir.scalar import Read, factors_of, reads, tensors
from eqsynth.ir.tensor import ClassRef, Input, Op, Scope, Tensor, Weight


@dataclass(frozen=True)
class Using:
    """A term that equals the term of a request because certain terms are members of certain
    e-classes.

    ``explain`` shows the law applied to those members, and, as separate steps, why each is a member
    of its e-class.

    Attributes:
        term: the equal term.
        members: e-class -> the member that was used for it.
    """

    term: Tensor
    members: Mapping[Tensor, Tensor]


@dataclass(frozen=True)
class Stated:
    """The right sides of the rule of scopes that a law stands for, on what its left side matches.

    The tactic of such a law only says when the rule applies."""


Said = Path | Steps | Expand | Stated
"""What a tactic proposes: steps of the calculus, or a path of steps with the scope at its end; the
arguments of the law of expanded forms; or what the law's rule of scopes states. It is never a term:
``answers.py`` gets the term from these."""

Law = Callable[[View, Sequence[Any]], Iterable[Said]]


class Later(Exception):
    """Raised by a law that can't answer yet; the request is asked again in a later round."""


def scope_of(row: Sequence[Any]) -> Scope:
    """The scope of a request, whose row is (e-class, traversal, reduction, reducer, body)."""
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
    """Return the scope with its first read of a product inlined, if there is one.

    A dozen laws need this path of the same scope, so the view remembers it.
    """
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
    """The products in the e-class ``ref`` that may be inlined where it is read.

    Of a constant e-class, a scope that isn't constant inlines only sums: a scaled weight (a map)
    stays folded, so that it is computed once. A constant scope inlines only maps: a sum that was
    inlined would not be factored out again, while scaled weights should meet.
    Views are inlined in either case, and a constant with a diagonal in it (``kron(eye(n), a)``), of
    which most elements are zeros that needn't be multiplied, and one whose factors are all smaller
    (``outer(u, v)``, ``kron(a, b)``), which can be multiplied by one after the other, also scaled
    (``outer(u, v) / 36``, ``2 * (u @ v)``).

    A scope that a law still has to put in order isn't inlined: of ``x[(l - k) // 2]`` where 2
    divides l - k, a transposed convolution, the pooling after it reads ``x[l // 2]``.
    """
    if any(isinstance(member, Input | Weight) for member in view.members(ref)):
        # An input or weight isn't computed; its scopes are views of views that lead back to it.
        return []
    if normalized(view, ref):
        return []
    found = [
        scope
        for scope in view.scopes(ref)
        if scope not in view.derived
        and conditions.is_product(scope)
        and (ref.constant or not _waits(scope))
        and (
            not ref.constant
            or bool(scope.reduction) != constant
            or conditions.is_view(scope)
            or _has_diagonal(view, scope)
            or _is_compressed(scope)
            or _scales_a_product(view, scope)
        )
        and all(r.tensor != ref for r in reads(scope.body))
        and without_constants(view, scope) is None
    ]
    # A matrix may be a view of its own reshape, which leads back: a tensor that is computed is read
    # as it is, and not as a view of its view. Other views come last.
    if any(not conditions.is_view(scope) for scope in view.scopes(ref)):
        found = [scope for scope in found if not _comes_back(view, ref, scope)]
    return sorted(found, key=lambda s: (conditions.is_view(s), _comes_back(view, ref, s)))


def _has_diagonal(view: View, scope: Scope) -> bool:
    """Whether an elementwise product is zero except where two indices are equal, or where an index
    is what a tensor says: ``one_hot(ids)[n, k] * a[n]``."""
    return not scope.reduction and any(
        any(True for _ in zeros_outside(factor))
        or isinstance(factor, Read) and is_one_hot(view, factor.tensor)
        for factor in factors_of(scope.body)
    )


def is_one_hot(view: View, tensor: Tensor) -> bool:
    """Whether a tensor is ``one_hot(ids)`` as the program writes it, also converted. A scope that
    reads it isn't flat, and a law that has taken the scope for flat isn't asked again; so this must
    be known from the beginning, and isn't derived."""
    return any(
        op.name == "Embedding" and any(op.name == "Equal" for op in _unconverted(view, op.args[0]))
        for op in _unconverted(view, tensor)
    )


def _unconverted(view: View, tensor: Tensor) -> Sequence[Op]:
    """The operators that a tensor is the result of, and those that it is a conversion of."""
    found = view.operators(tensor) if isinstance(tensor, ClassRef) else []
    before = [op.args[0] for op in found if op.name == "Cast"]
    return [*found, *(op for ref in before if isinstance(ref, ClassRef)
                      for op in view.operators(ref))]  # fmt: skip


def is_diagonal(view: View, table: Tensor) -> bool:
    """Whether a matrix is known to be zero except on one diagonal."""
    return isinstance(table, ClassRef) and any(
        u.coefficient(0) and u.coefficient(1)
        for inner in view.scopes(table)
        if len(inner.traversal) == 2 and not inner.reduction
        for factor in factors_of(inner.body)
        for u, _ in zeros_outside(factor)
    )


def _is_compressed(scope: Scope) -> bool:
    """Whether an elementwise product reads only tensors that are smaller than it."""
    found = list(reads(scope.body))
    return (
        not scope.reduction
        and bool(found)
        and all(read.tensor.type.size < math.prod(scope.extents) for read in found)
    )


def is_made_of_smaller(view: View, tensor: Tensor) -> bool:
    """Whether a constant tensor is a sum of products, or a product of smaller tensors: it is worth
    looking through what only scales it."""
    return (
        isinstance(tensor, ClassRef)
        and tensor.constant
        and any(
            conditions.is_product(scope) and (bool(scope.reduction) or _is_compressed(scope))
            for scope in view.scopes(tensor)
        )
    )


def _scales_a_product(view: View, scope: Scope) -> bool:
    """Whether a constant scope is a number, or tensors of one element, times one other constant
    that is made of smaller tensors."""
    large = [read for read in reads(scope.body) if read.tensor.type.size > 1]
    return (
        not scope.reduction
        and len(large) == 1
        and len(factors_of(scope.body)) > 1
        and is_made_of_smaller(view, large[0].tensor)
    )


def _comes_back(view: View, ref: ClassRef, scope: Scope) -> bool:
    """Whether ``scope`` is a view of an e-class that is itself a view of ``ref``."""
    return conditions.is_view(scope) and any(
        conditions.is_view(back) and next(iter(reads(back.body))).tensor == ref
        for read in reads(scope.body)
        if isinstance(read.tensor, ClassRef)
        for back in view.scopes(read.tensor)
    )


def is_gate(scope: Scope) -> bool:
    """Whether ``scope`` is an elementwise product of several reads: ``L . x[i] * y[i]``."""
    return (
        not scope.reduction
        and conditions.is_product(scope)
        and len(set(reads(scope.body))) > 1
    )


def normalized(view: View, ref: ClassRef) -> bool:
    """Whether the tensor is a LayerNorm, which a library computes in one pass.

    Products and maps read such a tensor as it is. Views may look through it, so that a part of the
    result is computed from a part of the argument.
    """
    return any(op.name == "LayerNorm" for op in view.operators(ref))


def reads_a_sum(view: View, scope: Scope) -> bool:
    """Whether the scope reads the result of a sum, or a view of it, that isn't constant. The sum's
    rounding is lost already, so that ``(sum + c) * d`` may be ``sum*d + c*d``. If it read an input
    of about -c, the difference would be exact, and that of the products rounded."""
    return any(
        not tensor.constant and _is_summed(view, tensor, frozenset())
        for tensor in tensors(scope.body)
    )


def _is_summed(view: View, tensor: Tensor, seen: frozenset[Tensor]) -> bool:
    if not isinstance(tensor, ClassRef) or tensor in seen:
        return False
    return any(
        bool(scope.reduction)
        or (
            conditions.is_view(scope)
            and any(_is_summed(view, t, seen | {tensor}) for t in tensors(scope.body))
        )
        for scope in view.scopes(tensor)
    )


def underived(view: View, row: Sequence[Any]) -> Scope:
    """The request's scope.

    Raises:
        Later: the scope isn't canonical, or it is derived.
    """
    scope = settled(view, row)
    if scope is None or scope in view.derived:
        raise Later
    return scope


def flat_product(view: View, row: Sequence[Any]) -> Scope:
    """The request's scope.

    Raises:
        Later: the scope isn't a canonical product, is derived, or reads another product.
    """
    scope = underived(view, row)
    if not conditions.is_product(scope) or inlinable(view, scope) is not None:
        raise Later
    return scope


def flat(view: View, row: Sequence[Any]) -> Scope:
    """The request's scope.

    Raises:
        Later: as for :func:`flat_product`; or the scope reads constants that can become numbers, or
            something in it is selected (a diagonal): it is made smaller first.
    """
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
    """The flat products of a class that don't read the class itself."""
    return [scope for scope in flats(view, ref) if all(r.tensor != ref for r in reads(scope.body))]


def tight_products_of(view: View, ref: ClassRef) -> list[Scope]:
    """The flat products of a class that don't read the class itself, and their strictest boxes.

    The box of a flat product may be larger than where its reads are in range. Its strictest box is
    a derived scope: ``sum[k<12] x[i, k - 6] w[j, k]`` is ``sum[k<6] x[i, k] w[j, k + 6]``, which
    reads ``x`` as other terms do."""
    flat = products_of(view, ref)
    loose = [scope for scope in flat if not all(map(Read.in_range, reads(scope.body)))]
    beyond = {frozenset(tensors(scope.body)) for scope in loose}
    return flat + [
        scope
        for scope in (view.scopes(ref) if beyond else ())
        if scope in view.derived
        and conditions.is_product(scope)
        and canonical(scope) == scope
        and frozenset(tensors(scope.body)) in beyond
        and all(map(Read.in_range, reads(scope.body)))
    ]


def flat_or_tight(view: View, row: Sequence[Any]) -> Scope:
    """The request's scope, also if it is the strictest box of a flat product.

    Raises:
        Later: as for :func:`flat`."""
    scope = settled(view, row)
    if scope in view.derived and scope in tight_products_of(view, row[0]):
        return scope
    return flat(view, row)


def number_of(view: View, tensor: Tensor) -> float | None:
    """The number that is every element of a tensor, if the tensor is a ``Full``."""
    assert isinstance(tensor, ClassRef)
    full = (op for op in view.operators(tensor) if op.name == "Full")
    return next((float(op.attrs[1]) for op in full if isinstance(op.attrs[1], float)), None)


def without_constants(view: View, scope: Scope) -> Path | None:
    """Return the scope with reads of ``Full`` tensors replaced by their numbers, if it has any."""
    found: Path | None = view.once(_with_numbers, scope)
    return found


def _with_numbers(view: View, scope: Scope) -> Path | None:
    return selection.read_constants(scope, partial(number_of, view))


Answer = TypeVar("Answer", bound=Path | Tensor)


def some(answer: Answer | None) -> list[Answer]:
    return [] if answer is None else [answer]
