"""The same sum: two scopes are equal if they are sums of the same products.

    L_x {sum_k a b}[x] + {sum_k a c}[x]   =  L_x sum_k a * {b + c}
    L_x sum_y a * {b + c}[p]              =  L_x {L_x' sum_y a * b}[x - lo] + {L_x'' sum_y a * c}[x]
    L_x {sum_y f(0, y)}[x] + {sum_y f(1, y)}[x]  =  L_x sum_{t,y} f(t, y)

A scope is opened into its products: what is read is written out where ``inline`` does, a sum is
taken term by term, and each product on the smallest box outside of which it is zero. Products are
compared in canonical form, their numbers added up. What can't be opened is a factor as it stands.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from eqsynth.calculus import checking
from eqsynth.calculus.conditions import is_finite, is_product, keeps_one_dtype, support
from eqsynth.calculus.define import MAX_OPENED, meaning, with_numbers
from eqsynth.calculus.inline import Inline, inline
from eqsynth.calculus.rearrange import Terms, agree
from eqsynth.calculus.scopes import (
    bare,
    reduction_iterators,
    same_scope,
    scope_over,
    traversal_iterators,
)
from eqsynth.errors import LawError
from eqsynth.ir.index import Index, It
from eqsynth.ir.indices import least_form, substituted
from eqsynth.ir.scalar import (
    Num,
    Read,
    Scalar,
    factors_of,
    leaves,
    product,
    reads,
    rewrite_leaves,
    terms_of,
)
from eqsynth.ir.tensor import Scope, Tensor
from eqsynth.ir.types import is_float

_require = partial(checking.require, law="same")

@dataclass(frozen=True)
class Same:
    """A sum of the same products.

    Attributes:
        other: the scope.
        meanings: what tensors are that one of the two reads (hypotheses).
        apart: iterators of the other's reduction that are taken value by value.
    """

    other: Scope
    meanings: tuple[tuple[Tensor, Scope], ...] = ()
    apart: tuple[It, ...] = ()


_Products = dict[tuple[Scope, tuple[int, ...]], tuple[float, float]]
"""Products on their boxes, and where each box begins: their numbers; beside each what its parts sum
up to in absolute value."""


def same(scope: Scope, given: Same) -> Scope:
    """``L_x R_y f = L_x R_z g``, sums of the same products.

    Raises:
        LawError: ``dtype``: they aren't floats of one type, of an element or more; ``iterators``:
            what is taken apart isn't summed over; ``large``: there are too many products, or no
            end; ``products``: they differ; ``finite``: they agree only where all is finite, which
            may not be so.
    """
    other, its = given.other, list(given.apart)
    fits = other.type == scope.type and is_float(scope.dtype)
    _require(fits and 0 not in (*scope.extents, *other.extents), condition="dtype",
             what="no floats of one type")  # fmt: skip
    fits = other.reducer == "sum" and set(its) <= set(reduction_iterators(other))
    _require(fits or not its, condition="iterators", what="what is taken apart isn't summed over")
    mine, others = (_Opening(dict(given.meanings)) for _ in range(2))
    mine.add(scope)
    count = math.prod(it.extent for it in its)
    _require(count <= MAX_OPENED, condition="large", what="too many products")
    for values in itertools.product(*(range(it.extent) for it in its)):
        at = dict(zip(its, map(Index, values), strict=True))
        rest = [it for it in reduction_iterators(other) if it not in at]
        others.add(same_scope(other, substituted(other.body, at), rest))
    _require(agree(mine.found, others.found), condition="products", what="other products")
    for (found, _), (number, size) in (*mine.found.items(), *others.found.items()):
        _require(abs(number) == size or all(map(is_finite, leaves(found.body))),
                 condition="finite", what="inf - inf is no number")  # fmt: skip
    return other


class _Opening:
    """The products of scopes.

    Attributes:
        found: the products.
    """

    def __init__(self, meanings: Mapping[Tensor, Scope]) -> None:
        self._meanings, self._opened = meanings, 0
        self.found: _Products = {}

    def add(self, scope: Scope, number: float = 1.0, start: tuple[int, ...] = ()) -> None:
        """Adds the products of so many times a scope on a box."""
        self._opened += 1
        _require(self._opened <= MAX_OPENED, condition="large", what="too many products")
        start = start or (0,) * len(scope.traversal)
        for factors, (one, _) in _terms(scope, deep=False).items():
            # An iterator that is idle here makes a number.
            part = same_scope(scope, product(factors), reduction_iterators(scope))
            narrow = _narrowed(part, start)
            if narrow is not None and not self._open(*narrow, number * one):
                self._multiply_out(*narrow, number * one)

    def _multiply_out(self, scope: Scope, start: tuple[int, ...], number: float) -> None:
        """Adds the products of a scope in which nothing can be written out."""
        terms = _terms(scope, deep=True)
        if terms == _terms(scope, deep=False):
            self._count(scope, start, number)
            return
        for factors, (one, _) in terms.items():
            part = same_scope(scope, product(factors), reduction_iterators(scope))
            self.add(part, number * one, start)

    def _count(self, scope: Scope, start: tuple[int, ...], number: float) -> None:
        if scope.reducer == "sum":
            numbers = [f.value for f in factors_of(scope.body) if isinstance(f, Num)]
            others = [f for f in factors_of(scope.body) if not isinstance(f, Num)]
            number *= math.prod(numbers)
            scope = same_scope(scope, product(others), reduction_iterators(scope))
        if number:
            before = self.found.get((scope, start), (0.0, 0.0))
            self.found[scope, start] = before[0] + number, before[1] + abs(number)

    def _open(self, scope: Scope, start: tuple[int, ...], number: float) -> bool:
        """Adds the products of a scope with one of its reads written out, if one can be."""
        for read in dict.fromkeys(reads(scope.body)):
            inner = self._meanings.get(read.tensor) or meaning(read.tensor, {})
            for inners in _ways(scope, read, inner) if inner else ():
                with suppress(LawError):
                    for part in [_written_out(scope, read, inner) for inner in inners]:
                        self.add(part, number, start)
                    return True
        return False


def _terms(
    scope: Scope, deep: bool
) -> Mapping[tuple[Scalar, ...], tuple[float, float]]:
    """The terms of a sum of products; ``deep``: multiplied out, if all in them is finite."""
    if scope.reducer != "sum" or not keeps_one_dtype(scope.body, scope.dtype):
        return {(scope.body,): (1.0, 1.0)}
    terms = Terms(scope.dtype, deep)
    found = terms.of(scope.body)
    return found if terms.finite or not deep else _terms(scope, deep=False)


def _ways(scope: Scope, read: Read, inner: Scope) -> Iterator[list[Scope]]:
    """The scope that is read; or the terms of a sum that is a factor, each by itself: it may be
    zero outside where the sum isn't known to be."""
    yield [inner]
    terms = terms_of(inner.body)
    apart = not inner.reduction and len(terms) > 1 and read.fill == 0
    factor = is_product(scope) and factors_of(scope.body).count(read) == 1
    if apart and factor and all(is_finite(leaf) for leaf in leaves(inner.body)):
        yield [Scope(inner.traversal, (), term) for term in terms]


