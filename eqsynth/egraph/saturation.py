"""Saturation in a worker process: terms without arrays go in, an ``EGraph`` comes out.

The worker hands over its e-graph from time to time. If it dies or is late, only the work since the
last handover is lost; the user's process isn't affected. Not here: phases and limits
(``schedule.py``).
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

# The least seconds between two handovers, and the least ratio of this time to the duration of one.
_CHECKPOINT_S = 0.5
_CHECKPOINT_SHARE = 10.0
# Seconds past the deadline that a worker may take to end its step and hand over.
_GRACE_S = 10.0


def saturate_terms(
    roots: Sequence[Tensor],
    rules: RuleSet,
    phases: Sequence[Phase],
    limits: Limits,
    log_matches: bool,
    begun: float | None = None,
) -> EGraph:
    """Saturate terms in one session and return the e-graph as plain data.

    In a worker the e-graph is also handed over from time to time, before laws are asked; it then
    contains all unions so far, as does its log.

    Args:
        begun: the monotonic clock at which the time of ``limits`` began; by default it begins when
            the session has been made.
    """
    begin = time.monotonic(), time.process_time()
    # No garbage collection until the session ends: it would visit all objects of the session.
    with (
        collecting_seldom(),
        closing(Session(rules, log_matches)) as session,
        blaming(rules, session.matches),
    ):
        session.add(roots)
        if is_worker():
            session.on_view = _Checkpoints(session, roots, begin)
        spent_s = 0.0 if begun is None else time.monotonic() - begun
        limits = replace(limits, deadline_s=limits.deadline_s - spent_s)
        report = saturate(session, phases, limits)
        graph = session.graph(roots, report.stop, report.seconds, report.over_budget)
        return replace(graph, growth=report.growth, busy=_busy(*begin))


def _busy(begin: float, cpu_begin: float) -> float:
    """The share of a processor that this process has had since two clocks were read."""
    spent_s = time.monotonic() - begin
    return min(1.0, (time.process_time() - cpu_begin) / spent_s) if spent_s else 1.0


class _Checkpoints:
    """Hands over the e-graph at the first call, then whenever the last handover is old enough
    compared with the time that a handover takes."""

    def __init__(
        self, session: Session, roots: Sequence[Tensor], clocks: tuple[float, float]
    ) -> None:
        self._session, self._roots, self._clocks = session, roots, clocks
        self._begin = time.monotonic()
        self._next = self._begin

    def __call__(self) -> None:
        begin = time.monotonic()
        if begin < self._next:
            return
        try:
            graph = self._session.graph(self._roots, "deadline", begin - self._begin, {})
        except Exception:
            # A user's rule has made a term without a meaning. The search will meet it next, and
            # raise an error that names the rule.
            pass
        else:
            hand_over(replace(graph, busy=_busy(*self._clocks)))
        end = time.monotonic()
        self._next = end + max(_CHECKPOINT_S, _CHECKPOINT_SHARE * (end - begin))


def saturate_sent(
    terms: Terms,
    rules: RuleSet,
    phases: Sequence[Phase],
    limits: Limits,
    log_matches: bool,
    begun: float,
) -> EGraph:
    """Saturate the terms that were sent to a worker (``saturate_terms``)."""
    return saturate_terms(terms.roots, rules, phases, limits, log_matches, begun)


def ready() -> None:
    """Do nothing. A worker has loaded this module when it has run this task."""


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
    """Saturate ``roots`` in a worker process.

    If the worker ends before the search does, the result is the last e-graph that it handed over,
    or, if there is none, the program unchanged; ``stop`` holds the reason. The time of ``limits``
    begins now, and includes loading in a worker that isn't :func:`ready`.

    Args:
        grace_s: seconds past the deadline in which the worker must hand over its result.

    Raises:
        SaturationError: a rule is unsound, or the engine failed on a rule.
        RuleError: a rule requests a law that doesn't exist.
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
            time.monotonic(),
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
        # Any other error stays in the worker; only the work after the last handover is lost.
        stop = f"{type(error).__name__}: {str(error)[:200]}"
    found: EGraph | None = latest.value()
    return unsaturated(roots, stop) if found is None else replace(found, stop=stop)


def unsaturated(roots: Sequence[Tensor], stop: str) -> EGraph:
    """Return the e-graph that contains the terms and nothing else."""
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
