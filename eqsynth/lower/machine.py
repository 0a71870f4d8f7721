"""What of a machine's cores bounds the schedules of its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

# Elements of a vector in generated code: one AVX-512 register of float32, or two or four narrower
# registers.
LANES: Final = 16


@dataclass(frozen=True)
class Machine:
    """The properties of one core that bound its schedules.

    Attributes:
        registers: the number of vector registers.
        register_bytes: the size of one.
        cached_bytes: half of the second-level cache: the data that stay there while other data
            pass.
        shared_bytes: the same of the last cache, which other cores use too.
    """

    registers: int
    register_bytes: int
    cached_bytes: int
    shared_bytes: int = 0

    @property
    def wide(self) -> bool:
        """Whether there are 32 registers that hold `LANES` float32 each, and not 16 of half the
        size."""
        return self.registers >= 32 and self.register_bytes >= 4 * LANES


@cache
def this_machine() -> Machine:
    """The properties of this machine's cores."""
    import torch

    # Imported here: a program that is loaded from a file makes no kernels, and measures nothing.
    from eqsynth.extract.measure import cache_capacities

    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    caches = cache_capacities(1)
    shared = caches.get(3, 0) // max(2, torch.get_num_threads())
    return Machine(
        32 if wide else 16, 64 if wide else 32, caches.get(2, 2 << 20) // 2, shared // 2
    )
