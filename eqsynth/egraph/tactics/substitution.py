"""Variable substitution: changes of variables that simplify the indices of a scope.

    L_{h,r} f(h + r, r)      ->  {L_{t,r} f(t, r)}[h + r, r]           variable_substitution
    L_i f(i // 4, i % 4)     ->  {L_{q,r} f(q, r)}[i // 4, i % 4]      iterator_split
    sum_k f(k // 4, k % 4)   ->  sum_{q,r} f(q, r)                     reduction_unfold

Each function proposes a change of variables (papers: EinNet §4.1, Table 1), or returns None. The
traversal of a new inner scope is the box around the image (boundary relaxing); elements of the box
outside of the image are computed but never read. Laws: ``calculus/same.py`` for a traversal,
``calculus/recount.py`` for a reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial

from eqsynth.calculus.conditions import is_product, is_view
from eqsynth.calculus.deriving import Least
from eqsynth.calculus.inline import Inline
from eqsynth.calculus.recount import Count, Recount
from eqsynth.egraph.tactics.merging import merge
from eqsynth.egraph.tactics.moving import reindexed
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.ir.index import Index, It
from eqsynth.ir.indices import expressions, moduli, rebuilt, substituted, with_indices
from eqsynth.ir.normal import canonical_order, remembered
from eqsynth.ir.scalar import (
    Read,
    Scalar,
    factors_of,
    indices_of,
    iterators,
    reads,
)
from eqsynth.ir.scopes import (
    bare,
    reduction_iterators,
    scope_over,
    traversal_iterators,
)
from eqsynth.ir.tensor import Scope

# A function of the body, the traversal and the reduction of a new scope: the order of its axes.
Order = Callable[[Scalar, list[It], list[It]], list[It]]


def _part(expression: Index, its: set[It]) -> Index:
    return Index(0, tuple((a, c) for a, c in expression.terms if a in its))


def _primitive(part: Index) -> Index:
    divisor = math.gcd(*(c for _, c in part.terms))
    return Index(0, tuple((a, c // divisor) for a, c in part.terms))


def _multiple(part: Index, of: Index) -> int | None:
    """The number m with ``part = m * of``, if there is one."""
    (atom, c), *_ = of.terms
    m = dict(part.terms).get(atom, 0) // c
    return m if of * m == part else None


def counts_through(part: Index) -> bool:
    """Whether the iterators count through an axis: the index takes c, c + d, c + 2*d, … once each.

    >>> g, c = Index.iterator(0, 3), Index.iterator(1, 4)
    >>> counts_through(4 * g + c), counts_through(3 * g + c)
    (True, False)
    """
    terms = sorted(part.terms, key=lambda term: term[1])
    stride = terms[0][1] if terms else 1
    for it, c in terms:
        if not isinstance(it, It) or c != stride or c < 0:
            return False
        stride *= it.extent
    return True


def mixes(index: Index, its: set[It]) -> bool:
    """Whether the index adds several of these iterators, but doesn't count through them."""
    return any(
        len(part.terms) > 1 and not counts_through(part)
        for part in (_part(expression, its) for expression in expressions(index))
    )


def is_rearranged(scope: Scope) -> bool:
    """Whether an index counts through iterators of the traversal and adds other iterators.

    ``iterator_split`` leads to such indices.
    """
    traversal = set(traversal_iterators(scope))
    for index in indices_of(scope.body):
        part = _part(index, traversal)
        if index.is_affine and 1 < len(part.terms) < len(index.terms) and counts_through(part):
            return True
    return False


# ---- iterators that only occur together ------------------------------------------------------


@remembered(maxsize=1 << 14)
def variable_substitution(scope: Scope) -> Path | None:
    """``L_{h,r} f(a*h + d*r + c, r) = L_{h,r} {L_{t,r} f(t + c, r)}[a*h + d*r, r]``.

    Every expression that mixes iterators of the traversal gets an iterator ``t`` of its own, all in
    one change of variables. It replaces one iterator, ``h``, which has to occur only in multiples
    of the expression; then (h, r) -> (t, r) is injective. If all iterators of the expression occur
    only so, and it counts through them (``r + R*h``), ``t`` replaces them all: (h, r) -> t is a
    bijection. An iterator that f needs only in the expression is left out: the rows of a window
    that is summed first, ``{L_{i,r} sum_k x[i + r, k] v[k]}``, are ``{L_u sum_k x[u, k] v[k]}``.
    """
    traversal = set(traversal_iterators(scope))
    image: dict[Index, list[It]] = {}
    taken: set[It] = set()
    for expression in (e for index in indices_of(scope.body) for e in expressions(index)):
        mixed = _part(expression, traversal)
        own = [it for it, _ in mixed.terms if isinstance(it, It)]
        if len(own) < 2 or taken & set(own):
            continue
        mixed = _primitive(mixed)
        inside = [it for it in own if _only_inside(scope, it, mixed)]
        positive = [it for it in inside if mixed.coefficient(it.slot) > 0]
        if counts_through(mixed):
            # If they occur with other iterators, iterator_split has split an axis on purpose.
            if len(inside) == len(own) and _is_alone(scope, own):
                image[mixed] = own
        elif positive:
            image[mixed] = positive[:1]
        taken |= set(own) if mixed in image else set()
    return _substituted(scope, image) if image else None


