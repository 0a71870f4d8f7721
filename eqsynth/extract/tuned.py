"""Schedules that tuning has found, in the cache directory: what a backend offers beside its own.

A file for each kernel that was tuned, under what the kernel computes, its layouts and the target's
name, so that every process offers it. Its time stands in the profile as that of any kernel. Not
here: tuning (``lower/kernel_tuning.py``).
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
    """The schedule that was found for a kernel, whatever its own is; None if it wasn't tuned."""
    names = _names(*_state())
    if not names or _name(kernel, machine) not in names:
        return None
    found = kept.load(_home() / _name(kernel, machine), schedule.CLASSES)
    return found if isinstance(found, Schedule) else None


def keep(kernel: Kernel, machine: str) -> None:
    """Offers the schedule of a kernel from now on."""
    if isinstance(kernel.schedule, Schedule):
        kept.keep(_home() / _name(kernel, machine), kernel.schedule, MAX_BYTES)


def state() -> tuple[str, ...]:
    """What a choice among the kernels that are offered depends on: which were tuned, and when."""
    home, changed = _state()
    return (str(changed), *sorted(_names(home, changed)))


def _home() -> Path:
    return kept.directory("schedules-1")


def _state() -> tuple[Path, int]:
    """The directory, and when it was changed."""
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
