"""Operators of NVIDIA's libraries: what is offered, how operands are passed, TF32. torch's products
and its attention run on the CPU as well; what is cuDNN's is called with a stand-in for it."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from eoperator_cases import laid_out, sample
from gpu_cases import GPU, OF_CUDNN, Cudnn, Driver, load_on_cpu
from test_spaces import CASES

from eqsynth.errors import LoweringError
from eqsynth.extract.kernel import Kernel, channels_last
from eqsynth.extract.measure import measure_cpu_target
from eqsynth.extract.schedule import Grid
from eqsynth.ir.tensor import Input, Op, args_of
from eqsynth.ir.types import TensorType
from eqsynth.lower.cuda import driver, precision
from eqsynth.lower.cuda.backend import GeneratedBackend, architectures, gpu_backends, load_here
from eqsynth.lower.cuda.libraries import Library, libraries, matrices
from eqsynth.lower.cuda.source import source_of
from eqsynth.lower.torch_ops import function_of


def op(name: str, shapes: list[tuple[int, ...]], *attrs: Any, dtype: str = "float32") -> Op:
    args = tuple(Input(str(n), TensorType(shape, dtype)) for n, shape in enumerate(shapes))
    return Op(name, args, attrs)


def library(name: str) -> Library:
    return next(one for one in libraries(GPU) if one.name == name)


def offered(name: str, term: Op) -> list[Kernel]:
    return list(library(name).kernels(term, (False,) * len(args_of(term))))


def check(name: str, term: Op) -> list[Kernel]:
    """Every kernel of a library gives what torch gives, of operands in the kernel's layouts."""
    kernels = offered(name, term)
    values = [sample(arg.shape, arg.dtype, n) for n, arg in enumerate(args_of(term))]
    expected = function_of(term, {})(*values)
    for kernel, run in zip(kernels, library(name).build([(k, {}) for k in kernels]), strict=True):
        assert run is not None
        got = run(*map(laid_out, values, kernel.inputs))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    return kernels


PRODUCTS = [
    ("cublas", op("Matmul", [(5, 7), (7, 6)]), 4),
    ("cublas", op("Matmul", [(3, 5, 7), (3, 7, 6)]), 4),
    # Rows of a stack.
    ("cublas", op("Matmul", [(3, 5, 7), (7, 6)]), 2),
    ("cublas", op("Matmul", [(2, 3, 5, 7), (7, 6)]), 2),
    # One sequence: heads inside the rows are steps of one length, too.
    ("cublas", op("Matmul", [(1, 3, 5, 7), (1, 3, 7, 6)]), 12),
    # Several: only where the heads are outside.
    ("cublas", op("Matmul", [(2, 3, 5, 7), (2, 3, 7, 6)]), 4),
    ("cublasLt", op("FusedMatmul", [(5, 7), (7, 6), (6,)], "relu"), 4),
    ("cublasLt", op("FusedMatmul", [(5, 7), (7, 6), (6,)], "gelu"), 4),
    ("cublasLt", op("FusedMatmul", [(2, 5, 7), (7, 6), (6,)], "relu"), 2),
    ("cublasLt", op("FusedMatmulAdd", [(5, 7), (7, 6), (6,), (5, 6)], "relu"), 4),
]


@pytest.mark.parametrize(("name", "term", "count"), PRODUCTS, ids=lambda v: str(v)[:40])
def test_products(name: str, term: Op, count: int) -> None:
    assert len(check(name, term)) == count


def test_operands_are_passed_as_they_are() -> None:
    at = matrices((1, 8, 64, 32), (0, 2, 3, 1))
    assert at is None, "neither rows nor columns follow each other"
    keys = matrices((1, 8, 32, 64), (0, 3, 1, 2))
    assert keys is not None and keys.transposed and (keys.leading, keys.step) == (256, 32)
    assert matrices((2, 8, 64, 32), (0, 2, 1, 3)) is None
    plain = matrices((2, 3, 4, 5), (0, 1, 2, 3))
    assert plain is not None and (plain.batch, plain.step, plain.leading) == (6, 20, 5)


