"""Show that two tensors are equal at their full sizes without computing them.

    reshape(a @ b, (6, 4)) = reshape(a, (6, 5)) @ b     ->     True, for any a: (2, 3, 5), b: (5, 4)

An element of each side is written as a sum of products of elements of tensors that both sides share
(``elements.py``), and the two sums are compared (``matching.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

from eqsynth.certificates.elements import Elements
from eqsynth.certificates.forms import NotClosed
from eqsynth.certificates.matching import are_equal
from eqsynth.ir.tensor import Op, Scope, Tensor, topological


def holds_by_maps(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors are shown to be equal, over the reals and for all inputs. False says
    nothing: they may be equal for another reason."""
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
    """The sets of atoms to try: all subterms that both sides share; then those of them that are
    neither views nor elementwise; then none, so that both sides are unfolded to their inputs."""
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
