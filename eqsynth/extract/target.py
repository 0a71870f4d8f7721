"""A target: the device as data, its measured peaks, and the roofline that follows from them.

Lives here: :class:`Target`, the roofline, how a target is stored. Not here: measuring the CPU
(``measure.py``), times of kernels (``profile.py``), which kernels exist (``lower/``).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Final

CPU: Final = "cpu"
CUDA: Final = "cuda"
KINDS: Final = (CPU, CUDA)
"""Kinds of devices, by the names that torch has for them. Here and in ``lower/`` alone they stand
as texts."""


@dataclass(frozen=True, slots=True)
class Device:
    """What the program runs on.

    Attributes:
        model: as the device calls itself.
        cores: that this process may use.
        isa: instruction sets that decide how fast kernels are, widest first.
    """

    model: str
    cores: int
    isa: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """A level of memory; ``capacity_bytes`` is infinite at the last one.

    The capacity is what all threads of the target have together.
    """

    name: str
    capacity_bytes: float
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Target:
    """A device with its measured peaks.

    Attributes:
        name: the kind of device, one of `KINDS`.
        levels: of memory, from the smallest to the largest, never faster than the one before.
        flops_per_s: highest rate of a vendor operator, by dtype.
        dispatch_s: cost of calling one torch operator, whatever it computes.
        kernel_dispatch_s: cost of calling one generated kernel.
        numerics: how float32 products are computed: ``highest`` is IEEE; others trade digits.
        operators: names of operators by the library that computes them, for a device whose
            libraries are chosen by that.
        layouts: of images, that its libraries take as they are; the fastest first.
    """

    name: str
    device: Device
    threads: int
    levels: tuple[MemoryLevel, ...]
    flops_per_s: tuple[tuple[str, float], ...]
    dispatch_s: float
    kernel_dispatch_s: float
    numerics: str = "highest"
    operators: tuple[tuple[str, tuple[str, ...]], ...] = ()
    layouts: tuple[str, ...] = ()

    def operators_of(self, library: str) -> tuple[str, ...]:
        """The operators that a library of the device computes."""
        return dict(self.operators).get(library, ())

    def key(self) -> str:
        """What times are filed under: the device and how it is used, not its measured peaks."""
        return target_key(self.name, self.device, self.threads, self.numerics)

    def bandwidth_bytes_per_s(self, bytes_moved: float) -> float:
        """Bandwidth of the smallest level that ``bytes_moved`` fit in."""
        for level in self.levels:
            if bytes_moved <= level.capacity_bytes:
                return level.bandwidth_bytes_per_s
        return self.levels[-1].bandwidth_bytes_per_s

    def far(self, nbytes: float) -> int:
        """In how many caches beyond the first a program with so many bytes of weights doesn't find
        them when it is called again: 0, 1 (not in the second), 2 (nor in the third)."""
        return sum(nbytes > level.capacity_bytes for level in self.levels[1:-1])

    def peak_flops_per_s(self, dtype: str) -> float:
        """The peak of ``dtype``; of float32 where ``dtype`` has none of its own."""
        peaks = dict(self.flops_per_s)
        return peaks.get(dtype, peaks["float32"])

    def roofline_s(
        self,
        bytes_read: float,
        bytes_written: float,
        flops: float,
        dtype: str,
        dispatch_s: float | None = None,
    ) -> float:
        """The least time for a kernel: the slower of memory and arithmetic, and the call.

        ``dispatch_s`` is that of a torch operator unless given.
        """
        bytes_moved = bytes_read + bytes_written
        memory_s = bytes_moved / self.bandwidth_bytes_per_s(bytes_moved)
        arithmetic_s = flops / self.peak_flops_per_s(dtype)
        call_s = self.dispatch_s if dispatch_s is None else dispatch_s
        return max(memory_s, arithmetic_s) + call_s

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Target:
        """The target that ``to_json`` wrote.

        Raises:
            ValueError: the text is no target.
        """
        try:
            fields = json.loads(text)
            device = fields.pop("device")
            target = Target(
                device=Device(device["model"], int(device["cores"]), tuple(device["isa"])),
                levels=tuple(MemoryLevel(**level) for level in fields.pop("levels")),
                flops_per_s=tuple((str(d), float(rate)) for d, rate in fields.pop("flops_per_s")),
                operators=tuple((str(n), tuple(o)) for n, o in fields.pop("operators", ())),
                layouts=tuple(map(str, fields.pop("layouts", ()))),
                **fields,
            )
            rates = [level.bandwidth_bytes_per_s for level in target.levels]
            rates += [rate for _, rate in target.flops_per_s]
            sound = target.levels and "float32" in dict(target.flops_per_s) and min(rates) > 0
            sound = sound and target.name in KINDS
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a target: {error!r}") from error
        if not sound:
            raise ValueError("not a target: a peak is missing or not positive, or the kind unknown")
        return target


def target_key(name: str, device: Device, threads: int, numerics: str) -> str:
    """A stable name, such as ``cpu-6f0c2a51d3b84e97``.

    >>> one = Device("a CPU", 2, ("AVX512",))
    >>> target_key(CPU, one, 2, "highest") == target_key(CPU, one, 1, "highest")
    False
    """
    text = json.dumps([name, asdict(device), threads, numerics], sort_keys=True)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
