"""Measure a GPU: the bandwidth of its second cache and of its memory, peak FLOPs, and the cost of a
launch.

This module has the GPU's description of itself, and the operators of its libraries. The
measurements are those of a CPU (``extract/measure.py``). No GPU has been measured by this code yet.
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
"""The operators that torch's CUDA operators compute, by the library that they call."""

LAYOUTS: Final = ("channels_last", "contiguous")
_DTYPES: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Extent of a product that is large enough to use a whole GPU.
_EXTENT: Final = 4096
# More bytes than any second cache holds.
_BEYOND_BYTES: Final = 512 << 20


def describe_gpu() -> Device:
    """torch's current GPU: its name, number of multiprocessors, and architecture.

    Raises:
        LoweringError: there is no GPU.
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
    """Return torch's current GPU as a target, from the profile if it is stored there.

    Raises:
        LoweringError: there is no GPU.
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
    """Return the target that a probe measures.

    Args:
        extent: extent of the products whose times give the peaks.
        beyond_bytes: bytes that don't fit into the second cache.
    """
    flops = tuple(
        (str(dtype).removeprefix("torch."), 2 * extent**3 / probe.product_s(extent, dtype))
        for dtype in _DTYPES
    )
    call_s = probe.dispatch_s()
    levels = probe.levels([("L2", cache_bytes)], "HBM", beyond_bytes)
    return Target(CUDA, device, 1, levels, flops, call_s, call_s, numerics, OPERATORS, LAYOUTS)
