"""Saturation control: phases, budgets with back-off, and limits.

A phase runs its rulesets in turn, one round at a time, until nothing changes. A rule over its
budget sits out a growing number of rounds. The limits on e-nodes and time are checked between
rounds; reaching one stops the run and is stated in the report, it isn't an error. A phase that
explores has a share of the deadline and a bound on the growth of the e-graph, since later phases
need time to turn the scopes that it found into operators.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from eqsynth.egraph.session import Session
from eqsynth.garbage import collecting_seldom


@dataclass(frozen=True)
class Phase:
    """Rulesets that run in turn until none changes anything, or ``rounds`` times.

    Attributes:
        budget: the most matches of one rule that one round unites.
        until: the share of the deadline at which the next phase begins.
        growth: the bound on the e-graph's growth: the next phase begins when the e-graph has this
            many times the e-nodes that it had before the first phase with a bound (counted as
            ``_SMALL`` if there were fewer).
    """

    name: str
    rulesets: tuple[str, ...]
    rounds: int
    budget: int = 1000
    until: float = 1.0
    growth: float = math.inf


@dataclass(frozen=True)
class Limits:
    """Bounds of one saturation.

    Attributes:
        deadline_s: seconds from the start.
    """

    enodes: int = 100_000
    deadline_s: float = 60.0


@dataclass
class SaturationReport:
    """The report of a run.

    Attributes:
        stop: why the run ended: ``saturated``, ``rounds``, ``growth`` (a phase reached its bound on
            growth), ``node_limit`` or ``deadline`` (a phase used up its share of the deadline).
        growth: phase -> e-nodes at its end.
    """

    stop: str = "saturated"
    seconds: float = 0.0
    rounds: dict[str, int] = field(default_factory=dict)
    over_budget: dict[str, int] = field(default_factory=dict)
    growth: dict[str, int] = field(default_factory=dict)


# The order: definitions, normal form, algebra of contractions, loop steps merged into one product,
# EinNet's derivations, operators. Each phase has its own bounds; later phases repeat the rulesets
# of earlier ones that new terms need.
DEFAULT_PHASES = (
    Phase("define", ("define", "simplify"), 8),
    Phase("normalize", ("define", "index", "scalar", "normal"), 24),
    Phase("part", ("part", "define", "index", "scalar", "normal"), 12, until=0.3),
    Phase(
        "contract", ("boundary", "part", "contract-explore", "index", "scalar", "normal"), 16,
        until=0.4, growth=5.0,
    ),
    Phase("stack", ("stack", "index", "scalar", "normal"), 4, until=0.5),
    Phase(
        "derive", ("boundary", "correlate-explore", "derive-explore", "index", "normal"), 10,
        until=0.75, growth=7.0,
    ),
    Phase("match", ("match", "simplify"), 8, until=0.95),
    Phase("merge", ("merge", "simplify"), 3),
)  # fmt: skip
# A program with fewer e-nodes counts as having this many.
_SMALL = 300

# Reasons why a phase ended before it was saturated; the report has the first that applies.
_STOPS = ("deadline", "node_limit", "growth", "rounds")

# Rulesets for proofs only, not for optimization. The other order of axes helps to recognize a given
# term, not to compute one. Splitting windows pays only where the library has no fast convolution;
# on a CPU it has one. Moving rearrangements through functions to the next product doesn't pay,
# since a segment ends before that product. Parts of one row are read through a reshape, which must
# be defined as a scope first. Fully expanded scopes make two equal programs meet, but are slow.
_UNBOUNDED = tuple(replace(phase, until=1.0, growth=math.inf) for phase in DEFAULT_PHASES)
_EXPANDED = (
    "expand-explore", "diagonal-explore", "define", "index", "scalar", "normal", "simplify",
)  # fmt: skip
PROVE_PHASES = (
    *_UNBOUNDED[:3],
    Phase("axes", ("axes-explore", "diagonal-explore", "normal"), 4),
    *_UNBOUNDED[3:5],
    Phase("windows", ("windows-explore", "define", "index", "normal"), 16),
    replace(_UNBOUNDED[5], rulesets=("carry-explore", *_UNBOUNDED[5].rulesets)),
    *_UNBOUNDED[6:],
    Phase("expand", _EXPANDED, 8),
    Phase("points", ("points-explore", *_EXPANDED), 8),
)


def saturate(
    session: Session,
    phases: Sequence[Phase] = DEFAULT_PHASES,
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    done: Callable[[Session], bool] = lambda _session: False,
) -> SaturationReport:
    """Run the phases; ``done`` is called after each round, and True ends the run."""
    with collecting_seldom():
        return _run(session, phases, limits, done)


def _run(
    session: Session, phases: Sequence[Phase], limits: Limits, done: Callable[[Session], bool]
) -> SaturationReport:
    report = SaturationReport()
    start = time.monotonic()
    session.engine.analyse()
    known = set(session.rules.rulesets)
    least: int | None = None
    cut: list[str] = []
    for phase in (*phases, *_own_phases(known, phases)):
        until_s, most = phase.until * limits.deadline_s, phase.until * limits.enodes
        session.requests.deadline = start + until_s
        if phase.growth < math.inf:
            least = least or max(session.engine.enodes(), _SMALL)
            most = min(most, phase.growth * least)
        rulesets = [name for name in phase.rulesets if name in known]
        for number in range(phase.rounds):
            changed = False
            for ruleset in rulesets:
                united, over = session.round(ruleset, phase.budget)
                changed |= united
                for rule in over:
                    report.over_budget[rule] = report.over_budget.get(rule, 0) + 1
                report.seconds = time.monotonic() - start
                report.growth[phase.name] = session.engine.enodes()
                if report.seconds > limits.deadline_s:
                    report.stop = "deadline"
                    return report
                if report.growth[phase.name] > limits.enodes:
                    report.stop = "node_limit"
                    return report
                if report.seconds > until_s:
                    break
            report.rounds[phase.name] = number + 1
            if done(session):
                return report
            if report.seconds > until_s:
                cut.append("deadline")
                break
            if report.growth.get(phase.name, 0) > most:
                cut.append("node_limit" if most == phase.until * limits.enodes else "growth")
                break
            if not changed:
                break
        else:
            cut.append("rounds")
    report.stop = min(cut, key=_STOPS.index, default=report.stop)
    return report


def _own_phases(known: set[str], phases: Sequence[Phase]) -> list[Phase]:
    """Return a phase for rulesets that no phase names, those of a user's rule files, together with
    the rulesets that define and lower their terms."""
    named = {name for phase in (*phases, *PROVE_PHASES) for name in phase.rulesets}
    own = sorted(name for name in known - named if not name.startswith("analysis"))
    if not own:
        return []
    rest = dict.fromkeys(name for phase in phases for name in phase.rulesets)
    return [Phase("own", (*own, *rest), 8)]
