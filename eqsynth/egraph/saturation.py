"""Saturation in a worker process: programs go in, saturated e-graphs come out.

IR without arrays goes in, plain data comes out. A worker that dies or is late costs the
optimization of its program, not the user's process: the caller gets an e-graph of the program as
it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from eqsynth.egraph.blame import blaming
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits, Phase, saturate
from eqsynth.egraph.segments import over
from eqsynth.egraph.session import Session
from eqsynth.errors import EqsynthError, RuleError, SaturationError
from eqsynth.executor import Worker, WorkerError
from eqsynth.ir.scalar import digest_of
from eqsynth.ir.tensor import ClassRef, Tensor, topological
from eqsynth.rules import RuleSet

# Time past the deadline that a worker may need to end a step and hand over.
_GRACE_S = 10.0


def saturate_terms(
    roots: Sequence[Tensor],
    rules: RuleSet,
    phases: Sequence[Phase],
    limits: Limits,
    log_matches: bool,
) -> EGraph:
    """The task of the worker: one session from terms to plain data."""
    with closing(Session(rules, log_matches)) as session, blaming(rules, session.matches):
        session.add(roots)
        report = saturate(session, phases, limits)
        return session.graph(roots, report.stop, report.seconds, report.over_budget)


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
    """Saturates ``roots``; without success their e-graph as they are, ``stop`` saying why.

    Args:
        grace_s: time past the deadline in which the worker has to hand over.

    Raises:
        SaturationError: a rule is unsound, or the engine failed on it.
        RuleError: a rule requests what doesn't exist.
    """
    try:
        return worker.run(
            saturate_terms,
            tuple(roots),
            rules,
            tuple(phases),
            limits,
            log_matches,
            timeout_s=limits.deadline_s + grace_s,
        )
    except WorkerError as error:
        return unsaturated(roots, stop=f"worker {error.reason}")
    except (SaturationError, RuleError):
        raise
    except EqsynthError as error:
        return unsaturated(roots, stop=error.what)
    except Exception as error:
        # Whatever it is, it is confined to the worker: it costs this program's optimization.
        return unsaturated(roots, stop=f"{type(error).__name__}: {str(error)[:200]}")


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
