"""Measure a device: the bandwidth of each level of memory, peak FLOPs, and the cost of a call.

:class:`Probe` has the measurements that are the same for all devices. This module describes the
machine's CPU; ``lower/cuda/measure.py`` describes a GPU.

A peak is the best measurement and not the median, since a roofline is a bound. Targets are measured
once for each machine and each set of library versions, and stored in the profile. Peaks that were
measured while other processes were busy are used until the machine is quiet, and then measured
again: a kernel that no peak promises to be fast is never timed. torch is only imported when
something is measured.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eqsynth.extract.disturbance import Usage, is_quiet, usable_cpus
from eqsynth.extract.profile import Profile
from eqsynth.extract.target import CPU, Device, MemoryLevel, Target, target_key
from eqsynth.extract.timing import Clock, wall_s

if TYPE_CHECKING:
    import torch

LOOK_AGAIN_S = 60.0
"""Seconds until a process looks again whether the machine is quiet, if it has only peaks that were
measured beside busy processes."""

REACHED = 0.8
"""The part of the peak that a library's matrix product reaches. (Two cores with AVX2: a product of
768 rows by oneDNN 107 to 134 GFLOP/s, blocks of a convolution 167. By a peak of 107, convolutions
in blocks didn't look faster than those that libraries had been timed for.)"""

FASTER = 1.5
"""A cache counts as one as long as data in it are read so many times as fast as from memory."""

# When to look again, by the target's key.
_look_at: dict[str, float] = {}

KERNEL_DISPATCH_S = 0.3e-6
"""Seconds for calling a cached TVM kernel with torch tensors. It isn't measured here, since only
``lower/`` imports TVM."""

_SYS_CPU = Path("/sys/devices/system/cpu")
_ISA_FLAGS = ("amx_bf16", "amx_int8", "avx512_fp16", "avx512_bf16", "avx512_vnni", "avx_vnni",
              "avx512f", "avx2", "fma", "sve", "asimd")  # fmt: skip
_DEFAULT_CACHES = {1: 32 << 10, 2: 1 << 20, 3: 8 << 20}
# The document with a target, and that with one that was measured beside busy processes. They have
# new names whenever peaks are measured in another way.
_DOCUMENT, _DISTURBED = "target, 3", "target, 3, disturbed"


def measure_cpu_target(profile_path: Path | None = None, again: bool = False) -> Target:
    """Return the CPU with torch's present number of threads as a target, from the profile if it is
    stored there.

    The first measurement takes one to three seconds. With ``again`` it is measured in any case.
    """
    import torch

    device, threads = describe_cpu(), torch.get_num_threads()
    numerics = cpu_numerics()

    def measure() -> Target:
        return Target(
            CPU, device, threads, _measure_levels(threads), _measure_flops(), _HOST.dispatch_s(),
            KERNEL_DISPATCH_S, numerics,
        )  # fmt: skip

    key = target_key(CPU, device, threads, numerics)
    return kept_target(key, measure, profile_path, again, threads, _at_least_by_one_thread)


def _at_least_by_one_thread(target: Target) -> Target:
    """Raise the peaks of a CPU to what one thread reaches alone: times the number of threads, but
    for the memory, which threads share.

    Beside a busy process, threads wait for each other at the end of each product. (Two threads on
    two cores, one of them busy: 4 of 134 GFLOP/s. FSRCNN then timed 34 kernels of 702 and took 7.5
    ms, since no other kernel could be fast by these peaks; 3.7 with those of a quiet machine.)
    """
    import torch

    threads = target.threads
    torch.set_num_threads(1)
    try:
        flops, levels = dict(_measure_flops()), _measure_levels(1)
    finally:
        torch.set_num_threads(threads)
    raised = [
        replace(level, bandwidth_bytes_per_s=max(level.bandwidth_bytes_per_s, rate))
        for level, rate in zip(
            target.levels,
            (one.bandwidth_bytes_per_s * (1 if one is levels[-1] else threads) for one in levels),
            strict=True,
        )
    ]
    return replace(
        target,
        levels=tuple(raised),
        flops_per_s=tuple((d, max(rate, threads * flops[d])) for d, rate in target.flops_per_s),
    )


def cpu_numerics() -> str:
    """The precision in which oneDNN multiplies float32 now, by the names of ``Target.numerics``.
    (``torch.get_float32_matmul_precision`` can't be asked: it raises if one of torch's newer
    switches was set.)"""
    import torch

    switch: Any = torch.backends.mkldnn
    return {"tf32": "high", "bf16": "medium"}.get(switch.matmul.fp32_precision, "highest")


