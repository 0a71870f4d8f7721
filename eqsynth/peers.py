"""The engines that can run a model: eqsynth, and the alternatives that a user has (torch eager,
Inductor, ONNX Runtime, OpenVINO).

Each engine runs in a process of its own (``executor.Worker``). The process is asked to ``prepare``
a model once, and to ``take_turn`` whenever the engine is to be timed. Reasons for one process each:

- An engine's settings (Inductor's ``freezing`` is global), thread pools and allocator don't affect
  other engines. Several OpenMP runtimes and TBB in one process would neither be fair nor be what a
  user has.
- An engine that crashes, hangs or can't run the model loses its own column only.
- The clock runs in the engine's process, so no sample includes the pipe between processes.

All engines use the same number of threads, and are called in their fastest ordinary way: inputs in
place, results left where the engine puts them. Not here: the order of turns (``side_by_side.py``).
"""

from __future__ import annotations

import importlib.util
import logging
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from eqsynth.extract import timing
from eqsynth.extract.target import CPU
from eqsynth.ir.tensor import Tensor
from eqsynth.lower.bundle import load
from eqsynth.lower.engines.table import ENGINES as REGION_ENGINES
from eqsynth.lower.holders import Opening, holds
from eqsynth.lower.program import CompiledProgram
from eqsynth.pipeline import optimize

Arrays = list[np.ndarray[Any, Any]]

OURS: Final = "eqsynth"


@dataclass(frozen=True)
class Given:
    """A model, and the arguments that it is timed with.

    Attributes:
        onnx: the model's own ONNX file, if the model was read from one.
    """

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    onnx: Path | None = None

    def caller(self, function: Callable[..., Any]) -> Callable[[], Any]:
        """Return a function without arguments that calls ``function`` as the model is called.
        Arguments that a call changes (a KV cache that grows) are copied before each call, for every
        engine."""
        given = self.args, dict(self.kwargs)
        if not holds(given):
            return lambda: function(*self.args, **self.kwargs)

        def call() -> Any:
            opened = Opening().opened(given)
            args, kwargs = Opening().closed(tree_map_only(torch.Tensor, torch.clone, opened))
            return function(*args, **kwargs)

        return call

    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments, in their order."""
        leaves = tree_leaves((self.args, dict(self.kwargs)))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


Build = Callable[[], Given]
"""A function that makes the model, the same one in each process: a module-level function, or a
``partial`` of one."""


@dataclass(frozen=True)
class Loaded:
    """A model that one engine has loaded.

    Attributes:
        call: runs the model once; this function is timed.
        results: runs the model once, and returns its results as a flat list.
        facts: figures of the preparation, as plain data.
        rules: returns the rules of the derivation, if the engine has one.
    """

    call: Callable[[], object]
    results: Callable[[], Arrays]
    facts: Mapping[str, Any] = field(default_factory=dict)
    rules: Callable[[], Sequence[str]] = tuple


@dataclass(frozen=True)
class Engine:
    """An engine by name. Its function ``load(given, threads)`` runs in the engine's process.

    Attributes:
        modules: what must be importable for the engine to count as installed.
        packages: distributions whose versions are shown with the results.
    """

    name: str
    load: Callable[[Given, int], Loaded]
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        return all(importlib.util.find_spec(module) is not None for module in self.modules)


@dataclass(frozen=True)
class Prepared:
    """The answer of an engine that is ready: its results, and ``once_s``, the time of a call after
    warming up."""

    results: Arrays
    facts: Mapping[str, Any]
    once_s: float


# ---- tasks, run in the engine's process ---------------------------------------------------------

_loaded: Loaded | None = None


def prepare(engine: Engine, build: Build, threads: int) -> Prepared:
    """Load a model into this process, which belongs to this engine from now on."""
    global _loaded
    # The warnings of exporters and compilers don't concern the result.
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    # Parameters need no gradients in evaluation; Inductor freezes only where none are recorded.
    torch.set_grad_enabled(False)
    _loaded = engine.load(build(), threads)
    results = _loaded.results()
    _loaded.call()
    spent_s = []
    for _ in range(3):
        begin = time.perf_counter()
        _loaded.call()
        spent_s.append(time.perf_counter() - begin)
    return Prepared(results, _loaded.facts, min(spent_s))


def take_turn(block: int) -> list[float]:
    """Return the seconds of each of ``block`` calls. One call before them isn't counted."""
    assert _loaded is not None, "prepare comes first"
    return timing.take_turn(_loaded.call, block)


def rules() -> list[str]:
    """The names of the rules that the loaded program was derived by."""
    assert _loaded is not None, "prepare comes first"
    return list(_loaded.rules())


def reference(build: Build) -> Arrays:
    """Return the results of torch eager in float64, against which every engine is checked."""
    given = build()

    def exact(x: torch.Tensor) -> torch.Tensor:
        return x.double() if x.is_floating_point() else x

    with torch.no_grad():
        opened = Opening().opened((given.args, dict(given.kwargs)))
        args, kwargs = Opening().closed(tree_map_only(torch.Tensor, exact, opened))
        return arrays(given.module.double()(*args, **kwargs))


def arrays(results: object) -> Arrays:
    """Copy the tensors of a result to NumPy arrays. bfloat16, which NumPy lacks, is converted to
    float32."""
    leaves = tree_leaves(Opening().opened(results))
    tensors = (leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor))
    return [(x.float() if x.dtype == torch.bfloat16 else x).cpu().numpy().copy() for x in tensors]


