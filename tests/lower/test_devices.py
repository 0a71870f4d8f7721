"""Programs on a GPU: the device is a parameter of the tests, a real one (marked ``cuda``, skipped
where there is none) or one that the CPU plays (``played.py``; slow)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from eoperator_cases import array, assert_close, sample  # noqa: E402, I001
from test_spaces import CASES  # noqa: E402

import eqsynth
from benchmarks.workloads import MEASURED
from eqsynth.extract.kernel import strides
from eqsynth.extract.target import CUDA
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import args_of
from eqsynth.lower.backends import backends_of, target_here, time_kernels
from eqsynth.lower.cuda.spaces import offered
from tests.played import a_gpu

PLAYED = "played"
SUITES = ("algebra", "kernels", "nets")
# On the CPU a convolution of cuDNN isn't played, nor are minutes of it worth a test.
ON_CPU = ("factor", "gnn", "linear_attention", "softmax", "nasrnn")
GPU = pytest.mark.cuda
WORKLOADS = [
    *(pytest.param(CUDA, w.name, marks=GPU) for w in MEASURED.values() if w.suite in SUITES),
    *(pytest.param(PLAYED, name, marks=pytest.mark.slow) for name in ON_CPU),
]


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    played = request.getfixturevalue("on") == PLAYED
    with a_gpu() if played else nullcontext():
        yield torch.device("cpu" if played else CUDA)


@pytest.mark.parametrize(("on", "name"), WORKLOADS)
def test_a_program_is_the_module(
    on: str, name: str, device: torch.device, tmp_path: Path
) -> None:
    """Found by times on a GPU, by FLOPs where it is played; and after it was carried in a file."""
    module, inputs = MEASURED[name].reduced()
    module, inputs = module.to(device), tuple(x.to(device) for x in inputs)
    objective = "flops" if on == PLAYED else "time"
    found = eqsynth.optimize(module, inputs, target=CUDA, objective=objective, time_limit_s=30)
    programs = [found]
    if on != PLAYED and found.original is None:
        eqsynth.save(found, tmp_path / "program.eqsynth")
        programs.append(eqsynth.load(tmp_path / "program.eqsynth"))
    with torch.no_grad():
        expected = module(*inputs)
        for program in programs:
            for _ in range(2):  # the second call is a recording
                torch.testing.assert_close(program(*inputs), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.cuda
@pytest.mark.parametrize("on", [CUDA])
@pytest.mark.parametrize("name", sorted(CASES))
def test_generated_kernels(on: str, name: str, device: torch.device) -> None:
    case, target = CASES[name], target_here(CUDA)
    nest = case.nest()
    kernels = [case.kernel(schedule) for schedule in offered(nest, True) + offered(nest, False)]
    args = args_of(kernels[0].term)
    values = [sample(arg.shape, arg.dtype, n) for n, arg in enumerate(args)]
    named = {arg.label: array(value) for arg, value in zip(args, values, strict=True)}
    expected: np.ndarray = evaluate(kernels[0].term, named)
    (generated,) = (b for b in backends_of(target) if b.name == CUDA)
    for kernel, run in zip(kernels, generated.build([(k, {}) for k in kernels]), strict=True):
        assert run is not None
        given = [
            torch.empty_strided(v.shape, strides(tuple(v.shape), at), dtype=v.dtype, device=device)
            .copy_(v) for v, at in zip(values, kernel.inputs, strict=True)
        ]  # fmt: skip
        got = array(run(*given).cpu())
        assert_close(got, expected, kernel.term.dtype, case.tolerance, kernel)
    assert all(timing is not None for _, timing in time_kernels(kernels, 1, target=target))


@pytest.mark.cuda
def test_a_gpu_is_measured() -> None:
    target = target_here(CUDA, again=True)
    second, memory = target.levels
    assert second.bandwidth_bytes_per_s >= memory.bandwidth_bytes_per_s > 1e11
    assert dict(target.flops_per_s)["float16"] > dict(target.flops_per_s)["float32"] > 1e12