def test_a_batched_product_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    term = op("Matmul", [(1, 3, 5, 7), (1, 3, 7, 6)])
    kernel = next(
        k for k in offered("cublas", term) if k.inputs == ((0, 2, 1, 3), (0, 3, 1, 2))
    )
    seen: list[int] = []
    product = torch.bmm

    def bmm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        seen.extend((x.data_ptr(), w.data_ptr()))
        return product(x, w)

    monkeypatch.setattr(torch, "bmm", bmm)
    (run,) = library("cublas").build([(kernel, {})])
    assert run is not None
    given = [laid_out(sample(a.shape, a.dtype, n), at)
             for n, (a, at) in enumerate(zip(term.args, kernel.inputs, strict=True))]  # fmt: skip
    run(*given)
    assert seen == [value.data_ptr() for value in given]


CONVOLUTIONS = [
    op("Conv2d", [(2, 4, 6, 7), (8, 4, 3, 3)], (1, 1), (1, 1), (1, 1), 1),
    op("FusedConv2d", [(2, 4, 6, 7), (8, 2, 3, 3), (8,)], (2, 1), (0, 1), (1, 2), 2, "relu"),
    op("FusedConv2d", [(2, 4, 6, 7), (8, 4, 3, 3), (8,)], (1, 1), (1, 1), (1, 1), 1, "gelu"),
    op("FusedConv2dAdd", [(2, 4, 6, 7), (8, 4, 1, 1), (8,), (2, 8, 6, 7)],
       (1, 1), (0, 0), (1, 1), 1, "relu"),
    op("FusedConv2dAdd", [(2, 4, 6, 7), (8, 4, 1, 1), (8,), (2, 8, 6, 7)],
       (1, 1), (0, 0), (1, 1), 1, "none"),
    op("ConvTranspose2d", [(2, 4, 6, 7), (4, 8, 3, 3)], (2, 2), (1, 1), (1, 1), (1, 1), 1),
]  # fmt: skip


@pytest.mark.parametrize("name", OF_CUDNN)
def test_the_stand_in_takes_what_torch_takes(name: str) -> None:
    """Its arguments are those of torch's own operator, in the same order."""
    schema = getattr(torch.ops.aten, f"cudnn_{name}").default._schema
    known = {"self": "x", "weight": "w", "allow_tf32": "tf32"}
    wanted = [known.get(argument.name, argument.name) for argument in schema.arguments]
    assert list(inspect.signature(getattr(Cudnn(), name)).parameters) == wanted


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> Cudnn:
    return Cudnn.played(monkeypatch)


@pytest.mark.parametrize("term", CONVOLUTIONS, ids=lambda t: f"{t.name} {t.attrs[-1]}")
def test_convolutions(term: Op, cudnn: Cudnn) -> None:
    kernels = check("cudnn", term)
    assert [k.output for k in kernels] == [channels_last(4), (0, 1, 2, 3)]
    assert len(cudnn.tf32) == 4 and not any(cudnn.tf32[::2])


def test_float32_is_float32_unless_numerics_allow_less(cudnn: Cudnn) -> None:
    term = CONVOLUTIONS[1]
    values = [sample(arg.shape, arg.dtype, n) for n, arg in enumerate(args_of(term))]
    before = torch.backends.cudnn.allow_tf32
    for numerics, allowed in (("highest", False), ("high", True)):
        own = Library("cudnn", replace(GPU, numerics=numerics))
        kernel = list(own.kernels(term, (False,) * 3))[1]
        (run,) = own.build([(kernel, {})])
        assert run is not None
        run(*values)
        assert cudnn.tf32[-1] is allowed
        with precision.full(numerics):  # as the check asks
            run(*values)
        assert cudnn.tf32[-1] is False
    assert torch.backends.cudnn.allow_tf32 is before


def test_an_operator_that_is_told_is_told_so_in_a_check(cudnn: Cudnn) -> None:
    own, term = Library("cudnn", replace(GPU, numerics="high")), CONVOLUTIONS[0]
    values = [sample(arg.shape, arg.dtype, n) for n, arg in enumerate(args_of(term))]
    kernel = list(own.kernels(term, (False,) * 2))[1]
    (run,) = own.build([(kernel, {})])
    assert run is not None
    for told, seen in (("highest", True), ("high", False)):
        with precision.full(told):
            run(*values)
        assert cudnn.tf32[-2] is seen


