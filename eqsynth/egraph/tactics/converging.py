"""Converging derivation: which of EinNet's derivations are worth a step (EinNet §6.1).

Each function asks a law of ``derivation.py``, ``substitution.py`` or ``windows.py`` about a scope,
or doesn't, because another derivation brings the scope nearer to an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

from eqsynth.calculus import conditions
from eqsynth.calculus.deriving import Steps
from eqsynth.calculus.scopes import traversal_iterators
from eqsynth.egraph.tactics import contraction, derivation, merging, substitution, windows
from eqsynth.egraph.tactics.opening import definitions, matched
from eqsynth.egraph.tactics.paths import Path
from eqsynth.egraph.tactics.requests import Later, Law, inlinable, settled
from eqsynth.egraph.view import View
from eqsynth.ir.index import It
from eqsynth.ir.normal import remembered
from eqsynth.ir.scalar import Read, factors_of, iterators, reads
from eqsynth.ir.tensor import ClassRef, Input, Scope, Tensor, Weight

# Off, every derivation is taken wherever it applies: what the guidance saves is measured so.
GUIDED: Final = ContextVar("guided", default=True)


def sum_split(view: View, row: Sequence[Any]) -> Iterable[Path]:
    scope = _pair(view, row)
    if not GUIDED.get():
        return list(derivation.sum_split(scope))
    mixed = [read for read in reads(scope.body) if _mixes(read, iterators(read))]
    if len(mixed) != 1 or _mixes_traversal(scope) or substitution.is_rearranged(scope):
        # What a split has made is substituted, what a substitution has rearranged is matched.
        return []
    splits = list(derivation.sum_split(scope))
    # Converging derivation [EinNet §6.1]: only what is a product of matrices after substitution.
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
    """The request's scope if it is a product of two reads, neither of which can be inlined.

    What always brings a scope nearer to an operator comes ``first``, so that other derivations
    start from what it gives: axes in canonical order where that is asked for, iterators split that
    occur by quotient and remainder only, and the strictest boundaries [EinNet §4.1, §6.1].
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
    """The scope's class is a view of one whose axes are in canonical order: derive from that."""
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
    """Of any product, not of pairs alone, and of what is read by another reduction: what is smaller
    is better whatever comes next."""
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
    """Maps, and reductions of one operand, take the rearrangement of what they read on; in a
    product it cancels or stays, since a product is split as its own indices ask for.

    Only where all that is computed is read by quotient and remainder, and in one order of axes:
    else one rearrangement would come in the place of another.
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
    """The split scope reads this operand at its own iterators, in the order of its axes."""
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
    """What is read as views of what a derivation made."""
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
    """The law of matching one operator.

    Args:
        banded: its traversal is mixed in an index.
        phased: its output is read by quotient and remainder.
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
