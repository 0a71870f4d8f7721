"""The search behind ``prove_equal``: do two programs become equal in one e-graph?

The first search derives from the left program only and recognizes the right program's scopes, so
that the proof reads as a derivation of the right program from the left one. If this fails, a second
search derives from both programs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from eqsynth.egraph.blame import blaming
from eqsynth.egraph.encode import encode_scalar
from eqsynth.egraph.graph import Log
from eqsynth.egraph.schedule import PROVE_PHASES, Limits, Phase, saturate
from eqsynth.egraph.session import Session
from eqsynth.egraph.snapshot import Handle
from eqsynth.ir.normal import canonical_term
from eqsynth.ir.tensor import Scope, Tensor, args_of, topological
from eqsynth.rules import RuleSet


@dataclass(frozen=True)
class Meeting:
    """The result of a proof search.

    Attributes:
        left, right: the programs in canonical form, as they were added to the e-graph.
        stop: ``proved``, or the reason why the search ended.
    """

    proved: bool
    stop: str
    left: tuple[Tensor, ...]
    right: tuple[Tensor, ...]
    log: Log
    enodes: int
    seconds: float


def meet(
    left: Sequence[Tensor], right: Sequence[Tensor], rules: RuleSet, limits: Limits
) -> Meeting:
    """Search for a proof that ``left`` and ``right`` are equal, output by output."""
    begin = time.monotonic()
    first = _attempt(left, right, rules, Limits(limits.enodes, limits.deadline_s / 2), True, begin)
    if first.proved:
        return first
    rest = Limits(limits.enodes, limits.deadline_s - (time.monotonic() - begin))
    return _attempt(left, right, rules, rest, False, begin)


def _attempt(
    left: Sequence[Tensor],
    right: Sequence[Tensor],
    rules: RuleSet,
    limits: Limits,
    directed: bool,
    begin: float,
) -> Meeting:
    with closing(Session(rules, constants=True)) as session:
        return _search(session, left, right, limits, directed, begin)


def _search(
    session: Session,
    left: Sequence[Tensor],
    right: Sequence[Tensor],
    limits: Limits,
    directed: bool,
    begin: float,
) -> Meeting:
    lefts = tuple(map(canonical_term, left))
    rights = tuple(map(canonical_term, right))
    goals = list(zip(session.add(lefts), session.add(rights), strict=True))
    if directed:
        own = set(topological(lefts))
        for term in topological(rights):
            if isinstance(term, Scope) and term not in own:
                parts = {arg: Handle(session.handle(arg)) for arg in args_of(term)}
                body = encode_scalar(term.body, parts)
                fact = (
                    "derived", list(term.traversal), list(term.reduction), term.reducer, body,
                )  # fmt: skip
                session.engine.insert(facts=[fact])

    def met(session: Session) -> bool:
        handles = session.view().snapshot.handles
        return all(handles[Handle(a)] == handles[Handle(b)] for a, b in goals)

    with blaming(session.rules, session.matches):
        report = saturate(session, PROVE_PHASES, limits, met)
        proved = met(session)
        if proved:
            # Laws read indices in affine form. The rules of indices log that this form is equal.
            saturate(session, [Phase("index", ("index",), 24)], limits)
    return Meeting(
        proved,
        "proved" if proved else report.stop,
        lefts,
        rights,
        session.logged(),
        session.engine.enodes(),
        time.monotonic() - begin,
    )
