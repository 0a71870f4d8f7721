"""The arguments of ``optimize`` that say how to search, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eqsynth.errors import EqsynthError


@dataclass(frozen=True)
class Settings:
    """See :func:`eqsynth.optimize`.

    Raises:
        EqsynthError: a value isn't one of those that are known, or a limit isn't positive.
    """

    target: str
    rules: tuple[str | Path, ...]
    objective: str
    time_limit_s: float
    node_limit: int
    memory_limit: int
    check: bool
    explain: bool
    engines: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("target", self.target, ("cpu",)),
            ("objective", self.objective, ("time", "flops")),
        ):
            if value not in allowed:
                raise EqsynthError(
                    f"optimize: unknown {name} {value!r}",
                    got=repr(value),
                    expected=", ".join(map(repr, allowed)),
                    hint=f"choose one of the {name}s",
                )
        for name, limit in (
            ("time_limit_s", self.time_limit_s),
            ("node_limit", self.node_limit),
            ("memory_limit", self.memory_limit),
        ):
            if not limit > 0:
                raise EqsynthError(
                    f"optimize: {name} isn't positive", got=repr(limit), expected="more than 0"
                )
