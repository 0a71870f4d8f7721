"""Converging derivation: which of EinNet's derivations are taken from a scope (EinNet §6.1).

Each function answers requests by a derivation of ``derivation.py``, ``substitution.py`` or
``windows.py``, but only if no other derivation brings the scope closer to an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

from eqsynth.calculus import conditions
from eqsynth.calculus.deriving import Steps
from eqsynth.egraph.tactics import contraction, derivation, merging, substitution, windows
from eqsynth.egraph.tactics.opening import definitions, matched
from eqsynth.egraph.tactics.paths import Path
from eqsynth.egraph.tactics.requests import Later, Law, inlinable, settled
from eqsynth.egraph.view import View
from eqsynth.ir.index import It
from eqsynth.ir.normal import remembered
from eqsynth.ir.scalar import Read, factors_of, iterators, reads
from eqsynth.ir.scopes import traversal_iterators
from eqsynth.ir.tensor import ClassRef, Input, Scope, Tensor, Weight

# If False, every derivation is taken wherever it applies; used to measure what the guidance saves.
GUIDED: Final = ContextVar("guided", default=True)


def sum_split(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = _pair(view, row)
    if not GUIDED.get():
        return list(derivation.sum_split(scope))
    mixed = [read for read in reads(scope.body) if _mixes(read, iterators(read))]
    if len(mixed) != 1 or _mixes_traversal(scope) or substitution.is_rearranged(scope):
        # The scope comes from a split or a substitution: it is to be substituted or matched.
        return []
    splits = list(derivation.sum_split(scope))
    # Converging derivation [EinNet §6.1]: only splits that substitution makes matrix products.
    return [split for split in splits if derivation.distance(split.scope) == 0]


def window_split(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = _pair(view, row)
    if _mixes_traversal(scope) or substitution.is_rearranged(scope):
        return []
    return list(derivation.window_split(scope))


def _mixes(read: Read, its: set[It]) -> bool:
    return any(substitution.mixes(index, its) for index in read.index)


def _mixes_traversal(scope: Scope) -> bool:
    traversal = set(traversal_iterators(scope))
    return any(_mixes(read, traversal) for read in reads(scope.body))


def _pair(view: View, row: Sequence[Any], *, first: bool = False) -> Scope:
    """The request's scope, a sum of products of two factors that can't be inlined.

    Three derivations always bring a scope closer to an operator, and others wait for their results:
    axes in canonical order, iterators split that occur only by quotient and remainder, and the
    strictest boundaries [EinNet §4.1, §6.1].

    Args:
        first: the request is for one of these, and needn't wait for the last two.

    Raises:
        Later: the scope isn't such a sum, or a derivation that comes first applies to it.
    """
    scope = settled(view, row)
    if scope is None or not conditions.is_product(scope) or contraction.fold_constants(scope):
        raise Later
    if len(factors_of(scope.body)) != 2 or not scope.reduction:
        raise Later
    if scope not in view.derived and inlinable(view, scope) is not None:
        raise Later
    if _is_reordered(view, row[0], scope):
        raise Later
    if not first and GUIDED.get() and _has_first(scope):
        raise Later
    return scope


@remembered(maxsize=1 << 14)
def _has_first(scope: Scope) -> bool:
    split = substitution.iterator_split(scope, whole=True)
    return split is not None or derivation.tighten(scope) is not None


def _is_reordered(view: View, ref: ClassRef, scope: Scope) -> bool:
    """Whether the scope's e-class is a view of one with its axes in canonical order.

    Derivations then start from that e-class.
    """
    reordered = any(
        inner in view.derived
        and merging.is_permutation(inner)
        and all(read.tensor != ref for read in reads(inner.body))
        for inner in view.scopes(ref)
    )
    return reordered and derivation.traversal_order(scope) is not None


def variable_substitution(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = _pair(view, row)
    if windows.match_g2bmm(scope) is not None:
        # A band of a product; substituted, it would be the whole product.
        return []
    substituted = substitution.variable_substitution(scope)
    return [] if substituted is None else [substituted]


def boundary_tighten(view: View, row: Sequence[Any]) -> Iterable[Path]:
    """Tighten the boundaries of any product, and of a read in another reduction.

    A smaller scope is better for every derivation that follows, so this isn't limited to pairs.
    """
    scope = settled(view, row)
    if scope is None or conditions.neutral_outside(scope) is None:
        raise Later
    if scope not in view.derived and inlinable(view, scope) is not None:
        raise Later
    if _is_reordered(view, row[0], scope):
        raise Later
    tightened = derivation.tighten(scope)
    return [] if tightened is None else [tightened]


def iterator_split(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = _pair(view, row, first=True)
    found = substitution.iterator_split(scope, whole=True)
    if found is None and not _has_first(scope):
        found = substitution.iterator_split(scope)
    return [] if found is None else [found]


def operand_split(view: View, row: Sequence[Any]) -> Iterable[Path]:
    """Move the rearrangement of an operand's axes behind the scope, or cancel it.

    Maps and reductions of one operand pass the rearrangement on: it becomes a view of their result.
    In a product it is only cancelled, because products are split as their own indices require. It
    is passed on only if the scope reads all computed operands in one order of axes; otherwise one
    rearrangement would just replace another.
    """
    scope = settled(view, row)
    if scope is None:
        raise Later
    if conditions.is_product(scope) and len(set(reads(scope.body))) > 1:
        found = _cancelled(view, scope)
    else:
        found = [] if conditions.is_view(scope) else _carried(view, scope)
    if not found:
        raise Later
    return found


def _cancelled(view: View, scope: Scope) -> list[Path]:
    pairs = ((read, inner) for read in reads(scope.body) for inner in _rearranged(view, read))
    return [
        merged
        for read, inner in pairs
        if (merged := substitution.cancelled(scope, read, inner)) is not None
    ]


def _carried(view: View, scope: Scope) -> list[Path]:
    """One answer for each rearrangement of the operand with most axes."""
    own = sorted(dict.fromkeys(reads(scope.body)), key=lambda read: -len(iterators(read)))
    computed = [read for read in own if not _is_leaf(view, read.tensor)]
    found = []
    for first in _rearranged(view, computed[0]) if computed else ():
        views = {computed[0]: first}
        split = substitution.operand_split(scope, views)
        for read in computed[1:] if split else ():
            options = [views, *({**views, read: inner} for inner in _rearranged(view, read))]
            views = next((o for o in options if _in_order(scope, o, read)), {})
        split = substitution.operand_split(scope, views) if split and views else None
        if split is not None:
            found.append(split)
    return found


def _in_order(scope: Scope, views: Mapping[Read, Scope], read: Read) -> bool:
    """Whether the split scope reads this operand at plain iterators, in the order of its axes."""
    split = substitution.operand_split(scope, views) if views else None
    if split is None:
        return False
    (whole,) = reads(split.scope.body)
    assert isinstance(whole.tensor, Scope)
    tensor = next(reads(views[read].body)).tensor if read in views else read.tensor
    own = [index for r in reads(whole.tensor.body) if r.tensor == tensor for index in r.index]
    slots = [it.slot for index in own for it in index.iterators()]
    kept = [slot for slot in slots if slot < len(whole.index)]
    return bool(slots) and kept == sorted(set(kept)) and all(len(i.terms) < 2 for i in own)


def _rearranged(view: View, read: Read) -> list[Scope]:
    """The derived views in the e-class that ``read`` reads."""
    assert isinstance(read.tensor, ClassRef)
    found = [
        inner
        for inner in view.scopes(read.tensor)
        if inner in view.derived
        and conditions.is_view(inner)
        and all(r.tensor != read.tensor for r in reads(inner.body))
    ]
    return sorted(found, key=lambda inner: inner.order)


def _is_leaf(view: View, tensor: Tensor) -> bool:
    assert isinstance(tensor, ClassRef)
    return any(isinstance(member, Input | Weight) for member in view.members(tensor))


def matching(
    match: Callable[[Scope], Tensor | None], *, banded: bool = False, phased: bool = False
) -> Law:
    """Return the law that matches one operator.

    Args:
        banded: an index of the operator adds iterators of the traversal.
        phased: the operator's indices take quotients and remainders of the traversal.
    """

    def law(view: View, row: Sequence[Any]) -> Iterable[Steps]:
        scope = settled(view, row)
        if scope is None or (not phased and _has_first(scope)):
            return []
        if not banded and substitution.variable_substitution(scope) is not None:
            # Gathering for an index that a substitution makes bare would only copy more.
            return []
        found = match(scope)
        return [] if found is None else matched(scope, found, definitions(view, found))

    return law
