"""How a law refuses arguments, and how a tactic hears of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from eqsynth.errors import LawError
from eqsynth.ir.tensor import Scope, Tensor

Term = TypeVar("Term", bound=Tensor)
Arguments = TypeVar("Arguments")


def require(holds: bool, law: str, condition: str, what: str) -> None:
    """Refuses the arguments of a law, if a condition of its equality doesn't hold.

    Raises:
        LawError: it doesn't hold.
    """
    if not holds:
        raise LawError(what, law=law, condition=condition)


def attempt(
    law: Callable[[Term, Arguments], Scope], term: Term, arguments: Arguments
) -> Scope | None:
    """What the law gives; None if it refuses."""
    try:
        return law(term, arguments)
    except LawError:
        return None
