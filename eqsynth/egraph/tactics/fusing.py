"""Fusion: maps that are inlined in the maps, and in the reductions of one operand, that read them.

    L_x relu({L_z f(z)}[x])                          ->  L_x relu(f(x))
    L_x {L_z t[z + 1]}[x] + {L_z {L_y u[y]}[z]}[x]   ->  L_x t[x + 1] + u[x]     views, all at once

Not here: sums of products (``contraction.py``), reductions in reductions (``reductions.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from eqsynth.calculus import conditions
from eqsynth.calculus.inline import Inline
from eqsynth.egraph.scope_rules.matching import is_delta, not_negative
from eqsynth.egraph.tactics import algebra, linear, merging
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.egraph.tactics.requests import (
    Later,
    is_gate,
    normalized,
    reads_a_sum,
    settled,
    some,
    without_constants,
)
from eqsynth.egraph.view import View
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Sum, reads, terms_of
from eqsynth.ir.tensor import ClassRef, Scope, Tensor

# In a sum of more terms than this, all maps that can be fused are fused at once, as one answer. One
# answer for each map would lead to an e-node for every subset of the terms.
MAX_TERMS_APART: Final = 4

# The most maps that are inlined one after the other as one answer.
MAX_DEPTH: Final = 12


def expression_fusion(view: View, row: Sequence[Any]) -> Iterable[Path]:
    """Inline maps in maps and in reductions of one operand.

    A sum of products keeps its operands as reads. A product without a sum is a map:
    ``sigmoid(o) * tanh(c)`` becomes one kernel.
    """
    scope = settled(view, row)
    if scope is None or scope in view.derived:
        raise Later
    if conditions.is_product(scope) and not is_gate(scope) and not merging.sums_each_once(scope):
        return _scaled_sums(view, scope)
    if without_constants(view, scope) is not None:
        return []  # the scope with the numbers is fused; not both, and not each subset of them
    views = _without_views(view, row, scope)
    if views is not None:
        return [views]
    opened = algebra.opened_sum(view, scope)
    # {a + c} - {b + c} is a - b, whose terms have factors in common.
    found = [] if opened is None else [opened.along(linear.spread) or opened]
    steps = opened.steps if opened is not None else ()
    members = {step.read.tensor for step in steps if isinstance(step, Inline)}
    whole, fused = Path(scope), set[Tensor]()
    apart = len(terms_of(scope.body)) <= MAX_TERMS_APART
    for read in dict.fromkeys(reads(scope.body)):
        for inner in _fusible(view, row, scope, read):
            if read.tensor in members and isinstance(inner.body, Sum):
                continue
            if apart:
                found += some(path(scope, Inline(read, inner)))
            elif read.tensor not in fused and merging.merge(whole.scope, read, inner):
                whole = whole.then(Inline(read, inner)) or whole
                fused.add(read.tensor)
    found += [whole] if fused else []
    # The deepest first: an e-class has room for so many scopes, and subsets would fill it.
    deepest = _with_all(view, row, scope)
    if len(deepest.steps) > 1 and deepest.steps != whole.steps:
        found.insert(0, deepest)
    if not found:
        raise Later
    return found


def _scaled_sums(view: View, scope: Scope) -> list[Path]:
    """The paths on which a sum with a constant term is inlined where a number multiplies it:
    ``L_x 2 * {f + c}[x] = L_x 2 * (f + c)``, of which "scale-of-shifted" takes the scale apart.
    In constants also a function of places alone, the mask ``-1e4 * {1 - (j <= i)}[i, j]``, or one
    that is converted, ``bool({where(j <= i, 1, 0)}[i, j])``."""
    by_number = isinstance(scope.body, Prod) and not scope.reduction
    of_places = isinstance(scope.body, Prod | Cast) and not scope.reduction and scope.constant
    found = [
        way
        for read in (reads(scope.body) if by_number or of_places else ())
        if isinstance(read.tensor, ClassRef)
        for inner in algebra.maps_of(view, read.tensor)
        if inner not in view.derived
        if (by_number and _is_shifted_sum(view, inner))
        or (of_places and not list(reads(inner.body)))
        if merging.merge(scope, read, inner) and (way := path(scope, Inline(read, inner)))
    ]
    if not found:
        raise Later
    return found


def _is_shifted_sum(view: View, inner: Scope) -> bool:
    return reads_a_sum(view, inner) and any(map(linear.is_constant, terms_of(inner.body)))


def _with_all(view: View, row: Sequence[Any], scope: Scope) -> Path:
    """The path on which maps are inlined until the scope reads none, one map of each e-class.

    where(x > 0, x, a * x) of x = c + b  ->  where(c + b > 0, c + b, a * (c + b))
    """
    deepest, taken = Path(scope), dict[Tensor, Scope]()
    while len(deepest.steps) < MAX_DEPTH:
        for read in dict.fromkeys(reads(deepest.scope.body)):
            ways = _fusible(view, row, deepest.scope, read)
            inner = taken.get(read.tensor) or next(ways, None)
            if inner is None or merging.merge(deepest.scope, read, inner) is None:
                continue  # there is none, or the body would grow too large
            further = deepest.then(Inline(read, inner))
            if further is not None:
                taken[read.tensor] = inner
                deepest = further
                break
        else:
            break
    return deepest


def _without_views(view: View, row: Sequence[Any], scope: Scope) -> Path | None:
    """The path on which all views that ``scope`` reads are inlined; None if it reads none.

    Views come first, and at once: which of them are inlined makes no difference to a kernel, and a
    sum of nine slices, each of which is a view in three steps, has 4**9 such forms.
    """
    inlined = Path(scope)
    # Of each tensor those that it was read through. A permutation and its inverse are views of each
    # other.
    above: dict[Tensor, frozenset[Tensor]] = {}
    step: Inline | None = None
    while (step := _next_view(view, row, inlined.scope, above)) is not None:
        further = inlined.then(step)
        if further is None:
            break
        (base,) = reads(step.inner.body)
        passed = above.get(step.read.tensor, frozenset()) | {step.read.tensor}
        above[base.tensor] = above.get(base.tensor, frozenset()) | passed
        inlined = further
    return inlined if inlined.steps else None


def _next_view(
    view: View, row: Sequence[Any], scope: Scope, above: dict[Tensor, frozenset[Tensor]]
) -> Inline | None:
    for read in dict.fromkeys(reads(scope.body)):
        for inner in _fusible(view, row, scope, read, views=True):
            (base,) = reads(inner.body)
            if base.tensor not in above.get(read.tensor, ()):
                return Inline(read, inner)
    return None


def _fusible(
    view: View, row: Sequence[Any], scope: Scope, read: Read, views: bool = False
) -> Iterator[Scope]:
    """Yield the maps, or the views alone, that are worth inlining where ``scope`` reads them."""
    gate = is_gate(scope)
    summed = conditions.is_product(scope) and not gate
    assert isinstance(read.tensor, ClassRef)
    if normalized(view, read.tensor) and not normalized(view, row[0]):
        return
    if gate and read.tensor.type.size < math.prod(scope.extents):
        return  # x * sigmoid(s)[row]: what is read many times would be computed each time
    for inner in view.scopes(read.tensor):
        if inner.reduction or canonical(inner) != inner:
            continue
        if views and not conditions.is_view(inner):
            continue
        if summed and (conditions.is_product(inner) or isinstance(inner.body, Sum)):
            continue  # traversal merging and the laws of sums put these in
        if inner in view.derived and not _is_seen_through(scope, inner):
            continue
        if without_constants(view, inner) is not None:
            continue
        if any(r.tensor == read.tensor for r in reads(inner.body)):
            continue
        if row[0].constant and any(True for _ in reads(inner.body)):
            # Constants are fused only with maps that read nothing, such as an identity matrix
            # or a mask.
            continue
        if (
            read.tensor.constant
            and not row[0].constant
            and not conditions.is_view(inner)
            and not is_delta(inner.body)
            and not (_is_cut(scope) and not_negative(inner.body) is not None)
        ):
            # Computed once as it is; fused, it would be computed for every element. Where two
            # indices are equal has to be seen, since little may be left to compute; and so has a
            # triangle, by which sums become cumulative sums.
            continue
        merged = merging.merge(scope, read, inner, algebra.adds_rows(view, inner))
        if merged is not None and merged != scope:
            yield inner


def _is_seen_through(scope: Scope, inner: Scope) -> bool:
    """Whether a derived scope is inlined. Only views are: of what was hoisted or put in another
    order (exp(x[j]) / {sum}[i, j] reads the sum itself); and where a map reads what a derivation
    has put together from parts, as the phases of a transposed convolution: ``relu(t[x % 2, x // 2]
    + b)``. A contraction reads them at their place, since it reads them many times."""
    if merging.is_broadcast(inner):
        return True
    return not scope.reduction and merging.repeats_nothing(inner)


def _is_cut(scope: Scope) -> bool:
    """Whether the scope is 0 where a condition holds, or where it doesn't: ``where(c, f, 0)``."""
    body = scope.body
    return isinstance(body, Call) and body.fn == "where" and Num(0.0) in body.args[1:]
