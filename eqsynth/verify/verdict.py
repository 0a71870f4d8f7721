"""The result of verifying a rule: proved, by law, refuted, not proved, or a definition.

``by law``: the rule requests a law and states no equality itself; the functions of the calculus
that compute the law's answers are argued elsewhere (``laws.py``). ``definition``: the rule says
what an operator means, so there is nothing to prove.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from eqsynth.rules import Rule

Outcome = Literal["proved", "by law", "refuted", "not proved", "definition"]

OUTCOMES: Final[tuple[Outcome, ...]] = ("proved", "by law", "refuted", "not proved", "definition")


@dataclass(frozen=True)
class Verdict:
    """The result of verifying one rule.

    Attributes:
        why: how the rule was proved, or the numbers that refute it, or what is left to show.
        seconds: processor time.
    """

    rule: Rule
    outcome: Outcome
    why: str
    seconds: float = 0.0


class Left(Exception):
    """Raised if a proof can't go on; its text is what is left to show."""


class Wrong(Exception):
    """Raised if a rule is false on some numbers, and evaluating it on them has confirmed that."""
