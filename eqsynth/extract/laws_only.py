"""Members of e-classes that serve laws of products, and which no kernel computes.

    ones[i - j] * x[i, j]   ->  where(j <= i, x[i, j], 0)    what is hidden may be infinite
    {1 / s[i]} * x[i, j]    ->  x[i, j] / s[i]               1 / s is infinite for s below 2.9e-39

Another member of the same class is computed in their place: it is as much work, and right for more
data. Not here: which members have kernels at all (``candidates.py``).
"""

from __future__ import annotations

from eqsynth.egraph.graph import EGraph
from eqsynth.ir.scalar import Call, Prod, Read, composites, leaves
from eqsynth.ir.tensor import ClassRef, Op, Scope, Tensor, args_of


class LawsOnly:
    """Says which members of an e-graph serve laws only."""

    def __init__(self, graph: EGraph) -> None:
        self._graph = graph
        self._reciprocals = {
            ref
            for ref, members in graph.classes.items()
            if not ref.constant and any(map(_is_reciprocal, members))
        }

    def serves(self, ref: ClassRef, member: Tensor) -> bool:
        """Whether a member of the class ``ref`` isn't computed, because another member is."""
        return _hides_by_product(self._graph, ref, member) or self._multiplies(ref, member)

    def _multiplies(self, ref: ClassRef, member: Tensor) -> bool:
        """Whether a scope multiplies by the reciprocal of a tensor, and another member divides and
        does without reciprocals. (``x * {1 / s} / 3`` is no reason not to compute itself.)"""
        if not self._reciprocals or not isinstance(member, Scope) or not self._reads(member):
            return False
        others = self._graph.classes[ref]
        return any(_divides(other) and not self._reads(other) for other in others)

    def _reads(self, member: Tensor) -> bool:
        """Whether a member reads a reciprocal."""
        return not self._reciprocals.isdisjoint(args_of(member))


def _is_reciprocal(member: Tensor) -> bool:
    return (
        isinstance(member, Scope)
        and isinstance(member.body, Call)
        and member.body.fn == "reciprocal"
    )


def _divides(member: Tensor) -> bool:
    """Whether a member divides by a tensor that isn't constant."""
    if isinstance(member, Op):
        return member.name == "Div" and not member.args[1].constant
    return isinstance(member, Scope) and any(
        isinstance(part, Call)
        and part.fn == "div"
        and not all(leaf.tensor.constant for leaf in leaves(part.args[1]) if isinstance(leaf, Read))
        for part in composites(member.body)
    )


def _hides_by_product(graph: EGraph, ref: ClassRef, member: Tensor) -> bool:
    """Whether a map multiplies by a condition where another member of its class chooses by one.

    ``ones[i - j] * x[i, j]`` serves laws of products. ``where(j <= i, x[i, j], 0)`` is computed in
    its place: it is as much work, and also hides elements that are infinite at run time."""
    if not isinstance(member, Scope) or member.reduction or _chooses(member):
        return False
    found = [leaf for leaf in leaves(member.body) if isinstance(leaf, Read)]
    multiplies = len(found) > 1 and any(_is_condition(graph, read) for read in found)
    return multiplies and any(map(_chooses, graph.classes[ref]))


def _chooses(member: Tensor) -> bool:
    if isinstance(member, Scope):
        parts = composites(member.body)
        return any(isinstance(part, Call) and part.fn == "where" for part in parts)
    return isinstance(member, Op) and member.name == "Where"


def _is_condition(graph: EGraph, read: Read) -> bool:
    """Whether the read is of ones with zeros around them, or of a constant made of such a read."""
    members = graph.classes.get(read.tensor, ()) if isinstance(read.tensor, ClassRef) else ()
    if any(isinstance(one, Op) and one.name == "Full" and one.attrs[1] == 1.0 for one in members):
        return not read.in_range() and read.fill == 0
    return read.tensor.constant and any(
        _is_condition(graph, leaf)
        for one in members
        if isinstance(one, Scope) and isinstance(one.body, Read | Prod)
        for leaf in leaves(one.body)
        if isinstance(leaf, Read) and leaf.tensor != read.tensor and not leaf.in_range()
    )
