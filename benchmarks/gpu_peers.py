"""The engines that run a workload on a GPU: eqsynth, torch eager, torch.compile, and CUDA graphs.

    python -m benchmarks.bench_peers --device cuda

A timed call ends when the device has finished. Products and convolutions are computed in float32
without TF32, since every result is checked. Engines for the CPU are in ``peers.py``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map_only

from eqsynth import peers
from eqsynth.lower.cuda import driver, nvrtc
from eqsynth.peers import OURS, Engine, Given, Loaded, arrays

# The number of calls before a CUDA graph is captured. Libraries choose their algorithms in the
# first calls.
_WARM_CALLS: Final = 3


RESULTS: Final = Path(__file__).parent / "results"
"""The default folder of results, with a file for each device."""


def missing() -> list[str]:
    """What is missing for measurements on a GPU: the device, the compiler of eqsynth's kernels, or
    that of Inductor's."""
    lacking = driver.missing()
    found = [f"{lacking}: run this where a GPU is, with a build of torch for it"] if lacking else []
    if not nvrtc.available():
        found.append("nvrtc isn't installed: pip install 'eqsynth[cuda]'")
    if not lacking and importlib.util.find_spec("triton") is None:
        found.append("triton, which torch.compile needs on a GPU, isn't installed")
    return found


def loaded_on(
    device: str, load: Callable[[Given, int], Loaded], given: Given, threads: int
) -> Loaded:
    """The model as an engine compiles it for a device; a call waits until the device is done."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def moved(tree: Any) -> Any:
        return tree_map_only(torch.Tensor, lambda x: x.to(device), tree)

    found = load(
        Given(given.module.to(device), moved(given.args), moved(dict(given.kwargs))), threads
    )
    if torch.device(device).type == "cpu":
        return found

    def call() -> object:
        result = found.call()
        torch.cuda.synchronize()
        return result

    return replace(found, call=call)


def load_compiled(mode: str, given: Given, threads: int) -> Loaded:
    """torch.compile with frozen weights.

    Args:
        mode: ``max-autotune`` records CUDA graphs, ``max-autotune-no-cudagraphs`` doesn't.
    """
    from torch._inductor import config

    config.freezing = True
    # Without this, Inductor's compiling processes would still run while other engines are timed.
    config.compile_threads = 1
    call = given.caller(torch.compile(given.module, mode=mode))
    return Loaded(call, lambda: arrays(call()))


def load_graph(given: Given, threads: int) -> Loaded:
    """torch eager, recorded once as a CUDA graph and replayed."""
    call = given.caller(given.module)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def results() -> peers.Arrays:
        graph.replay()
        torch.cuda.synchronize()
        return arrays(result)

    return Loaded(graph.replay, results)


def engines(device: str) -> tuple[Engine, ...]:
    """The engines for a kind of device."""
    loads: dict[str, Callable[[Given, int], Loaded]] = {
        OURS: peers.load_eqsynth,
        "eager": peers.load_eager,
        "eager, CUDA graph": load_graph,
        "inductor": partial(load_compiled, "max-autotune-no-cudagraphs"),
        "inductor, CUDA graphs": partial(load_compiled, "max-autotune"),
    }
    return tuple(Engine(name, partial(loaded_on, device, load)) for name, load in loads.items())
