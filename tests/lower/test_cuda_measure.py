"""What a GPU is measured with, on the device that is here."""

from __future__ import annotations

import torch

from eqsynth.extract.measure import Probe
from eqsynth.extract.target import CPU, CUDA, Device, Target
from eqsynth.lower.cuda.measure import LAYOUTS, OPERATORS, peaks


def test_peaks_of_any_device_are_a_target() -> None:
    asked: list[int] = []

    def clock(call: object, calls: int) -> float:
        """A call takes 1 us, and what it adds 1 ns a float."""
        asked.append(calls)
        cells = [cell.cell_contents for cell in getattr(call, "__closure__", ()) or ()]
        floats = max((x.numel() for x in cells if isinstance(x, torch.Tensor)), default=0)
        return 1e-6 + 1e-9 * floats

    device = Device("a device", 4, ("sm_90",))
    found = peaks(Probe(CPU, clock), device, 1 << 20, "highest", extent=32, beyond_bytes=4 << 20)
    assert Target.from_json(found.to_json()) == found and found.name == CUDA
    assert (found.operators, found.layouts) == (OPERATORS, LAYOUTS)
    second, memory = found.levels
    assert second.capacity_bytes == 1 << 20 and memory.capacity_bytes == float("inf")
    # Three floats of 4 bytes for each nanosecond; the call isn't counted.
    for level in found.levels:
        assert abs(level.bandwidth_bytes_per_s / 12e9 - 1) < 1e-3
    assert dict(found.flops_per_s)["float32"] == 2 * 32**3 / (1e-6 + 1e-9 * 1024)
    assert abs(found.dispatch_s - 1e-6 - 1e-9) < 1e-12
    assert max(asked) == 200
