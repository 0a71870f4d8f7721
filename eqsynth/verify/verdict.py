"""What is told of a rule: proved, refuted, not proved, or that it says what something is.

A rule that requests a law says nothing itself; ``by law`` names what its answers are written in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from eqsynth.rules import Rule

Outcome = Literal["proved", "by law", "refuted", "not proved", "definition"]

OUTCOMES: Final[tuple[Outcome, ...]] = ("proved", "by law", "refuted", "not proved", "definition")


@dataclass(frozen=True)
class Verdict:
    """What verifying one rule found.

    Attributes:
        why: how it was proved; the numbers that refute it; what is left to show.
        seconds: of the processor.
    """

    rule: Rule
    outcome: Outcome
    why: str
    seconds: float = 0.0


class Left(Exception):
    """Raised where a proof can't go on; its text is what is left to show."""


class Wrong(Exception):
    """Raised where numbers were found on which a rule says what isn't so, and they replay."""
