"""EinNet's intra-expression derivations: summation splitting, variable substitution, boundaries.

Each function is one law of Table 1 (papers: EinNet §4.1) on one scope; it yields scopes that are
equal to the one given. Traversal merging stands in ``merging.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from eqsynth.egraph.laws.closing import (
    bare,
    close,
    reduction_iterators,
    same_scope,
    scope_over,
    traversal_iterators,
)
from eqsynth.egraph.laws.merging import is_product
from eqsynth.ir.index import Index, It
from eqsynth.ir.normal import canonical_order
from eqsynth.ir.scalar import (
    Read,
    Scalar,
    Value,
    factors_of,
    iterators,
    leaves,
    reads,
    rewrite_leaves,
    substitute,
)
from eqsynth.ir.tensor import Scope

# Reduction iterators that are mixed with others in an index: all subsets of them are tried.
MAX_MIXED = 4


def mixed_iterators(scope: Scope) -> set[It]:
    """Iterators that share an index with another iterator, as ``h`` and ``r`` in ``x[h + r]``."""
    return {
        it
        for read in reads(scope.body)
        for index in read.index
        if len(set(index.iterators())) > 1
        for it in index.iterators()
    }


def sum_split(scope: Scope) -> Iterator[Scope]:
    """``L_x sum_{s1,s2} f = L_x sum_{s1} {L_{x,s1} sum_{s2} f}[x, s1]`` [EinNet §4.1].

    The outer sum takes iterators that are mixed with others in an index: summing over what is left
    is nearer to a matrix product, whose indices are bare.
    """
    if not is_product(scope) or scope.reducer != "sum":
        return
    reduced = reduction_iterators(scope)
    mixed = sorted(set(reduced) & mixed_iterators(scope), key=lambda it: it.slot)[:MAX_MIXED]
    for size in range(1, len(mixed) + 1):
        for outer in itertools.combinations(mixed, size):
            if len(outer) == len(reduced):
                continue
            inner = close(scope.body, {*traversal_iterators(scope), *outer})
            if inner.tensor != scope:
                yield same_scope(scope, inner)


def distance(split: Scope) -> int:
    """Iterators of a split's inner sum that no column of the matrix product takes as they are.

    The expression distance of EinNet §6.1 to Matmul: mixed indices over what is still summed.
    """
    (read,) = reads(split.body)
    inner = read.tensor
    assert isinstance(inner, Scope)
    return len(mixed_iterators(inner) & set(reduction_iterators(inner)))


def variable_substitution(scope: Scope) -> Scope | None:
    """``L_{h,r} f(a*h + d*r + c, r) = L_{h,r} {L_{t,r} f(t + c, r)}[a*h + d*r, r]``.

    Every index that mixes iterators of the traversal gets an iterator of its own, all in one
    change of variables. The iterator that goes (``h``) may occur nowhere but in that one
    expression, so (h, r) -> (t, r) is injective. The box of ``t`` is relaxed to the smallest
    around the image [EinNet §4.1, boundary relaxing]: what is computed outside of the image is
    never read.
    """
    if not is_product(scope):
        return None
    traversal = set(traversal_iterators(scope))
    image: dict[It, Index] = {}
    for read in reads(scope.body):
        for index in read.index:
            own = {it for it in index.iterators() if it in traversal}
            if not index.is_affine or len(own) < 2 or own & set(image):
                continue
            mixed = Index(0, tuple((a, c) for a, c in index.terms if a in own))
            olds = [
                it
                for it in sorted(own, key=lambda it: it.slot)
                if index.coefficient(it.slot) > 0 and _only_inside(scope, it, mixed)
            ]
            if olds:
                image[olds[0]] = mixed
    return _substituted(scope, image) if image else None


def _only_inside(scope: Scope, old: It, mixed: Index) -> bool:
    """Every index that uses ``old`` uses it within the expression ``mixed``."""
    slots = {it.slot for it in mixed.iterators()}
    for read in reads(scope.body):
        for index in read.index:
            if old in set(index.iterators()):
                own = tuple((a, c) for a, c in index.terms if isinstance(a, It) and a.slot in slots)
                if not index.is_affine or own != mixed.terms:
                    return False
    values = [leaf.index for leaf in leaves(scope.body) if isinstance(leaf, Value)]
    return all(it != old for index in values for it in index.iterators())


def _substituted(scope: Scope, image: dict[It, Index]) -> Scope:
    """The scope through one over t = image(old), for each old iterator."""
    fresh = {
        old: It(len(scope.extents) + n, mixed.range()[1] - mixed.range()[0] + 1)
        for n, (old, mixed) in enumerate(image.items())
    }

    def rewrite(index: Index) -> Index:
        for old in set(index.iterators()) & set(image):
            index = index - image[old] + Index(image[old].range()[0], ((fresh[old], 1),))
        return index

    body = rewrite_leaves(
        scope.body,
        lambda leaf: Read(leaf.tensor, tuple(map(rewrite, leaf.index)), leaf.fill)
        if isinstance(leaf, Read)
        else leaf,
    )
    kept = [fresh.get(it, it) for it in traversal_iterators(scope)]
    order = canonical_order(body, kept, reduction_iterators(scope))
    inner = scope_over(order, reduction_iterators(scope), body)
    at = {new: image[old] - image[old].range()[0] for old, new in fresh.items()}
    return same_scope(scope, Read(inner, tuple(at.get(it, bare(it)) for it in order)), [])


def tighten(scope: Scope) -> Scope | None:
    """``L_X f = {L_X' f}[x - lo]``, f = 0 on X \\ X' [EinNet §4.1, boundary tightening].

    Only in a product is a part that reads outside zero; the strictest boundary of all factors is
    taken. Reduction iterators are narrowed in place: what they lose is zero in the sum.
    """
    if not is_product(scope):
        return None
    bounds = {it: support(scope.body, it) for it in iterators(scope.body)}
    narrow = {it: b for it, b in bounds.items() if b != (0, it.extent) and b[0] < b[1]}
    if not narrow:
        return None

    def image(it: It) -> Index:
        if it not in narrow:
            return bare(it)
        low, high = narrow[it]
        return Index.iterator(it.slot, high - low) + low

    body = substitute(scope.body, image)

    def resized(it: It) -> It:
        low, high = narrow.get(it, (0, it.extent))
        return It(it.slot, high - low)

    traversal = traversal_iterators(scope)
    reduced = [resized(it) for it in reduction_iterators(scope)]
    if not any(it in narrow for it in traversal):
        return same_scope(scope, body, reduced)
    if any(it.extent == 1 and it in narrow for it in traversal):
        return None
    kept = [resized(it) for it in traversal]
    order = canonical_order(body, kept, reduced)
    inner = scope_over(order, reduced, body)
    origin = {it.slot: it for it in traversal}
    at = tuple(
        bare(origin[it.slot]) - narrow.get(origin[it.slot], (0, 0))[0] for it in order
    )
    return same_scope(scope, Read(inner, at), [])


def support(body: Scalar, it: It) -> tuple[int, int]:
    """The range of an iterator outside of which some factor of the product is zero."""
    low, high = 0, it.extent
    for factor in factors_of(body):
        if not isinstance(factor, Read) or factor.fill != 0:
            continue
        for index, size in zip(factor.index, factor.tensor.shape, strict=True):
            step = index.coefficient(it.slot)
            if step <= 0 or not index.is_affine:
                continue
            rest = index - Index.iterator(it.slot, it.extent) * step
            rest_low, rest_high = rest.range()
            # step*it + rest in [0, size) for some value of the rest.
            low = max(low, -(rest_high // step))
            high = min(high, (size - 1 - rest_low) // step + 1)
    return low, high


def traversal_order(scope: Scope) -> Scope | None:
    """``L_x f = {L_p(x) f}[p(x)]`` with p(x) the canonical order of the axes.

    So scopes that differ in the order of their axes only meet in one class.
    """
    traversal = traversal_iterators(scope)
    if len(traversal) < 2 or not scope.reduction:
        return None
    read = close(scope.body, set(traversal), scope.reducer, reduction_iterators(scope))
    if len(read.index) != len([it for it in traversal if it.extent != 1]):
        return None
    if tuple(index.bare() for index in read.index) == tuple(traversal):
        return None
    return same_scope(scope, read, []) if read.tensor.dtype == scope.dtype else None
