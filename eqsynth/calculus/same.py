"""Same: two scopes are equal if they are sums of the same products.

    L_x {sum_k a b}[x] + {sum_k a c}[x]   =  L_x sum_k a * {b + c}
    L_x sum_y a * {b + c}[p]              =  L_x {L_x' sum_y a * b}[x - lo] + {L_x'' sum_y a * c}[x]
    L_x {sum_y f(0, y)}[x] + {sum_y f(1, y)}[x]  =  L_x sum_{t,y} f(t, y)

Each scope is opened into products: reads of scopes are inlined where ``inline`` allows it, sums are
split into their terms, and each product is narrowed to the smallest box outside of which it is
zero. The products are compared in canonical form. A read that can't be inlined stays a factor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from eqsynth.calculus import checking
from eqsynth.calculus.conditions import (
    is_finite,
    is_product,
    keeps_one_dtype,
    neutral_outside,
    support,
)
from eqsynth.calculus.define import MAX_OPENED, meaning, with_numbers
from eqsynth.calculus.inline import Inline, inline
from eqsynth.calculus.rearrange import ONE, ZERO, Polynomial, Terms, agree
from eqsynth.errors import LawError
from eqsynth.ir.index import Index, It
from eqsynth.ir.indices import least_form, substituted
from eqsynth.ir.scalar import (
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    Value,
    composites,
    factors_of,
    leaves,
    product,
    reads,
    rewrite_leaves,
    terms_of,
)
from eqsynth.ir.scopes import (
    bare,
    reduction_iterators,
    same_scope,
    scope_over,
    traversal_iterators,
)
from eqsynth.ir.tensor import Scope, Tensor

_require = partial(checking.require, law="same")


@dataclass(frozen=True)
class Same:
    """The scope that is a sum of the same products.

    Attributes:
        other: the equal scope.
        meanings: scopes that tensors read by one of the two equal (hypotheses).
        apart: reduction iterators of ``other``, each with the values at which to split its range:
            ``(k, (2,))`` splits k < 5 into k < 2 and 2 <= k < 5."""

    other: Scope
    meanings: tuple[tuple[Tensor, Scope], ...] = ()
    apart: tuple[tuple[It, tuple[int, ...]], ...] = ()


_Box = tuple[float | None, tuple[int, ...]]
"""The value outside of a box (None: the box is the whole traversal), and the box's first place."""
_Products = dict[tuple[Scope, _Box], tuple[Fraction, Fraction]]
"""(product, box) -> coefficient, and the absolute sum of the numbers added up to it."""


def same(scope: Scope, given: Same) -> Scope:
    """``L_x R_y f = L_x R_z g``, sums of the same products.

    Raises:
        LawError: ``type``: the scopes, or a tensor and its meaning, have different types, or the
            scopes have no elements; ``iterators``: an iterator of ``apart`` isn't summed over;
            ``large``: too many products (perhaps without end); ``products``: the products differ;
            ``finite``: they agree only if all factors are finite, which isn't known.
    """
    other = given.other
    fits = other.type == scope.type and 0 not in (*scope.extents, *other.extents)
    fits = fits and all(tensor.type == inner.type for tensor, inner in given.meanings)
    _require(fits, condition="type", what="no scopes of one type")
    ends = {it: (0, *cuts, it.extent) for it, cuts in given.apart}
    fits = other.reducer == "sum" and ends.keys() <= set(reduction_iterators(other))
    fits = fits and all(low < high for at in ends.values() for low, high in itertools.pairwise(at))
    _require(fits or not ends, condition="iterators", what="what is cut isn't summed over")
    mine, others = (_Opening(dict(given.meanings)) for _ in range(2))
    mine.add(scope)
    for parts in itertools.product(*map(itertools.pairwise, ends.values())):
        at = {k: Index.iterator(k.slot, b - a) + a for k, (a, b) in zip(ends, parts, strict=True)}
        rest = [n for it in reduction_iterators(other) for n in at.get(it, bare(it)).iterators()]
        others.add(same_scope(other, substituted(other.body, at), rest))
    equal = agree(mine.found, others.found, scope.dtype)
    _require(equal, condition="products", what="other products")
    for (found, _), (number, size) in (*mine.found.items(), *others.found.items()):
        _keeps(number, size, factors_of(found.body))
    return other