def _only_inside(scope: Scope, old: It, mixed: Index) -> bool:
    """Whether ``old`` only occurs in multiples of ``mixed``."""
    its = {it for it, _ in mixed.terms if isinstance(it, It)}
    return all(
        _multiple(_part(expression, its), mixed) is not None
        for index in indices_of(scope.body)
        for expression in expressions(index)
        if expression.coefficient(old.slot)
    )


def _is_alone(scope: Scope, its: Sequence[It]) -> bool:
    """Whether expressions that contain one of the iterators ``its`` contain no other iterator."""
    return all(
        set(expression.iterators()) <= set(its)
        for index in indices_of(scope.body)
        for expression in expressions(index)
        if any(expression.coefficient(it.slot) for it in its)
    )


def _substituted(scope: Scope, image: Mapping[Index, Sequence[It]]) -> Path | None:
    """The scope as a view of one over new iterators.

    Args:
        image: expression -> the iterators that its new iterator replaces.
    """
    low = {mixed: mixed.range()[0] for mixed in image}
    fresh = {
        mixed: It(len(scope.extents) + n, mixed.range()[1] - mixed.range()[0] + 1)
        for n, mixed in enumerate(image)
    }

    def affine(expression: Index) -> Index:
        result = expression
        for mixed, gone in image.items():
            if any(expression.coefficient(it.slot) for it in gone):
                m = _multiple(_part(expression, set(mixed.iterators())), mixed)
                assert m is not None
                result = result - mixed * m + (bare(fresh[mixed]) + low[mixed]) * m
        return result

    gone = {it for its in image.values() for it in its}
    body = with_indices(scope.body, lambda i: rebuilt(i, affine))
    kept = [it for it in traversal_iterators(scope) if it not in gone and it in iterators(body)]
    at = {fresh[mixed]: mixed - low[mixed] for mixed in image}
    return _through(scope, body, [*kept, *fresh.values()], at)


def _through(
    scope: Scope,
    body: Scalar,
    kept: Sequence[It],
    at: Mapping[It, Index],
    order: Order = canonical_order,
) -> Path | None:
    """``L {L_kept reduce body}[at]``: the scope as a view of a scope over other iterators."""
    reduced = reduction_iterators(scope)
    axes = order(body, list(kept), reduced)
    inner = scope_over(axes, reduced, body, scope.reducer)
    return path(scope, reindexed(scope, inner, [at.get(it, bare(it)) for it in axes]))


# ---- an iterator as quotient and remainder ---------------------------------------------------