def kept_target(
    key: str,
    measure: Callable[[], Target],
    profile_path: Path | None = None,
    again: bool = False,
    threads: int = 1,
    at_least: Callable[[Target], Target] = lambda target: target,
) -> Target:
    """Return the target of a key from the profile, or measure it and store it there.

    Args:
        again: measure even if it is stored.
        threads: number of threads that the measurement runs.
        at_least: raises peaks that were measured beside busy processes.
    """
    import torch

    profile = Profile(key, path=profile_path)
    try:
        stored = None if again else profile.load_document(_DOCUMENT)
        if stored is not None:
            with suppress(ValueError):
                return Target.from_json(stored)
        busy = None if again else profile.load_document(_DISTURBED)
        if busy is not None and not _is_quiet_now(key, threads):
            with suppress(ValueError):
                return Target.from_json(busy)
        before = Usage.now()
        with torch.inference_mode():
            target = measure()
        if Usage.now().disturbed(before, threads):
            with torch.inference_mode():
                target = at_least(target)
            return Target.from_json(profile.store_document(_DISTURBED, target.to_json(), True))
        # A stored text that could not be read is replaced; otherwise the first writer wins.
        replace = again or stored is not None
        return Target.from_json(profile.store_document(_DOCUMENT, target.to_json(), replace))
    finally:
        profile.close()


def _is_quiet_now(key: str, threads: int) -> bool:
    """Whether the machine is quiet. It is looked at for 0.2 s, but once a minute at most; false
    without a look."""
    now = time.monotonic()
    if now < _look_at.get(key, now):
        return False
    _look_at[key] = now + LOOK_AGAIN_S
    return is_quiet(threads)


def describe_cpu() -> Device:
    """The CPU's model, usable cores and instruction sets. Nothing is measured."""
    told = _cpu_told()
    flags = cpu_flags()
    model = told.get("model name") or platform.processor() or platform.machine()
    isa = tuple(flag for flag in _ISA_FLAGS if flag in flags)
    return Device(model, len(usable_cpus()), isa or (platform.machine(),))


def cpu_flags() -> frozenset[str]:
    """The features of the first CPU by Linux's names (``avx2``, ``avx512_vnni``); empty if the
    operating system doesn't list them."""
    told = _cpu_told()
    return frozenset((told.get("flags") or told.get("Features") or "").split())


def _cpu_told() -> dict[str, str]:
    """The fields of the first CPU in ``/proc/cpuinfo``; empty if there is no such file."""
    found: dict[str, str] = {}
    with suppress(OSError):
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
        for line in first.splitlines():
            name, _, value = line.partition(":")
            found[name.strip()] = value.strip()
    return found


def cache_capacities(threads: int) -> dict[int, int]:
    """Bytes of data cache by level, summed over the caches that ``threads`` threads use."""
    instances: dict[int, dict[str, int]] = {}
    for cpu in usable_cpus()[:threads]:
        for cache in sorted((_SYS_CPU / f"cpu{cpu}" / "cache").glob("index*")):
            with suppress(OSError, ValueError):
                if (cache / "type").read_text().strip() == "Instruction":
                    continue
                level = int((cache / "level").read_text())
                shared = (cache / "shared_cpu_list").read_text().strip()
                instances.setdefault(level, {})[shared] = _bytes((cache / "size").read_text())
    if not instances:
        return dict(_DEFAULT_CACHES)
    return {level: sum(sizes.values()) for level, sizes in sorted(instances.items())}


def _bytes(size: str) -> int:
    """Parse a size as the Linux kernel writes it.

    >>> _bytes("48K")
    49152
    """
    size = size.strip()
    shift = {"K": 10, "M": 20, "G": 30}.get(size[-1])
    return int(size) if shift is None else int(size[:-1]) << shift


