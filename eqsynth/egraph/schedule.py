"""Saturation control: phases as data, budgets and back-off, limits that end in a result.

A phase runs its rulesets in turn, a round at a time. A rule that is over its budget is left out
with its pending matches for a growing number of rounds. Node limit and deadline are looked at
between rounds: reaching one stops the run and is told in the report; it is no error.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from eqsynth.egraph.session import Session


@dataclass(frozen=True)
class Phase:
    """Rulesets that run in turn until none changes anything, or ``rounds`` times.

    Attributes:
        budget: matches of one rule that one round may unite.
    """

    name: str
    rulesets: tuple[str, ...]
    rounds: int
    budget: int = 1000


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
    """What a run did.

    Attributes:
        stop: why it ended: ``saturated``, ``rounds``, ``node_limit`` or ``deadline``.
        growth: phase -> e-nodes at its end.
    """

    stop: str = "saturated"
    seconds: float = 0.0
    rounds: dict[str, int] = field(default_factory=dict)
    over_budget: dict[str, int] = field(default_factory=dict)
    growth: dict[str, int] = field(default_factory=dict)


# Meaning first, then normal form, contraction algebra, steps of loops as one product, EinNet's
# derivations, operators. Each phase is bounded by itself; later phases repeat what earlier ones
# need for terms that are new.
DEFAULT_PHASES = (
    Phase("define", ("define", "simplify"), 8),
    Phase("normalize", ("index", "scalar", "normal"), 24),
    Phase("contract", ("boundary", "contract-explore", "index", "scalar", "normal"), 12),
    Phase("stack", ("stack", "index", "scalar", "normal"), 4),
    Phase("derive", ("boundary", "correlate-explore", "derive-explore", "index", "normal"), 10),
    Phase("match", ("match", "simplify"), 8),
    Phase("merge", ("merge", "simplify"), 3),
)

# The other order of axes is needed only to recognize a given term, not to compute one; windows in
# parts pay where a library has no other fast algorithm, which on a CPU isn't so; rearrangements
# that functions carry on to the next product don't reach it, since segments end there. Parts of one
# row are read through a reshape, which is a scope only once it is defined. Scopes written out in
# full are what two equal programs meet in, and nothing that one would compute by.
PROVE_PHASES = (
    *DEFAULT_PHASES[:2],
    Phase("axes", ("axes-explore", "normal"), 4),
    *DEFAULT_PHASES[2:4],
    Phase("windows", ("windows-explore", "define", "index", "normal"), 16),
    replace(DEFAULT_PHASES[4], rulesets=("carry-explore", *DEFAULT_PHASES[4].rulesets)),
    *DEFAULT_PHASES[5:],
    Phase("expand", ("expand-explore", "define", "index", "scalar", "normal", "simplify"), 8),
)


def saturate(
    session: Session,
    phases: Sequence[Phase] = DEFAULT_PHASES,
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    done: Callable[[Session], bool] = lambda _session: False,
) -> SaturationReport:
    """Runs the phases; ``done`` is asked after each round and ends the run early."""
    with collecting_seldom():
        return _run(session, phases, limits, done)


# New objects between two collections of garbage.
_NEW_OBJECTS = 200_000


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Python looks for cyclic garbage less often than it would.

    Terms and rows live as long as the session and make no cycles, so a collection reads all of
    them and frees next to nothing: at Python's own threshold of 700 new objects that was a fifth
    of the time of a saturation, and reading one that was remembered took 0.3 s for 0.03, where
    torch's objects were read with it.
    """
    before = gc.get_threshold()
    if 0 < before[0] < _NEW_OBJECTS:
        gc.set_threshold(_NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _run(
    session: Session, phases: Sequence[Phase], limits: Limits, done: Callable[[Session], bool]
) -> SaturationReport:
    report = SaturationReport()
    start = time.monotonic()
    session.requests.deadline = start + limits.deadline_s
    session.engine.analyse()
    known = set(session.rules.rulesets)
    for phase in (*phases, *_own_phases(known, phases)):
        rulesets = [name for name in phase.rulesets if name in known]
        for number in range(phase.rounds):
            changed = False
            for ruleset in rulesets:
                united, over = session.round(ruleset, phase.budget)
                changed |= united
                for rule in over:
                    report.over_budget[rule] = report.over_budget.get(rule, 0) + 1
                report.seconds = time.monotonic() - start
                if report.seconds > limits.deadline_s:
                    report.stop = "deadline"
                    return report
                report.growth[phase.name] = session.engine.enodes()
                if report.growth[phase.name] > limits.enodes:
                    report.stop = "node_limit"
                    return report
            report.rounds[phase.name] = number + 1
            if done(session):
                return report
            if not changed:
                break
        else:
            report.stop = "rounds"
    return report


def _own_phases(known: set[str], phases: Sequence[Phase]) -> list[Phase]:
    """A phase for rulesets that no phase names: those of a user's rule files, with what their
    terms need to be understood and run."""
    named = {name for phase in (*phases, *PROVE_PHASES) for name in phase.rulesets}
    own = sorted(name for name in known - named if not name.startswith("analysis"))
    if not own:
        return []
    rest = dict.fromkeys(name for phase in phases for name in phase.rulesets)
    return [Phase("own", (*own, *rest), 8)]
