"""What runs between two calls of a kernel that is timed, as other steps of a program do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from eqsynth.extract.measure import cache_capacities


@dataclass(frozen=True)
class OtherSteps:
    """What stands for the other steps of a program between two calls of a kernel.

    They take its code out of the cache, and its weights where those of the program don't all fit
    there; its arguments were just computed, and are at hand. Called again and again, a kernel has
    everything at hand, and kernels' times don't add up to the program's, so that many small ones
    are chosen where one large one is faster (two threads, ms in the sum; in place / called again
    and again / half of the cache taken / all of it, and arguments at hand: LSTM 1.34 / 0.57 / 0.87
    / 1.51, ViT of 4 layers 3.08 / 1.96 / 2.17 / 2.68, BERT 7.83 / 6.17 / 6.14 / 6.35, MobileNetV3
    1.36 / 0.88 / 1.07 / 1.54).

    What a program with more weights than the third cache holds reads and writes comes from memory,
    and goes there: windows by tiles, whose weights and results are large, looked cheap (ResNet-18
    with 45 MB of weights, 32 MiB of third cache; sum of kernels' times / in place: 5.4 / 8.4 with
    the second cache taken, 7.5 / 8.1 with the third).

    Attributes:
        at_hand_bytes: of an argument that is still in the cache at most.
        large: what is read and written to take a cache, or the half of it.
    """

    at_hand_bytes: int
    large: torch.Tensor
    small: torch.Tensor

    @staticmethod
    @lru_cache(maxsize=4)
    def of(threads: int, far: int) -> OtherSteps:
        caches = cache_capacities(threads)
        second = caches.get(2, 2 << 20)
        taken = (second // 2, second, caches.get(3, second))[min(far, 2)]
        return OtherSteps(max(second, taken), torch.zeros(taken // 4), torch.ones(16, 16))

    def run(self, given: Sequence[torch.Tensor]) -> None:
        """Before a call with these arguments, weights not among them."""
        self.large.add_(1.0)
        for value in given:
            if value.nbytes <= self.at_hand_bytes:
                value.bitwise_or_(False) if value.dtype == torch.bool else value.add_(0)
        torch.relu(torch.softmax(self.small, -1)) @ self.small
