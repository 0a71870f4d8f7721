"""The engines that run a workload: eqsynth, and what a user may have instead of it.

Each engine lives in a process of its own (``eqsynth.executor.Worker``) that is asked to ``prepare``
a workload once and then, whenever it has its turn, to ``take_turn`` and send the samples back. So

- an engine's settings (Inductor's ``freezing`` is global), thread pools and allocator meet no other
  engine's: several OpenMP runtimes and TBB in one process are neither what a user has nor fair;
- an engine that crashes, hangs or can't take the model costs its own column only;
- the clock runs in the engine's process, so that no sample holds the pipe.

All compute in fp32 with the same number of threads, each by its fastest ordinary way of calling:
inputs in place, results left where the engine puts them. Which engine has its turn when, and what
is made of the samples, is in ``side_by_side.py``.
"""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from benchmarks.derivation import rules_by_use
from benchmarks.workloads import MEASURED, Inputs, Measured
from eqsynth.extract import timing

Arrays = list[np.ndarray[Any, Any]]

OURS: Final = "eqsynth"
NATIVE: Final = "native"
"""eqsynth with torch and TVM alone: what a user has who installs no other engine."""


@dataclass(frozen=True)
class Loaded:
    """A workload in one engine.

    Attributes:
        call: runs it once; this is timed.
        results: runs it once, and gives its flat results.
        facts: what the engine tells of its preparation, as plain data.
        rules: the rules of the derivation, if the engine has any.
    """

    call: Callable[[], object]
    results: Callable[[], Arrays]
    facts: Mapping[str, Any] = field(default_factory=dict)
    rules: Callable[[], Sequence[str]] = tuple


def _any(workload: Measured, batch: int) -> bool:
    return True


@dataclass(frozen=True)
class Engine:
    """``load(module, inputs, threads)`` runs in the engine's process; it is found there by name.

    Attributes:
        modules: what must be importable for the engine to count as installed.
        packages: distributions whose versions stand in the results.
        takes: whether a workload at a batch size is one that the engine is made for.
    """

    name: str
    load: Callable[[nn.Module, Inputs, int], Loaded]
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    takes: Callable[[Measured, int], bool] = _any

    @property
    def installed(self) -> bool:
        return all(importlib.util.find_spec(module) is not None for module in self.modules)


@dataclass(frozen=True)
class Prepared:
    """What an engine answers once it is ready; ``once_s`` is about what a warm call takes."""

    results: Arrays
    facts: Mapping[str, Any]
    once_s: float


# ---- tasks, run in the engine's process ---------------------------------------------------------

_loaded: Loaded | None = None


def prepare(engine: Engine, workload: str, batch: int, reduced: bool, threads: int) -> Prepared:
    """Loads a workload into this process, which then belongs to the engine."""
    global _loaded
    # Exporters and compilers warn of much that says nothing about the result.
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    # Parameters need no gradients in evaluation; Inductor freezes only where none are recorded.
    torch.set_grad_enabled(False)
    module, inputs = _built(workload, batch, reduced)
    _loaded = engine.load(module, inputs, threads)
    results = _loaded.results()
    _loaded.call()
    spent_s = []
    for _ in range(3):
        begin = time.perf_counter()
        _loaded.call()
        spent_s.append(time.perf_counter() - begin)
    return Prepared(results, _loaded.facts, min(spent_s))


def take_turn(block: int) -> list[float]:
    """Seconds of each of ``block`` calls, after one that is not counted."""
    assert _loaded is not None, "prepare comes first"
    return timing.take_turn(_loaded.call, block)


def rules() -> list[str]:
    """Names of the rules that the loaded program rests on."""
    assert _loaded is not None, "prepare comes first"
    return list(_loaded.rules())


def reference(workload: str, batch: int, reduced: bool) -> Arrays:
    """The results of torch eager in float64, which every engine is held against."""
    module, inputs = _built(workload, batch, reduced)
    with torch.no_grad():
        exact = (x.double() if x.is_floating_point() else x for x in inputs)
        return _arrays(module.double()(*exact))


