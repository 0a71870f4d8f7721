"""Schedules that tuning has found, in the cache directory. Backends offer them besides their own.

There is one file for each tuned kernel, named by a digest of its term, its layouts and the target,
so that every process offers the schedule. The kernel's time is in the profile like that of any
other kernel. Not here: tuning (``lower/kernel_tuning.py``).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from eqsynth import kept
from eqsynth.extract import schedule
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.schedule import Schedule
from eqsynth.ir.scalar import digest_of

MAX_BYTES: Final = 16 << 20


def best(kernel: Kernel, machine: str) -> Schedule | None:
    """The schedule that tuning has found for a kernel's term and layouts; None if it
    wasn't tuned."""
    names = _names(*_state())
    if not names or _name(kernel, machine) not in names:
        return None
    found = kept.load(_home() / _name(kernel, machine), schedule.CLASSES)
    return found if isinstance(found, Schedule) else None


def keep(kernel: Kernel, machine: str) -> None:
    """Offer the kernel's schedule from now on, in every process."""
    if isinstance(kernel.schedule, Schedule):
        kept.keep(_home() / _name(kernel, machine), kernel.schedule, MAX_BYTES)


def _home() -> Path:
    return kept.directory("schedules-1")


def _state() -> tuple[Path, int]:
    """The directory, and the time of its last change."""
    home = _home()
    try:
        return home, home.stat().st_mtime_ns
    except OSError:
        return home, 0


@lru_cache(maxsize=4)
def _names(home: Path, _changed: int) -> frozenset[str]:
    try:
        return frozenset(path.name for path in home.iterdir())
    except OSError:
        return frozenset()


def _name(kernel: Kernel, machine: str) -> str:
    plain = replace(kernel, schedule="")
    layouts = (plain.inputs, plain.output)
    how = (plain.constants, plain.implementation, *layouts, machine)
    return digest_of(plain.term.digest, *how).hex()
