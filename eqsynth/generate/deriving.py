"""Decides which candidates the rules derive (Ruler calls this derivability).

A candidate is first checked on samples, in a finite field and in floats [TASO §2.2, step 2]. Then
the proof search behind ``prove_equal`` looks for a derivation. Answers are kept (``answers.py``),
except those of a search that a deadline ended.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from eqsynth.egraph.proving import meet
from eqsynth.egraph.schedule import Limits
from eqsynth.generate.answers import Question, Side, answers, key_of
from eqsynth.generate.candidates import Candidate
from eqsynth.ir.arithmetic import Array
from eqsynth.ir.normal import canonical_term
from eqsynth.numerics import rules_of
from eqsynth.rules import RuleSet
from eqsynth.rules.claim import Claim
from eqsynth.tasks import Executor
from eqsynth.testing.judging import Sides

Outcome = Literal["same", "derived", "not derived", "refuted"]

OUTCOMES: Final[tuple[Outcome, ...]] = ("same", "derived", "not derived", "refuted")

ENODES: Final = 5_000
LIMIT_S: Final = 20.0
_KINDS: Final = ("normal", "sparse")
_SIGNED: Final = 3
"""Of so many inputs each is tried with positive and with negative values."""


@dataclass(frozen=True)
class Derived:
    """The outcome of a candidate.

    Attributes:
        outcome: ``same`` if both sides are one term, ``refuted`` if they differ on a sample.
        why: the reason why the search ended, or the sample.
        is_exact: whether the sides are equal in every finite field that was tried.
    """

    candidate: Candidate
    outcome: Outcome
    why: str = ""
    is_exact: bool = False
    seconds: float = 0.0


def derive(
    candidates: Sequence[Candidate],
    files: Sequence[str | Path] = (),
    *,
    executor: Executor | None = None,
    limit_s: float = LIMIT_S,
) -> Iterator[Derived]:
    """Look for a derivation of each candidate by eqsynth's rules and the rules of ``files``; yield
    the outcomes in the order of the candidates.

    Args:
        executor: runs the searches; by default one process on this machine.

    Raises:
        RuleError: a file can't be used.
    """
    paths = tuple(map(str, files))
    _rules(paths)
    question = Question(
        decide, (paths, ENODES, limit_s), "derived", key_of(paths, ("testing", "generate"), ENODES),
        is_final=lambda found: found[1] != "deadline",
        lost=lambda error: ("not derived", f"worker {error.reason}", False, limit_s),
        timeout_s=limit_s + 30,
    )  # fmt: skip
    terms = (candidate.terms for candidate in candidates)
    for candidate, found in zip(candidates, answers(question, terms, executor), strict=True):
        yield Derived(candidate, *found)


@lru_cache(maxsize=2)
def _rules(files: tuple[str, ...]) -> RuleSet:
    return rules_of(files, "cancels", where="eqsynth rules generate", proving=True)


def decide(
    left: Side,
    right: Side,
    files: tuple[str, ...],
    enodes: int,
    limit_s: float,
) -> tuple[Outcome, str, bool, float]:
    """Decide one candidate in a worker; return outcome, reason, ``is_exact``, and CPU seconds."""
    begin = time.process_time()
    exact = True
    for a, b in zip(left, right, strict=True):
        sides = Sides(a, b)
        is_exact, differ = sides.exactly()
        exact &= is_exact
        for kind, env in _samples(sides):
            differ = differ or sides.verdict(kind, Claim("cancels"), env)
        if differ is not None:
            return "refuted", f"{differ.what} ({differ.data})", False, time.process_time() - begin
    if list(map(canonical_term, left)) == list(map(canonical_term, right)):
        return "same", "one term", exact, time.process_time() - begin
    meeting = meet(left, right, _rules(files), Limits(enodes, limit_s))
    outcome: Outcome = "derived" if meeting.proved else "not derived"
    return outcome, meeting.stop, exact, time.process_time() - begin


def _samples(sides: Sides) -> Iterator[tuple[str, dict[str, Array]]]:
    """Data of several kinds, and inputs of one sign each in all combinations: a maximum over nine
    products of mixed signs is seldom negative, as it has to be to differ from that of their ReLU.
    """
    for kind in _KINDS:
        yield kind, sides.environment(kind)
    negative = sides.environment("negative")
    signed = list(negative)[:_SIGNED]
    for signs in itertools.product((1, -1), repeat=len(signed)):
        flipped = {name: negative[name] * sign for name, sign in zip(signed, signs, strict=True)}
        yield "negative", negative | flipped
