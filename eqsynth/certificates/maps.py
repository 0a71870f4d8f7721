"""Equality of two tensors at their full sizes, without a value: by maps of their elements.

Both sides are written out, down to tensors that both are made of, as sums of products of these
tensors' elements (``elements.py``), and the sums are compared (``matching.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

from eqsynth.certificates.elements import Elements
from eqsynth.certificates.forms import NotClosed
from eqsynth.certificates.matching import are_equal
from eqsynth.ir.tensor import Op, Scope, Tensor, topological


def holds_by_maps(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors are seen to be equal, over the reals, whatever their inputs are."""
    if left.type != right.type or not left.type.size:
        return False
    for atoms in _atoms(left, right):
        elements = Elements(atoms)
        at = [elements.fresh(extent) for extent in left.shape]
        its = [it for index in at if (it := index.bare()) is not None]
        try:
            forms = elements.element(left, at), elements.element(right, at)
            if are_equal(elements, *forms, its):
                return True
        except NotClosed:
            continue
    return False


def _atoms(left: Tensor, right: Tensor) -> Iterator[frozenset[Tensor]]:
    """What both sides are made of; then what of it isn't a view or a map; then inputs alone."""
    shared = frozenset(topological([left])) & frozenset(topological([right]))
    yield shared
    heavy = frozenset(term for term in shared if _is_heavy(term))
    if heavy != shared:
        yield heavy
    if heavy:
        yield frozenset()


def _is_heavy(term: Tensor) -> bool:
    if isinstance(term, Scope):
        return bool(term.reduction)
    return not isinstance(term, Op) or term.row.kind not in ("view", "elementwise", "constant")
