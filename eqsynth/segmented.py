"""Saturate a program segment by segment, equal segments once, and stitch their e-graphs together.

    12 equal layers  ->  12 segments, 1 e-graph saturated, 1 e-graph of the whole program

Segments are saturated from the last to the first: a segment may read only a part of an earlier
segment's result, and then only this part has to be computed (``egraph/segments.py``). With several
workers the earlier segments are begun before this is known; those of which only a part turns out to
be needed are saturated again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial

from eqsynth.certificates import Certified, certify
from eqsynth.egraph import remembered
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import ready, saturate_in_worker, unsaturated
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.egraph.segments import Segment, cut, demanded, stitch, with_part
from eqsynth.executor import Worker
from eqsynth.garbage import collecting_seldom
from eqsynth.ir.program import Program
from eqsynth.ir.tensor import topological
from eqsynth.progress import Progress
from eqsynth.rules import RuleSet
from eqsynth.serving import WorkerError
from eqsynth.settings import Settings
from eqsynth.tasks import LocalExecutor

# Seconds that a round of rules takes at least. With less time left no worker is started.
_ROUND_S = 0.02
# The most terms of a segment that is asked for the rows which ids pick. With this root Llama's
# attention (98 terms) has 18,475 e-nodes for 6,701 and takes 58 s for 20, beside the equal layer
# that is saturated without it.
MOST_PICKED = 64


@dataclass
class Saturation:
    """The segments of one program, and their e-graphs.

    Attributes:
        end: the monotonic clock after which further segments are left unsaturated.
        missed: called with all segments, before the first segment that isn't in the cache is
            saturated; returns how many may be saturated at a time.
        graphs: e-graphs by the keys of segments.
        remembered: number of segments whose e-graphs came from the cache.
        certified: the result of checking the certificates, if ``certify`` was set.
    """

    program: Program
    settings: Settings
    rules: RuleSet
    bar: Progress
    end: float
    missed: Callable[[Sequence[Segment]], int]
    segments: list[Segment] = field(default_factory=list)
    graphs: dict[bytes, EGraph] = field(default_factory=dict)
    remembered: int = 0
    certified: Certified | None = None
    _workers: LocalExecutor | None = None
    _begun: dict[bytes, Future[EGraph]] = field(default_factory=dict)
    _kept: set[bytes] = field(default_factory=set)
    _files: dict[bytes, str] = field(default_factory=dict)

    def run(self) -> EGraph:
        """Return the e-graph of the whole program.

        Raises:
            CertificateError: a certificate fails; ``certified`` lists all that do.
        """
        self.segments = cut(self.program)
        self.bar.total(len({segment.key for segment in self.segments}))
        for segment in self.segments:
            self._see_if_kept(segment)
        with ExitStack() as open_:
            open_.enter_context(collecting_seldom())
            for place in reversed(range(len(self.segments))):
                segment = self.segments[place]
                if segment.key not in self.graphs and not self._recalled(segment, place):
                    if self._workers is None and time.monotonic() + _ROUND_S < self.end:
                        workers = LocalExecutor(self.missed(self.segments))
                        self._workers = open_.enter_context(workers)
                        open_.callback(workers.end)  # nobody needs what is still saturated then
                    self.graphs[segment.key] = self._saturated(segment, place)
                    self.bar.advance()
                self._ask_for_parts(segment, place)
        if self.settings.certify:
            self._certify()
        graphs = [self.graphs[segment.key] for segment in self.segments]
        with collecting_seldom():
            return stitch(self.program, self.segments, graphs)

    def _certify(self) -> None:
        """Check the certificates of every segment, also of those from the cache."""
        logs = [graph.log for graph in self.graphs.values() if graph.log is not None]
        self.certified = sum((certify(log, self.rules) for log in logs), Certified())
        if self.certified.failures:
            raise self.certified.failures[0]

    @property
    def distinct(self) -> int:
        return len({segment.key for segment in self.segments})

    def _ask_for_parts(self, segment: Segment, place: int) -> None:
        """Replace each earlier segment by one that computes only a part of its result, if the
        segment at ``place`` needs no more."""
        parts = demanded(segment, self.graphs[segment.key])
        for before in range(place):
            made, *others = self.segments[before].outputs
            part = parts.get(made)
            if part is None or others:
                continue
            if part.name == "Slice" or _size(self.segments[before]) <= MOST_PICKED:
                self.segments[before] = with_part(self.segments[before], part)
                self._see_if_kept(self.segments[before])

    def _see_if_kept(self, segment: Segment) -> None:
        if remembered.is_kept(self._file_of(segment)):
            self._kept.add(segment.key)

    def _recalled(self, segment: Segment, place: int) -> bool:
        """Take a segment's e-graph from the cache; return False if it isn't there, or was begun
        here."""
        if segment.key in self._begun or not segment.roots:
            return False
        share_s = self._share_s(segment, place)
        known = remembered.load(self._file_of(segment), segment.roots, share_s)
        if known is None:
            return False
        self.graphs[segment.key] = known
        self.remembered += 1
        self.bar.advance()
        return True

    def _file_of(self, segment: Segment) -> str:
        """The name of a segment's file. It takes some 10 ms, since it is a digest of all rules."""
        if segment.key not in self._files:
            limits, logs = Limits(self.settings.enodes), self.settings.logs
            made = remembered.key_of(segment.roots, self.rules, DEFAULT_PHASES, limits, logs)
            self._files[segment.key] = made
        return self._files[segment.key]

    def _share_s(self, segment: Segment, place: int) -> float:
        """The seconds for the segment at ``place``: a share of those that are left, by its number
        of terms among those of the distinct segments up to ``place`` that have no e-graph yet; with
        two workers twice as many."""
        waiting = {s.key: s for s in self.segments[:place] if s.key not in self._kept}
        sizes = {k: _size(s) for k, s in waiting.items() if k not in self.graphs}
        sizes[segment.key] = _size(segment)
        share = sizes[segment.key] / sum(sizes.values())
        at_once = 1 if self._workers is None else self._workers.processes
        return (self.end - time.monotonic()) * min(1.0, at_once * share)

    def _saturated(self, segment: Segment, place: int) -> EGraph:
        """Saturate a segment, and begin earlier ones if more workers are free."""
        if not segment.roots:  # a module that returns no tensor, as ``return x.shape``
            return unsaturated((), "saturated")
        if _is_empty(segment):
            return unsaturated(segment.roots, "zero-size dimension")
        while segment.key not in self._begun or not self._begun[segment.key].done():
            self._begin(place)
            running = self._running()
            if not running:
                return unsaturated(segment.roots, "deadline")
            wait(running, return_when=FIRST_COMPLETED)
        return self._begun[segment.key].result()

    def _running(self) -> list[Future[EGraph]]:
        return [found for found in self._begun.values() if not found.done()]

    def _begin(self, last: int) -> None:
        """Begin segments up to ``last``, the last ones first, as long as workers are free."""
        for place in reversed(range(last + 1)):
            if self._workers is None or len(self._running()) >= self._workers.processes:
                return
            segment = self.segments[place]
            known = segment.key in self.graphs or segment.key in self._begun
            perhaps_kept = place < last and segment.key in self._kept
            if known or perhaps_kept or _is_empty(segment):
                continue
            # A rule that hangs has used up the time: no further segment tries it.
            if time.monotonic() < self.end:
                use = partial(self._saturated_by, segment, place, self._file_of(segment))
                memory_limit = self.settings.worker_bytes
                self._begun[segment.key] = self._workers.lend(use, memory_limit)

    def _saturated_by(self, segment: Segment, place: int, file: str, worker: Worker) -> EGraph:
        """Saturate a segment in its share of the time. This runs in a thread of the workers."""
        # A new worker takes 1 to 2 seconds to load beside other processes. All segments share this
        # loss: of 12 seconds the share of a small first segment can be less than 1.
        with suppress(WorkerError):  # if its memory doesn't suffice, the next task tells
            worker.run(ready, timeout_s=max(0.0, self.end - time.monotonic()))
        share_s = self._share_s(segment, place)
        if share_s <= 0:
            return unsaturated(segment.roots, "deadline")
        graph = saturate_in_worker(
            worker,
            segment.roots,
            self.rules,
            limits=Limits(self.settings.enodes, share_s),
            log_matches=self.settings.logs,
            grace_s=min(10.0, 0.25 * self.settings.time_limit_s + 0.5),
        )
        remembered.keep(file, graph, share_s)
        return graph


def _is_empty(segment: Segment) -> bool:
    """Whether the segment has no term, or a term of it has no elements."""
    return not segment.roots or any(0 in term.shape for term in topological(segment.roots))


def _size(segment: Segment) -> int:
    """The number of a segment's terms. The seconds of its saturation grow about as fast."""
    return sum(1 for _term in topological(segment.roots))
