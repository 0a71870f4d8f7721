"""Saturation in a worker process: programs go in, saturated e-graphs come out.

IR without arrays goes in, plain data comes out. A worker that dies or is late costs what it would
have found next, not the user's process and not what it had found: e-graphs are handed over on the
way.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from eqsynth.egraph.blame import blaming
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits, Phase, saturate
from eqsynth.egraph.session import Session
from eqsynth.errors import EqsynthError, RuleError, SaturationError
from eqsynth.executor import Latest, Worker
from eqsynth.garbage import collecting_seldom
from eqsynth.ir.scalar import digest_of
from eqsynth.ir.tensor import ClassRef, Tensor, Terms, over, topological
from eqsynth.rules import RuleSet
from eqsynth.serving import WorkerError, hand_over, is_worker

# Seconds between two e-graphs that are handed over, and how many times longer than handing one over
# takes that is at least.
_CHECKPOINT_S = 0.5
_CHECKPOINT_SHARE = 10.0
# Time past the deadline that a worker may need to end a step and hand over.
_GRACE_S = 10.0


def saturate_terms(
    roots: Sequence[Tensor],
    rules: RuleSet,
    phases: Sequence[Phase],
    limits: Limits,
    log_matches: bool,
) -> EGraph:
    """The task of the worker: one session from terms to plain data.

    In a worker the e-graph is handed over from time to time, before laws are asked: all that was
    united until then is in it and in its log.
    """
    # Until the session is gone: a collection before its end would read all of it.
    with (
        collecting_seldom(),
        closing(Session(rules, log_matches)) as session,
        blaming(rules, session.matches),
    ):
        session.add(roots)
        if is_worker():
            session.on_view = _Checkpoints(session, roots)
        report = saturate(session, phases, limits)
        graph = session.graph(roots, report.stop, report.seconds, report.over_budget)
        return replace(graph, growth=report.growth)


class _Checkpoints:
    """Hands the e-graph over, at once and then whenever it has grown older than it costs."""

    def __init__(self, session: Session, roots: Sequence[Tensor]) -> None:
        self._session, self._roots = session, roots
        self._begin = time.monotonic()
        self._next = self._begin

    def __call__(self) -> None:
        begin = time.monotonic()
        if begin < self._next:
            return
        try:
            graph = self._session.graph(self._roots, "deadline", begin - self._begin, {})
        except Exception:
            # A user's rule has made a term that means nothing: the search meets it next, and says
            # whose it is.
            pass
        else:
            hand_over(graph)
        end = time.monotonic()
        self._next = end + max(_CHECKPOINT_S, _CHECKPOINT_SHARE * (end - begin))


def saturate_sent(
    terms: Terms, rules: RuleSet, phases: Sequence[Phase], limits: Limits, log_matches: bool
) -> EGraph:
    """The task of a worker: ``saturate_terms`` of what was sent to it."""
    return saturate_terms(terms.roots, rules, phases, limits, log_matches)


def saturate_in_worker(
    worker: Worker,
    roots: Sequence[Tensor],
    rules: RuleSet,
    *,
    phases: Sequence[Phase] = DEFAULT_PHASES,
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    log_matches: bool = True,
    grace_s: float = _GRACE_S,
) -> EGraph:
    """Saturates ``roots``.

    If the worker ends before the search, the last e-graph that it handed over is the result, and
    before the first the program as it is; ``stop`` says why.

    Args:
        grace_s: time past the deadline in which the worker has to hand over.

    Raises:
        SaturationError: a rule is unsound, or the engine failed on it.
        RuleError: a rule requests what doesn't exist.
    """
    latest = Latest()
    try:
        return worker.run(
            saturate_sent,
            Terms(tuple(roots)),
            rules,
            tuple(phases),
            limits,
            log_matches,
            timeout_s=limits.deadline_s + grace_s,
            latest=latest,
        )
    except (SaturationError, RuleError):
        raise
    except WorkerError as error:
        stop = f"worker {error.reason}"
    except EqsynthError as error:
        stop = error.what
    except Exception as error:
        # Whatever it is, it is confined to the worker: it costs what comes after the last e-graph.
        stop = f"{type(error).__name__}: {str(error)[:200]}"
    found: EGraph | None = latest.value()
    return unsaturated(roots, stop) if found is None else replace(found, stop=stop)


def unsaturated(roots: Sequence[Tensor], stop: str) -> EGraph:
    """The e-graph that contains the terms and nothing else."""
    refs: dict[Tensor, ClassRef] = {}
    classes: dict[ClassRef, tuple[Tensor, ...]] = {}
    for term in topological(roots):
        digest = digest_of("class", len(refs), term.digest)
        ref = ClassRef(len(refs), term.type, term.constant, digest)
        refs[term] = ref
        classes[ref] = (over(term, refs),)
    found = tuple(refs[root] for root in roots)
    size = len(refs)
    return EGraph(classes, found, size, size, {}, stop, 0.0, None, original=classes)