def _built(workload: str, batch: int, reduced: bool) -> tuple[nn.Module, Inputs]:
    chosen = MEASURED[workload]
    return chosen.reduced() if reduced else chosen.build(batch)


def _arrays(results: object) -> Arrays:
    return [leaf.detach().numpy().copy() for leaf in tree_leaves(results)]


# ---- engines ------------------------------------------------------------------------------------


def load_eqsynth(module: nn.Module, inputs: Inputs, threads: int) -> Loaded:
    """This project, with the engines that are installed."""
    return _optimized(module, inputs, None)


def load_native(module: nn.Module, inputs: Inputs, threads: int) -> Loaded:
    """This project without engines: vendor operators and generated kernels."""
    return _optimized(module, inputs, ())


def _optimized(module: nn.Module, inputs: Inputs, engines: tuple[str, ...] | None) -> Loaded:
    """A program of eqsynth's; the facts are those of its report."""
    import eqsynth
    from eqsynth.lower.engines.table import ENGINES as REGION_ENGINES

    begin = time.perf_counter()
    program = eqsynth.optimize(module, inputs, engines=engines, progress=False)
    report = program.report
    return Loaded(
        call=lambda: program(*inputs),
        results=lambda: _arrays(program(*inputs)),
        facts={
            "optimize_s": time.perf_counter() - begin,
            "flops_before": report.flops_before,
            "flops_after": report.flops_after,
            "backend": report.backend,
            "reason": report.reason,
            "foreign_share": sum(report.shares.get(name, 0.0) for name in REGION_ENGINES),
        },
        rules=lambda: rules_by_use(program),
    )


def load_eager(module: nn.Module, inputs: Inputs, threads: int) -> Loaded:
    """The module as it is."""
    return Loaded(lambda: module(*inputs), lambda: _arrays(module(*inputs)))


def load_inductor(module: nn.Module, inputs: Inputs, threads: int) -> Loaded:
    """torch.compile with frozen weights: folded, and packed for oneDNN."""
    from torch._inductor import config

    config.freezing = True
    # A pool of compiling processes would still be there while the others are timed.
    config.compile_threads = 1
    compiled = torch.compile(module)
    return Loaded(lambda: compiled(*inputs), lambda: _arrays(compiled(*inputs)))


def load_onnxruntime(module: nn.Module, inputs: Inputs, threads: int) -> Loaded:
    """ONNX Runtime's CPU provider, every graph optimization on, inputs and results bound."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as directory:
        session = onnxruntime.InferenceSession(
            _onnx_file(module, inputs, directory), options, providers=["CPUExecutionProvider"]
        )
    binding = session.io_binding()
    # The binding holds addresses: `values` has to live as long as the calls, so `results` holds it.
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(x.numpy()) for x in inputs]
    for place, value in zip(session.get_inputs(), values, strict=True):
        binding.bind_ortvalue_input(place.name, value)
    for place in session.get_outputs():
        binding.bind_output(place.name, "cpu")

    def results(_alive: object = values) -> Arrays:
        session.run_with_iobinding(binding)
        return [np.array(value) for value in binding.copy_outputs_to_cpu()]

    return Loaded(partial(session.run_with_iobinding, binding), results)


def load_openvino(module: nn.Module, inputs: Inputs, threads: int) -> Loaded:
    """OpenVINO's CPU plugin, for latency, in fp32: by default it may take bfloat16."""
    import openvino

    core = openvino.Core()
    with tempfile.TemporaryDirectory() as directory:
        compiled = core.compile_model(
            core.read_model(_onnx_file(module, inputs, directory)),
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "f32",
                "INFERENCE_NUM_THREADS": threads,
                "PERFORMANCE_HINT": "LATENCY",
            },
        )
    request = compiled.create_infer_request()
    # The request holds addresses: `arrays` has to live as long as the calls, so `results` holds it.
    arrays = [x.numpy() for x in inputs]
    for place, array in enumerate(arrays):
        request.set_input_tensor(place, openvino.Tensor(array, shared_memory=True))

    def results(_alive: object = arrays) -> Arrays:
        request.infer()
        return [np.array(request.get_output_tensor(k).data) for k in range(len(compiled.outputs))]

    return Loaded(partial(request.infer, share_outputs=True), results)


