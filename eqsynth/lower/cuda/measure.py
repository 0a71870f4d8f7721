"""Measuring a GPU: bandwidth of its second cache and its memory, peak FLOPs, cost of a launch.

Here: what a GPU says of itself, and which operators its libraries have. What is timed is the same
as on a CPU (``extract/measure.py``). No GPU has been measured by this yet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from eqsynth.errors import LoweringError
from eqsynth.extract.measure import Probe, kept_target
from eqsynth.extract.target import CUDA, Device, Target, target_key
from eqsynth.lower.cuda import driver, precision
from eqsynth.lower.cuda.place import events_s

OPERATORS: Final = (
    ("cublas", ("Matmul", "Scope")),
    ("cublasLt", ("FusedMatmul", "FusedMatmulAdd")),
    ("cudnn", ("Conv2d", "FusedConv2d", "FusedConv2dAdd", "ConvTranspose2d")),
    ("cutlass", ("Attention",)),
)
"""What torch's CUDA operators compute, by the libraries that they call."""

LAYOUTS: Final = ("channels_last", "contiguous")
_DTYPES: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# A product of this extent fills every GPU.
_EXTENT: Final = 4096
# What is in no second cache.
_BEYOND_BYTES: Final = 512 << 20


def describe_gpu() -> Device:
    """The GPU that torch works with: its name, multiprocessors, and kind.

    Raises:
        LoweringError: there is none.
    """
    lacking = driver.missing()
    if lacking:
        raise LoweringError(
            what="no GPU can be measured here",
            got=lacking,
            expected="a GPU with NVIDIA's driver, and torch with CUDA",
            hint="eqsynth profile --device cuda, where one is, writes a file to carry here",
        )
    told = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Device(told.name, told.multi_processor_count, (f"sm_{told.major}{told.minor}",))


def measure_gpu_target(profile_path: Path | None = None, again: bool = False) -> Target:
    """The GPU that torch works with; from the profile if it is known there.

    Raises:
        LoweringError: there is none.
    """
    device, numerics = describe_gpu(), precision.numerics()

    def measure() -> Target:
        told = torch.cuda.get_device_properties(torch.cuda.current_device())
        return peaks(Probe(CUDA, events_s), device, int(told.L2_cache_size), numerics)

    return kept_target(target_key(CUDA, device, 1, numerics), measure, profile_path, again)


def peaks(
    probe: Probe,
    device: Device,
    cache_bytes: int,
    numerics: str,
    extent: int = _EXTENT,
    beyond_bytes: int = _BEYOND_BYTES,
) -> Target:
    """The target that a probe finds.

    Args:
        extent: of the products that tell the peaks.
        beyond_bytes: what doesn't fit in the second cache.
    """
    flops = tuple(
        (str(dtype).removeprefix("torch."), 2 * extent**3 / probe.product_s(extent, dtype))
        for dtype in _DTYPES
    )
    call_s = probe.dispatch_s()
    levels = probe.levels([("L2", cache_bytes)], "HBM", beyond_bytes)
    return Target(CUDA, device, 1, levels, flops, call_s, call_s, numerics, OPERATORS, LAYOUTS)
