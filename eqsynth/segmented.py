"""Saturating a program: segment by segment, equal ones once, and the e-graphs stitched together.

From the last segment to the first: what a segment reads of the one before it says which part of
that one's result is wanted at all (``egraph/segments.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from eqsynth.certificates import Certified, certify
from eqsynth.egraph import remembered
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_in_worker, unsaturated
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits, collecting_seldom
from eqsynth.egraph.segments import Segment, cut, demanded, stitch, with_part
from eqsynth.executor import Worker, borrowed
from eqsynth.ir.program import Program
from eqsynth.ir.tensor import topological
from eqsynth.progress import Progress
from eqsynth.rules import RuleSet
from eqsynth.settings import Settings

# Seconds that a round of rules takes at least: with less time none is begun.
_ROUND_S = 0.02


@dataclass
class Saturation:
    """One program's segments on their way to one e-graph.

    Attributes:
        end: what the monotonic clock says when segments are left as they are.
        missed: called with the segments before the first that isn't remembered is saturated.
        graphs: by the keys of segments.
        remembered: segments that were saturated before, by any process.
        certified: what became of the certificates, where they were asked for.
    """

    program: Program
    settings: Settings
    rules: RuleSet
    bar: Progress
    end: float
    missed: Callable[[Sequence[Segment]], None]
    segments: list[Segment] = field(default_factory=list)
    graphs: dict[bytes, EGraph] = field(default_factory=dict)
    remembered: int = 0
    certified: Certified | None = None

    def run(self) -> EGraph:
        """The e-graph of the whole program.

        Raises:
            CertificateError: a certificate fails; ``certified`` has them all.
        """
        self.segments = cut(self.program)
        self.bar.total(len({segment.key for segment in self.segments}))
        with ExitStack() as open_:
            open_.enter_context(collecting_seldom())
            worker: Worker | None = None
            for place in reversed(range(len(self.segments))):
                segment = self.segments[place]
                if segment.key not in self.graphs and not self._recalled(segment):
                    if worker is None and time.monotonic() + _ROUND_S < self.end:
                        self.missed(self.segments)
                        lent = borrowed(memory_limit=self.settings.worker_bytes)
                        worker = open_.enter_context(lent)
                    self.graphs[segment.key] = self._saturated(worker, segment, place)
                    self.bar.advance()
                self._ask_for_parts(segment, place)
        if self.settings.certify:
            self._certify()
        graphs = [self.graphs[segment.key] for segment in self.segments]
        return stitch(self.program, self.segments, graphs)

    def _certify(self) -> None:
        """Checks the certificates of every segment, those of remembered ones too."""
        logs = [graph.log for graph in self.graphs.values() if graph.log is not None]
        self.certified = sum((certify(log, self.rules) for log in logs), Certified())
        if self.certified.failures:
            raise self.certified.failures[0]

    @property
    def distinct(self) -> int:
        return len({segment.key for segment in self.segments})

    def _ask_for_parts(self, segment: Segment, place: int) -> None:
        """Segments before a place of whose result the segment there wants a part only."""
        parts = demanded(segment, self.graphs[segment.key])
        for before in range(place):
            made, *others = self.segments[before].outputs
            part = parts.get(made)
            if part is not None and not others:
                self.segments[before] = with_part(self.segments[before], part)

    def _recalled(self, segment: Segment) -> bool:
        known = remembered.load(self._file_of(segment), segment.roots)
        if known is None:
            return False
        self.graphs[segment.key] = known
        self.remembered += 1
        self.bar.advance()
        return True

    def _file_of(self, segment: Segment) -> str:
        limits = Limits(self.settings.enodes)
        return remembered.key_of(
            segment.roots, self.rules, DEFAULT_PHASES, limits, self.settings.logs
        )

    def _saturated(self, worker: Worker | None, segment: Segment, place: int) -> EGraph:
        """In its share of the time that is left for the segments up to a place."""
        if any(0 in term.shape for root in segment.roots for term in topological([root])):
            return unsaturated(segment.roots, "zero-size dimension")
        missing = {s.key for s in self.segments[: place + 1]} - self.graphs.keys()
        left = (self.end - time.monotonic()) / len(missing)
        if worker is None or left <= 0:  # a rule that hangs must not do so in each segment
            return unsaturated(segment.roots, "deadline")
        graph = saturate_in_worker(
            worker,
            segment.roots,
            self.rules,
            limits=Limits(self.settings.enodes, left),
            log_matches=self.settings.logs,
            grace_s=min(10.0, 0.25 * self.settings.time_limit_s + 0.5),
        )
        remembered.keep(self._file_of(segment), graph)
        return graph
