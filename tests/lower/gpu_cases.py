"""A device that nobody has measured, and its driver, played by the CPU."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest
import torch
from cuda_cases import library_of

from eqsynth.extract.target import CUDA, Device, MemoryLevel, Target
from eqsynth.lower.cuda.code import Source
from eqsynth.lower.cuda.driver import Module

GPU = Target(
    name=CUDA,
    device=Device("a GPU with round numbers", 100, ("sm_80", "sm_90")),
    threads=1,
    levels=(MemoryLevel("L2", 50e6, 5e12), MemoryLevel("HBM", float("inf"), 2e12)),
    flops_per_s=(("float32", 2e13), ("float64", 1e13)),
    dispatch_s=5e-6,
    kernel_dispatch_s=3e-6,
    operators=(
        ("cublas", ("Matmul", "Scope")),
        ("cublasLt", ("FusedMatmul", "FusedMatmulAdd")),
        ("cudnn", ("Conv2d", "FusedConv2d", "FusedConv2dAdd", "ConvTranspose2d")),
        ("cutlass", ("Attention",)),
    ),
    layouts=("channels_last", "contiguous"),
)


class Driver:
    """The functions of libcuda that a module calls, over a source that is compiled for the CPU.

    Attributes:
        launched: symbols, blocks and threads, in the order of the calls.
    """

    def __init__(self, source: Source) -> None:
        self._kernels, self._source = library_of(source), source
        self._symbols: list[str] = []
        self._bound = threading.local()
        self.launched: list[tuple[str, int, int]] = []

    # A thread has no context until it is given one, and nothing can be done without.

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = getattr(self._bound, "context", None)
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:
        device._obj.value = number
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        context._obj.value = 1 + device.value
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self._bound.context = context.value
        return 0

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        return 0 if hasattr(self._bound, "context") else 201

    def cuModuleGetFunction(self, function: Any, module: Any, symbol: bytes) -> int:
        known = {entry.symbol for entry in self._source.entries.values()}
        if symbol.decode() not in known:
            return 500
        self._symbols.append(symbol.decode())
        function._obj.value = len(self._symbols)
        return 0

    def cuLaunchKernel(
        self, function: Any, blocks: int, by: int, bz: int, threads: int, ty: int, tz: int,
        shared: int, stream: Any, places: Any, extra: Any,
    ) -> int:  # fmt: skip
        assert (by, bz, ty, tz, shared, extra) == (1, 1, 1, 1, 0, None)
        if not hasattr(self._bound, "context"):
            return 201  # no context in this thread
        symbol = self._symbols[function.value - 1]
        self.launched.append((symbol, blocks, threads))
        # A place holds the address of an argument, which is a pointer.
        values = [ctypes.c_void_p.from_address(place).value for place in places]
        if any(value is None or value % 16 for value in values):
            return 716  # the address of a vector is misaligned
        arguments = (ctypes.c_void_p * len(values))(*values)
        run = getattr(self._kernels, f"run_{symbol}")
        return int(self._kernels.launch(run, arguments, blocks, threads, 0))

    def cuGetErrorString(self, status: int, message: Any) -> int:
        message._obj.value = f"error {status}".encode()
        return 0


def load_on_cpu(source: Source) -> Module:
    return Module(b"", Driver(source))


OF_CUDNN = ("convolution", "convolution_relu", "convolution_add_relu", "convolution_transpose")


class Cudnn:
    """torch's operators of cuDNN as their documentation has them, on the CPU."""

    def __init__(self) -> None:
        self.tf32: list[bool] = []

    def _saw(self, tf32: bool) -> None:
        self.tf32 += [tf32, torch.backends.cudnn.conv.fp32_precision == "tf32"]

    def convolution(self, x: Any, w: Any, padding: Any, stride: Any, dilation: Any, groups: Any,
                    benchmark: bool, deterministic: bool, tf32: bool) -> Any:  # fmt: skip
        self._saw(tf32)
        return torch.conv2d(x, w, None, stride, padding, dilation, groups)

    def convolution_relu(self, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
                         groups: Any) -> Any:  # fmt: skip
        self._saw(torch.backends.cudnn.conv.fp32_precision == "tf32")
        return torch.conv2d(x, w, bias, stride, padding, dilation, groups).relu()

    def convolution_add_relu(self, x: Any, w: Any, z: Any, alpha: Any, bias: Any, stride: Any,
                             padding: Any, dilation: Any, groups: Any) -> Any:  # fmt: skip
        self._saw(torch.backends.cudnn.conv.fp32_precision == "tf32")
        y = torch.conv2d(x, w, bias, stride, padding, dilation, groups)
        return (y + alpha * z).relu()

    def convolution_transpose(
        self, x: Any, w: Any, padding: Any, output_padding: Any, stride: Any, dilation: Any,
        groups: Any, benchmark: bool, deterministic: bool, tf32: bool,
    ) -> Any:  # fmt: skip
        self._saw(tf32)
        return torch.conv_transpose2d(
            x, w, None, stride, padding, output_padding, groups, dilation
        )

    @classmethod
    def played(cls, patch: pytest.MonkeyPatch) -> Cudnn:
        """In the place of torch's operators."""
        stand_in = cls()
        for name in OF_CUDNN:
            patch.setattr(torch, f"cudnn_{name}", getattr(stand_in, name))
        return stand_in