class _Opening:
    """Collects in ``found`` the products that scopes are sums of."""

    def __init__(self, meanings: Mapping[Tensor, Scope]) -> None:
        self._meanings, self._opened = meanings, 0
        self.found: _Products = {}

    def add(self, scope: Scope, number: Fraction = ONE[0], box: _Box | None = None) -> None:
        """Add the products of ``number`` times ``scope``, placed on ``box``."""
        self._opened += 1
        _require(self._opened <= MAX_OPENED, condition="large", what="too many products")
        box = box or (None, (0,) * len(scope.traversal))
        for factors, (one, _) in _terms(scope, deep=False).items():
            # `same_scope` replaces an iterator that this term doesn't use by its extent, a number.
            part = same_scope(scope, product(factors), reduction_iterators(scope))
            narrow = _narrowed(part, box)
            if narrow is not None and not self._open(*narrow, number * one):
                self._multiply_out(*narrow, number * one)

    def _multiply_out(self, scope: Scope, box: _Box, number: Fraction) -> None:
        """Add the products of a scope in which no read can be inlined."""
        terms = _terms(scope, deep=True)
        if terms == _terms(scope, deep=False):
            self._count(scope, box, number)
            return
        for factors, (one, _) in terms.items():
            part = same_scope(scope, product(factors), reduction_iterators(scope))
            self.add(part, number * one, box)

    def _count(self, scope: Scope, box: _Box, number: Fraction) -> None:
        if scope.reducer == "sum" and _is_ring(scope):
            numbers = [f for f in factors_of(scope.body) if isinstance(f, Num)]
            others = [f for f in factors_of(scope.body) if f not in numbers]
            number *= math.prod(Fraction(f.value) for f in numbers)
            _keeps(number, abs(number), others)
            scope = same_scope(scope, product(others), reduction_iterators(scope))
        if number:
            before = self.found.get((scope, box), ZERO)
            self.found[scope, box] = before[0] + number, before[1] + abs(number)

    def _open(self, scope: Scope, box: _Box, number: Fraction) -> bool:
        """Inline one read and add the products of the result; False if no read can be inlined."""
        for read in dict.fromkeys(reads(scope.body)):
            inner = self._meanings.get(read.tensor) or meaning(read.tensor, {})
            for inners in _ways(scope, read, inner) if inner else ():
                try:
                    parts = [_written_out(scope, read, inner) for inner in inners]
                except LawError:
                    continue
                for part in parts:
                    self.add(part, number, box)
                return True
        return False


def _terms(scope: Scope, deep: bool) -> Polynomial:
    """The terms of a summed body; with ``deep`` multiplied out, if all factors are finite."""
    if scope.reducer != "sum" or not _is_ring(scope):
        return {(scope.body,): ONE}
    terms = Terms(scope.dtype, deep)
    found = terms.of(scope.body)
    for factors, (number, size) in found.items():
        _keeps(number, size, factors)
    return found if terms.finite or not deep else _terms(scope, deep=False)


def _is_ring(scope: Scope) -> bool:
    """Whether the body is computed in one dtype, which isn't bool. Beside floats, a product of
    uint8 can't be multiplied out: it is a number modulo 256."""
    return scope.dtype != "bool" and keeps_one_dtype(scope.body, scope.dtype)