# ---- engines ------------------------------------------------------------------------------------


def load_eqsynth(
    given: Given,
    threads: int,
    engines: tuple[str, ...] | None = None,
    time_limit_s: float = 120.0,
) -> Loaded:
    """Optimize by eqsynth, with the installed engines or with the named ones. The facts come from
    the report."""
    begin = time.perf_counter()
    program = optimize(
        given.module, given.args, example_kwargs=dict(given.kwargs) or None, engines=engines,
        time_limit_s=time_limit_s, progress=False,
    )  # fmt: skip
    optimize_s = time.perf_counter() - begin
    report, call = program.report, given.caller(program)
    return Loaded(
        call=call,
        results=lambda: arrays(call()),
        facts={
            "optimize_s": optimize_s,
            "flops_before": report.flops_before,
            "flops_after": report.flops_after,
            "backend": report.backend,
            "reason": report.reason,
            "foreign_share": sum(report.shares.get(name, 0.0) for name in REGION_ENGINES),
        },
        rules=lambda: rules_by_use(program),
    )


def load_written(given: Given, threads: int, path: Path) -> Loaded:
    """Load a program that ``eqsynth optimize`` has written. It has no facts, since its report is
    saved as text."""
    call = given.caller(load(path))
    return Loaded(call, lambda: arrays(call()))


# Steps that every derivation has, and that say nothing of this one: definitions and canonical
# forms.
_EVERYDAY = frozenset({"definition", "view", "reduction", "canonical-form", "derived-form"})


def rules_by_use(program: CompiledProgram) -> tuple[str, ...]:
    """The rules of the derivation of the result, the most used first, without those of
    ``_EVERYDAY``."""
    # Counted in the lemmas and not in the chain of programs, which is too long to be written out
    # for an unrolled network.
    lemmas = getattr(program.explain(), "lemmas", ())
    tensors = (lemma for lemma in lemmas if isinstance(lemma.terms[0], Tensor))
    used = Counter(link.rule for lemma in tensors for link in lemma.links if link.rule)
    return tuple(rule for rule, _ in used.most_common() if rule not in _EVERYDAY)


def load_eager(given: Given, threads: int) -> Loaded:
    """Run the module by torch eager."""
    call = given.caller(given.module)
    return Loaded(call, lambda: arrays(call()))


def load_inductor(given: Given, threads: int) -> Loaded:
    """Compile by ``torch.compile`` with frozen weights: they are folded, and packed for oneDNN."""
    from torch._inductor import config

    config.freezing = True
    # A pool of compiling processes would still be there while the others are timed.
    config.compile_threads = 1
    call = given.caller(torch.compile(given.module))
    return Loaded(call, lambda: arrays(call()))


def load_onnxruntime(given: Given, threads: int) -> Loaded:
    """Load into ONNX Runtime's CPU provider, with all graph optimizations, and with inputs and
    results bound."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as directory:
        session = onnxruntime.InferenceSession(
            onnx_file(given, directory), options, providers=["CPUExecutionProvider"]
        )
    binding = session.io_binding()
    # The binding holds addresses: `values` has to live as long as the calls, so `results` holds it.
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(x.numpy()) for x in given.tensors()]
    for place, value in zip(session.get_inputs(), values, strict=True):
        binding.bind_ortvalue_input(place.name, value)
    for place in session.get_outputs():
        binding.bind_output(place.name, CPU)

    def results(_alive: object = values) -> Arrays:
        session.run_with_iobinding(binding)
        return [np.array(value) for value in binding.copy_outputs_to_cpu()]

    return Loaded(partial(session.run_with_iobinding, binding), results)


def load_openvino(given: Given, threads: int) -> Loaded:
    """Load into OpenVINO's CPU plugin, for latency and in float32: by default it may compute in
    bfloat16."""
    import openvino

    core = openvino.Core()
    with tempfile.TemporaryDirectory() as directory:
        compiled = core.compile_model(
            core.read_model(onnx_file(given, directory)),
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "f32",
                "INFERENCE_NUM_THREADS": threads,
                "PERFORMANCE_HINT": "LATENCY",
            },
        )
    request = compiled.create_infer_request()
    # The request holds addresses: `values` has to live as long as the calls, so `results` holds it.
    values = [x.numpy() for x in given.tensors()]
    for place, array in enumerate(values):
        request.set_input_tensor(place, openvino.Tensor(array, shared_memory=True))

    def results(_alive: object = values) -> Arrays:
        request.infer()
        return [np.array(request.get_output_tensor(k).data) for k in range(len(compiled.outputs))]

    return Loaded(partial(request.infer, share_outputs=True), results)


def onnx_file(given: Given, directory: str) -> str:
    """Return the path of the model's own ONNX file, or of one that torch exports into
    ``directory``."""
    if given.onnx is not None:
        return str(given.onnx)
    path = Path(directory) / "model.onnx"
    torch.onnx.export(
        given.module, given.args, path, kwargs=dict(given.kwargs) or None, verbose=False
    )
    return str(path)


EXPORT: Final = ("onnx", "onnxscript")
"""The packages that torch's export to ONNX needs."""

ENGINES: Final = (
    Engine(OURS, load_eqsynth),
    Engine("eager", load_eager),
    Engine("inductor", load_inductor),
    Engine("onnxruntime", load_onnxruntime, ("onnxruntime", *EXPORT), ("onnxruntime", *EXPORT)),
    Engine("openvino", load_openvino, ("openvino", *EXPORT), ("openvino", *EXPORT)),
)
