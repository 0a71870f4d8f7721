"""Terms over weights for constant classes, which are computed once when a program is built.

    Reshape(W) * s, both weights    ->    one tensor, computed once

Not here: which arguments of a plan's steps are constant (``select.py``), the values of the terms
(``lower/``).
"""

from __future__ import annotations

from collections.abc import Sequence

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import ExtractionError
from eqsynth.ir.tensor import ClassRef, Scope, Tensor, args_of, over
from eqsynth.ir.work import flops


def constant_terms(graph: EGraph, wanted: Sequence[ClassRef]) -> dict[ClassRef, Tensor]:
    """Return for each wanted class the term over weights that takes the least work.

    Raises:
        ExtractionError: a class has no such term.
    """
    best: dict[ClassRef, tuple[float, Tensor]] = {}
    changed = True
    while changed:
        changed = False
        for ref, members in graph.classes.items():
            if not ref.constant:
                continue
            for member in members:
                args = [a for a in args_of(member) if isinstance(a, ClassRef)]
                if any(arg not in best for arg in args):
                    continue
                # On a tie an operator is preferred to a scope: an explanation then has fewer steps.
                own = flops(member) + (2 if isinstance(member, Scope) else 1)
                cost = sum(best[arg][0] for arg in args) + own
                if ref not in best or cost < best[ref][0] * (1 - 1e-12):
                    best[ref] = (cost, over(member, {arg: best[arg][1] for arg in args}))
                    changed = True
    missing = [ref for ref in wanted if ref not in best]
    if missing:
        raise ExtractionError(
            what="a constant has no term over weights",
            where=str(missing[0].type),
            got="only members that contain the class itself",
            hint="this is a fault in a rule; please report it",
        )
    return {ref: best[ref][1] for ref in wanted}
