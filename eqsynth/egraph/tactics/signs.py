"""Proposals for the law of signs: what shows that a tensor is never negative.

    relu({sum_k x[i, k] * x[i, k]}[i])  ->  {sum_k x[i, k] * x[i, k]}[i]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from eqsynth.calculus.sign import CLIPS, Unclip, never_negative
from eqsynth.egraph.tactics.paths import Path, path
from eqsynth.egraph.tactics.requests import Later, number_of, underived
from eqsynth.egraph.view import View
from eqsynth.ir.scalar import Call, Scalar, composites, reads
from eqsynth.ir.tensor import ClassRef, Scope, Tensor

# A scope that reads scopes that read scopes: to this depth, and so many members of each e-class.
_DEPTH: Final = 4
_MEMBERS: Final = 8


def unclip(view: View, row: Sequence[Any]) -> Iterable[Path]:
    """The request's scope without a ReLU or an absolute value of what is never negative."""
    scope = underived(view, row)
    for part in composites(scope.body):
        if isinstance(part, Call) and part.fn in CLIPS:
            known = _evidence(view, part.args[0], (), _DEPTH)
            found = path(scope, Unclip(part, tuple(known.items())))
            if found is not None:
                return [found]
    raise Later


def _evidence(
    view: View, body: Scalar, above: Collection[Tensor], depth: int
) -> dict[Tensor, Scope | float]:
    """For each tensor that the body reads, if possible, a number or a scope that is never negative,
    and what shows this of the tensors that the scope reads."""
    found: dict[Tensor, Scope | float] = {}
    for tensor in dict.fromkeys(read.tensor for read in reads(body)) if depth else ():
        assert isinstance(tensor, ClassRef)
        if (number := number_of(view, tensor)) is not None:
            found[tensor] = number
        for inner in view.scopes(tensor)[:_MEMBERS] if tensor not in (*above, *found) else ():
            below = _evidence(view, inner.body, (*above, tensor), depth - 1)
            if never_negative(inner.body, below):
                found |= {**below, tensor: inner}
                break
    return found