@pytest.fixture
def switches() -> Iterator[None]:
    """torch's switches, as they were again at the end."""
    before = [(home, home.fp32_precision) for home in (precision.PRODUCTS, precision.CONVOLUTIONS)]
    yield
    for home, value in before:
        home.fp32_precision = value


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("told", ["highest", "high"])
def test_a_check_is_in_full_precision(switches: None, newer: bool, told: str) -> None:
    """Whichever of torch's switches the user has set; they are as before afterwards."""
    if newer:
        precision.PRODUCTS.fp32_precision = "tf32"
        with pytest.raises(RuntimeError):  # torch's own: the older ones can't be read any more
            torch.get_float32_matmul_precision()
    homes = precision.PRODUCTS, precision.CONVOLUTIONS
    older = None if newer else torch.backends.cudnn.allow_tf32
    before = [home.fp32_precision == "tf32" for home in homes]
    with precision.full(told):
        assert not any(home.fp32_precision == "tf32" for home in homes)
    assert [home.fp32_precision == "tf32" for home in homes] == before
    if not newer:
        assert torch.backends.cudnn.allow_tf32 is older  # can be read, as before


def test_numerics_under_either_switch(switches: None) -> None:
    assert precision.numerics() == "highest"
    precision.PRODUCTS.fp32_precision = "tf32"
    assert precision.numerics() == "high"
    assert measure_cpu_target().numerics == "highest"


def test_threads_do_not_see_each_others_switches(switches: None) -> None:
    """An operator in full precision stays so, while another thread's is in TF32."""
    seen: list[str] = []
    inside, done = threading.Event(), threading.Event()

    def slow() -> None:
        inside.set()
        done.wait(0.2)  # the other one would begin and end meanwhile
        seen.append(precision.PRODUCTS.fp32_precision)

    one = threading.Thread(target=precision.called, args=(precision.PRODUCTS, True, slow))
    one.start()
    inside.wait()
    precision.called(precision.PRODUCTS, False, lambda: (
        seen.append(precision.PRODUCTS.fp32_precision), done.set()
    ))  # fmt: skip
    one.join()
    assert seen[0] == "tf32" and seen[1] != "tf32"


def test_a_device_has_the_operators_that_its_target_names() -> None:
    less = replace(GPU, operators=(("cudnn", ("Conv2d",)),), layouts=("contiguous",))
    assert [one.name for one in libraries(less)] == ["cudnn"]
    (only,) = libraries(less)
    assert [k.output for k in only.kernels(CONVOLUTIONS[0], (False, True))] == [(0, 1, 2, 3)]
    assert not list(only.kernels(CONVOLUTIONS[1], (False, True, True)))


def test_what_a_library_has_is_not_offered_as_plain_torch() -> None:
    term = op("Matmul", [(5, 7), (7, 6)])
    found = {k.backend for b in gpu_backends(GPU) for k in b.kernels(term, (False, False))}
    assert found == {"cublas"}
    soft = op("Softmax", [(5, 7)], 1)
    assert {k.backend for b in gpu_backends(GPU) for k in b.kernels(soft, (False,))} == {"torch"}


# ---- generated kernels ----------------------------------------------------------------------


@pytest.mark.rotating(parts=4)
def test_a_kernel_is_launched_through_the_driver() -> None:
    case = CASES["along"]
    scope = case.scope
    backend = GeneratedBackend(GPU, load_on_cpu)
    kernels = list(backend.kernels(scope, (False,)))
    assert {k.backend for k in kernels} == {"cuda"} and len(kernels) > 2
    value = sample((70, 150), "float32")
    for kernel, run in zip(kernels, backend.build([(k, {}) for k in kernels]), strict=True):
        assert run is not None
        got = run(laid_out(value, kernel.inputs[0]))
        torch.testing.assert_close(got, value.sum(1), rtol=1e-5, atol=1e-4)


