"""How a law refuses arguments."""

from __future__ import annotations

from eqsynth.errors import LawError


def require(holds: bool, law: str, condition: str, what: str) -> None:
    """Refuses the arguments of a law, if a condition of its equality doesn't hold.

    Raises:
        LawError: it doesn't hold.
    """
    if not holds:
        raise LawError(what, law=law, condition=condition)
