"""The TVM backend: what it takes, calls, threads, exported libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from eoperator_cases import (
    it,
    pointwise,
    relu_kernel,
    sample,
    tensor,
)

from eqsynth.errors import LoweringError
from eqsynth.extract.kernel import Kernel, written
from eqsynth.extract.measure import cpu_flags
from eqsynth.extract.schedule import Block, Fold, Rows
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Num, Prod, Read, Sum
from eqsynth.ir.tensor import Scope, Tensor, args_of
from eqsynth.lower.eoperators import prim_func
from eqsynth.lower.loop_nest import is_memory_bound, loop_nest
from eqsynth.lower.tvm_backend import TvmBackend, export_library, runner
from eqsynth.lower.tvm_runtime import load_library
from eqsynth.lower.tvm_target import lacking, target


def test_arguments_that_are_constant_are_bound() -> None:
    x, w, y = (tensor(k, (4,)) for k in range(3))
    i = it(0, 4)
    scope = Scope((4,), (), Sum((Read(x, (i,)), Prod((Read(w, (i,)), Read(y, (i,)))))))
    order = args_of(scope)
    values = dict(zip(order, (sample((4,), "float32", k) for k in range(3)), strict=True))
    kernel = Kernel(scope, (False, True, False), "tvm", ((0,),) * 3, (0,), Rows())
    weight = values[order[1]].repeat_interleave(2)[::2]  # strided: it is packed
    (run,) = TvmBackend().build([(kernel, {1: weight})])
    assert run is not None
    a, _, c = (values[arg] for arg in order)
    expected = evaluate_torch(scope, values)
    torch.testing.assert_close(run(a, c), expected)
    weight.zero_()
    torch.testing.assert_close(run(a, c), expected)


@pytest.mark.rotating
def test_an_error_at_a_prompt_ends_no_processes() -> None:
    """``import tvm`` sets a hook that terminates all children of ``multiprocessing`` after each
    error that Python shows."""
    code = (
        "import sys\n"
        "from eqsynth.lower.tvm_target import imported_tvm\n"
        "assert imported_tvm().__name__ == 'tvm'\n"
        "assert sys.excepthook is sys.__excepthook__\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_kernels_are_of_instructions_that_the_operating_system_tells_of() -> None:
    from tvm.target import codegen

    zen4 = ["64bit", "avx", "avx2", "avx512f", "avx512vbmi2", "bmi", "lzcnt", "sse4.1"]
    masked = {"abm", "avx", "avx2", "bmi1", "sse4_1"}
    assert lacking(zen4, masked) == ["avx512f", "avx512vbmi2"]
    assert lacking(zen4, masked | {"avx512f", "avx512_vbmi2"}) == []
    assert lacking(zen4, set()) == []  # a system that doesn't say
    compiled_for = codegen.llvm_get_cpu_features(target())
    assert lacking(map(str, compiled_for), cpu_flags()) == []


def evaluate_torch(scope: Scope, values: Mapping[Tensor, torch.Tensor]) -> torch.Tensor:
    env = {arg.label: value.numpy() for arg, value in values.items()}
    return torch.from_numpy(evaluate(scope, env)).float()


def row_of_one() -> Read:
    return Read(tensor(0, (1, 4)), (it(0, 1), it(1, 4)))


def test_zero_times_what_is_no_number_is_none() -> None:
    """TVM itself takes 0 * x for 0."""
    scope = Scope((1, 4), (), Prod((Num(0.0), row_of_one())))
    kernels = list(TvmBackend().kernels(scope, (False,)))
    values = torch.tensor([[float("nan"), float("inf"), -float("inf"), -3.0]])
    assert kernels
    for run in TvmBackend().build([(kernel, {}) for kernel in kernels]):
        assert run is not None
        torch.testing.assert_close(run(values), 0 * values, equal_nan=True)


def test_arguments_are_checked() -> None:
    scope = Scope((3, 4), (), Read(tensor(0, (3, 4)), (it(0, 3), it(1, 4))))
    kernel = Kernel(scope, (False,), "tvm", ((0, 1),), (0, 1), Rows())
    (run,) = TvmBackend().build([(kernel, {})])
    assert run is not None
    run(torch.zeros(3, 4))
    flat, swapped, wide = torch.zeros(12), torch.zeros(4, 3).T, torch.zeros(3, 4).double()
    same_steps, same_bits = torch.zeros(5, 4), torch.zeros(3, 4, dtype=torch.int32)
    longer = torch.zeros(3, 4, 1)
    for value in (torch.zeros(4, 3), swapped, wide, flat, same_steps, same_bits, longer, 3, None):
        with pytest.raises((ValueError, TypeError)):
            run(value)
    how = written(run)
    assert how is not None
    for given in ((), (torch.zeros(3, 4),), (torch.zeros(3, 4),) * 3, (torch.zeros(3, 4), 0)):
        with pytest.raises(ValueError, match=r"x0: float32\[3, 4\] by steps of 4, 1"):
            how.function(*given)
    (one,) = TvmBackend().build([(replace(kernel, term=Scope((1, 4), (), row_of_one())), {})])
    assert one is not None
    # Where an axis has one element, its stride means nothing.
    assert one(torch.arange(4.0).as_strided((1, 4), (99, 1))).tolist() == [[0, 1, 2, 3]]
    # Memory that no allocator aligned is taken as it is.
    odd = torch.arange(13.0)[1:].view(3, 4)
    assert torch.equal(run(odd), odd)


def test_which_scopes_are_taken() -> None:
    a, b, c = (tensor(position, (64, 64)) for position in range(3))
    i, j, k = it(0, 64), it(1, 64), it(2, 64)
    matmul = Scope((64, 64), (64,), Prod((Read(a, (i, k)), Read(b, (k, j)))))
    assert not is_memory_bound(matmul)
    taken = list(TvmBackend().kernels(matmul, (False, False)))
    assert taken and all(isinstance(kernel.schedule, Block) for kernel in taken)
    far = Scope((64, 64), (64,), Prod((Read(a, (i * 9 + k - 8, k)), Read(b, (k, j)))))
    assert not is_memory_bound(far)
    assert not list(TvmBackend().kernels(far, (False, False)))
    three = Scope((64, 64), (64,), Prod((Read(a, (i, k)), Read(b, (k, j)), Read(c, (k, j)))))
    assert not is_memory_bound(three)
    assert not list(TvmBackend().kernels(three, (False,) * 3))
    # A constant is laid out as the kernel reads it, by neighbours of the result; axes of extent 1
    # have none. What has no neighbours, as one number, is computed by loops.
    by_rows = Scope((64, 64, 1), (64,), Prod((Read(a, (i, it(3, 64))), Read(b, (j, it(3, 64))))))
    found = {k.inputs[1] for k in TvmBackend().kernels(by_rows, (False, True))}
    assert found == {(1, 0)}
    for shape in ((), (1,)):
        at = (it(len(shape), 64), it(len(shape) + 1, 64))
        scope = Scope(shape, (64, 64), Prod((Read(a, at),) * 40))
        assert not is_memory_bound(scope)
        loops = [kernel.schedule for kernel in TvmBackend().kernels(scope, (False,))]
        assert loops and not any(isinstance(schedule, Block) for schedule in loops)
    assert is_memory_bound(Scope((64,), (64,), Read(a, (it(0, 64), it(1, 64)))))
    row = Scope(
        (64,), (64,), Prod((Read(a, (it(0, 64), it(1, 64))), Read(b, (it(0, 64), it(1, 64)))))
    )
    assert is_memory_bound(row)
    assert not list(TvmBackend().kernels(tensor(0, (3,)), ()))


def test_a_kernel_that_does_not_compile_leaves_the_others() -> None:
    scope = pointwise(Read(tensor(0, (8,)), (it(0, 8),)), 8)
    good = Kernel(scope, (False,), "tvm", ((0,),), (0,), Rows())
    bad = replace(good, schedule=Fold(16))
    with pytest.warns(RuntimeWarning, match="left out"):
        runners = TvmBackend().build([(good, {}), (bad, {}), (good, {})])
    assert runners[1] is None
    value = sample((8,), "float32")
    for run in (runners[0], runners[2]):
        assert run is not None and torch.equal(run(value), value)
    with pytest.raises(LoweringError) as error:
        prim_func(loop_nest(scope, [(0,)], (0,)), Fold(16), "k")
    assert error.value.got == "fold16"


LOADED = """
import sys, pathlib, torch
from eqsynth.lower.tvm_runtime import load_library
from eqsynth.lower.tvm_target import lacking, target
data = pathlib.Path(sys.argv[1]).read_bytes()
function = load_library(data)[sys.argv[2]]
x, out = torch.arange(40000.0) - 7, torch.empty(40000)
function(x, out)
assert torch.equal(out, x.relu())
print([name for name in sys.modules if name.split(".")[0] == "tvm"])
"""


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).parent
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": f"{here.parents[1]}{os.pathsep}{here}", **environment},
        capture_output=True,
        text=True,
        timeout=3600,
    )


@pytest.mark.rotating
def test_exported_library_runs_here_and_without_the_compiler(tmp_path: Path) -> None:
    kernels = [relu_kernel(40000), relu_kernel(3)]
    data, names = export_library(kernels)
    module = load_library(data)
    value = sample((3,), "float32")
    run = runner(kernels[1], module[names[kernels[1]]], {})
    assert torch.equal(run(value), value.relu())
    path = tmp_path / "kernels.so"
    path.write_bytes(data)
    done = python(LOADED, str(path), names[kernels[0]])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


AT_ONCE = """
import pathlib, sys
from concurrent.futures import ThreadPoolExecutor
from eqsynth.lower.tvm_runtime import ensure_runtime, load_library
data = pathlib.Path(sys.argv[1]).read_bytes()
def register(_):
    return {ensure_runtime() for _ in range(2000)}
