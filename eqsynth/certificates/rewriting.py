"""Substitute iterators in a sum of products, and simplify its boxes and its iterators' ranges.

    sum_{k<7} a[k - 1], 0 <= k - 1 < 6   ->   sum_{p<6} a[p]        the box becomes the range of p

Two forms rewritten in this way are compared in ``matching.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from eqsynth.certificates.digits import simple
from eqsynth.certificates.elements import Elements
from eqsynth.certificates.forms import (
    Apply,
    At,
    Box,
    Factor,
    Fold,
    Form,
    NotClosed,
    Padded,
    Place,
    Product,
)
from eqsynth.ir.index import Index, It


def alone(it: It) -> Index:
    """The iterator as an index."""
    return Index.iterator(it.slot, it.extent)


class Rewriting:
    """Substitutes iterators in a form, and simplifies its boxes and the ranges of its iterators.

    Args:
        images: iterator -> the index that replaces it.
        apart: give each product and reduction iterators of its own. After a sum is multiplied out,
            its products share theirs.
    """

    def __init__(self, elements: Elements, images: Mapping[It, Index], apart: bool = False) -> None:
        self._elements, self._images, self._apart = elements, images, apart

    def within(self, bound: Sequence[It]) -> Rewriting:
        """The rewriting for the body of a product or reduction over ``bound``."""
        if not self._apart or not bound:
            return self
        own = {it: alone(self._elements.narrowed(it.extent)) for it in bound}
        return Rewriting(self._elements, {**self._images, **own}, True)

    def index(self, index: Index) -> Index:
        images = self._images
        return simple(index.substitute(
            lambda it: images.get(it, Index.iterator(it.slot, it.extent))
        ))  # fmt: skip

    def bound(self, its: Sequence[It]) -> tuple[It, ...]:
        """Replace each iterator that has an image by the iterators of the image."""
        found: list[It] = []
        for it in its:
            found += dict.fromkeys(self._images[it].iterators()) if it in self._images else [it]
        return tuple(found)

    def box(self, box: Box) -> Box | None:
        """The box without conditions that always hold; None if one never holds."""
        kept: list[tuple[Index, int]] = []
        for index, extent in box:
            image = self.index(index)
            low, high = image.range()
            if high < 0 or low >= extent:
                return None
            if (low < 0 or high >= extent) and (image, extent) not in kept:
                kept.append((image, extent))
        return tuple(kept)

    def _kept(self, box: Box) -> Box:
        """The box of a factor that has a value outside of it (``Padded``, ``Fold``).

        Raises:
            NotClosed: the box is empty.
        """
        kept = self.box(box)
        if kept is None:
            raise NotClosed
        return kept

    def form(self, form: Form) -> Form:
        return tuple(p for product in form if (p := self._product(product)) is not None)

    def _product(self, product: Product) -> Product | None:
        return self.within(product.bound)._own(product)

    def _own(self, product: Product) -> Product | None:
        box = self.box(product.box)
        if box is None:
            return None
        bound = self.bound(product.bound)
        factors = tuple(self._factor(factor) for factor in product.factors)
        made = Product(product.number, bound, box, factors)
        return self._narrowed(made)

    def _narrowed(self, product: Product) -> Product | None:
        """Restrict each iterator to the range that the box leaves, and remove iterators on which
        nothing depends: their extents become factors of the number. None if the box is empty."""
        for index, extent in product.box:
            match index.terms:
                case ((It() as it, 1 | -1 as c),) if it in product.bound:
                    # 0 <= c * it + const < extent
                    ends = sorted((-c * index.const, c * (extent - 1 - index.const)))
                    low, high = max(ends[0], 0), min(ends[1], it.extent - 1)
                    if (low, high) == (0, it.extent - 1) or high < low:
                        continue
                    new = self._elements.narrowed(high - low + 1)
                    images = {it: Index.iterator(new.slot, new.extent) + low}
                    return Rewriting(self._elements, images)._product(product)
        used = {it for index in _indices(product.factors) for it in index.iterators()}
        used |= {it for index, _ in product.box for it in index.iterators()}
        idle = [it for it in product.bound if it not in used]
        number = product.number
        for it in idle:
            number *= it.extent
        bound = tuple(it for it in product.bound if it in used)
        return replace(product, number=number, bound=bound)

    def _factor(self, factor: Factor) -> Factor:
        match factor:
            case At(tensor, index):
                return At(tensor, tuple(map(self.index, index)))
            case Place(index):
                return Place(self.index(index))
            case Apply(name, args):
                return Apply(name, tuple(map(self.form, args)))
            case Padded(box, fill, form):
                return Padded(self._kept(box), fill, self.form(form))
            case Fold(reducer, bound, box, form):
                inner = self.within(bound)
                return Fold(reducer, inner.bound(bound), inner._kept(box), inner.form(form))


def _indices(factors: Sequence[Factor]) -> Iterator[Index]:
    for factor in factors:
        match factor:
            case At(_, index):
                yield from index
            case Place(index):
                yield index
            case Apply(_, args):
                for form in args:
                    yield from all_indices(form)
            case Fold(_, _, box, form) | Padded(box, _, form):
                yield from (index for index, _ in box)
                yield from all_indices(form)


def all_indices(form: Form) -> Iterator[Index]:
    """The indices in a form: those of its boxes and of its factors."""
    for product in form:
        yield from (index for index, _ in product.box)
        yield from _indices(product.factors)
