"""A target: a device as data, its measured peaks, and the roofline that follows from them.

    target.roofline_s(read, written, flops, "float32")    ->    the least seconds for such a kernel

Not here: measuring the CPU (``measure.py``), times of kernels (``profile.py``), which kernels there
are (``lower/``).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Final

CPU: Final = "cpu"
CUDA: Final = "cuda"
KINDS: Final = (CPU, CUDA)
"""The kinds of devices, by their names in torch. They are written as strings only here and in
``lower/``."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that programs run on.

    Attributes:
        model: the name that the device reports.
        cores: number of cores that this process may use.
        isa: instruction sets that decide how fast kernels are, widest first.
    """

    model: str
    cores: int
    isa: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """A level of memory. The last level's ``capacity_bytes`` is infinite.

    The capacity is the sum over all threads of the target.
    """

    name: str
    capacity_bytes: float
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Achieved:
    """What a kernel achieves, beside the peak of what bounds it by the roofline: arithmetic
    (FLOP/s) or the memory that its arguments and results fit into (bytes/s).

    >>> str(Achieved(186e9, 224e9, "FLOP/s")), str(Achieved(21.5e9, 20e9, "B/s"))
    ('186 GFLOP/s, 83% of the peak', '21.5 GB/s, 108% of the peak')
    """

    per_s: float
    peak_per_s: float
    unit: str

    @property
    def share(self) -> float:
        """The part of the peak. It is above 1 if the kernel finds its arguments in a faster level
        of memory than they would fit into by their size."""
        return self.per_s / self.peak_per_s

    def __str__(self) -> str:
        return f"{self.per_s / 1e9:.3g} G{self.unit}, {self.share:.0%} of the peak"


@dataclass(frozen=True, slots=True)
class Target:
    """A device with its measured peaks.

    Attributes:
        name: the kind of device, one of `KINDS`.
        levels: levels of memory from the smallest to the largest; each is at most as fast as the
            one before.
        flops_per_s: highest rate of a vendor's operator, by dtype.
        dispatch_s: seconds for calling one torch operator, whatever it computes.
        kernel_dispatch_s: seconds for calling one generated kernel.
        numerics: precision of float32 products: ``highest`` is IEEE; other values allow digits to
            be lost.
        operators: names of operators by library, for a device whose profile lists what its
            libraries compute.
        layouts: layouts of images that the device's libraries take without a conversion, the
            fastest first.
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
        """The operators that a library of the device can compute."""
        return dict(self.operators).get(library, ())

    def key(self) -> str:
        """The name under which times are stored: it depends on the device and on how it is used,
        not on its measured peaks."""
        return target_key(self.name, self.device, self.threads, self.numerics)

    def bandwidth_bytes_per_s(self, bytes_moved: float) -> float:
        """The bandwidth of the smallest level of memory that holds ``bytes_moved``."""
        for level in self.levels:
            if bytes_moved <= level.capacity_bytes:
                return level.bandwidth_bytes_per_s
        return self.levels[-1].bandwidth_bytes_per_s

    def far(self, nbytes: float) -> int:
        """The number of caches beyond the first that are too small to hold ``nbytes`` of weights
        from one call of the program to the next: 0, 1 (not in the second cache), or 2 (not in the
        third either)."""
        return sum(nbytes > level.capacity_bytes for level in self.levels[1:-1])

    def peak_flops_per_s(self, dtype: str) -> float:
        """The peak for ``dtype``, or for float32 if ``dtype`` has none of its own."""
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
        """The least time of a kernel: the larger of its times for memory and for arithmetic, plus
        the call.

        ``dispatch_s`` is the time of the call; by default that of a torch operator.
        """
        bytes_moved = bytes_read + bytes_written
        memory_s = bytes_moved / self.bandwidth_bytes_per_s(bytes_moved)
        arithmetic_s = flops / self.peak_flops_per_s(dtype)
        call_s = self.dispatch_s if dispatch_s is None else dispatch_s
        return max(memory_s, arithmetic_s) + call_s

    def achieved(self, bytes_moved: float, flops: float, dtype: str, seconds: float) -> Achieved:
        """What a kernel of so many seconds achieves. The call of the kernel is part of its seconds,
        so a small kernel is far from the peak."""
        bandwidth, peak = self.bandwidth_bytes_per_s(bytes_moved), self.peak_flops_per_s(dtype)
        if flops / peak > bytes_moved / bandwidth:
            return Achieved(flops / seconds, peak, "FLOP/s")
        return Achieved(bytes_moved / seconds, bandwidth, "B/s")

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Target:
        """Return the target that ``to_json`` has written.

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
    """A stable name of a target, such as ``cpu-6f0c2a51d3b84e97``.

    >>> one = Device("a CPU", 2, ("AVX512",))
    >>> target_key(CPU, one, 2, "highest") == target_key(CPU, one, 1, "highest")
    False
    """
    text = json.dumps([name, asdict(device), threads, numerics], sort_keys=True)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