@pytest.mark.rotating
def test_vectors_begin_where_they_may() -> None:
    kernel = CASES["map"].kernel(Grid(256, vector=4))
    backend = GeneratedBackend(GPU, load_on_cpu)
    (run,) = backend.build([(kernel, {})])
    assert run is not None
    # A GPU doesn't read vectors there, and the driver that is played refuses.
    value = sample((70 * 150 + 1,), "float32")[1:].view(70, 150)
    expected = torch.nn.functional.silu(value)
    torch.testing.assert_close(run(value), expected, rtol=1e-5, atol=1e-5)
    (run,) = backend.build([(replace(kernel, constants=(True,)), {0: value})])
    assert run is not None
    torch.testing.assert_close(run(), expected, rtol=1e-5, atol=1e-5)


def test_a_kernel_that_is_only_planned_refuses_to_run() -> None:
    (run,) = GeneratedBackend(GPU).build([(CASES["map"].kernel(Grid(256)), {})])
    assert run is not None
    with pytest.raises(LoweringError, match="only planned"):
        run(sample((70, 150), "float32"))


def test_the_driver_refuses() -> None:
    kernel = CASES["map"].kernel(Grid(256))
    module = driver.Module(b"", Driver(source_of({kernel: "k"})))
    with pytest.raises(LoweringError) as caught:
        module.function("another")
    assert caught.value.got == "error 500" and caught.value.where == "another"


def test_a_kernel_is_launched_from_a_thread_that_has_no_context() -> None:
    """Memory from torch's cache takes no call of CUDA that would give it one."""
    case = CASES["map"]
    (run,) = GeneratedBackend(GPU, load_on_cpu).build([(case.kernel(Grid(256)), {})])
    assert run is not None
    value, got = sample((70, 150), "float32"), list[torch.Tensor]()
    thread = threading.Thread(target=lambda: got.append(run(value)))
    thread.start()
    thread.join()
    torch.testing.assert_close(got[0], torch.nn.functional.silu(value), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not driver.missing(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_is_missing() -> None:
    with pytest.raises(LoweringError) as caught:
        load_here(source_of({CASES["map"].kernel(Grid(256)): "k"}))
    assert caught.value.got == driver.missing() != ""


def test_architectures_of_a_target() -> None:
    assert architectures(GPU) == ("sm_80", "sm_90")
    hopper = replace(GPU, device=replace(GPU.device, isa=("sm_90",)))
    assert architectures(hopper) == ("sm_90",)
    assert architectures(replace(GPU, device=replace(GPU.device, isa=()))) == ("sm_80", "sm_90")


# ---- on a GPU -------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize(("name", "term"), [
    *((name, term) for name, term, _ in PRODUCTS), *(("cudnn", term) for term in CONVOLUTIONS)
], ids=lambda v: str(v)[:40])  # fmt: skip
def test_libraries_on_the_device(name: str, term: Op) -> None:
    kernels = offered(name, term)
    values = [sample(arg.shape, arg.dtype, n) for n, arg in enumerate(args_of(term))]
    expected = function_of(term, {})(*values)
    for kernel, run in zip(kernels, library(name).build([(k, {}) for k in kernels]), strict=True):
        assert run is not None
        got = run(*(laid_out(v, at).cuda() for v, at in zip(values, kernel.inputs, strict=True)))
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.cuda
@pytest.mark.parametrize("name", sorted(CASES))
def test_generated_kernels_on_the_device(name: str) -> None:
    scope = CASES[name].scope
    backend = GeneratedBackend(GPU, load_here)
    kernels = list(backend.kernels(scope, (False,) * len(args_of(scope))))
    values = [sample(arg.shape, arg.dtype, n) for n, arg in enumerate(args_of(scope))]
    expected = function_of(scope, {})(*values)
    for kernel, run in zip(kernels, backend.build([(k, {}) for k in kernels]), strict=True):
        assert run is not None
        got = run(*(laid_out(v, at).cuda() for v, at in zip(values, kernel.inputs, strict=True)))
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-3)