def _written_out(scope: Scope, read: Read, inner: Scope) -> Scope:
    """The scope with a part of what is read in its place, or all of it."""
    part = Read(inner, read.index, read.fill)
    body = rewrite_leaves(scope.body, lambda leaf: part if leaf == read else leaf)
    return inline(same_scope(scope, body, reduction_iterators(scope)), Inline(part, inner))


def _narrowed(scope: Scope, start: tuple[int, ...]) -> tuple[Scope, tuple[int, ...]] | None:
    """A product on the smallest box outside of which it is zero, and where that begins; None of one
    that is zero everywhere. An iterator of one value only is that: ``sum_k x[k] d[k - i] = x[i]``,
    d of one element."""
    while True:
        scope = least_form(with_numbers(scope))
        its = [*traversal_iterators(scope), *reduction_iterators(scope)]
        if not is_product(scope):
            return scope, start
        tight = {it: found for it in its if (found := support(scope.body, it)) != (0, it.extent)}
        if any(low >= high for low, high in tight.values()):
            return None
        at = {it: Index.iterator(it.slot, high - low) + low for it, (low, high) in tight.items()}
        at = at or dict([*_selected(scope)][:1])
        if not at:
            return scope, start
        begin = (tight.get(it, (0, 0))[0] for it in its)
        start = tuple(old + low for old, low in zip(start, begin, strict=False))
        new = [It(it.slot, tight[it][1] - tight[it][0]) if it in tight else it for it in its]
        width = len(scope.traversal)
        reduced = [it for it in new[width:] if tight or it not in at]
        scope = scope_over(new[:width], reduced, substituted(scope.body, at))


def _selected(scope: Scope) -> Iterator[tuple[It, Index]]:
    """Iterators of the reduction that a factor of the product pins to one value each, which they
    always have: by an axis of one element, outside of which it is zero."""
    for factor in factors_of(scope.body):
        for index, size in (
            zip(factor.index, factor.tensor.shape, strict=True)
            if isinstance(factor, Read) and factor.fill == 0 else ()
        ):  # fmt: skip
            for it in reduction_iterators(scope) if size == 1 and index.is_affine else ():
                step = index.coefficient(it.slot)
                value = (bare(it) * step - index) * step
                low, high = value.range()
                if abs(step) == 1 and 0 <= low and high < it.extent:
                    yield it, value
