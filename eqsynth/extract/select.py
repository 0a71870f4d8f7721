"""Extraction: one member of each needed class, with layouts, at the least cost of all together.

Choices are made one by one (``greedy.py``), and the original's operators as they are make another
plan. Slices of one tensor (merged products) are then tried together: no slice alone is worth the
whole. Constants cost nothing and come in any layout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.segments import over
from eqsynth.errors import ExtractionError
from eqsynth.extract.candidates import Candidate
from eqsynth.extract.greedy import Costs, Greedy, Worth
from eqsynth.extract.plan import Plan
from eqsynth.ir.tensor import ClassRef, Op, Scope, Tensor, args_of
from eqsynth.ir.work import flops


class Selection:
    """Greedy DAG extraction over the candidates of one e-graph; see the module.

    Attributes:
        until: what the monotonic clock says when :class:`OutOfTime` is raised. What takes less
            than a look at the clock ends in any case, and so does :meth:`plain`.
    """

    def __init__(
        self,
        graph: EGraph,
        found: Mapping[ClassRef, list[Candidate]],
        until: float = math.inf,
    ) -> None:
        self.graph, self.until, self._found = graph, until, found
        self._greedy = Greedy(graph)
        self._ways = {ref: self._greedy.ways(ref, options) for ref, options in found.items()}

    def best(self, costs: Costs, worth: Worth | None = None) -> Plan:
        """The plan of least cost that was found: never one that costs more than the original's,
        though greedy choices may miss what is shared.

        Raises:
            ExtractionError: a root has no member that any backend can run.
            OutOfTime: the deadline has passed.
        """
        plan = self.one_by_one(costs, worth)
        for whole, pieces in self._pieces(plan).items():
            together = self._together(whole, pieces, costs, worth)
            if together is not None and together.cost_s < plan.cost_s:
                plan = together
        if not self.graph.original:
            return plan
        try:
            plain = self._plain(costs, self.until, worth)
        except ExtractionError:
            return plan  # the original has an operator that no backend runs as it stands
        return plan if plan.cost_s <= plain.cost_s else plain

    def one_by_one(self, costs: Costs, worth: Worth | None = None) -> Plan:
        """The plan of greedy choices alone, in a fraction of the time.

        Args:
            worth: what is worth measuring, if the plan is one to be measured.

        Raises:
            ExtractionError: a root has no member that any backend can run.
            OutOfTime: the deadline has passed.
        """
        return self._greedy.plan(self._ways, self.graph.classes, costs, self.until, worth)

    def plain(self, costs: Costs) -> Plan:
        """The best plan of the original's operators as they are, whatever the clock says.

        Raises:
            ExtractionError: a root has no such member that any backend can run.
        """
        return self._plain(costs, math.inf, None)

    def _plain(self, costs: Costs, until: float, worth: Worth | None) -> Plan:
        original = self.graph.original
        ways = {
            ref: self._greedy.ways(ref, (c for c in options if c.member in original.get(ref, ())))
            for ref, options in self._found.items()
        }
        return self._greedy.plan(ways, original, costs, until, worth)

    def _pieces(self, plan: Plan) -> dict[ClassRef, list[ClassRef]]:
        """Classes that the plan doesn't compute -> several that it does and that are slices of it.

        Choices are made one by one, and no slice alone is worth the whole.
        """
        computed = dict.fromkeys(step.result[0] for step in plan.steps)
        known = {*computed, *(ref for ref, _ in plan.inputs.values())}
        pieces: dict[ClassRef, list[ClassRef]] = {}
        for ref in computed:
            for member in self.graph.classes[ref]:
                whole = _sliced(member)
                if whole is not None and whole not in known:
                    pieces.setdefault(whole, []).append(ref)
        return {whole: refs for whole, refs in pieces.items() if len(set(refs)) > 1}

    def _together(
        self, whole: ClassRef, pieces: Sequence[ClassRef], costs: Costs, worth: Worth | None
    ) -> Plan | None:
        """The plan in which the pieces are slices of the whole."""
        ways, members = dict(self._ways), dict(self.graph.classes)
        for ref in pieces:
            sliced = [c for c in self._found[ref] if _sliced(c.member) == whole]
            ways[ref] = self._greedy.ways(ref, sliced)
            members[ref] = tuple(m for m in members[ref] if _sliced(m) == whole)
        try:
            return self._greedy.plan(ways, members, costs, self.until, worth)
        except ExtractionError:
            return None


def _sliced(member: Tensor) -> ClassRef | None:
    """What a slice is a slice of."""
    whole = member.args[0] if isinstance(member, Op) and member.name == "Slice" else None
    return whole if isinstance(whole, ClassRef) else None


def constant_terms(graph: EGraph, wanted: Sequence[ClassRef]) -> dict[ClassRef, Tensor]:
    """A term over weights for each wanted constant class, of the least work."""
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
                # On a tie the operator as it was written: there is less to explain.
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
