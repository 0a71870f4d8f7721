"""How fast the CPU is at the moment, beside what it usually is.

A short piece of work is timed before each call of a kernel. What it takes beyond its usual time is
due to others, such as another guest of a virtual machine that has one of two processors for some
milliseconds or for half a second. (The guest that times kernels isn't told about it.) What runs
next is slowed down by about the same factor:

    a kernel takes 130 us, and the work 13 us instead of 10    ->    100 us

Not here: the samples of a kernel (``timing.py``), other processes of this machine
(``disturbance.py``).
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from functools import lru_cache
from typing import Final

import torch

from eqsynth.extract.measure import cpu_numerics, describe_cpu
from eqsynth.extract.profile import Profile
from eqsynth.extract.target import CPU, target_key

ELEMENTS: Final = 1 << 16
"""The elements that the work goes through. torch gives half of them to each of two threads."""

WARM: Final = 3
"""How often the work runs before it is timed. (AMD EPYC, two threads: after 64 MB were written, the
work takes 27.8, 6.8, 5.7, 5.4, 5.4, 5.4 us in turn; after nothing else 5.3.)"""

_TIMES: Final = 256
_DOCUMENT: Final = "usual seconds of pace"


class Pace:
    """The machine's pace.

    (Intel Xeon, two threads, a virtual machine with such neighbours. 60 kernels were timed ten
    times, by turns without and with the pace. Standard deviation of the logarithm of a kernel's
    lower quartile, without and with: 0.26 and 0.13 for kernels of more than 12 us.)

    Args:
        usual_s: usual seconds of the work.
    """

    def __init__(self, usual_s: float) -> None:
        self._usual_s, self._work = usual_s, torch.zeros(ELEMENTS)

    def slowdown(self) -> float:
        """How many times longer than usual things take now."""
        return _took_s(self._work) / self._usual_s


def machine_pace() -> Pace:
    """The pace of this machine with torch's present number of threads. What is usual is measured
    once for a machine, and stored in the profile: times are compared only if they were divided by
    slowdowns from the same usual time, and some of them are read from the profile."""
    return Pace(_kept_usual_s(torch.get_num_threads(), cpu_numerics()))


@lru_cache(maxsize=8)
def _kept_usual_s(threads: int, numerics: str) -> float:
    profile = Profile(target_key(CPU, describe_cpu(), threads, numerics))
    try:
        told = profile.load_document(_DOCUMENT)
        with suppress(ValueError):
            if told is not None and 0 < (known := float(told)) < math.inf:
                return known
        return float(profile.store_document(_DOCUMENT, repr(usual_s()), told is not None))
    finally:
        profile.close()


def usual_s() -> float:
    """Measure the seconds of the work: the median over some milliseconds."""
    work = torch.zeros(ELEMENTS)
    return sorted(_took_s(work) for _ in range(_TIMES))[_TIMES // 2]


def _took_s(work: torch.Tensor) -> float:
    for _ in range(WARM):
        work.add_(1.0)  # brings its code and its memory into the caches, and wakes the threads
    begin = time.perf_counter()
    work.add_(1.0)
    return time.perf_counter() - begin
