"""The outline of a product: the product with all its constant indices set to 0.

    L_j sum_k x[3, k] W[k, j]   ->   L_j sum_k x[0, k] W[k, j]   and the places (3,)

Products with the same outline do the same computation on different parts of their tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Read, Scalar, factors_of, product
from eqsynth.ir.tensor import Scope

Places = tuple[int, ...]


@dataclass(frozen=True)
class Outline:
    """A product of reads and numbers with each place set to 0, and its factors sorted by digest.

    A place is an index without iterators, such as the 3 of ``x[3, k]``.
    """

    traversal: tuple[int, ...]
    reduction: tuple[int, ...]
    reducer: str
    factors: tuple[Scalar, ...]

    def body(self, places: Sequence[Index]) -> Scalar:
        """Return the product with these indices at its places."""
        left = iter(places)
        return product(
            [
                Read(f.tensor, tuple(i if i.terms else next(left) for i in f.index), f.fill)
                if isinstance(f, Read)
                else f
                for f in self.factors
            ]
        )


def outline(scope: Scope) -> tuple[Outline, Places]:
    """Return the outline of a product, and its places in the order of the outline's factors.

    The order of the factors in the scope doesn't matter, since a canonical form may have sorted
    them by their places.
    """
    parts = map(_at_zero, factors_of(scope.body))
    found = sorted(parts, key=lambda part: (part[0].digest, part[1]))
    factors = tuple(factor for factor, _ in found)
    places = tuple(place for _, own in found for place in own)
    return Outline(scope.traversal, scope.reduction, scope.reducer, factors), places


def _at_zero(factor: Scalar) -> tuple[Scalar, Places]:
    if not isinstance(factor, Read):
        return factor, ()
    index = tuple(i if i.terms else Index(0) for i in factor.index)
    return Read(factor.tensor, index, factor.fill), tuple(
        i.const for i in factor.index if not i.terms
    )