def iterator_split(
    scope: Scope,
    *,
    whole: bool = False,
    but: Set[It | None] = frozenset(),
    order: Order = canonical_order,
) -> Path | None:
    """``L_i f(i) = {L_{q,r} f(d*q + r - o)}[(i + o) // d, (i + o) % d]``.

    An iterator ``i`` is split into (q, r) if an index takes ``// d`` or ``% d`` of an expression in
    ``i``, or adds ``i`` to multiples of ``d`` (a dilation): then q is added to these multiples, and
    r only shifts them.

    Args:
        whole: split only for a ``//`` or ``%`` that then goes away, because all other terms under
            it are multiples of d.
        but: iterators that aren't split.
        order: the order of the new axes.
    """
    split = [it for it in traversal_iterators(scope) if it not in but]
    found = {it: m for it in split if (m := _modulus(scope, it, whole))}
    if not found:
        return None
    fresh: dict[It, tuple[It, It]] = {}
    at: dict[It, Index] = {}
    image: dict[It, Index] = {}
    for it, (d, offset) in found.items():
        slot = len(scope.extents) + 2 * len(fresh)
        q, r = It(slot, (it.extent - 1 + offset) // d + 1), It(slot + 1, d)
        fresh[it] = (q, r)
        at[q], at[r] = (bare(it) + offset) // d, (bare(it) + offset) % d
        image[it] = bare(q) * d + bare(r) - offset
    kept = [part for it in traversal_iterators(scope) for part in fresh.get(it, (it,))]
    return _through(scope, substituted(scope.body, image), kept, at, order)


def operand_split(scope: Scope, views: Mapping[Read, Scope]) -> Path | None:
    """``L_x reduce_y f({g}[m(x)], y) = {L_u reduce_y f(g[u], y)}[m(x)]``.

    A map commutes with a bijection of its traversal, and so does a reduction over other iterators.
    The iterators that the indices of the views take by ``//`` and ``%`` are split. The new axes are
    in the order of the operand that has most axes, so that all tensors that are computed from it
    elementwise have the same order.

    Args:
        views: operands of the scope -> views of tensors that a derivation made.
    """
    merged: Path | None = Path(scope)
    for read, view in views.items():
        merged = merged and merged.along(partial(read_through, read=read, view=view))
    split = partial(iterator_split, whole=True, order=_in_order_of_operands)
    return merged and merged.along(split)


def read_through(scope: Scope, read: Read, view: Scope) -> Path | None:
    """``L f({L_z u[m(z)]}[p(x)]) = L f(u[m(p(x))])``, with indices in least form."""
    if merge(scope, read, view) is None:
        return None
    return path(scope, Inline(read, view), Least())


def cancelled(scope: Scope, read: Read, view: Scope) -> Path | None:
    """``view`` inlined, if its index and the index at which it is read cancel.

    ``{L_i u[i // 4, i % 4]}[4*q + r]`` becomes ``u[q, r]``.
    """
    if not is_view(view) or all(index.bare() for index in read.index):
        return None
    merged = read_through(scope, read, view)
    if merged is None:
        return None
    new = set(reads(merged.scope.body)) - set(reads(scope.body))
    return merged if all(index.bare() for r in new for index in r.index) else None


def _in_order_of_operands(body: Scalar, kept: list[It], reduced: list[It]) -> list[It]:
    """The iterators that the body uses, in the order in which the operand with most of them reads
    them."""
    operands = sorted(reads(body), key=lambda read: -len(iterators(read)))
    used = [it for read in operands for index in read.index for it in index.iterators()]
    used += [it for it in kept if it in iterators(body)]
    return [it for it in dict.fromkeys(used) if it in kept]


def _modulus(scope: Scope, it: It, whole: bool) -> tuple[int, int] | None:
    """The divisor d and offset o by which ``it`` is split, with the smallest d; None if there is
    none."""
    found = []
    traversal = set(traversal_iterators(scope)) - {it}
    for index in indices_of(scope.body):
        for atom in moduli(index):
            value = next(expressions(atom.value))
            alone = all(c % atom.divisor == 0 for a, c in value.terms if a != it)
            # Expressions that mix the traversal are substituted first.
            if value.coefficient(it.slot) == 1 and (alone or not whole):
                if not traversal & set(value.iterators()):
                    found.append((atom.divisor, value.const % atom.divisor if alone else 0))
        if not whole and _is_dilated(scope, index, it):
            found.append((math.gcd(*(c for a, c in index.terms if a != it)), 0))
    found = [(d, o) for d, o in found if 1 < d < it.extent]
    return min(found, default=None)


def _is_dilated(scope: Scope, index: Index, it: It) -> bool:
    """Whether the index is a window over ``it``: it adds multiples of iterators of smaller extent.

    If one of these belongs to the traversal, ``it`` has to occur in every operand, as in a band
    product. Otherwise a sum was split, and ``variable_substitution`` applies instead.
    """
    others = [a for a, _ in index.terms if isinstance(a, It) and a != it]
    if not index.is_affine or index.coefficient(it.slot) != 1 or not others:
        return False
    window = set(others) & set(traversal_iterators(scope))
    everywhere = all(it in iterators(factor) for factor in factors_of(scope.body))
    return all(it.extent > a.extent for a in others) and (everywhere or not window)


# ---- reductions ------------------------------------------------------------------------------


def reduction_split(scope: Scope, it: It, divisor: int) -> Path | None:
    """``sum_k f(k) = sum_{q,r} f(d*q + r)``, k extended with zeros of f to a multiple of d."""
    if not is_product(scope) or it.extent <= divisor:
        return None
    q, r = _apart(scope, -(-it.extent // divisor), divisor)
    counts = (Count(it, bare(q) * divisor + bare(r), (q, r)),)
    return path(scope, Recount(counts))


@remembered(maxsize=1 << 14)
def reduction_unfold(scope: Scope) -> Path | None:
    """``sum_k f(k // d, k % d) = sum_{q,r} f(q, r)`` of any reduction; d divides k's extent.

    k -> (q, r) is a bijection, so no zeros are added. So a product over flattened axes (an im2col
    that was reshaped to a matrix) becomes the product over the axes.
    """
    counts: list[Count] = []
    for it in reduction_iterators(scope):
        divisors = [
            atom.divisor
            for index in indices_of(scope.body)
            for atom in moduli(index)
            if not isinstance(atom, It) and atom.value.bare() == it and it.extent > atom.divisor
        ]
        if divisors and it.extent % min(divisors) == 0:
            d = min(divisors)
            q, r = _apart(scope, it.extent // d, d, after=2 * len(counts))
            counts.append(Count(it, bare(q) * d + bare(r), (q, r)))
    return path(scope, Recount(tuple(counts))) if counts else None


def _apart(scope: Scope, *extents: int, after: int = 0) -> list[It]:
    return [It(len(scope.extents) + after + n, extent) for n, extent in enumerate(extents)]
