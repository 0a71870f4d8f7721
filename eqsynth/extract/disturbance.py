"""How busy other processes keep the processors while kernels are timed.

    before = Usage.now([worker.pid])
    …                                                  two threads of the worker time kernels
    Usage.now([worker.pid]).disturbed(before, 2)   ->  True: others used 0.9 of 2 processors

A kernel that is timed beside another busy process looks slower than it is, and each kernel by
another factor. A plan that was chosen by such times may be slow, and would be chosen again as long
as they are in the profile. So each time knows whether it was disturbed, and kernels with disturbed
times are timed again when the machine is quiet (``Profile.retry_disturbed``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

ALLOWED: Final = 0.25
"""Other processes may use so much of one processor, as a desktop and services do."""

_TICKS_S: Final = 0.03
"""The operating system counts busy seconds in ticks of about 0.01 s."""

_LOOK_S: Final = 0.2

_KINDS: Final = ("user", "nice", "system", "irq", "softirq", "steal")


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds since a moment in the past.

    Attributes:
        wall_s: seconds by a clock.
        busy_s: seconds that the processors which this process may use were busy, summed over them.
        own_s: the part of them that this process and the given processes used, with all children of
            these that have ended.
    """

    wall_s: float
    busy_s: float
    own_s: float

    @classmethod
    def now(cls, pids: Sequence[int] = ()) -> Usage:
        """Return the usage until now. Takes 0.2 ms."""
        cpus = psutil.cpu_times(percpu=True)
        usable = [cpus[n] for n in usable_cpus() if n < len(cpus)]
        busy_s = sum(getattr(cpu, kind, 0.0) for cpu in usable for kind in _KINDS)
        own_s = 0.0
        for pid in (os.getpid(), *pids):
            with suppress(psutil.Error):  # the process has ended
                own = psutil.Process(pid).cpu_times()
                own_s += own.user + own.system + own.children_user + own.children_system
        return cls(time.monotonic(), busy_s, own_s)

    def disturbed(self, before: Usage, threads: int) -> bool:
        """Whether other processes have left fewer than ``threads`` processors free since
        ``before``, but for a small part of one."""
        others_s = (self.busy_s - before.busy_s) - (self.own_s - before.own_s)
        free = max(len(usable_cpus()) - threads, 0)
        return others_s > (free + ALLOWED) * (self.wall_s - before.wall_s) + _TICKS_S


def usable_cpus() -> list[int]:
    """The numbers of the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def is_quiet(threads: int) -> bool:
    """Whether other processes, those that this one has started included, leave ``threads``
    processors free now. Looks for 0.2 s."""
    before = Usage.now()
    time.sleep(_LOOK_S)
    return not Usage.now().disturbed(before, threads)
