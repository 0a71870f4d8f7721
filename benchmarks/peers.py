"""The engines that run a workload: those of ``eqsynth.peers``, and two engines for phones.

Here are the loading of workloads by name, and ncnn and MNN, which run convolutions. Not here: how
an engine runs in a process of its own (``eqsynth/peers.py``).
"""

from __future__ import annotations

import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from benchmarks.workloads import MEASURED, Measured
from eqsynth import peers
from eqsynth.peers import EXPORT, OURS, Arrays, Build, Engine, Given, Loaded, onnx_file

NATIVE: Final = "native"
"""The name of eqsynth without other engines: with torch and TVM alone."""


def building(workload: str, batch: int, reduced: bool) -> Build:
    """A function that builds a workload, and that can be sent to another process."""
    return partial(_built, workload, batch, reduced)


def _built(workload: str, batch: int, reduced: bool) -> Given:
    chosen = MEASURED[workload]
    return Given(*(chosen.reduced() if reduced else chosen.build(batch)))


def load_native(given: Given, threads: int) -> Loaded:
    """eqsynth without other engines: vendor operators and generated kernels."""
    return peers.load_eqsynth(given, threads, engines=())


def load_ncnn(given: Given, threads: int) -> Loaded:
    """ncnn with its Winograd kernels, in fp32: by default it stores half precision."""
    import ncnn
    import pnnx

    net, inputs = ncnn.Net(), given.args
    net.opt.num_threads = threads
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage", "bf16_packed"):
        setattr(net.opt, f"use_{name}", False)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        torch.jit.trace(given.module, inputs).save(str(path / "model.pt"))
        shapes = ",".join(f"[{','.join(map(str, x.shape))}]" for x in inputs)
        subprocess.run(
            [pnnx.EXEC_PATH, "model.pt", f"inputshape={shapes}", "fp16=0"],
            cwd=directory, check=True, capture_output=True,
        )  # fmt: skip
        net.load_param(str(path / "model.ncnn.param"))
        net.load_model(str(path / "model.ncnn.bin"))
    arrays = [np.ascontiguousarray(x.squeeze(0).numpy()) for x in inputs]
    values = [ncnn.Mat(array) for array in arrays]

    def call(_alive: object = arrays) -> list[Any]:
        extractor = net.create_extractor()
        for name, value in zip(net.input_names(), values, strict=True):
            extractor.input(name, value)
        return [extractor.extract(name)[1] for name in net.output_names()]

    # ncnn's results have no batch axis.
    return Loaded(call, lambda: [np.array(value)[None] for value in call()])


def load_mnn(given: Given, threads: int) -> Loaded:
    """MNN with its Winograd kernels, in fp32.

    The converter is called as the extension that it is: the package around it, ``MNN.tools``, runs
    ``pip install`` when it is imported, and reports what was converted.
    """
    import _tools
    import MNN
    import onnx

    with tempfile.TemporaryDirectory() as directory:
        source, file = onnx_file(given, directory), f"{directory}/model.mnn"
        graph = onnx.load(source, load_external_data=False).graph
        _tools.mnnconvert(["", "-f", "ONNX", "--modelFile", source, "--MNNModel", file,
                           "--bizCode", "benchmark"])  # fmt: skip
        settings = {"backend": "CPU", "precision": "high", "memory": "high", "power": "high",
                    "numThread": threads}  # fmt: skip
        net = MNN.nn.load_module_from_file(
            file, [value.name for value in graph.input], [value.name for value in graph.output],
            runtime_manager=MNN.nn.create_runtime_manager((settings,)),
        )  # fmt: skip
    values = [MNN.expr.const(x.numpy(), list(x.shape), MNN.expr.NCHW) for x in given.args]

    def call() -> Arrays:
        # MNN computes lazily: reading the result runs the model.
        return [value.read() for value in net.forward(values)]

    return Loaded(call, lambda: [np.array(value) for value in call()])


PHONES: Final = (
    Engine("ncnn", load_ncnn, ("ncnn", "pnnx"), ("ncnn", "pnnx")),
    Engine("mnn", load_mnn, ("MNN", "_tools", *EXPORT), ("mnn", *EXPORT)),
)
ENGINES: Final = (*peers.ENGINES, *PHONES)
WITHOUT_ENGINES: Final = Engine(NATIVE, load_native)


def takes(engine: Engine, workload: Measured, batch: int) -> bool:
    """Whether an engine is meant for a workload. The engines for phones are meant for convolutions
    at batch size 1."""
    if engine not in PHONES:
        return True
    convolutions = (nn.Conv2d, nn.ConvTranspose2d)
    layers = workload.reduced()[0].modules()
    return batch == 1 and any(isinstance(layer, convolutions) for layer in layers)


__all__ = [
    "ENGINES", "NATIVE", "OURS", "PHONES", "WITHOUT_ENGINES", "Arrays", "Engine", "building",
    "takes",
]  # fmt: skip