@dataclass(frozen=True)
class Probe:
    """The measurements that find a device's peaks.

    Attributes:
        device: the device's name in torch.
        clock: measures the seconds of a call on the device.
    """

    device: str
    clock: Clock = wall_s

    def best_s(self, call: Callable[[], object], budget_s: float, calls: int = 1) -> float:
        """The shortest time of a call after a warm-up, over tries for ``budget_s`` seconds, but at
        least two."""
        call()
        best, end, tries = float("inf"), time.perf_counter() + budget_s, 0
        while tries < 2 or time.perf_counter() < end:
            best = min(best, self.clock(call, calls))
            tries += 1
        return best

    def levels(
        self, caches: Sequence[tuple[str, int]], memory: str, beyond: int
    ) -> tuple[MemoryLevel, ...]:
        """Measure the bandwidth of each level of memory.

        Args:
            caches: names and sizes in bytes, the smallest first.
            beyond: a size in bytes that fits in none of the caches.
        """
        call_s = self._triad_s(1)
        found = []
        for name, capacity in caches:
            # Two sizes that fit into the cache, one of them nearly filling it: the better rate
            # counts.
            rate = max(self._bandwidth(capacity * part, call_s) for part in (0.35, 0.7))
            found.append((name, float(capacity), rate))
        found.append((memory, float("inf"), self._bandwidth(beyond, call_s)))
        # An outer level must not look faster than an inner one by noise: more bytes never take less
        # time.
        return tuple(
            MemoryLevel(name, capacity, max(rate for _, _, rate in found[index:]))
            for index, (name, capacity, _) in enumerate(found)
        )

    def held_bytes(self, capacity: int, least: int, beyond: int) -> int:
        """How much of a cache there is to use: its capacity, or half of it, or a quarter, and so
        on, of which the first is taken in which data are read `FASTER` than from memory. Other
        users of a machine have the rest. (A virtual machine with two cores of a processor whose
        cache has 300 MB: 45 GB/s up to 75 MB, 22 above.)

        Args:
            least: a size in bytes below which it doesn't go.
            beyond: a size in bytes that fits in none of the caches.
        """
        call_s = self._triad_s(1)
        memory = self._bandwidth(beyond, call_s)
        held = capacity
        while held >= least:
            if self._bandwidth(0.7 * held, call_s) >= FASTER * memory:
                return held
            held //= 2
        return capacity

    def _bandwidth(self, working_set_bytes: float, call_s: float) -> float:
        """Bytes per second of a triad on three float32 buffers, without the time of the call."""
        elements = max(int(working_set_bytes / 12), 64)
        spent_s = self._triad_s(elements)
        # In a small cache the call takes most of the time. At most nine tenths are subtracted for
        # it.
        return 12 * elements / max(spent_s - call_s, 0.1 * spent_s)

    def _triad_s(self, elements: int) -> float:
        """Seconds of ``c = a + 2 * b`` on float32 tensors."""
        import torch

        a, b, c = (torch.ones(elements, device=self.device) for _ in range(3))
        # About 100,000 elements are computed between two readings of the clock.
        calls = max(1, min(200, 100_000 // elements))
        return self.best_s(lambda: torch.add(a, b, alpha=2.0, out=c), 0.06, calls)

    def product_s(self, extent: int, dtype: torch.dtype) -> float:
        """Seconds of a matrix product (extent, extent) @ (extent, extent) by torch."""
        import torch

        x, w = (torch.ones(extent, extent, dtype=dtype, device=self.device) for _ in range(2))
        return self.best_s(lambda: torch.mm(x, w), 0.08)

    def dispatch_s(self) -> float:
        """Seconds of one torch operator on one element, with a newly allocated result as in a
        program."""
        import torch

        x = torch.ones(1, device=self.device)
        return self.best_s(lambda: torch.add(x, x), 0.05, calls=200)


_HOST = Probe(CPU)


def _measure_levels(threads: int) -> tuple[MemoryLevel, ...]:
    caches = cache_capacities(threads)
    largest = max(caches.values())
    # Much more than the last cache holds, but bounded, since some caches are as large as the memory
    # of small machines.
    beyond = min(4 * largest, max(256 << 20, 2 * largest), 1 << 30)
    if 3 in caches:
        caches[3] = _HOST.held_bytes(caches[3], 2 * caches.get(2, 1), beyond)
    return _HOST.levels([(f"L{n}", size) for n, size in caches.items()], "DRAM", beyond)


def _measure_flops() -> tuple[tuple[str, float], ...]:
    """The peak FLOPs per second by dtype."""
    import torch

    dtypes = {
        "float32": torch.float32,
        "float64": torch.float64,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
    }
    return tuple((name, _peak_flops_per_s(dtype)) for name, dtype in dtypes.items())


def _peak_flops_per_s(dtype: torch.dtype) -> float:
    """The peak FLOPs per second: the faster of a matrix product and elementwise arithmetic.

    A CPU without float16 arithmetic multiplies matrices slower than it adds elements. A product
    doesn't reach the peak, and the roofline is a bound (`REACHED`).
    """
    import torch

    elements = 4096
    u, v = (torch.ones(elements, dtype=dtype) for _ in range(2))
    elementwise_s = _HOST.best_s(lambda: torch.add(u, v, alpha=2.0, out=u), 0.01, calls=10)
    # A small product first: if torch has only a slow fallback for the dtype, a large one takes
    # seconds.
    small, large = 128, 768
    product = 2 * small**3 / _product_s(small, dtype)
    if 2 * large**3 / product < 0.1:
        product = max(product, 2 * large**3 / _product_s(large, dtype))
    return max(product / REACHED, 2 * elements / elementwise_s)


def _product_s(extent: int, dtype: torch.dtype) -> float:
    """Seconds of (extent, extent) @ (extent, extent) by oneDNN with a packed weight, or by torch if
    oneDNN can't."""
    import torch

    x = torch.ones(extent, extent, dtype=dtype)
    weight = torch.ones(extent, extent, dtype=dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, extent)

        def product() -> object:
            return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")

        product()
    except (RuntimeError, AttributeError):  # this build or this CPU lacks it for the dtype
        return _HOST.product_s(extent, dtype)
    return _HOST.best_s(product, 0.08)