def load_ncnn(module: nn.Module, inputs: Inputs, threads: int) -> Loaded:
    """ncnn with its Winograd kernels, in fp32: by default it stores half precision."""
    import ncnn
    import pnnx

    net = ncnn.Net()
    net.opt.num_threads = threads
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage", "bf16_packed"):
        setattr(net.opt, f"use_{name}", False)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        torch.jit.trace(module, inputs).save(str(path / "model.pt"))
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

    # What ncnn gives has no axis of batches.
    return Loaded(call, lambda: [np.array(value)[None] for value in call()])


def load_mnn(module: nn.Module, inputs: Inputs, threads: int) -> Loaded:
    """MNN with its Winograd kernels, in fp32.

    The converter is called as the extension that it is: the package around it, ``MNN.tools``, runs
    ``pip install`` when it is imported, and reports what was converted.
    """
    import _tools
    import MNN
    import onnx

    with tempfile.TemporaryDirectory() as directory:
        source, file = _onnx_file(module, inputs, directory), f"{directory}/model.mnn"
        graph = onnx.load(source, load_external_data=False).graph
        _tools.mnnconvert(["", "-f", "ONNX", "--modelFile", source, "--MNNModel", file,
                           "--bizCode", "benchmark"])  # fmt: skip
        settings = {"backend": "CPU", "precision": "high", "memory": "high", "power": "high",
                    "numThread": threads}  # fmt: skip
        net = MNN.nn.load_module_from_file(
            file, [value.name for value in graph.input], [value.name for value in graph.output],
            runtime_manager=MNN.nn.create_runtime_manager((settings,)),
        )  # fmt: skip
    values = [MNN.expr.const(x.numpy(), list(x.shape), MNN.expr.NCHW) for x in inputs]

    def call() -> Arrays:
        # Nothing is computed before a result is read.
        return [value.read() for value in net.forward(values)]

    return Loaded(call, lambda: [np.array(value) for value in call()])


def _convolves_one(workload: Measured, batch: int) -> bool:
    """Whether a workload has convolutions, and no batch: what engines for phones are made for."""
    convolutions = (nn.Conv2d, nn.ConvTranspose2d)
    layers = workload.reduced()[0].modules()
    return batch == 1 and any(isinstance(layer, convolutions) for layer in layers)


def _onnx_file(module: nn.Module, inputs: Inputs, directory: str) -> str:
    """The module as an ONNX file in a directory."""
    path = Path(directory) / "model.onnx"
    torch.onnx.export(module, inputs, path, verbose=False)
    return str(path)


_EXPORT: Final = ("onnx", "onnxscript")

ENGINES: Final = (
    Engine(OURS, load_eqsynth),
    Engine("eager", load_eager),
    Engine("inductor", load_inductor),
    Engine("onnxruntime", load_onnxruntime, ("onnxruntime", *_EXPORT), ("onnxruntime", *_EXPORT)),
    Engine("openvino", load_openvino, ("openvino", *_EXPORT), ("openvino", *_EXPORT)),
    Engine("ncnn", load_ncnn, ("ncnn", "pnnx"), ("ncnn", "pnnx"), _convolves_one),
    Engine("mnn", load_mnn, ("MNN", "_tools", *_EXPORT), ("mnn", *_EXPORT), _convolves_one),
)
WITHOUT_ENGINES: Final = Engine(NATIVE, load_native)