def _keeps(number: Fraction, size: Fraction, factors: Iterable[Scalar]) -> None:
    """Check that the product's coefficients may be added: ``0 * inf`` and ``inf - inf`` are NaN."""
    body = product([*factors])
    plain = all(isinstance(part, Sum | Prod) for part in composites(body))
    plain = plain and all(isinstance(leaf, Value) or is_finite(leaf) for leaf in leaves(body))
    _require(abs(number) == size > 0 or plain, condition="finite", what="an infinity 0 times")


def _ways(scope: Scope, read: Read, inner: Scope) -> Iterator[list[Scope]]:
    """Ways to inline a read: the whole scope that is read; or each term of its sum by itself, since
    a term may be known to be zero outside of its traversal where the sum isn't."""
    yield [inner]
    terms = terms_of(inner.body)
    # One term by itself is the whole scope, which has been tried.
    apart = not inner.reduction and len(terms) > 1 and read.fill == 0
    factor = is_product(scope) and factors_of(scope.body).count(read) == 1
    if apart and factor and _is_ring(scope) and _is_ring(inner):
        yield [Scope(inner.traversal, (), term) for term in terms]


def _written_out(scope: Scope, read: Read, inner: Scope) -> Scope:
    """Return the scope with ``inner``, the scope that is read or one term of it, inlined."""
    if isinstance(inner.body, Read) and inner.body.in_range():  # the fill of the body is never read
        inner = replace(inner, body=replace(inner.body, fill=read.fill))
    part = Read(inner, read.index, read.fill)
    # No canonical form here: it could change the order of two like iterators, and so the read.
    body = rewrite_leaves(scope.body, lambda leaf: part if leaf == read else leaf)
    return inline(replace(scope, body=body), Inline(part, inner))


def _narrowed(scope: Scope, box: _Box) -> tuple[Scope, _Box] | None:
    """Return the scope on the smallest box outside of which it is neutral, and the box; None if the
    scope is zero everywhere. A reduction iterator with one value that isn't zero is replaced by the
    value: ``sum_k x[k] d[k - i] = x[i]``, for d of one element."""
    while True:
        scope = least_form(with_numbers(scope))
        its = [*traversal_iterators(scope), *reduction_iterators(scope)]
        outside, width = neutral_outside(scope), len(scope.traversal)
        if outside is None:
            return scope, box
        spans = {it: support(scope.body, it, outside) for it in its
                 if it.slot >= width or box[0] in (None, outside)}  # fmt: skip
        if any(low >= high for low, high in spans.values()):
            return None if is_product(scope) else (scope, box)
        tight = {it: span for it, span in spans.items() if span != (0, it.extent)}
        at = {it: Index.iterator(it.slot, high - low) + low for it, (low, high) in tight.items()}
        at = at or dict([*_selected(scope)][:1])
        if not at:
            return scope, box
        new = [It(it.slot, tight[it][1] - tight[it][0]) if it in tight else it for it in its]
        reduced = [it for it in new[width:] if it not in at]
        if new[:width] != its[:width]:
            begin = (tight.get(it, (0, 0))[0] for it in its)
            box = outside, tuple(old + low for old, low in zip(box[1], begin, strict=False))
        scope = scope_over(new[:width], reduced, substituted(scope.body, at), scope.reducer)


def _selected(scope: Scope) -> Iterator[tuple[It, Index]]:
    """Reduction iterators for which some factor is zero at all values but one, and that value: the
    factor has an axis of one element, indexed by ``±k + rest``."""
    for factor in factors_of(scope.body) if is_product(scope) else ():
        for index, size in (
            zip(factor.index, factor.tensor.shape, strict=True)
            if isinstance(factor, Read) and factor.fill == 0 else ()
        ):  # fmt: skip
            for it in reduction_iterators(scope) if size == 1 and index.is_affine else ():
                step = index.coefficient(it.slot)
                value = (bare(it) * step - index) * step
                low, high = value.range()
                # Of another step, no value fits once the range of `it` is its support.
                if abs(step) == 1 and 0 <= low and high < it.extent:
                    yield it, value