def load(_):
    return {load_library(data)[sys.argv[2]] is not None for _ in range(5)}
with ThreadPoolExecutor(8) as pool:
    found = [task for n in range(24) for task in (pool.submit(register, n), pool.submit(load, n))]
print(set().union(*(task.result() for task in found)))
"""


@pytest.mark.rotating
def test_threads_may_load_libraries_at_once(tmp_path: Path) -> None:
    """TVM keeps its runtime in an array that must not grow while another thread reads it."""
    data, names = export_library([relu_kernel(3)])
    path = tmp_path / "kernels.so"
    path.write_bytes(data)
    (name,) = names.values()
    done = python(AT_ONCE, str(path), name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("{'torch', True}", "{True, 'torch'}")


@pytest.mark.rotating
def test_without_a_c_compiler_tvm_has_its_own_threads(tmp_path: Path) -> None:
    data, names = export_library([relu_kernel(40000)])
    path = tmp_path / "kernels.so"
    path.write_bytes(data)
    (name,) = names.values()
    empty = {"PATH": str(tmp_path), "CC": "", "EQSYNTH_CACHE": str(tmp_path)}
    done = python(LOADED, str(path), name, **empty)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning: TVM kernels run on TVM's own threads") == 1


@pytest.mark.rotating
def test_a_team_smaller_than_asked_for_does_all_the_work(tmp_path: Path) -> None:
    data, names = export_library([relu_kernel(40000)])
    path = tmp_path / "kernels.so"
    path.write_bytes(data)
    limits = {"OMP_NUM_THREADS": "2", "OMP_THREAD_LIMIT": "1"}
    done = python(LOADED, str(path), *names.values(), **limits)
    assert done.returncode == 0, done.stderr


def test_a_library_that_is_none_is_refused() -> None:
    with pytest.raises(LoweringError) as error:
        load_library(b"no library")
    assert error.value.hint


@pytest.mark.rotating
def test_kernels_run_on_the_threads_of_torch() -> None:
    code = """
import os, torch
from eoperator_cases import relu_kernel
from eqsynth.lower.tvm_backend import TvmBackend
torch.set_num_threads(2)
(run,) = TvmBackend().build([(relu_kernel(1 << 20), {})])
x = torch.randn(1 << 20)
torch.relu(x)
before = len(os.listdir("/proc/self/task"))
run(x)
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0"


def test_many_threads_may_call_one_kernel() -> None:
    (run,) = TvmBackend().build([(relu_kernel(40000), {})])
    assert run is not None
    values = [sample((40000,), "float32", seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for value, got in zip(values * 5, pool.map(run, values * 5), strict=True):
            assert torch.equal(got, value.relu())
