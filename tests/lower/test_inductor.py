"""Regions on Inductor: values, several outputs, memory of their own, what is refused."""

from __future__ import annotations

import torch

from eqsynth.extract.kernel import Kernel
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Input, Op, Region, Tensor
from eqsynth.ir.types import TensorType
from eqsynth.lower.inductor import InductorBackend
from eqsynth.lower.kernel_data import kernel_from_data, kernel_to_data
from eqsynth.lower.torch_backend import TorchBackend


def _in(n: int, *shape: int) -> Input:
    return Input(str(n), TensorType(shape, "float32"))


def _region(*outputs: Tensor, args: int) -> Region:
    shapes = [(4, 8), (8, 8), (8,)]
    return Region(outputs, tuple(_in(n, *shapes[n]) for n in range(args)))


def _linear() -> Tensor:
    return Op("Add", (Op("Matmul", (_in(0, 4, 8), _in(1, 8, 8))), _in(2, 8)))


def _kernel(region: Region, *constants: bool) -> Kernel:
    (kernel,) = InductorBackend().kernels(region, constants)
    return kernel


def test_a_region_computes_what_its_terms_say() -> None:
    h = _linear()
    region = _region(Op("Relu", (h,)), Op("Tanh", (h,)), args=3)
    x, w, b = torch.randn(4, 8), torch.randn(8, 8), torch.randn(8)
    (runner,) = InductorBackend().build([(_kernel(region, False, True, True), {1: w, 2: b})])
    assert runner is not None
    first, second = runner(x)
    torch.testing.assert_close(first, torch.relu(x @ w + b))
    torch.testing.assert_close(second, torch.tanh(x @ w + b))
    wanted = evaluate(region, {"0": x.numpy(), "1": w.numpy(), "2": b.numpy()})
    torch.testing.assert_close(first.double(), torch.from_numpy(wanted), rtol=1e-5, atol=1e-5)


def test_results_share_no_memory() -> None:
    """An output that is a view of an argument, and one that is a view of another output."""
    h = Op("Relu", (_in(0, 4, 8),))
    views = [Op("Reshape", (t,), ((32,),)) for t in (_in(0, 4, 8), h)]
    region = _region(h, *views, args=1)
    (runner,) = InductorBackend().build([(_kernel(region, False), {})])
    assert runner is not None
    x = torch.randn(4, 8)
    results = runner(x)
    assert len({t.untyped_storage().data_ptr() for t in (x, *results)}) == 4
    torch.testing.assert_close(results[1], x.reshape(32))


def test_what_is_no_region_and_what_is_opaque_is_left_to_others() -> None:
    opaque = Op("Opaque", (_in(0, 4, 8),), ("sort", (4, 8), "float32"))
    assert not list(InductorBackend().kernels(_linear(), (False,) * 3))
    assert not list(InductorBackend().kernels(_region(opaque, args=1), (False,)))


def test_a_region_is_plain_data() -> None:
    h = _linear()
    kernel = _kernel(_region(Op("Relu", (h,)), Op("Tanh", (h,)), args=3), False, True, True)
    assert kernel_from_data(kernel_to_data(kernel)) == kernel


def test_plain_torch_runs_a_region_too() -> None:
    region = _region(Op("Relu", (_linear(),)), args=3)
    (kernel,) = TorchBackend().kernels(region, (False,) * 3)
    (runner,) = TorchBackend().build([(kernel, {})])
    x, w, b = torch.randn(4, 8), torch.randn(8, 8), torch.randn(8)
    assert runner is not None
    torch.testing.assert_close(runner(x, w, b), torch.relu(x @ w + b))
