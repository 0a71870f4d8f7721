"""The arguments of ``optimize`` that say how to search, checked."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from eqsynth.errors import EqsynthError
from eqsynth.extract.target import CPU, KINDS
from eqsynth.lower.cuda.driver import missing


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
    node_limit: float
    memory_limit: float
    numerics: str
    check: bool
    explain: bool
    engines: tuple[str, ...] | None = None
    own_constants: bool = True
    tune: float = 0.0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("target", self.target, KINDS),
            ("objective", self.objective, ("time", "flops")),
        ):
            if value not in allowed:
                raise EqsynthError(
                    f"optimize: unknown {name} {value!r}",
                    got=repr(value),
                    expected=", ".join(map(repr, allowed)),
                    hint=f"choose one of the {name}s",
                )
        if self.target != CPU:
            raise EqsynthError(
                f"optimize: programs for {self.target} can't be measured here",
                where=f"target={self.target!r}",
                got=missing() or "kernels are timed on the CPU only, so far",
                expected=f"target={CPU!r}",
                hint="with the profile of a device, eqsynth.planned.plan makes a plan and a bundle",
            )
        for name, limit in (
            ("time_limit_s", self.time_limit_s),
            ("node_limit", self.node_limit),
            ("memory_limit", self.memory_limit),
        ):
            positive(limit, name, where="optimize")
        if self.tune != 0:
            positive(self.tune, "tune", where="optimize")

    @property
    def worker_bytes(self) -> int | None:
        """Address space that a worker may have; None for no limit."""
        return int(self.memory_limit) if self.memory_limit < _ALL else None

    @property
    def enodes(self) -> int:
        """E-nodes of a segment at which saturation stops."""
        return int(min(self.node_limit, _ALL))


# More than any machine has, and within the numbers that systems take for limits.
_ALL = 1 << 62


def positive(value: object, name: str, *, where: str) -> None:
    """Refuses what can't be a limit; ``float("inf")`` is none.

    Args:
        where: the function that the user called.

    Raises:
        EqsynthError: the value is no number, NaN, zero or negative.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0:
        raise EqsynthError(
            f"{where}: {name} isn't a positive number",
            got=repr(value),
            expected='a number above 0; float("inf") for no limit',
        )
