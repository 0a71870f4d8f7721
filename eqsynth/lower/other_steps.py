"""Work between two calls of a kernel that is timed, in place of a program's other steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from eqsynth.extract.measure import cache_capacities, measure_cpu_target
from eqsynth.extract.pace import Pace, machine_pace


@dataclass(frozen=True)
class OtherSteps:
    """Stands for the other steps of a program between two calls of a kernel that is timed.

    Other steps push a kernel's code out of the cache, and its weights too if the program's weights
    don't all fit there; the kernel's arguments were just computed, so they are in the cache. A
    kernel that is called again and again finds everything in the cache. Such times don't add up to
    the program's time, and many small kernels are chosen where one large kernel is faster. (Two
    threads, sum of the kernels' times in ms; in their places / called again and again / half of the
    cache taken / all of it, with arguments in the cache: LSTM 1.34 / 0.57 / 0.87 / 1.51, ViT of 4
    layers 3.08 / 1.96 / 2.17 / 2.68, BERT 7.83 / 6.17 / 6.14 / 6.35, MobileNetV3 1.36 / 0.88 / 1.07
    / 1.54.)

    If a program has more weights than the third-level cache holds, its kernels read from memory and
    write to memory. With only the second level taken, convolutions by tiles, whose weights and
    results are large, looked too cheap (ResNet-18 with 45 MB of weights, 32 MiB of third-level
    cache; sum of the kernels' times / in their places: 5.4 / 8.4 with the second level taken, 7.5 /
    8.1 with the third).

    Attributes:
        at_hand_bytes: arguments of up to this size are brought into the cache before a call.
        large: memory that is read and written to take a cache, or half of it.
        pace: the pace of the CPU; None if it isn't asked for.
    """

    at_hand_bytes: int
    large: torch.Tensor
    small: torch.Tensor
    pace: Pace | None = None

    @staticmethod
    @lru_cache(maxsize=4)
    def of(threads: int, far: int) -> OtherSteps:
        """The steps for so many threads, with weights out of ``far`` cache levels
        (``Target.far``)."""
        second = cache_capacities(threads).get(2, 2 << 20)
        taken = (second // 2, second)[far] if far < 2 else _held_by_the_last_cache()
        return OtherSteps(max(second, taken), torch.zeros(taken // 4), torch.ones(16, 16))

    def paced(self) -> OtherSteps:
        """The same steps, which also tell the pace of the CPU. (What is timed in turns needs no
        pace: it is slowed down alike.)"""
        return replace(self, pace=machine_pace())

    def run(self, given: Sequence[torch.Tensor]) -> float:
        """Run before a call with these arguments (without its weights). Return how many times
        longer than usual the call takes at the present pace; 1 without a pace."""
        slowdown = 1.0 if self.pace is None else self.pace.slowdown()
        self.large.add_(1.0)
        for value in given:
            if value.nbytes <= self.at_hand_bytes:
                value.bitwise_or_(False) if value.dtype == torch.bool else value.add_(0)
        torch.relu(torch.softmax(self.small, -1)) @ self.small
        return slowdown


def _held_by_the_last_cache() -> int:
    """The bytes that the last cache holds for this process, as measured (``Probe.held_bytes``)."""
    return int(measure_cpu_target().levels[-2].capacity_bytes)
