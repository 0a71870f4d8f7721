"""How a law refuses arguments."""

from __future__ import annotations

from eqsynth.errors import LawError


def require(holds: bool, law: str, condition: str, what: str) -> None:
    """Refuse the arguments of ``law`` if ``holds`` is false; ``what`` is the error's message.

    Raises:
        LawError: ``condition`` doesn't hold.
    """
    if not holds:
        raise LawError(what, law=law, condition=condition)
